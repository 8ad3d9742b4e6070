"""Format: what `sar` and `mpstat` print of processors and memory, with the host and the day in their first line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.building import metric_table
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of

_TITLE: Final = re.compile(
    r"Linux \S{1,80} \(([^)\n]{1,100})\)\s{1,8}"
    r"(?:([0-9]{2})/([0-9]{2})/((?:20)?[0-9]{2})|(20[0-9]{2}-[0-9]{2}-[0-9]{2}))\s"
)
_CLOCK: Final = re.compile(r"([0-9]{2}:[0-9]{2}:[0-9]{2})(?: ([AP]M))?\s{1,12}(\S[^\n]{0,400})$")
# Columns of sar -u, sar -r, sar -S and mpstat (sysstat 11 to 12): the metric and the factor to its unit.
_COLUMNS: Final = {
    "%steal": ("host_cpu_steal_ratio", 0.01), "%iowait": ("host_cpu_iowait_ratio", 0.01),
    "%system": ("host_cpu_system_ratio", 0.01), "%sys": ("host_cpu_system_ratio", 0.01),
    "%memused": ("host_memory_used_ratio", 0.01), "kbavail": ("host_memory_available_bytes", 1024.0),
    "kbswpused": ("host_swap_used_bytes", 1024.0),
}  # fmt: skip
_ALL: Final = ("all", "-1")  # processors
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
        return SURE if any(set(cells) & set(_COLUMNS) for cells in headers) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        rows = list(_rows(source.text()))
        table = metric_table(pd.DataFrame(rows)) if rows else None
        if table is None:
            raise DataError(f"{source.name}: no row is of all processors or of memory; give `sar -u` and `sar -r`")
        return Found(rows=len(rows), metrics=[table], notes=["no zone is written: times are taken for UTC"])


def _rows(text: str) -> Iterator[dict[str, Any]]:
    """A row for each line of values: of one block of columns, which others complete."""
    node, day_s, last_s = "", np.nan, -np.inf
    header: list[str] = []
    for line in text.split("\n"):
        if (title := _TITLE.match(line)) is not None:
            node, day_s, last_s, header = title[1], _day_s(title), -np.inf, []
            continue
        match = _CLOCK.match(line.rstrip())
        if match is None:
            continue
        cells = match[3].split()
        if set(cells) & set(_COLUMNS) or any(cell.startswith("%") for cell in cells):
            if cells != header:  # another block, which begins with the day again; the same one is repeated on each page
                header, last_s = cells, -np.inf
            continue
        values = _values(header, cells)
        if not values:
            continue
        clock_s = _clock_s(match[1], match[2])
        while day_s + clock_s < last_s - _HALF_DAY_S:
            clock_s += _DAY_S
        last_s = day_s + clock_s
        yield {"time_s": last_s, "node": node, **values}


def _values(header: list[str], cells: list[str]) -> dict[str, float]:
    """Metrics of a line; none where it is of one processor of several, or is no line of the block."""
    if len(cells) != len(header) or ("CPU" in header and cells[header.index("CPU")] not in _ALL):
        return {}
    found: dict[str, float] = {}
    for name, cell in zip(header, cells, strict=True):
        if name in _COLUMNS:
            metric, factor = _COLUMNS[name]
            try:
                found[metric] = float(cell.replace(",", ".")) * factor
            except ValueError:
                continue
    return found


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
