"""Following one job on the bus: what its iterations, incidents and actions look like right now."""

from __future__ import annotations

import logging
import re
import statistics
import uuid
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Final

from trainwarden.errors import BusUnavailable
from trainwarden.json_objects import action_object, incident_object
from trainwarden.parallelism.board import LayoutBoard
from trainwarden.protocols import Bus, Message
from trainwarden.records import (
    ActionRecord,
    EventRecord,
    HeartbeatRecord,
    IncidentRecord,
    IterationRecord,
    MetricsRecord,
    Record,
    VerdictRecord,
)
from trainwarden.topics import ACTIONS, EVENTS, HEARTBEATS, INCIDENTS, ITERATIONS, METRICS, VERDICTS

log = logging.getLogger("trainwarden.follow")

_HASH: Final = re.compile(r"[0-9a-f]{16,64}")

Step = dict[str, Any]
MAX_ROWS: Final = 200_000  # steps of ranks that are kept, some 80 MB: a run may go on for months
MAX_RECORDS: Final = 10_000  # verdicts, events and actions
MAX_NAMES: Final = 10_000  # of metrics
MAX_UNTRAINED: Final = 3  # programs that are named, the newest
MAX_PROGRAMS: Final = 256  # that have not trained and are remembered, the newest


class JobView:
    """What was told about one job, the newest of it; each record is taken in once, in any order of topics."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.incidents: dict[str, IncidentRecord] = {}
        self.actions: dict[str, ActionRecord] = {}
        self.action_history: deque[ActionRecord] = deque(maxlen=MAX_RECORDS)
        self.events: deque[EventRecord] = deque(maxlen=MAX_RECORDS)
        self.verdicts: deque[VerdictRecord] = deque(maxlen=MAX_RECORDS)
        self.steps: dict[tuple[int, str, int], Step] = {}
        self.heartbeats: dict[str, HeartbeatRecord] = {}
        self.agent_metrics: dict[str, float] = {}
        self.metric_names: set[str] = set()
        self.layouts = LayoutBoard()
        self._highest_step: int | None = None
        self._steps_done = 0
        self._ranks: set[int] = set()
        self._trainers: set[str] = set()
        self._bases: dict[int, tuple[str, str]] = {}
        self._untrained: dict[object, EventRecord] = {}  # the newest of each program that has not trained
        self.ended = False
        self.exit_code: int | None = None
        self.interrupted = False

    def feed(self, record: Record) -> None:
        """Take one record in; records of other jobs are passed over."""
        if getattr(record, "job", None) != self.job:
            return
        match record:
            case IterationRecord():
                self._feed_iterations(record)
            case HeartbeatRecord():
                self.heartbeats[record.node] = record
            case VerdictRecord():
                self.verdicts.append(record)
            case IncidentRecord():
                known = self.incidents.get(record.id)
                if known is None or record.revision > known.revision:
                    self.incidents[record.id] = record
            case ActionRecord():
                self.actions[record.id] = record
                self.action_history.append(record)
            case EventRecord() if self.layouts.apply(record):
                pass
            case EventRecord():
                self.events.append(record)
                self._feed_life(record)
            case MetricsRecord():
                self._feed_metrics(record)
            case _:
                pass

    def _feed_metrics(self, record: MetricsRecord) -> None:
        if record.devices == ("agent",):
            values = ((name, row[0]) for name, row in zip(record.names, record.values, strict=True))
            self.agent_metrics.update({name: value for name, value in values if value is not None})
        elif len(self.metric_names) < MAX_NAMES:
            self.metric_names.update(record.names)

    def _feed_life(self, record: EventRecord) -> None:
        """The begin and the end of the command, and of programs that have not trained."""
        if "untrained" in record.fields:
            self._untrained.pop(name := record.fields.get("incarnation"), None)
            self._untrained[name] = record
            for old in list(self._untrained)[:-MAX_PROGRAMS]:
                del self._untrained[old]
        if record.kind == "job_start":
            self.ended, self.exit_code, self.interrupted = False, None, False
        elif record.kind == "job_end":
            code = record.fields.get("exit_code")
            self.ended, self.exit_code = True, code if isinstance(code, int) else None
            self.interrupted = bool(record.fields.get("interrupted"))

    def _feed_iterations(self, record: IterationRecord) -> None:
        optional = {"compute_s": record.compute_s, "wait_s": record.wait_s, "pause_s": record.pause_s}
        for index, step in enumerate(record.steps):
            row: Step = {"duration_s": record.duration_s[index], "end_s": record.end_s[index], "node": record.node}
            for name, values in optional.items():
                row[name] = values[index] if values else None
            self.steps[(record.rank, record.incarnation, step)] = row
            if self._highest_step is None or step > self._highest_step:
                self._highest_step = step
                self._steps_done += 1
        self._ranks.add(record.rank)
        self._bases[record.rank] = record.basis, record.accelerator
        if record.steps:
            self._trainers.add(record.incarnation)
        for key in list(islice(self.steps, max(0, len(self.steps) - MAX_ROWS))):
            del self.steps[key]

    def iteration_s(self, first_step: int = 0, last_step: int | None = None) -> float | None:
        """Median over steps of the median over ranks of the iteration time, steps `first_step`..`last_step`."""
        by_step = [
            seconds
            for step, seconds in self.iterations()
            if step >= first_step and (last_step is None or step <= last_step)
        ]
        return statistics.median(by_step) if by_step else None

    def iterations(self) -> list[tuple[int, float]]:
        """(step, median iteration time over ranks without pauses), ascending; a repeated step counts as last run."""
        by_step: dict[int, dict[int, tuple[float, float]]] = defaultdict(dict)
        for (rank, _, step), row in self.steps.items():
            busy_s = row["duration_s"] - (row["pause_s"] or 0.0)
            known = by_step[step].get(rank)
            if known is None or row["end_s"] > known[0]:
                by_step[step][rank] = (row["end_s"], busy_s)
        return [(step, statistics.median(b for _, b in rows.values())) for step, rows in sorted(by_step.items())]

    def last_step(self) -> int | None:
        """Highest step that any rank has finished."""
        return self._highest_step

    def steps_done(self) -> int:
        """Training steps done by any rank; one that was done again after a restart counts once."""
        return self._steps_done

    def basis(self) -> tuple[str, str] | None:
        """Where the newest times of most ranks come from, and what they compute on behind the host's back."""
        return Counter(self._bases.values()).most_common(1)[0][0] if self._bases else None

    def heard_s(self) -> float | None:
        """When something was last heard of the job, by whoever told it."""
        told = [beat.time_s for beat in self.heartbeats.values()]
        told += [verdict.time_s for verdict in self.verdicts]
        return max((*told, *(event.time_s for event in self.events)), default=None)

    def ranks(self) -> list[int]:
        """Ranks that have told something, ascending."""
        return sorted(self._ranks | {r for beat in self.heartbeats.values() for r in beat.ranks})

    def beside(self) -> list[EventRecord]:
        """The starts of processes that have a rank's name without being its trainer."""
        starts = (event for event in self.events if event.kind == "process_start" and "beside" in event.fields)
        return [event for event in starts if event.fields.get("incarnation") not in self._trainers]

    def untrained(self) -> list[str]:
        """Of programs that have not trained: who has ended badly without being accused, and who is still there."""
        return [event.message for event in self._not_training()][-MAX_UNTRAINED:]

    def idle(self, least_s: float) -> list[str]:
        """Of programs that have run for `least_s` and have not trained."""
        found = [one for one in self._not_training() if one.kind == "process_begun"]
        return [one.message for one in found if float(one.fields.get("for_s") or 0.0) >= least_s]

    def _not_training(self) -> list[EventRecord]:
        trained = {pid for beat in self.heartbeats.values() for pid in beat.pids}
        newest = self._untrained.values()
        there = [event for event in newest if event.kind == "process_begun" or "excused" in event.fields]
        return [event for event in there if event.fields.get("pid") not in trained]

    def incident_objects(self) -> list[dict[str, Any]]:
        """Incidents in the order they opened, as JSON objects."""
        ordered = sorted(self.incidents.values(), key=lambda incident: incident.opened_at_s)
        return [incident_object(incident) for incident in ordered]

    def action_objects(self) -> list[dict[str, Any]]:
        """Actions in the order they were decided, as JSON objects."""
        first = {record.id: index for index, record in reversed(list(enumerate(self.action_history)))}
        return [action_object(self.actions[name]) for name in sorted(first, key=first.__getitem__)]


