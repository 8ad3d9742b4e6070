"""Format: what `nvidia-smi` and `nvidia-smi -q` print, once or again and again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import pandas as pd

from trainwarden.formats import names
from trainwarden.formats.building import metric_table
from trainwarden.formats.cells import UNITS, NotNumber, number_of
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.formats.verdicts import Verdict, verdict_tables

# Section and key of `nvidia-smi -q` in lower case, by their ends: the name nvidia-smi's csv has for the same.
_KEYS: Final[dict[str, str]] = {
    "clocks/sm": "clocks.sm", "clocks/memory": "clocks.mem", "max clocks/sm": "clocks.max.sm",
    "temperature/gpu current temp": "temperature.gpu", "temperature/memory current temp": "temperature.memory",
    "power readings/power draw": "power.draw", "power readings/instantaneous power draw": "power.draw",
    "power readings/average power draw": "power.draw", "power readings/current power limit": "power.limit",
    "utilization/gpu": "utilization.gpu", "utilization/memory": "utilization.memory",
    "fb memory usage/used": "memory.used", "fb memory usage/free": "memory.free",
    "fb memory usage/total": "memory.total",
    "/performance state": "pstate", "pcie generation/current": "pcie.link.gen.current",
    "pcie generation/max": "pcie.link.gen.max", "link width/current": "pcie.link.width.current",
    "link width/max": "pcie.link.width.max", "/replays since reset": "gpu_pcie_replay_count",
    "volatile/dram uncorrectable": "ecc.errors.uncorrected.volatile.total",
    "volatile/dram correctable": "ecc.errors.corrected.volatile.total",
    "volatile/sram uncorrectable": "ecc.errors.uncorrected.volatile.total",
    "aggregate/dram uncorrectable": "ecc.errors.uncorrected.aggregate.total",
    "remapped rows/correctable error": "remapped_rows.correctable",
    "remapped rows/uncorrectable error": "remapped_rows.uncorrectable",
    "remapped rows/pending": "remapped_rows.pending",
    "remapped rows/remapping failure occurred": "remapped_rows.failure",
}  # fmt: skip
# Names of reasons and their bits (nvmlClocksEventReason).
_REASONS: Final[dict[str, int]] = {
    "idle": 0x1, "applications clocks setting": 0x2, "sw power cap": 0x4, "hw slowdown": 0x8, "sync boost": 0x10,
    "sw thermal slowdown": 0x20, "hw thermal slowdown": 0x40, "hw power brake slowdown": 0x80,
}  # fmt: skip
_LINE: Final = re.compile(r"( {0,60})([^:\n]{1,80}?)\s{1,60}:\s{1,4}(.{0,200})$")
_BARE: Final = re.compile(r"( {0,60})(\S.{0,80}?)\s{0,8}$")
_GPU: Final = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9])\s{0,4}$")
_STAMP: Final = re.compile(r"([A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9:]{8} [0-9]{4})\s{0,8}$")
_ROW: Final = re.compile(r"\|\s{1,4}([0-9]{1,3})\s{1,4}(\S[^|]{0,60}?)\s{1,40}(?:On|Off|N/A)\s{1,4}\|")
_VALUES: Final = re.compile(
    r"\|[^|]{0,12}?\s([0-9]{1,3})C\s{1,10}P([0-9]{1,2})\s{1,20}([0-9]{1,4})W\s{0,3}/\s{0,3}([0-9]{1,4}|N/A)W?\s{0,3}\|"
    r"\s{0,8}([0-9]{1,8})MiB\s{0,3}/\s{0,3}([0-9]{1,8})MiB\s{0,3}\|\s{0,8}([0-9]{1,3})%"
)


_NO_ANSWER: Final = "ERR!"  # what the table shows where the driver got an error in place of a value
_LEAST_ERRORS: Final = 3  # of fewer a fan or a power sensor alone cannot be read


class NvidiaSmiText:
    """Pages of keys and values, or the table that fits a screen."""

    name = "nvidia-smi text"

    def sniff(self, name: str, head: str) -> float:
        """By the title of either."""
        del name
        start = head[:6_000]
        return SURE if "NVSMI LOG" in start or ("NVIDIA-SMI" in start and "Driver Version" in start) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text()
        rows = list(_pages(text) if "NVSMI LOG" in text else _screens(text))
        found = Found(rows=len(rows))
        found.logs += verdict_tables("nvidia-smi", _silent(text), source.path.stat().st_mtime)
        if rows and not all("time_s" in row for row in rows):
            time_s = source.path.stat().st_mtime
            rows = [{"time_s": time_s, **row} for row in rows]
            found.notes.append("no time written: that of the file's last change")
        if rows and (table := metric_table(pd.DataFrame(rows))) is not None:
            found.metrics.append(table)
            if len(set(table.times_s.tolist())) == 1:
                found.notes.append("a single sample: what needs time to be judged is not judged")
        return found


def _pages(text: str) -> Iterator[dict[str, object]]:
    """A row for each GPU of each page of `-q`."""
    pages = _Pages()
    for line in text.split("\n"):
        if (row := pages.line(line)) is not None:
            yield row
    if (row := pages.over()) is not None:
        yield row


class _Pages:
    """Keys and values under sections, which are told apart by how far they are indented."""

    def __init__(self) -> None:
        self._time_s: float | None = None
        self._count = 0
        self._row: dict[str, object] = {}
        self._sections: list[tuple[int, str]] = []
        self._reasons: int | None = None

    def over(self) -> dict[str, object] | None:
        """The row of the GPU so far, which is over."""
        row, reasons = self._row, self._reasons
        self._row, self._sections, self._reasons = {}, [], None
        if not row:
            return None
        return row if reasons is None else {**row, "gpu_clock_event_reasons_state": float(reasons)}

    def line(self, line: str) -> dict[str, object] | None:
        """Read a line; the row of the GPU before, if it begins another."""
        if _GPU.match(line) is not None:
            done = self.over()
            self._row = {"device": f"gpu{self._count}"}
            if self._time_s is not None:
                self._row["time_s"] = self._time_s
            self._count += 1
            return done
        match = _LINE.match(line)
        if match is None:
            if (bare := _BARE.match(line)) is not None:
                depth = len(bare[1])
                self._sections = [one for one in self._sections if one[0] < depth] + [(depth, bare[2].lower())]
            return None
        key, value = match[2].strip().lower(), match[3].strip()
        if key == "timestamp":
            done = self.over()
            self._time_s, self._count = time_s_of(value), 0
            return done
        self._sections = [one for one in self._sections if one[0] < len(match[1])]
        self._value(key, value)
        return None

    def _value(self, key: str, value: str) -> None:
        within = [one for _, one in self._sections]
        if key == "minor number" and value.isdecimal() and self._row:
            self._row["device"] = f"gpu{int(value)}"
        elif key in _REASONS and any("event reasons" in one or "throttle reasons" in one for one in within):
            self._reasons = (self._reasons or 0) | (_REASONS[key] if value.lower() == "active" else 0)
        else:
            _keep(self._row, "/".join(["", *within, key]), value)


def _keep(row: dict[str, object], path: str, value: str) -> None:
    """Put a value under its catalogue name, the first of several of one name."""
    name = next((name for end, name in _KEYS.items() if path.endswith(end)), None)
    heading = names.metric_of(name) if name is not None else None
    if heading is None or not row:
        return
    try:
        number, unit = number_of(value)
    except NotNumber:
        return
    said = UNITS.get(unit.lower())
    factor = said[1] if said is not None and said[0] == heading.unit else heading.factor
    if heading.name not in row or row[heading.name] != row[heading.name]:
        row[heading.name] = number * factor


def _screens(text: str) -> Iterator[dict[str, object]]:
    """A row for each GPU of each printed table."""
    time_s, device = None, None
    for line in text.split("\n"):
        if (stamp := _STAMP.match(line)) is not None:
            time_s = time_s_of(stamp[1])
        elif (first := _ROW.match(line)) is not None:
            device = f"gpu{int(first[1])}"
        elif device is not None and (match := _VALUES.match(line)) is not None:
            row: dict[str, object] = {
                "device": device, "gpu_temperature_celsius": float(match[1]), "gpu_performance_state": float(match[2]),
                "gpu_power_watts": float(match[3]), "gpu_memory_used_bytes": float(match[5]) * 1024.0**2,
                "gpu_memory_total_bytes": float(match[6]) * 1024.0**2, "gpu_utilization_ratio": float(match[7]) / 100.0,
            }  # fmt: skip
            if time_s is not None:
                row["time_s"] = time_s
            yield row
            device = None


def _silent(text: str) -> Iterator[Verdict]:
    """GPUs of printed tables whose values are errors: each is reported once, when it is first seen."""
    time_s, device, errors = None, "", 0
    reported = set[str]()
    for line in text.split("\n"):
        if (stamp := _STAMP.match(line)) is not None:
            time_s = time_s_of(stamp[1])
        elif (first := _ROW.match(line)) is not None:
            device, errors = f"gpu{int(first[1])}", line.count(_NO_ANSWER)
        elif device and line.startswith("|"):
            errors += line.count(_NO_ANSWER)
            if errors >= _LEAST_ERRORS and device not in reported:
                reported.add(device)
                yield Verdict(device, "gpu", f"nvidia-smi shows {_NO_ANSWER} for {errors} of its values", None, time_s)
            device = ""
