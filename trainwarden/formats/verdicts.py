"""Verdicts of reports as lines ``health check: DEVICE PART failed: words``, which rules of logs know."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.protocol import Found
from trainwarden.formats.source import Source
from trainwarden.recorded.job import LogTable


class Verdict(NamedTuple):
    """What a report says of one device: the words of what failed, None where it passed."""

    device: str
    part: str
    failed: str | None
    node: str | None = None
    time_s: float | None = None


def line_of(one: Verdict) -> str:
    """The line of a verdict.

    Examples
    --------
    >>> line_of(Verdict("gpu 3", "memory", "two errors")), line_of(Verdict("gpu4", "", None))
    ('health check: gpu_3 memory failed: two errors', 'health check: gpu4 passed')
    """
    device = "_".join(one.device.split()) or "node"
    if one.failed is None:
        return f"health check: {device} passed"
    return f"health check: {device} {one.part} failed: {one.failed}"


def verdict_table(label: str, verdicts: Iterable[Verdict], now_s: float) -> LogTable | None:
    """Lines of `verdicts` in the order of their times, those without one at `now_s`; None where there is none."""
    listed = sorted(((now_s if one.time_s is None else one.time_s, one) for one in verdicts), key=lambda pair: pair[0])
    if not listed:
        return None
    times = np.array([time_s for time_s, _ in listed])
    nodes = tuple(one.node for _, one in listed)
    return LogTable(label, times, nodes, (None,) * len(listed), [line_of(one) for _, one in listed])


def found_of_verdicts(source: Source, label: str, verdicts: Iterable[Verdict]) -> Found:
    """What a report holds that judges devices itself; its time is the file's last change where none is written.

    Raises
    ------
    DataError
        If it holds no verdict.
    """
    listed = list(dict.fromkeys(verdicts))
    table = verdict_table(label, listed, source.path.stat().st_mtime)
    if table is None:
        raise DataError(f"{source.name}: it names nothing that can be judged: give the whole report")
    failed = sum(one.failed is not None for one in listed)
    found = Found(rows=len(listed), logs=[table])
    when = "" if all(one.time_s is not None for one in listed) else "; their time is the file's last change"
    found.notes.append(f"{failed} of {len(listed)} results are no pass{when}")
    return found
