"""Records of a job whose ranks load data: the contract's checks of `trainwarden.detectors.pace.phase_stalls`."""

from __future__ import annotations

from typing import Final

from trainwarden.records import EventRecord, HeartbeatRecord, IterationRecord, Phase, Record

Sent = tuple[float, Record]
_JOB: Final = "job"
_NODE: Final = "node0"
_START_S: Final = 1_000_000.0
_RANKS, _STEPS, _STALLED = 4, 40, 1
_STEP_S, _DATA_S, _EVERY_S = 0.3, 0.05, 0.2


def stall_records(sick: bool) -> list[Sent]:
    """Every rank loads data for each step; after 40 of them rank 1 does for 20 s if the job is `sick`, and goes on."""
    begin_s = _START_S + _STEPS * _STEP_S
    end_s = begin_s + (20.0 if sick else 2.0)
    out = _steps(0, _START_S)
    for beat in range(1, int((end_s - begin_s) / _EVERY_S)):
        out.append(_beat(begin_s + beat * _EVERY_S, _STEPS, begin_s, "wait", "data"))
    took_s = end_s - begin_s
    over = EventRecord(
        id="phase/1", job=_JOB, node=_NODE, time_s=end_s, kind="phase", rank=_STALLED,
        message=f"rank {_STALLED} spent {took_s:.1f} s in data during step {_STEPS}",
        fields={"phase": "data", "duration_s": took_s, "step": _STEPS},
    )  # fmt: skip
    return [*out, (end_s + 0.1, over), *_steps(_STEPS, end_s)]


def _steps(first: int, start_s: float) -> list[Sent]:
    out: list[Sent] = []
    for step in range(first, first + _STEPS):
        end_s = start_s + (step - first + 1) * _STEP_S
        out.append(_beat(end_s - 0.5 * _STEP_S, step, end_s - _STEP_S, "compute", "compute"))
        out += [
            (
                end_s,
                IterationRecord(
                    job=_JOB, node=_NODE, rank=rank, incarnation=str(rank), steps=(step,), end_s=(end_s,),
                    duration_s=(_STEP_S,), compute_s=(_STEP_S - _DATA_S,), wait_s=(0.0,), pause_s=(_DATA_S,),
                ),
            )
            for rank in range(_RANKS)
        ]  # fmt: skip
    return out


def _beat(at_s: float, step: int, since_s: float, others: Phase, stalled: Phase) -> Sent:
    ranks = tuple(range(_RANKS))
    record = HeartbeatRecord(
        job=_JOB, node=_NODE, time_s=at_s, ranks=ranks, pids=tuple(1000 + rank for rank in ranks),
        incarnations=tuple(map(str, ranks)), steps=(step,) * _RANKS, step_end_s=(None,) * _RANKS,
        phases=tuple(stalled if rank == _STALLED else others for rank in ranks),
        phase_since_s=(since_s,) * _RANKS, calls=(step,) * _RANKS, states=("S",) * _RANKS,
        cpu_s=(at_s - _START_S,) * _RANKS,
    )  # fmt: skip
    return at_s, record
