"""Records of collective calls by which the contract's checks ask the detectors of this room."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainwarden.records import CollectivesRecord

Sent = tuple[float, CollectivesRecord]
_JOB: Final = "job"
_START_S: Final = 1_000_000.0
_RANKS, _GROUP, _STEPS, _SICK_FROM = 16, 4, 60, 30
_BYTES: Final = (1 << 22, 1 << 24)


def late_rank_records(sick: bool) -> list[Sent]:
    """Sixteen ranks, four in each group; towards the end all others wait for rank 5 if the job is `sick`."""
    return _records(late=5 if sick else None, slow=None)


def slow_link_records(sick: bool) -> list[Sent]:
    """The same ranks; towards the end the transfers of the group of rank 4 take half as long again."""
    return _records(late=None, slow=1 if sick else None)


def _records(late: int | None, slow: int | None) -> list[Sent]:
    random, out = np.random.default_rng(0), list[Sent]()
    for step in range(_STEPS):
        work_s = 0.2 * random.lognormal(0.0, 0.02, (len(_BYTES), _RANKS))
        ratio = np.ones(_RANKS // _GROUP)
        if step >= _SICK_FROM and late is not None:
            work_s[:, late] *= 1.3
        if step >= _SICK_FROM and slow is not None:
            ratio[slow] = 1.5
        transfer_s = ratio * 0.02 * random.lognormal(0.0, 0.02, (len(_BYTES), ratio.size))
        wait_s = work_s.reshape(len(_BYTES), -1, _GROUP).max(axis=2).repeat(_GROUP, axis=1) - work_s
        device_s = wait_s + transfer_s.repeat(_GROUP, axis=1)
        there_s = (work_s + device_s).sum(axis=0)  # when each rank comes to the call of all
        device_s = np.vstack((device_s, there_s.max() - there_s + 0.001))
        out += [_record(step, rank, device_s[:, rank].tolist()) for rank in range(_RANKS)]
    return out


def _record(step: int, rank: int, device_s: list[float]) -> Sent:
    group, calls = rank // _GROUP, len(_BYTES)
    time_s, first = _START_S + 0.5 * step, calls * step
    record = CollectivesRecord(
        job=_JOB, node=f"node{rank % 2}", rank=rank, incarnation="1", time_s=time_s, monotonic_s=0.5 * step,
        comms=(f"comm{group}", "world"), groups=("dp", "all"), sizes=(_GROUP, _RANKS), places=(rank % _GROUP, rank),
        node_counts=(2, 2), enqueued=(first + calls, step + 1), moved_s=(0.5 * step, 0.5 * step),
        of=(0,) * calls + (1,), functions=("AllReduce",) * (calls + 1),
        seqs=(*range(first, first + calls), step), steps=(step,) * (calls + 1), call_bytes=(*_BYTES, 4),
        device_s=tuple(device_s), enqueued_s=tuple(0.5 * step + 0.1 * place for place in range(calls + 1)),
    )  # fmt: skip
    return time_s, record
