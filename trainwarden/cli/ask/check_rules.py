"""What is OK, WARNING, CRITICAL or UNKNOWN for `trainwarden check`, and how a Nagios plug-in says so."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from trainwarden.cli.shared.formatting import counted
from trainwarden.errors import ConfigError
from trainwarden.protocols import Bus
from trainwarden.records import EventRecord, IncidentKind, IncidentRecord, Severity
from trainwarden.topics import EVENTS, HEARTBEATS, INCIDENTS, METRICS, VERDICTS

RECENT_S: Final = 3_600.0  # a job that was judged within the last hour is missed when it falls silent
MARGIN_S: Final = 15.0  # heartbeats are read from a little earlier, so that an age can be above the limit
MAX_LIMIT_S: Final = 86_400.0
MAX_TEXT_CHARS: Final = 300
MAX_LINES: Final = 20
_RANGE: Final = re.compile(r"(?:(?:0|~)?:)?(\d+(?:\.\d+)?)")


class State(IntEnum):
    """Exit codes of a Nagios plug-in."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3


BADNESS: Final = (State.OK, State.UNKNOWN, State.WARNING, State.CRITICAL)
OF_SEVERITY: Final[Mapping[Severity, State]] = {
    "sev1": State.CRITICAL,
    "sev2": State.CRITICAL,
    "sev3": State.WARNING,
}
NODE_FAULTS: Final[frozenset[IncidentKind]] = frozenset(
    {"node_lost", "gpu_lost", "gpu_memory_error", "nvlink_error", "pcie_error", "nic_down"}
)
"""What only another node helps against."""
Limits = tuple[float, float]
"""Seconds above which an age is a warning, and above which it is critical."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A state with what led to it, worst first, and performance data by label."""

    state: State
    findings: tuple[str, ...]
    performance: tuple[str, ...] = ()

    @classmethod
    def of(cls, state: State, text: str) -> Answer:
        """One finding."""
        return cls(state, (text,))

    def text(self) -> str:
        """``STATUS: text | performance data``, then a line for each further finding."""
        more = len(self.findings) - 1
        first = f"{self.state.name}: {plain(self.findings[0])}{f'; {more} more' if more else ''}"
        lines = [f"{first} | {' '.join(self.performance)}" if self.performance else first]
        lines += [plain(one) for one in self.findings[1:MAX_LINES]]
        if len(self.findings) > MAX_LINES:
            lines.append(f"and {len(self.findings) - MAX_LINES} more")
        return "\n".join(lines)


@dataclass(slots=True)
class _Seen:
    """One job as the bus tells it; times are the bus's own."""

    first_heard_s: float | None = None
    heard_s: float | None = None
    judged_s: float | None = None
    measured: bool = False
    incidents: list[IncidentRecord] = field(default_factory=list)

    def age_s(self, now_s: float) -> float | None:
        """How long nobody has heard of it; None if not within what was read."""
        return None if self.heard_s is None else max(now_s - self.heard_s, 0.0)

    def unjudged_s(self, now_s: float) -> float | None:
        """How long it has been heard of without a verdict."""
        since_s = self.judged_s if self.judged_s is not None else self.first_heard_s
        return None if since_s is None else max(now_s - since_s, 0.0)


def limit_of(option: str, text: str) -> float:
    """Seconds of a threshold as Nagios writes it: ``N``, ``:N``, ``0:N`` or ``~:N``.

    Raises
    ------
    ConfigError
        If it is none of these.

    Examples
    --------
    >>> limit_of("--warning", "60"), limit_of("--warning", "0:90.5")
    (60.0, 90.5)
    """
    found = _RANGE.fullmatch(text) if len(text) <= 32 else None
    if found is None or not 0.0 < float(found[1]) <= MAX_LIMIT_S:
        raise ConfigError(f"{option}: '{text[:32]}' is no number of seconds up to {MAX_LIMIT_S:.0f} (N or 0:N)")
    return float(found[1])


def plain(text: str) -> str:
    """`text` as a plug-in may say it: one line, no bar, nothing unprintable, cut.

    Examples
    --------
    >>> plain("rank 1|2\\nslow")
    'rank 1/2 slow'
    """
    kept = "".join(one if one.isprintable() else " " for one in text[: 4 * MAX_TEXT_CHARS]).replace("|", "/")
    return kept if len(kept) <= MAX_TEXT_CHARS else f"{kept[: MAX_TEXT_CHARS - 3]}..."


def look(bus: Bus, job: str | None, limits: Limits, now_s: float) -> Answer:
    """How the jobs on `bus` are, or `job` alone.

    Open incidents count by their severity. A job that is not over is to be heard of, by its ranks' heartbeats or else
    by its agents' metrics, and to be judged; without a name that holds for jobs of which there is a heartbeat within
    the critical limit or a verdict within the last hour.
    """
    seen = _read(bus, job, limits, now_s)
    found = [(OF_SEVERITY[it.severity], _incident_text(it)) for _, one in sorted(seen.items()) for it in one.incidents]
    late = {name: _lateness(name, one, limits, now_s, named=job is not None) for name, one in sorted(seen.items())}
    ended = _ended(bus, job, now_s) if any(late.values()) else frozenset[str]()
    found += [one for name, one in late.items() if one is not None and name not in ended]
    found.sort(key=lambda it: -BADNESS.index(it[0]))
    live = {name: one for name, one in seen.items() if one.measured or one.heard_s is not None}
    if not found:
        calm = f"{counted(len(live), 'job')} heard of, no incident" if live else "no job is heard of: nothing to judge"
        said = f"job {job} is over" if job in ended else calm
        found = [(State.OK, said)]
    return Answer(found[0][0], tuple(text for _, text in found), _performance(seen, live, limits, now_s))


