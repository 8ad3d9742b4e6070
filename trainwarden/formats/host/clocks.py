"""Format: how far a node's clock is off, as `chronyc`, `ntpq -p` and `timedatectl` tell it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, verdict_tables
from trainwarden.recorded.job import LogTable

MOST_S: Final = 0.05  # node_exporter's own alert rules, NodeClockSkewDetected
LEAST_PEERS: Final = 3  # clocks that are synchronised where one is not
_TRACKING: Final = re.compile(r"(?m)^System time\s{1,8}: ([0-9.]{1,20}) seconds (?:fast|slow) of NTP time")
_LEAP: Final = re.compile(r"(?m)^Leap status\s{1,8}: (\S[^\n]{0,30})$")
_SOURCES: Final = re.compile(r"(?m)^(?:MS|\.-- Source mode)\s[^\n]{0,40}(?:Name/IP address|'\^' = server)")
# State, name, stratum, poll, reach, age and the offset of the last sample.
_SOURCE: Final = re.compile(
    r"(?m)^[\^=#]([*+?x~-]) \S{1,60}\s{1,40}[0-9]{1,2}\s{1,8}[0-9]{1,2}\s{1,8}[0-7]{1,3}\s{1,8}\S{1,6}\s{1,8}"
    r"[+-]([0-9.]{1,12})(ns|us|ms|s)\["
)
_STATS: Final = re.compile(r"(?m)^Name/IP Address\s{1,60}NP\s{1,4}NR\s")
_STAT: Final = re.compile(
    r"(?m)^\S{1,60}\s{1,40}[0-9]{1,4}\s{1,8}[0-9]{1,4}\s{1,8}\S{1,8}\s{1,12}[+-][0-9.]{1,16}\s{1,12}[0-9.]{1,16}\s{1,12}"
    r"[+-]([0-9.]{1,12})(ns|us|ms|s)\s"
)
_NTPQ: Final = re.compile(r"(?m)^\s{1,12}remote\s{1,20}refid\s{1,12}st t when poll reach")
_PEER: Final = re.compile(
    r"(?m)^([ *+#ox.-])\S{1,60}\s{1,40}\S{1,40}\s{1,12}[0-9]{1,2} [ulbpsABMS]\s{1,8}\S{1,6}\s{1,8}[0-9]{1,6}"
    r"\s{1,8}[0-7]{1,3}\s{1,12}[0-9.]{1,12}\s{1,12}([+-]?[0-9.]{1,16})\s"
)
_TIMEDATECTL: Final = re.compile(r"(?m)^\s{0,24}(?:System clock synchronized|NTP synchronized): (yes|no)\s{0,4}$")
_TIMESYNC: Final = re.compile(r"(?m)^\s{0,24}Offset: [+-]?([0-9.]{1,12})(ns|us|ms|s)\s{0,4}$")
_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
_MARKS: Final = (_TRACKING, _SOURCES, _STATS, _NTPQ, _TIMEDATECTL)
ALONE: Final = (
    "its clock is not synchronised, which fewer than 4 nodes show to be a fault; how far it is off it does not tell"
)
MANY: Final = "most clocks are off or not synchronised: what they follow may be off itself"


class Clock(NamedTuple):
    """One node's clock.

    Attributes
    ----------
    node : str or None
    time_s : float
        When the file was changed last.
    offset_s : float or None
        How far it is off, without its sign.
    is_synced : bool or None
        Whether it follows another one; None where that is not told.
    """

    node: str | None
    time_s: float
    offset_s: float | None
    is_synced: bool | None


class Clocks:
    """The answers of one node; nodes are compared where all files have been read."""

    name = "clock report"

    def sniff(self, name: str, head: str) -> float:
        """By a line that only these programs print, near the start."""
        del name
        start = head[:3_000]
        return SURE if any(mark.search(start) for mark in _MARKS) and start.count("\n") < 200 else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        clock = clock_of(source.text(), source.path.stat().st_mtime)
        if clock is None:
            raise DataError(f"{source.name}: it tells neither an offset nor whether the clock is synchronised")
        return Found(rows=1, clocks=[clock], notes=["its time is the file's last change"])


def clock_of(text: str, time_s: float) -> Clock | None:
    """The clock that answers tell of; None where they tell nothing.

    Examples
    --------
    >>> clock_of("System time     : 0.250000000 seconds slow of NTP time\\nLeap status     : Normal\\n", 0.0)
    Clock(node=None, time_s=0.0, offset_s=0.25, is_synced=True)
    """
    offsets = [float(told) for told in _TRACKING.findall(text)]
    synced = ["not" not in told.lower() for told in _LEAP.findall(text)]
    synced += [told == "yes" for told in _TIMEDATECTL.findall(text)]
    offsets += [float(told) * _UNITS[unit] for told, unit in _TIMESYNC.findall(text)]
    sources = _SOURCE.findall(text)
    chosen = [float(told) * _UNITS[unit] for state, told, unit in sources if state == "*"]
    peers = [(state, 1e-3 * abs(float(told))) for state, told in _PEER.findall(text)]
    chosen += [told for state, told in peers if state in "*o"]
    offsets += chosen
    if sources or peers or _SOURCES.search(text) or _NTPQ.search(text):
        synced.append(bool(chosen))
    if not offsets and (stats := [float(told) * _UNITS[unit] for told, unit in _STAT.findall(text)]):
        offsets.append(float(np.median(stats)))
    if not offsets and not synced:
        return None
    # A clock that follows nothing knows nothing of its offset.
    is_synced = all(synced) if synced else None
    return Clock(None, time_s, max(offsets) if offsets and is_synced is not False else None, is_synced)


def clocks_compared(clocks: Sequence[Clock]) -> tuple[list[LogTable], str]:
    """Lines about clocks; why they are not judged, empty where they are.

    Examples
    --------
    >>> clocks_compared([Clock("a1", 0.0, 0.25, True)])[0][0].lines
    ['health check: clock clock failed: it is 250 ms off']
    >>> clocks_compared([Clock("a1", 0.0, None, False)]) == ([], ALONE)
    True
    """
    far = [clock for clock in clocks if clock.offset_s is not None and clock.offset_s > MOST_S]
    free = [clock for clock in clocks if clock.is_synced is False]
    well = [clock for clock in clocks if clock not in far and clock not in free]
    if len(clocks) > LEAST_PEERS and len(well) < len(far) + len(free):
        return [], MANY
    verdicts = [Verdict("clock", "clock", f"it is {1e3 * (one.offset_s or 0.0):.0f} ms off", one.node) for one in far]
    if len(well) >= LEAST_PEERS:
        words = f"it follows no other clock, as {len(well)} nodes do"
        verdicts += [Verdict("clock", "clock", words, one.node) for one in free]
    elif free and not far:
        return [], ALONE
    verdicts += [Verdict("clock", "", None, one.node) for one in well]
    return verdict_tables("clocks", verdicts, max((one.time_s for one in clocks), default=0.0)), ""
