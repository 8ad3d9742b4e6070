"""The rank that stays the slowest of all where a trainer prints only the least and the most of them.

Megatron's straggler detector (`megatron/core/utils.py`, ``--log-straggler``) writes all in one line, Composer's
(`composer/callbacks/system_metrics_monitor`, `GlobalStragglerDetector`) a line each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np

from trainwarden.formats.text.step_times import line_time_s
from trainwarden.formats.verdicts import LEAST_RATIO, Verdict, line_of
from trainwarden.log_shapes import by_shape, unmasked
from trainwarden.recorded.job import IterationTable, LogTable

_N: Final = r"([0-9]{1,9}(?:\.[0-9]{1,6})?)"
_LEAST: Final = re.compile(r"\b(?:MnEtpt/Rnk|MinThroughput/Rank): " + _N + r" ?TF/([0-9]{1,6})\b")
_MOST: Final = re.compile(r"\b(?:MxEtpt/Rnk|MaxThroughput/Rank): " + _N + r" ?TF/([0-9]{1,6})\b")
_CLOCK: Final = re.compile(r"\b(?:MnClk/Rnk|MinClock/Rank): " + _N + r" ?MHz/([0-9]{1,6})\b")
LEAST_PRINTS: Final = 8  # in a row
USUAL_PRINTS: Final = 8  # that show how far apart the ranks are by themselves
MOST_LINES: Final = 2_000_000


class _Print(NamedTuple):
    """What one print says: the slowest rank and its throughput, and the most of all."""

    place: int
    rank: int
    least: float
    most: float


def extreme_ranks(logs: Iterable[LogTable], told: IterationTable | None = None) -> list[LogTable]:
    """A line about the rank that is the slowest by far for long, for each log in which there is one.

    Parameters
    ----------
    told : IterationTable, optional
        The steps that were read from the same logs: their times are those of lines without stamps.
    """
    found = []
    for log in logs:
        prints = list(_prints(log.lines)) if len(log.lines) <= MOST_LINES else []
        number = laggard_of([(one.rank, one.least, one.most) for one in prints])
        if number is None:
            continue
        late = prints[number : number + LEAST_PRINTS]
        least, most = (float(np.median([getattr(one, name) for one in late])) for name in ("least", "most"))
        words = f"{least:.1f} TF, the least of all, where the most is {most:.1f} TF{_clock(log, late)}"
        line = line_of(Verdict(f"rank{late[0].rank}", "compute", words))
        time_s = line_time_s(log, [one.place for one in prints], number, told)
        found.append(LogTable("rank extremes", np.array([time_s]), (None,), (late[0].rank,), [line]))
    return found


def laggard_of(prints: list[tuple[int, float, float]]) -> int | None:
    """Where one rank begins to stay the slowest by far; None if none does, or ranks differ by themselves as much.

    Parameters
    ----------
    prints : list of (rank, float, float)
        The slowest rank, its throughput and the most of all.

    Examples
    --------
    >>> even = [(number % 7, 128.0, 129.0) for number in range(20)]
    >>> laggard_of([*even, *[(5, 88.0, 129.0)] * 9]), laggard_of(even), laggard_of([*even, *[(5, 127.0, 129.0)] * 9])
    (20, None, None)
    """
    run = 0
    for number, (rank, least, most) in enumerate(prints):
        far = least > 0.0 and most >= LEAST_RATIO * least
        run = (run + 1 if run and rank == prints[number - 1][0] else 1) if far else 0
        if run < LEAST_PRINTS:
            continue
        begun = number - run + 1
        # Stages of a pipeline differ from the first print on; only what changes, or is always so, tells of a rank.
        usual = [one for one in prints[max(0, begun - USUAL_PRINTS) : begun] if one[0] != rank]
        if len(usual) >= USUAL_PRINTS // 2 and all(most < LEAST_RATIO * least for _, least, most in usual):
            return begun
    return None


def _prints(lines: Iterable[str]) -> Iterable[_Print]:
    """Prints of the least and the most, which stand in one line or in one after the other."""
    least: tuple[int, re.Match[str]] | None = None
    for place, line in enumerate(lines):
        if not _may_tell(line):
            continue
        if match := _LEAST.search(line):
            least = (place, match)
        if least is not None and (most := _MOST.search(line)):
            yield _Print(least[0], int(least[1][2]), float(least[1][1]), float(most[1]))
            least = None


_may_tell = by_shape(lambda shape: "/R" in unmasked(shape) and "TF/" in unmasked(shape))


def _clock(log: LogTable, late: list[_Print]) -> str:
    """What its clock is, where that is the least of all too."""
    for line in log.lines[late[0].place : late[-1].place + 1]:
        if (match := _CLOCK.search(line)) and int(match[2]) == late[0].rank:
            return f", at {match[1]} MHz"
    return ""
