"""Memory of four ranks that train, as their agents would send it: a sawtooth, or with one rank that leaks."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainwarden.records import IterationRecord, MetricsRecord, Record

Sent = tuple[float, Record]
START_S: Final = 1_000_000.0
_SECONDS, _RANKS, _LEAKS, _FROM_S = 160, 4, 1, 40


def leak_records(sick: bool) -> list[Sent]:
    """A step and a sample each second; if `sick` rank 1 keeps 20 MB of each step from the 41st on."""
    rng, out = np.random.default_rng(0), list[Sent]()
    for second in range(_SECONDS):
        at_s = START_S + second + 1.0
        out += [
            (
                at_s,
                IterationRecord(
                    job="job", node="node0", rank=rank, incarnation=str(rank), steps=(second,), end_s=(at_s,),
                    duration_s=(1.0,), compute_s=(0.9,), wait_s=(0.1,),
                ),
            )
            for rank in range(_RANKS)
        ]  # fmt: skip
        memory = 1.5e9 + 3e8 * (second % 3) / 3.0 + rng.normal(0.0, 1e6, _RANKS)
        memory[_LEAKS] += 20e6 * max(0, second - _FROM_S) if sick else 0.0
        names = ("rank_anonymous_memory_bytes",)
        out.append(
            (
                at_s + 0.1,
                MetricsRecord(
                    job="job", node="node0", time_s=at_s, names=names, ranks=tuple(range(_RANKS)),
                    devices=tuple(f"rank-{rank}" for rank in range(_RANKS)),
                    values=(tuple(float(one) for one in memory),),
                ),
            )
        )  # fmt: skip
        left = MetricsRecord(
            job="job", node="node0", time_s=at_s, names=("host_memory_available_bytes",), ranks=(None,),
            devices=("host",), values=((64e9,),),
        )  # fmt: skip
        out.append((at_s + 0.1, left))
    return out
