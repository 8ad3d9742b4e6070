"""Format: what a board's controller says of its sensors: `ipmitool sensor`, `sdr` and `sel list`.

Sensors that are not fitted (``ns``, ``na``) and those beyond a limit that is not critical (``nc``) accuse nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.formats.verdicts import Verdict, found_of_verdicts, line_of
from trainwarden.recorded.job import LogTable

_STATUS: Final = r"(ok|ns|na|nc|cr|nr|[lu](?:nc|cr|nr))"
_NAME: Final = r"([A-Za-z0-9][^|\n]{0,40}?)\s{0,40}"
# Name, reading and status; behind it the number of its entity and its words (`sdr elist`), or its limits (`sensor`).
_SDR: Final = re.compile(rf"{_NAME}\| ([^|\n]{{1,60}}?)\s{{0,40}}\| {_STATUS}\s{{0,8}}$")
_ELIST: Final = re.compile(
    rf"{_NAME}\| [0-9A-F]{{2}}h \| {_STATUS}\s{{1,4}}\| {{1,4}}[0-9]{{1,3}}\.[0-9]{{1,3}} \| ?([^|\n]{{0,120}})$"
)
_SENSOR: Final = re.compile(
    rf"{_NAME}\| (\S{{1,20}})\s{{1,20}}\| ([^|\n]{{0,20}}?)\s{{1,20}}"
    rf"\| (?:{_STATUS}|0x([0-9a-f]{{2}})[0-9a-f]{{2}})\s{{0,8}}\|"
)
_EVENT: Final = re.compile(
    r"\s{0,8}[0-9a-f]{1,6} \| ([0-9]{2}/[0-9]{2}/(?:20)?[0-9]{2}|Pre-Init\s{0,4})\s{0,2}"
    r"\| ?([0-9:]{8,10})(?: [A-Z]{2,5})? ?"
    r"\| ([^|\n]{1,60}?) \| ([^|\n]{1,120}?)\s{0,8}\| (Asserted|Deasserted)"
)
_BAD_WORDS: Final = re.compile(
    r"(?:Upper|Lower) (?:Critical|Non-recoverable) going|Transition to (?:Critical|Non-recoverable)|Failure detected|"
    r"Predictive failure|AC lost|Redundancy Lost|Drive Fault|Correctable ECC logging limit reached"
)
# Events that rules of logs know by their own words (sel.pcie, sel.host).
_KNOWN: Final = re.compile(
    r"Bus (?:Fatal|Uncorrectable) [Ee]rror|PCI (?:PERR|SERR)|IERR|Thermal Trip|"
    r"Uncorrectable machine check|Uncorrectable ECC"
)
_SUPPLY: Final = re.compile(r"(?i)^(?:PS|PSU|Power Supply|PWR)[ _]?[0-9A-Z]{0,2}\b.{0,20}$")
_SUPPLY_BITS: Final = {1: "failure detected", 3: "input lost", 4: "input lost or out of range"}  # IPMI 2.0, table 42-3
_CRITICAL: Final = ("cr", "nr", "lcr", "lnr", "ucr", "unr")
_WITHOUT: Final = ("ns", "na")
_LEAST_SHARE: Final = 0.8
_FEWEST: Final = 2
_NEWEST_S: Final = 7 * 86_400.0  # before the newest event: what was asserted long before is another story


class BoardSensors:
    """One table or one list of events; each of one node."""

    name = "board sensors"

    def sniff(self, name: str, head: str) -> float:
        """By lines of sensors or events, which make up the text."""
        del name
        if " | " not in head[:2_000]:
            return NEVER
        lines = [line for line in head[:20_000].split("\n")[:-1] if line.strip()][:200]
        own = sum(any(one.match(line) for one in (_SDR, _ELIST, _SENSOR, _EVENT)) for line in lines)
        return SURE if own >= max(_FEWEST, _LEAST_SHARE * len(lines)) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text()
        if any(map(_EVENT.match, text.split("\n"))):
            return _found_of_events(source, text)
        return found_of_verdicts(source, self.name, _of_sensors(text))


def _of_sensors(text: str) -> Iterator[Verdict]:
    for line in text.split("\n"):
        if (elist := _ELIST.match(line)) is not None:
            yield from _verdict(elist[1], elist[2], elist[3].strip())
        elif (sdr := _SDR.match(line)) is not None:
            yield from _verdict(sdr[1], sdr[3], sdr[2])
        elif (sensor := _SENSOR.match(line)) is not None and sensor[4] is not None:
            yield from _verdict(sensor[1], sensor[4], f"{sensor[2]} {sensor[3]}".strip())
        elif sensor is not None and _SUPPLY.match(sensor[1]):
            states = int(sensor[5], 16)
            bad = [words for bit, words in _SUPPLY_BITS.items() if states >> bit & 1]
            yield Verdict(sensor[1], "board", ", ".join(bad) or None)


def _verdict(name: str, status: str, reading: str) -> Iterator[Verdict]:
    """The verdict on a sensor; none where it is not fitted, or tells of what is not critical."""
    if status in _CRITICAL:
        state = "non-recoverable" if status.endswith("nr") else "critical"
        yield Verdict(name, "board", f"{state}: it reads {reading}")
    elif _BAD_WORDS.search(reading):
        yield Verdict(name, "board", reading)
    elif status == "ok":
        yield Verdict(name, "", None)


def _found_of_events(source: Source, text: str) -> Found:
    """The last word on each sensor's event, and lines that rules of logs know."""
    events = [(match, line) for line in text.split("\n") if (match := _EVENT.match(line)) is not None]
    times = [_time_s(match) for match, _ in events]
    newest_s = max((one for one in times if np.isfinite(one)), default=source.path.stat().st_mtime)
    last: dict[tuple[str, str], tuple[float, str | None]] = {}
    for (match, line), time_s in zip(events, times, strict=True):
        at_s = time_s if np.isfinite(time_s) else newest_s
        if newest_s - at_s > _NEWEST_S:
            continue
        is_on = match[5] == "Asserted"
        told = None
        if is_on and _KNOWN.search(match[4]):
            told = line.strip()
        elif is_on and _BAD_WORDS.search(match[4]):
            told = line_of(Verdict(match[3], "board", match[4]))
        last[match[3], match[4]] = (at_s, told)
    if not last:
        raise DataError(f"{source.name}: no event has a date and a sensor")
    rows = sorted(last.items(), key=lambda one: one[1][0])
    lines = [told or line_of(Verdict(sensor, "", None)) for (sensor, _), (_, told) in rows]
    stamps = np.array([at_s for _, (at_s, _) in rows])
    bare = (None,) * len(rows)
    found = Found(rows=len(events), logs=[LogTable("events", stamps, bare, bare, lines)])
    if len(events) > len(rows):
        found.notes.append("of each sensor's event the last state counts, within a week of the newest")
    return found


def _time_s(match: re.Match[str]) -> float:
    """When an event was; NaN before the clock was set.

    Examples
    --------
    >>> _time_s(_EVENT.match("   1 | 09/21/2026 | 14:00:01 | Fan #0x45 | Lower Critical going low  | Asserted"))
    1789999201.0
    """
    month, _, rest = match[1].strip().partition("/")
    day, _, year = rest.partition("/")
    if not year:
        return float("nan")
    return time_s_of(f"{year if len(year) == 4 else f'20{year}'}-{month}-{day} {match[2]}")
