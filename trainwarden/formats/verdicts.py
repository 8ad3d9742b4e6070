"""Verdicts of reports as lines ``health check: DEVICE PART failed: words``, which rules of logs know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.protocol import Found
from trainwarden.formats.source import Source
from trainwarden.recorded.job import LogTable

LEAST_RANKS: Final = 4  # that are compared
LEAST_RATIO: Final = 1.15  # to the median of the others
MOST_SPREAD: Final = 0.05  # of the others around it: stages of a pipeline and groups of ranks differ by themselves

Row = TypeVar("Row")
_BEGINS: Final = "health check: "


class Verdict(NamedTuple):
    """What a report says of one device: the words of what failed, None where it passed."""

    device: str
    part: str
    failed: str | None
    node: str | None = None
    time_s: float | None = None
    rank: int | None = None


def line_of(one: Verdict) -> str:
    """The line of a verdict.

    Examples
    --------
    >>> line_of(Verdict("gpu 3", "memory", "two errors")), line_of(Verdict("gpu4", "", None))
    ('health check: gpu_3 memory failed: two errors', 'health check: gpu4 passed')
    """
    device = "_".join(one.device.split()) or "node"
    if one.failed is None:
        return f"{_BEGINS}{device} passed"
    return f"{_BEGINS}{device} {one.part} failed: {one.failed}"


def is_verdict(line: str) -> bool:
    """Whether a line is that of a verdict."""
    return line.startswith(_BEGINS)


def verdict_tables(label: str, verdicts: Iterable[Verdict], now_s: float) -> list[LogTable]:
    """Lines of `verdicts` in the order of their times, those without one at `now_s`; empty where there is none.

    Parameters
    ----------
    now_s : float
        NaN where nothing tells the time.
    """
    listed = [one if one.time_s is not None else one._replace(time_s=now_s) for one in verdicts]
    if not listed:
        return []
    times = np.array([one.time_s for one in listed], np.float64)
    order = np.argsort(times, kind="stable")
    told = [listed[place] for place in order.tolist()]
    nodes, ranks = tuple(one.node for one in told), tuple(one.rank for one in told)
    return [LogTable(label, times[order], nodes, ranks, [line_of(one) for one in told])]


def found_of_verdicts(source: Source, label: str, verdicts: Iterable[Verdict]) -> Found:
    """What a report holds that judges devices itself; its time is the file's last change where none is written.

    Raises
    ------
    DataError
        If it holds no verdict.
    """
    listed = list(dict.fromkeys(verdicts))
    tables = verdict_tables(label, listed, source.path.stat().st_mtime)
    if not tables:
        raise DataError(f"{source.name}: it names nothing that can be judged: give the whole report")
    failed = sum(one.failed is not None for one in listed)
    found = Found(rows=len(listed), logs=tables)
    when = "" if all(one.time_s is not None for one in listed) else "; their time is the file's last change"
    found.notes.append(f"{failed} of {len(listed)} results are no pass{when}")
    return found


def slow_in_a_row(rows: Iterable[tuple[Row, Mapping[int, float]]], least: int) -> tuple[Row, int, float] | None:
    """The first of `least` rows in a row in which the same rank is slow, that rank, and the median of how much.

    Parameters
    ----------
    rows : iterable of pairs
        Anything, and what each rank's own work took there.

    Examples
    --------
    >>> even, odd = dict.fromkeys(range(4), 1.0), {0: 1.0, 1: 1.0, 2: 1.5, 3: 1.0}
    >>> slow_in_a_row([("a", odd), ("b", even), ("c", odd), ("d", odd)], 2)
    ('c', 2, 1.5)
    """
    begun: list[tuple[Row, int, float]] = []
    for row, own in rows:
        slow = slow_rank(own)
        if slow is None or (begun and slow[0] != begun[0][1]):
            begun = []
        if slow is not None:
            begun.append((row, *slow))
        if len(begun) == least:
            return begun[0][0], begun[0][1], float(np.median([ratio for _, _, ratio in begun]))
    return None


def slow_rank(own: Mapping[int, float]) -> tuple[int, float] | None:
    """The one rank that works longer than others that are even, and how many times as long; None where there is none.

    Examples
    --------
    >>> slow_rank({0: 100.0, 1: 101.0, 2: 150.0, 3: 99.0}), slow_rank({0: 100.0, 1: 150.0, 2: 150.0, 3: 100.0})
    ((2, 1.5), None)
    """
    if len(own) < LEAST_RANKS:
        return None
    rank = max(own, key=lambda one: own[one])
    others = np.array([time for one, time in own.items() if one != rank])
    usual = float(np.median(others))
    even = usual > 0.0 and bool((np.abs(others - usual) <= MOST_SPREAD * usual).all())
    return (rank, own[rank] / usual) if even and own[rank] >= LEAST_RATIO * usual else None
