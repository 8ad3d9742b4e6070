"""How many lines were said lately: counts in a few buckets of time, by source and by template."""

from __future__ import annotations

from typing import Final

import msgspec

BUCKETS: Final = 10  # parts of the window in which lines are counted

Counts = list[tuple[int, int]]
"""Buckets of time and the lines in each, oldest first; buckets without lines are left out."""


class Run(msgspec.Struct):
    """Lines of one template from one source, without a pause of a whole window."""

    source: str
    template: int
    first_s: float
    last_s: float
    known: bool
    lines: int = 0
    highest: int = 0
    judged: bool = False
    bursting: bool = False
    sample: str = ""
    counts: Counts = msgspec.field(default_factory=list)  # bucket, lines


class Source(msgspec.Struct):
    """Where lines come from; `busiest` is its largest number of lines within a window of normal time."""

    node: str
    rank: int | None
    first_s: float
    last_s: float
    busiest: int = 0
    counts: Counts = msgspec.field(default_factory=list)


def add_lines(counts: Counts, bucket: int, number: int) -> None:
    """Add `number` lines to `bucket`; late lines go where they belong as long as their bucket is kept.

    Examples
    --------
    >>> counts = [(1, 5), (4, 2)]
    >>> add_lines(counts, 4, 1), add_lines(counts, 3, 7), counts
    (None, None, [(1, 5), (3, 7), (4, 3)])
    """
    if counts and counts[-1][0] == bucket:
        counts[-1] = (bucket, counts[-1][1] + number)
    elif not counts or counts[-1][0] < bucket:
        counts.append((bucket, number))
    else:
        place = next((i for i, entry in enumerate(counts) if entry[0] >= bucket), 0)
        if counts[place][0] == bucket:
            counts[place] = (bucket, counts[place][1] + number)
        else:
            counts.insert(place, (bucket, number))


def lines_within(counts: Counts, oldest: int) -> int:
    """Drop what is older than the window; the number of lines that remain.

    Examples
    --------
    >>> counts = [(1, 5), (4, 2), (6, 1)]
    >>> lines_within(counts, 3), counts
    (3, [(4, 2), (6, 1)])
    """
    while counts and counts[0][0] <= oldest:
        counts.pop(0)
    return sum(number for _, number in counts)


def lines_newer(counts: Counts, oldest: int) -> int:
    """Lines of the newest window."""
    return sum(number for bucket, number in counts if bucket > oldest)


def lines_before(counts: Counts, oldest: int) -> int:
    """Drop what is older than two windows; the number of lines of the window before the newest."""
    while counts and counts[0][0] <= oldest - BUCKETS:
        counts.pop(0)
    return sum(number for bucket, number in counts if bucket <= oldest)