def look_at_node(bus: Bus, node: str, job: str | None) -> Answer:
    """Whether `node` is at fault: open incidents of its hardware (`NODE_FAULTS`) in which nobody is suspected more."""
    found = [one for one in _open_incidents(bus, job) if one.kind in NODE_FAULTS and _suspects_most(one, node)]
    performance = (f"incidents={len(found)};;;0",)
    if not found:
        return Answer(State.OK, (f"nothing is known against node {node}",), performance)
    found.sort(key=lambda one: -BADNESS.index(OF_SEVERITY[one.severity]))
    state = OF_SEVERITY[found[0].severity]
    return Answer(state, tuple(f"node {node}: {_incident_text(one)}" for one in found), performance)


def _suspects_most(record: IncidentRecord, node: str) -> bool:
    most = max((one.score for one in record.suspects), default=0.0)
    return any(one.node == node and one.score == most for one in record.suspects)


def _read(bus: Bus, job: str | None, limits: Limits, now_s: float) -> dict[str, _Seen]:
    seen: dict[str, _Seen] = {} if job is None else {job: _Seen()}
    for message in bus.read(HEARTBEATS, from_time_s=now_s - max(limits) - MARGIN_S):
        if job in (None, message.key):
            one = seen.setdefault(message.key, _Seen())
            one.first_heard_s = message.time_s if one.first_heard_s is None else one.first_heard_s
            one.heard_s = max(message.time_s, one.heard_s or 0.0)
    for message in bus.read(VERDICTS, from_time_s=now_s - RECENT_S):
        if job in (None, message.key):
            one = seen.setdefault(message.key, _Seen())
            one.judged_s = max(message.time_s, one.judged_s or 0.0)
    for record in _open_incidents(bus, job):
        seen.setdefault(record.job, _Seen()).incidents.append(record)
    _hear_agents(bus, seen, now_s - min(limits))
    return seen


def _hear_agents(bus: Bus, seen: dict[str, _Seen], since_s: float) -> None:
    """Jobs without ranks have no heartbeat; their agents measure all the same. One record of each is enough."""
    silent = {name for name, one in seen.items() if one.heard_s is None or one.heard_s < since_s}
    if not silent:
        return
    for message in bus.read(METRICS, from_time_s=since_s):
        if message.key in silent:
            seen[message.key].measured = True
            silent.remove(message.key)
            if not silent:
                return


def _open_incidents(bus: Bus, job: str | None) -> list[IncidentRecord]:
    newest: dict[str, IncidentRecord] = {}
    for message in bus.read(INCIDENTS):
        record = message.record
        if isinstance(record, IncidentRecord) and job in (None, record.job):
            known = newest.get(record.id)
            if known is None or record.revision >= known.revision:
                newest[record.id] = record
    return [record for record in newest.values() if record.wants_action]


def _ended(bus: Bus, job: str | None, now_s: float) -> frozenset[str]:
    """Jobs that were told to be over, and not begun again; without a name only those of the last hour."""
    over: dict[str, bool] = {}
    for message in bus.read(EVENTS, from_time_s=now_s - RECENT_S - MARGIN_S if job is None else None):
        if isinstance(message.record, EventRecord) and message.record.kind in ("job_start", "job_end"):
            over[message.key] = message.record.kind == "job_end"
    return frozenset(job for job, is_over in over.items() if is_over)


def _lateness(name: str, one: _Seen, limits: Limits, now_s: float, *, named: bool) -> tuple[State, str] | None:
    """What its silence says, or that of whoever should judge it."""
    age_s, unjudged_s = 0.0 if one.measured else one.age_s(now_s), one.unjudged_s(now_s)
    if age_s is None:
        if one.judged_s is None and not named:
            return None  # known by an old incident alone
        return State.CRITICAL, f"job {name} has not been heard of for more than {max(limits):g} s"
    if (state := _state_of(age_s, limits)) is not State.OK:
        return state, f"job {name} has not been heard of for {age_s:.0f} s"
    if unjudged_s is None:  # its agents alone are heard: ranks, when they come, make it critical in time
        return State.WARNING, f"nobody has judged job {name} for the last hour; is the detection service there?"
    if (state := _state_of(unjudged_s, limits)) is not State.OK:
        return state, f"nobody has judged job {name} for {unjudged_s:.0f} s; is the detection service there?"
    return None


def _state_of(seconds: float, limits: Limits) -> State:
    warning_s, critical_s = limits
    if seconds > critical_s:
        return State.CRITICAL
    return State.WARNING if seconds > warning_s else State.OK


def _incident_text(record: IncidentRecord) -> str:
    return f"{record.job}: {record.kind} {record.severity}: {record.reason} ({record.id})"


def _performance(seen: Mapping[str, _Seen], live: Mapping[str, _Seen], limits: Limits, now_s: float) -> tuple[str, ...]:
    """Counts, and the greatest ages of live jobs (of heartbeats and verdicts); what no live job has is left out."""
    ages = {
        "unheard": [one.age_s(now_s) for one in live.values() if not one.measured],
        "unjudged": [one.unjudged_s(now_s) for one in live.values()],
    }
    out = [f"jobs={len(live)};;;0", f"incidents={sum(len(one.incidents) for one in seen.values())};;;0"]
    for label, values in ages.items():
        if known := [age for age in values if age is not None]:
            out.append(f"{label}={max(known):.1f}s;{limits[0]:g};{limits[1]:g};0")
    return tuple(out)
