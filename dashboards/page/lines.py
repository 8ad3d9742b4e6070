"""Log lines around the first error of an incident, found on the bus when somebody asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from trainwarden.detectors.logs.rules import shipped_rules
from trainwarden.protocols import Bus, Message
from trainwarden.records import IncidentRecord, LogRecord
from trainwarden.topics import LOGS, METRICS

BEFORE_S: Final = 120.0  # of the onset: the cause is said before anybody notices
AFTER_S: Final = 10.0
LONGEST_S: Final = 900.0  # from onset to opening
LATE_S: Final = 30.0  # lines may reach the bus that much later than they were written
MOST_RECORDS: Final = 20_000
MOST_LINES: Final = 100_000
LINES_BEFORE: Final = 20
LINES_AFTER: Final = 30
OTHERS: Final = 20

ReadLogs = Callable[[float], Iterable[Message]]
"""Log messages that reached the bus from a moment on, those of one job oldest first."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, and the rule that it fits."""

    time_s: float
    node: str
    source: str
    rank: int | None
    text: str
    rule: str | None = None
    root: bool = False


@dataclass(slots=True)
class Found:
    """`lines` of one source around its error, and the first error of every other source."""

    lines: list[Line] = field(default_factory=list)
    error: Line | None = None
    others: list[Line] = field(default_factory=list)
    cut: bool = False


def of_bus(bus: Bus) -> ReadLogs:
    """How lines are read from `bus`."""
    return lambda from_s: bus.read(LOGS, from_time_s=from_s)


def metrics_of_bus(bus: Bus) -> ReadLogs:
    """How samples of metrics are read from `bus`."""
    return lambda from_s: bus.read(METRICS, from_time_s=from_s)


def around(incident: IncidentRecord, read: ReadLogs) -> Found:
    """What was said around the first error of `incident`.

    Raises
    ------
    BusUnavailable
        If the bus is away.
    """
    onset_s = incident.opened_at_s if incident.onset_s is None else incident.onset_s
    from_s = max(onset_s, incident.opened_at_s - LONGEST_S) - BEFORE_S
    taken, cut = _taken(incident.job, read(from_s), from_s, incident.opened_at_s + AFTER_S)
    by_source: dict[tuple[str, str], list[Line]] = {}
    for line in taken:
        by_source.setdefault((line.node, line.source), []).append(line)
    firsts = {source: first for source, lines in by_source.items() if (first := _first_error(lines)) is not None}
    suspected = {one.rank for one in incident.suspects if one.rank is not None}
    ordered = sorted(firsts, key=lambda s: (not firsts[s].root, firsts[s].rank not in suspected, firsts[s].time_s))
    if not ordered:
        return Found(_last_of_suspect(by_source, suspected), None, [], cut)
    error = firsts[ordered[0]]
    lines = by_source[ordered[0]]
    place = lines.index(error)
    shown = lines[max(0, place - LINES_BEFORE) : place + LINES_AFTER]
    return Found(shown, error, [firsts[source] for source in ordered[1 : OTHERS + 1]], cut)


def _taken(job: str, messages: Iterable[Message], from_s: float, until_s: float) -> tuple[list[Line], bool]:
    """The lines of `job` in that time, and whether there were more records than are read.

    Messages come in order by partition alone: what is too late ends the reading only if it is of the job itself,
    whose records are all in one.
    """
    lines: list[Line] = []
    read = late = 0
    for message in messages:
        record = message.record
        own = record if isinstance(record, LogRecord) and record.job == job else None
        if message.time_s > until_s + LATE_S:
            late += 1
            if own is not None or late >= MOST_RECORDS:
                return lines, False
            continue
        read += 1
        if read > MOST_RECORDS or len(lines) >= MOST_LINES:
            return lines, True
        if own is not None:
            lines.extend(line for line in _of(own, message.time_s) if from_s <= line.time_s <= until_s)
    return lines, False


def _of(record: LogRecord, arrived_s: float) -> Iterator[Line]:
    """Its lines; those of a clock that is ahead on the clock of the bus, for nothing arrives before it was written."""
    ahead_s = max(0.0, max(record.times_s, default=arrived_s) - arrived_s)
    for at_s, text in zip(record.times_s, record.lines, strict=False):
        yield Line(at_s - ahead_s, record.node, record.source, record.rank, text)


def _first_error(lines: list[Line]) -> Line | None:
    """The first line of a source that names a cause, else the first that names an effect; put back with its rule."""
    found: tuple[int, Line] | None = None
    for place, line in enumerate(lines):
        rule = shipped_rules().match(line.text)
        if rule is None or rule.role not in ("root", "cascade", "app"):
            continue
        told = Line(line.time_s, line.node, line.source, line.rank, line.text, rule.id, rule.role == "root")
        if found is None or told.root:
            found = (place, told)
        if told.root:
            break
    if found is None:
        return None
    lines[found[0]] = found[1]
    return found[1]


def _last_of_suspect(by_source: dict[tuple[str, str], list[Line]], suspected: set[int]) -> list[Line]:
    for lines in by_source.values():
        if lines[0].rank in suspected:
            return lines[-LINES_BEFORE:]
    return []
