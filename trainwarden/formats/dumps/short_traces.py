"""Ranks that compute longer than all others in every step of their traces, which are too few steps to learn a level.

Traces time kernels on the device, so that a rank's own work is distinguished from its waiting. The slow rank of a
synchronous group computes longest and waits least (Wu et al., Falcon, 2024, section 4.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np

from trainwarden.formats.verdicts import LEAST_RANKS, Verdict, line_of, slow_rank
from trainwarden.recorded.job import Floats, IterationTable, LogTable

TRACED: Final = "compute is what the kernels of communication leave of a step"
POINT_TO_POINT: Final = "ranks send to each other: stages or experts have unequal work, and ranks are not compared"
LEAST_STEPS: Final = 3
MOST_STEPS: Final = 12  # with more of them ranks are compared with their own earlier level


def short_traces(tables: Iterable[IterationTable]) -> list[LogTable]:
    """A line about the one rank that is slow; none where ranks, steps or the evenness of the others are missing."""
    traced = [one for one in tables if TRACED in one.notes]
    ranks = [one.ranks[0] if len(one.ranks) == 1 else None for one in traced]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < max(LEAST_RANKS, len(traced)) or len(set(known)) < len(known):
        return []
    if any(POINT_TO_POINT in one.notes for one in traced):
        return []
    steps = sorted(set.intersection(*(set(one.step.tolist()) for one in traced)))
    if not LEAST_STEPS <= len(steps) <= MOST_STEPS:
        return []
    compute = np.array([_lane(one, one.compute_s, steps) for one in traced])
    wait = np.array([_lane(one, one.wait_s, steps) for one in traced])
    place = int(np.argmax(np.median(compute, axis=1)))
    ratio = _ratio(compute, wait, place)
    if ratio is None:
        return []
    own_ms, others_ms = (float(np.median(lane)) * 1e3 for lane in (compute[place], np.delete(compute, place, axis=0)))
    words = f"{own_ms:.0f} ms of compute a step, {ratio:.2f} times the {others_ms:.0f} ms of {len(known) - 1} others"
    line = line_of(Verdict(f"rank{known[place]}", "compute", words))
    table = traced[place]
    return [LogTable("traces", table.end_s[-1:].copy(), (table.nodes[0],), (known[place],), [line])]


def _lane(table: IterationTable, lane: Floats, steps: list[int]) -> Floats:
    found = dict(zip(table.step.tolist(), lane.tolist(), strict=True))
    return np.array([found[step] for step in steps], np.float64)


def _ratio(compute: Floats, wait: Floats, place: int) -> float | None:
    """How many times as long the rank at `place` computes as the others; None if it is not the one that is slow."""
    if not (np.isfinite(compute).all() and np.isfinite(wait).all()):
        return None
    slow = [slow_rank(dict(enumerate(step.tolist()))) for step in compute.T]
    waits_least = (wait[place] < np.delete(wait, place, axis=0).min(axis=0)).all()
    ratios = [one[1] for one in slow if one is not None and one[0] == place]
    return float(np.median(ratios)) if len(ratios) == len(slow) and waits_least else None