class Follower:
    """Reads the bus into a `JobView`; `notice` is called with each new incident or action record."""

    TOPICS = (ITERATIONS, HEARTBEATS, VERDICTS, INCIDENTS, ACTIONS, EVENTS, METRICS)

    def __init__(self, bus: Bus, job: str, notice: Callable[[Record], None] | None = None) -> None:
        self.view = JobView(job)
        self._notice = notice
        self._consumer = bus.consumer(self.TOPICS, f"view-{uuid.uuid4().hex}")

    def poll(self, timeout_s: float) -> None:
        """Apply what has come, waiting at most `timeout_s` for something.

        A bus that is away for a moment is no reason to let go of somebody's training command: what was
        written meanwhile comes with a later poll.
        """
        try:
            messages = self._consumer.poll(timeout_s, 2000)
        except BusUnavailable as error:
            log.debug("bus is away", extra={"fields": {"error": str(error)}})
            return
        self._apply(messages)

    def _apply(self, messages: Iterable[Message]) -> None:
        for message in messages:
            record = message.record
            news = self._is_news(record)
            self.view.feed(record)
            if news and self._notice is not None:
                self._notice(record)

    def _is_news(self, record: Record) -> bool:
        """Whether a person should be told: an action, or an incident that says something it did not say before."""
        if getattr(record, "job", None) != self.view.job:
            return False
        if not isinstance(record, IncidentRecord):
            return isinstance(record, ActionRecord)
        known = self.view.incidents.get(record.id)
        if known is None or record.revision <= known.revision:
            return known is None
        ends_or_begins = (record.state == "closed") != (known.state == "closed") or record.state == "opened"
        return ends_or_begins or (record.kind, record.reason) != (known.kind, known.reason)

    def close(self) -> None:
        """Leave the bus. Safe twice."""
        try:
            self._consumer.close()
        except BusUnavailable as error:  # whoever does not poll any more is forgotten all the same
            log.debug("bus is away", extra={"fields": {"error": str(error)}})


