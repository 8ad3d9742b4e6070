"""Four ranks on a busy host, as their agents would send it; with one that needs half as much CPU time again."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.peers.cpu_wait import ON_CPU, QUEUED
from trainwarden.records import IterationRecord, MetricsRecord, Record

Floats = npt.NDArray[np.float64]
Sent = tuple[float, Record]
START_S: Final = 1_000_000.0
_SECONDS, _RANKS, _SLOW, _FROM_S = 100, 4, 2, 50
_STEP_S: Final = 0.25


def cpu_records(sick: bool) -> list[Sent]:
    """Steps of a quarter of a second and a sample each second; all wait for processors half of the time."""
    rng, out = np.random.default_rng(0), list[Sent]()
    for second in range(_SECONDS):
        at_s = START_S + second + 1.0
        times = np.where((np.arange(_RANKS) == _SLOW) & sick & (second >= _FROM_S), 1.5, 1.0)
        names = tuple(f"rank-{rank}" for rank in range(_RANKS))
        on_cpu = 0.3 * times * rng.lognormal(0.0, 0.03, _RANKS)
        queued = 0.4 * rng.lognormal(0.0, 0.1, _RANKS)
        out += [_steps(rank, second, times, rng) for rank in range(_RANKS)]
        out.append(
            (
                at_s,
                MetricsRecord(
                    job="job", node="node0", time_s=at_s, devices=names, names=(ON_CPU, QUEUED),
                    values=(tuple(on_cpu.tolist()), tuple(queued.tolist())), ranks=tuple(range(_RANKS)),
                ),
            )
        )  # fmt: skip
    return out


def _steps(rank: int, second: int, times: Floats, rng: np.random.Generator) -> Sent:
    """The steps of one rank that end in a second."""
    count = int(1.0 / _STEP_S)
    ends_s = tuple(START_S + second + _STEP_S * (one + 1) for one in range(count))
    work_s = tuple((0.15 * times[rank] * rng.lognormal(0.0, 0.2, count)).tolist())
    return ends_s[-1], IterationRecord(
        job="job", node="node0", rank=rank, incarnation=str(rank),
        steps=tuple(range(count * second, count * (second + 1))), end_s=ends_s, duration_s=(_STEP_S,) * count,
        compute_s=work_s, wait_s=tuple(_STEP_S - one for one in work_s),
    )  # fmt: skip
