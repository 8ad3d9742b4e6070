"""The replica whose loss leaves those of all others, by losses that each rank of one run tells of itself.

Replicas of data-parallel training hold the same weights: their losses differ by their data alone. Runs of a sweep are
no replicas; only what is named by ranks is compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from trainwarden.formats.verdicts import LEAST_RANKS, Verdict, verdict_tables
from trainwarden.recorded.job import Floats, LogTable

_LINE: Final = re.compile(r"step ([0-9]{1,12}) \|(?: [^|]{1,80} \|){0,8} loss: ([-+0-9.eE]{1,24})(?: \||$)")
_PATH: Final = re.compile(r"(?i)(?:^|[/_.-])(?:rank|replica|dp_?rank)[_.-]?([0-9]{1,5})(?=[/_.-]|$)")
LEAST_STEPS: Final = 24  # that all ranks tell
AS_ONE: Final = 0.25  # share of the steps at the begin in which the replica goes with the others
LAST: Final = 8  # steps at the end in all of which it stays apart
TIMES: Final = 8.0  # the usual distance of the others from their median
LEAST_APART: Final = 0.1  # of the loss
MOST_LINES: Final = 2_000_000


def replicas_apart(logs: Sequence[LogTable]) -> list[LogTable]:
    """A line about the replica that leaves the others for good; empty where none does, or there are too few."""
    told, times = _losses(logs)
    if len(told) < LEAST_RANKS:
        return []
    steps = sorted(set.intersection(*(set(one) for one in told.values())))
    if len(steps) < LEAST_STEPS:
        return []
    ranks = sorted(told)
    losses = np.array([[told[rank][step] for rank in ranks] for step in steps])
    found = apart(losses)
    if found is None:
        return []
    column, since = found
    rank = ranks[column]
    others = float(np.median(np.delete(losses[-LAST:], column, axis=1)))
    words = (
        f"its loss is {float(np.median(losses[-LAST:, column])):.3g} at step {steps[-1]}, that of {len(ranks) - 1} "
        f"others {others:.3g}; they part at step {steps[since]}"
    )
    time_s = times.get((rank, steps[since]), np.nan)
    return verdict_tables("replicas", [Verdict(f"rank{rank}", "replica", words, rank=rank)], time_s)


def apart(losses: Floats) -> tuple[int, int] | None:
    """Which column of losses ``[steps, ranks]`` leaves all others, and from which row on; None if none does.

    Examples
    --------
    >>> losses = np.random.default_rng(0).normal(2.0, 0.02, (40, 4))
    >>> apart(losses) is None
    True
    >>> losses[20:, 2] += np.linspace(0.0, 2.0, 20)
    >>> apart(losses)[0]
    2
    """
    if not np.isfinite(losses).all():
        return None
    begin = max(LAST, int(AS_ONE * len(losses)))
    found = []
    for column in range(losses.shape[1]):
        others = np.delete(losses, column, axis=1)
        usual = np.median(others, axis=1)
        spread = np.abs(others - usual[:, None]).max(axis=1)
        bar = np.maximum(TIMES * np.median(spread), LEAST_APART * np.abs(usual))
        beyond = (np.abs(losses[:, column] - usual) > bar) & (np.abs(losses[:, column] - usual) > 2.0 * spread)
        if beyond[-LAST:].all() and not beyond[:begin].any():
            found.append((column, int(np.flatnonzero(~beyond)[-1]) + 1))
    return found[0] if len(found) == 1 else None


def rank_in(path: str) -> int | None:
    """The rank that a path names.

    Examples
    --------
    >>> rank_in("tb/rank_3/events.out.tfevents.1.node0"), rank_in("runs/lr_3e-4/events"), rank_in("loss-rank2.csv")
    (3, None, 2)
    """
    match = _PATH.search(path)
    return int(match[1]) if match is not None else None


def _losses(logs: Iterable[LogTable]) -> tuple[dict[int, dict[int, float]], dict[tuple[int, int], float]]:
    """The loss of each rank and step, and when it was told; nothing where a rank tells a step twice."""
    told: dict[int, dict[int, float]] = {}
    times: dict[tuple[int, int], float] = {}
    for log in logs:
        if len(log.lines) > MOST_LINES:
            continue
        of_file = rank_in(log.file)
        for place, line in enumerate(log.lines):
            rank = of_file if log.ranks[place] is None else log.ranks[place]
            match = _LINE.match(line) if rank is not None and line.startswith("step ") else None
            if match is None or rank is None:
                continue
            try:
                value = float(match[2])
            except ValueError:
                continue
            step = int(match[1])
            if told.setdefault(rank, {}).setdefault(step, value) != value:
                return {}, {}  # two runs in one folder
            times[rank, step] = float(log.times_s[place])
    return told, times
