"""Format: what `sar` and `mpstat` print of processors, memory, disks and interfaces, below the host and the day."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.building import metric_table
from trainwarden.formats.host.sysstat import COLUMNS, Work, number
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of

_TITLE: Final = re.compile(
    r"Linux \S{1,80} \(([^)\n]{1,100})\)\s{1,8}"
    r"(?:([0-9]{2})/([0-9]{2})/((?:20)?[0-9]{2})|(20[0-9]{2}-[0-9]{2}-[0-9]{2}))\s"
)
_CLOCK: Final = re.compile(r"([0-9]{2}:[0-9]{2}:[0-9]{2})(?: ([AP]M))?\s{1,12}(\S[^\n]{0,400})$")
_HALF_DAY_S: Final = 43_200.0
_DAY_S: Final = 86_400.0


class SarReport:
    """One report a file, or several one after the other; averages at its end are left out."""

    name = "sar report"

    def sniff(self, name: str, head: str) -> float:
        """By the first line and a column that is a metric of ours."""
        del name
        if _TITLE.match(head.lstrip()) is None:
            return NEVER
        headers = (match[3].split() for line in head[:40_000].split("\n") if (match := _CLOCK.match(line)))
        return SURE if any(set(cells) & COLUMNS for cells in headers) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        rows = list(_rows(source.text()))
        table = metric_table(pd.DataFrame(rows)) if rows else None
        if table is None:
            raise DataError(f"{source.name}: no row is of all processors, memory, disks or interfaces; give `sar -A`")
        return Found(rows=len(rows), metrics=[table], notes=["no zone is written: times are taken for UTC"])


def _rows(text: str) -> Iterator[dict[str, Any]]:
    """A row for each line of values: of one block of columns, which others complete."""
    node, day_s, last_s = "", np.nan, -np.inf
    header: list[str] = []
    work = Work()
    for line in text.split("\n"):
        if (title := _TITLE.match(line)) is not None:
            node, day_s, last_s, header = title[1], _day_s(title), -np.inf, []
            continue
        match = _CLOCK.match(line.rstrip())
        if match is None:
            continue
        cells = match[3].split()
        if not any(np.isfinite(number(cell)) for cell in cells):
            if cells != header:  # another block, which begins with the day again; the same one is repeated on each page
                header, last_s = cells, -np.inf
            continue
        if len(cells) != len(header) or not set(header) & COLUMNS:
            continue
        clock_s = _clock_s(match[1], match[2])
        while day_s + clock_s < last_s - _HALF_DAY_S:
            clock_s += _DAY_S
        last_s = day_s + clock_s
        if (row := work.row(node, last_s, dict(zip(header, cells, strict=True)))) is not None:
            yield row


def _day_s(title: re.Match[str]) -> float:
    """The first second of the day; months stand first, as in the C locale."""
    if title[5]:
        return time_s_of(f"{title[5]} 00:00:00")
    year = title[4] if len(title[4]) == 4 else f"20{title[4]}"
    return time_s_of(f"{year}-{title[2]}-{title[3]} 00:00:00")


def _clock_s(text: str, half: str | None) -> float:
    """Seconds since midnight.

    Examples
    --------
    >>> _clock_s("03:00:01", None), _clock_s("12:00:01", "AM"), _clock_s("03:00:00", "PM")
    (10801.0, 1.0, 54000.0)
    """
    hours, minutes, seconds = map(int, text.split(":"))
    if half is not None:
        hours = hours % 12 + (12 if half == "PM" else 0)
    return float(hours * 3600 + minutes * 60 + seconds)