def incident_line(record: IncidentRecord) -> str:
    """One line for a person.

    Examples
    --------
    >>> incident_line(IncidentRecord(id="i1", job="j", kind="hang", severity="sev2", state="opened", revision=0,
    ...     opened_at_s=0.0, updated_at_s=0.0, reason="rank 2 stands still", onset_step=12))
    '[incident opened] hang sev2: rank 2 stands still, since step 12 (i1); next: trainwarden explain i1'
    """
    return f"[incident {record.state}] {incident_words(record)}"


def incident_words(record: IncidentRecord) -> str:
    """Kind, severity, reason, place, measured seconds, since when, why it closed, and the command to type next."""
    first = record.suspects[0] if record.suspects else None
    named = [f"rank {first.rank}"] if first is not None and first.rank is not None else []
    named += [f"on {first.node}"] if first is not None and first.node else []
    place = " ".join(named)
    words = [record.reason.rstrip(".")]
    if place and place not in record.reason:
        words.append(place)
    words += measured_seconds(record)
    if record.onset_step is not None:
        words.append(f"since step {record.onset_step}")
    ended = f" (closed: {why})" if (why := record.evidence.get("closed")) else ""
    if record.state == "closed" and not ended and (survived := record.evidence.get("survived")):
        ended = f" (the job went on: {'; '.join(survived)})"
    shown = short_id(record.id)
    said = f"{record.kind} {record.severity}: {', '.join(words)} ({shown})"
    return f"{said}{ended}; next: trainwarden explain {shown}"


def measured_seconds(record: IncidentRecord) -> list[str]:
    """What the suspected rank of a slow job computes a step beside its peers, where that was measured and differs.

    Examples
    --------
    >>> import msgspec
    >>> from trainwarden.records import Suspect
    >>> opened = IncidentRecord(id="i1", job="j", kind="slow_compute", severity="sev3", state="opened", revision=0,
    ...     opened_at_s=0.0, updated_at_s=0.0, reason="", suspects=(Suspect(score=1.0, reason="", rank=1),),
    ...     evidence={"ranks": [0, 1], "compute_s": [0.04, 0.22]})
    >>> measured_seconds(opened)
    ['rank 1 computes 0.22 s a step, its peers 0.04 s']
    >>> measured_seconds(msgspec.structs.replace(opened, evidence={"ranks": [0, 1], "compute_s": [0.0401, 0.04]}))
    []
    """
    ranks, seconds = record.evidence.get("ranks"), record.evidence.get("compute_s")
    rank = record.suspects[0].rank if record.suspects else None
    if not isinstance(ranks, list) or not isinstance(seconds, list) or len(ranks) != len(seconds) or rank not in ranks:
        return []
    others = [value for other, value in zip(ranks, seconds, strict=True) if other != rank]
    own = seconds[ranks.index(rank)]
    if not others or not all(isinstance(value, float) for value in (own, *others)):
        return []
    mine, theirs = (f"{value:.2g} s" for value in (own, statistics.median(others)))
    return [] if mine == theirs else [f"rank {rank} computes {mine} a step, its peers {theirs}"]


def short_id(name: str) -> str:
    """The beginning of an id, which `explain` and `report` understand; ids that are words stay whole.

    Examples
    --------
    >>> short_id("5d2409df216bb41b"), short_id("pipeline/job/detector/12.5")
    ('5d2409df', 'pipeline/job/detector/12.5')
    """
    return name[:8] if _HASH.fullmatch(name) else name


def action_line(record: ActionRecord) -> str:
    """One line for a person."""
    return f"[action {record.outcome}] {record.kind}: {record.why} ({record.id})"


def record_line(record: Record) -> str:
    """The line of an incident or an action."""
    if isinstance(record, IncidentRecord):
        return incident_line(record)
    assert isinstance(record, ActionRecord)
    return action_line(record)
