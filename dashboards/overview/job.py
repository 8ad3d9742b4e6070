"""What is known of one job."""

from __future__ import annotations

import statistics
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, Literal

from trainwarden.dashboards.overview.pace import Pace
from trainwarden.parallelism.board import LayoutBoard
from trainwarden.protocols import Message
from trainwarden.records import (
    TRANSITION_PHASES,
    ActionRecord,
    EventRecord,
    HeartbeatRecord,
    IncidentRecord,
    IterationRecord,
    Suspect,
    VerdictRecord,
)

MAX_INCIDENTS: Final = 10_000  # of a job; the closed ones that were heard of first go first
MAX_VERDICTS: Final = 3_600  # an hour at one a second
MAX_EVENTS: Final = 2_000
HEALTHY: Final = 120  # verdicts of healthy windows that the healthy level is the median of
SILENT_S: Final = 30.0  # heartbeats come every second
SEVERITIES: Final = ("sev1", "sev2", "sev3")


class JobOverview:
    """What was told of one job, the newest of it, by messages that each come once.

    Parameters
    ----------
    whole : bool
        Keep the whole of a run, coarser the longer it is, rather than the newest of it.
    """

    def __init__(self, job: str, *, whole: bool = False) -> None:
        self.job = job
        self._whole = whole
        self.incidents: dict[str, IncidentRecord] = {}
        self.actions: dict[str, ActionRecord] = {}
        self.verdicts: deque[VerdictRecord] = deque(maxlen=MAX_VERDICTS)
        self.events: deque[EventRecord] = deque(maxlen=MAX_EVENTS)
        self.layouts = LayoutBoard()
        self.nodes: dict[str, HeartbeatRecord] = {}
        self.pace = Pace(whole=whole)
        self.node_seen_s: dict[str, float] = {}
        self.incidents_total: Counter[tuple[str, str]] = Counter()
        self.actions_total: Counter[tuple[str, str]] = Counter()
        self.transition_s: dict[str, float] = {}
        self.seen_s: float | None = None
        self.judged_s: float | None = None
        self.ended = False
        self._open: dict[str, IncidentRecord] = {}
        self._healthy_s: deque[float] = deque(maxlen=HEALTHY)

    def apply(self, message: Message, heard_s: float | None = None) -> bool:
        """Take one record in; whether it says something that was not known.

        `heard_s` is when it was heard, by the clock that silence is measured with; by default the bus's time of it.
        """
        record, heard_s = message.record, message.time_s if heard_s is None else heard_s
        match record:
            case IterationRecord():
                self._seen(heard_s)
                self.pace.apply(record, message.time_s)
                return False
            case HeartbeatRecord():
                self._seen(heard_s)
                self.nodes[record.node] = record
                self.node_seen_s[record.node] = heard_s
                return False
            case VerdictRecord():
                return self._take_verdict(record, heard_s)
            case IncidentRecord():
                return self._take_incident(record)
            case ActionRecord():
                return self._take_action(record)
            case EventRecord() if self.layouts.apply(record):
                return False  # every rank says it, again and again
            case EventRecord():
                return self._take_event(record)
            case _:
                return False

    def state(self, now_s: float) -> Literal["running", "silent", "ended"]:
        """Whether it goes on, as far as it is heard of."""
        if self.ended:
            return "ended"
        return "silent" if self.seen_s is None or now_s - self.seen_s > SILENT_S else "running"

    def open_incidents(self) -> list[IncidentRecord]:
        """Incidents that last, the gravest first."""
        return sorted(self._open.values(), key=lambda one: (SEVERITIES.index(one.severity), one.opened_at_s))

    def suspects(self, most: int = 10) -> Sequence[tuple[str, Suspect]]:
        """(incident kind, suspect) of open incidents, most likely first."""
        named = [(one.kind, suspect) for one in self.open_incidents() for suspect in one.suspects]
        return sorted(named, key=lambda pair: -pair[1].score)[:most]

    def waiting(self) -> list[ActionRecord]:
        """Actions that wait for a person's word: what an engine that only observes would do has no digest."""
        return [action for action in self.actions.values() if waits(action)]

    def forget_nodes(self, before_s: float) -> None:
        """Let go of nodes whose newest heartbeat came before `before_s`."""
        for name in [name for name, seen_s in self.node_seen_s.items() if seen_s < before_s]:
            self.forget_node(name)

    def forget_node(self, name: str) -> None:
        """Let go of one node, if it is known."""
        self.nodes.pop(name, None)
        self.node_seen_s.pop(name, None)
        self.pace.forget_node(name)

    @property
    def verdict(self) -> VerdictRecord | None:
        """The newest verdict."""
        return self.verdicts[-1] if self.verdicts else None

    @property
    def iteration_s(self) -> float | None:
        """Iteration time by the newest verdict that knows it."""
        return next((one.iteration_s for one in reversed(self.verdicts) if one.iteration_s is not None), None)

    @property
    def healthy_s(self) -> float | None:
        """Median iteration time of windows in which nothing was wrong; it stands still while an incident is open."""
        return statistics.median(self._healthy_s) if self._healthy_s else None

    @property
    def ranks(self) -> int:
        """Ranks that have reported."""
        return len(set(self.pace.ranks) | {rank for beat in self.nodes.values() for rank in beat.ranks})

    def _seen(self, time_s: float) -> None:
        self.seen_s = time_s if self.seen_s is None else max(self.seen_s, time_s)

    def _take_verdict(self, record: VerdictRecord, heard_s: float) -> bool:
        known = self.verdict
        if known is not None and record.id == known.id:  # not by its time: another detector has another clock
            return False
        if self._whole and len(self.verdicts) == MAX_VERDICTS:
            self._thin()
        self.judged_s = heard_s
        self.verdicts.append(record)
        healthy = not record.anomalous and not record.phase and record.iteration_s is not None
        if healthy and all(record.time_s < _began_s(one) for one in self._open.values()):
            assert record.iteration_s is not None
            self._healthy_s.append(record.iteration_s)
        return True

    def _thin(self) -> None:
        """Keep one of each two verdicts, the one that found something."""
        kept = list(self.verdicts)
        pairs = zip(kept[::2], kept[1::2], strict=True)
        self.verdicts = deque((a if a.anomalous and not b.anomalous else b for a, b in pairs), maxlen=MAX_VERDICTS)

    def _take_incident(self, record: IncidentRecord) -> bool:
        known = self.incidents.get(record.id)
        if known is not None and record.revision <= known.revision:
            return False
        if known is None:
            self.incidents_total[record.kind, record.severity] += 1
        self.incidents[record.id] = record
        if not record.wants_action:  # alerts last while a job is down by it
            self._open.pop(record.id, None)
        else:
            self._open[record.id] = record
        if len(self.incidents) > MAX_INCIDENTS:
            closed = (name for name in self.incidents if name not in self._open)
            gone = next(closed if len(self._open) < len(self.incidents) else iter(self.incidents))
            del self.incidents[gone]
            self._open.pop(gone, None)
        return True

    def _take_action(self, record: ActionRecord) -> bool:
        known = self.actions.get(record.id)
        if known is not None and (known.outcome, known.plan_digest) == (record.outcome, record.plan_digest):
            return False
        self.actions[record.id] = record
        self.actions_total[record.kind, record.outcome] += 1
        if len(self.actions) > MAX_INCIDENTS:
            del self.actions[next(iter(self.actions))]
        return True

    def _take_event(self, record: EventRecord) -> bool:
        self.events.append(record)
        if record.kind in ("job_start", "job_end"):
            self.ended = record.kind == "job_end"
        elif record.kind == "transition":
            for phase in TRANSITION_PHASES:
                if isinstance(spent_s := record.fields.get(f"{phase}_s"), int | float) and spent_s > 0.0:
                    self.transition_s[phase] = self.transition_s.get(phase, 0.0) + spent_s
        return True


def waits(action: ActionRecord) -> bool:
    """Whether `action` waits for a person's word; what a person has asked for waits for no other."""
    return action.outcome == "proposed" and action.plan_digest is not None and action.incident is not None


def _began_s(incident: IncidentRecord) -> float:
    return incident.opened_at_s if incident.onset_s is None else incident.onset_s
