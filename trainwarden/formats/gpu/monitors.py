"""Format: the running tables of `nvidia-smi dmon`, `nvidia-smi pmon` and `dcgmi dmon`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats import names
from trainwarden.formats.building import metric_table
from trainwarden.formats.cells import UNITS, NotNumber, number_of
from trainwarden.formats.protocol import NEVER, SURE, Found, Misfit, Problem
from trainwarden.formats.roles import device_name
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import of_day_s, rising, time_s_of

EVERY_S: Final = 1.0  # what all three wait between samples unless told otherwise
MAX_LINES: Final = 5_000_000
_HEADER: Final = re.compile(r"#\s{0,4}(?:Date[\s,]|Time[\s,]|gpu[\s,]|Entity\b)", re.IGNORECASE)
_OF_PROCESSES: Final = ("pid", "type", "command", "jpg", "ofa", "ccpm")


class Monitor:
    """Rows of a header that begins with ``#``."""

    name = "dmon"

    def sniff(self, name: str, head: str) -> float:
        """By the header."""
        del name
        return SURE if any(_HEADER.match(line) for line in head.split("\n", 40)[:40]) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        reader = _Reader(source.name)
        for number, line in enumerate(source.text().split("\n"), 1):
            if number > MAX_LINES:
                raise DataError(f"{source.name} has more than {MAX_LINES:,} lines")
            reader.line(number, line)
        return reader.found()


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file
        self._header: list[str] = []
        self._units: list[str] = []
        self._rows: list[dict[str, object]] = []
        self._seen: set[str] = set()
        self._sample = 0
        self._timed = False
        self._problems: list[Problem] = []

    def line(self, number: int, line: str) -> None:
        cells = line.lstrip("#").replace(",", " ").split()  # `--format csv` parts by commas
        if not cells:
            return
        if _HEADER.match(line):
            self._header, self._units = [cell.lower() for cell in cells], []
        elif line.startswith("#") or cells[0] == "ID":
            if len(cells) == len(self._header):
                self._units = [cell.lower() for cell in cells]
        elif self._header:
            self._row(number, cells)

    def _row(self, number: int, cells: list[str]) -> None:
        if self._header[0] == "entity" and cells[0].upper() in ("GPU", "GPU-I", "GPU-CI", "SWITCH") and len(cells) > 1:
            cells = [f"{cells[0]} {cells[1]}", *cells[2:]]
        if "command" in self._header and len(cells) > len(self._header):
            cells = cells[: len(self._header)]
        if len(cells) != len(self._header):
            what = f"{len(cells)} cells, but the header has {len(self._header)} columns"
            self._problems.append(Problem(number, "", what, "leave out lines that are cut"))
            return
        told = dict(zip(self._header, cells, strict=True))
        device = device_name(told.get("gpu", told.get("entity")), True)
        who = f"{device} {told.get('pid', '')} {told.get('time', '')}"
        if who in self._seen:
            self._sample, self._seen = self._sample + 1, set()
        self._seen.add(who)
        row: dict[str, object] = {"time_s": self._time_s(told), "device": device}
        for place, (name, cell) in enumerate(told.items()):
            heading = names.metric_of(name)
            if heading is None or name in ("gpu", "entity", "date", "time", *_OF_PROCESSES):
                continue
            unit = self._units[place] if place < len(self._units) else ""
            said = UNITS.get(unit)
            try:
                value = number_of(cell)[0]
            except NotNumber:
                self._problems.append(Problem(number, name, f"{cell[:40]!r} is not a number"))
                continue
            row[heading.name] = value * (said[1] if said is not None and said[0] == heading.unit else heading.factor)
        self._rows.append(row)

    def _time_s(self, told: Mapping[str, str]) -> float:
        of_day = of_day_s(told.get("time", ""))
        if np.isnan(of_day):
            return self._sample * EVERY_S
        self._timed = True
        return time_s_of(f"{told['date']} {told['time']}") if "date" in told else of_day

    def found(self) -> Found:
        if len(self._problems) > max(2, len(self._rows) // 20):
            raise Misfit(self._file, self._problems)
        found = Found(rows=len(self._rows))
        if not self._timed:
            found.notes.append(f"no times: samples taken for {EVERY_S:.0f} s apart")
        if self._problems:
            found.notes.append(
                f"{len(self._problems)} lines or cells left out, the first at line {self._problems[0].line}"
            )
        if self._rows:
            frame = pd.DataFrame(self._rows)
            if "pid" in self._header:
                frame = frame.groupby(["time_s", "device"], as_index=False, dropna=False).sum(min_count=1)
            frame["time_s"] = rising(frame["time_s"].to_numpy(np.float64))
            if (table := metric_table(frame)) is not None:
                found.metrics.append(table)
        return found
