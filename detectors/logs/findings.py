"""What single log lines mean: findings, their vote, and a job of which only the consequences were seen."""

from __future__ import annotations

import datetime
from typing import Final

import msgspec
import numpy as np

from trainwarden.detectors.job.window import Window
from trainwarden.detectors.logs.device_lines import node_said, nodes_listed, of_previous
from trainwarden.records import EventRecord, IncidentKind, Severity, Suspect, Vote

EVENT_KIND: Final = "last_words"  # of an event: how a recorded job ended, by all its logs
OUTLIVED: Final = "training went on"
MAX_SUSPECTS: Final = 16
MAX_SPEAKERS: Final = 64
SPEAKERS: Final = 2  # a cascade is seen by more than one
CAUSE_S: Final = 10.0  # torchrun looks after its processes every 5 s at most (its --monitor-interval before 2.3)
AT_ONCE_S: Final = 1.0  # exceptions of several ranks in one step
_FACTS: Final = frozenset({"process_exit", "exception", "fatal_signal", "heartbeat_lost"})
_SHM: Final = "shared memory (/dev/shm) is full, raise --shm-size"
_ADVICE: Final = {"data.shm_full": _SHM, "nccl.shm_full": _SHM}
_EPOCH_S: Final = 1e9  # times above are wall time, below a recording's own


class Finding(msgspec.Struct):
    """One or more like lines that mean something; `line_numbers` are the first positions in the source.

    Whether its rank survives is asked from `since_s` on: the first line, or the first after one that was survived. That
    line was read when `since_read_s` was the newest time of all nodes, the last one at `read_s`: they tell how long ago
    that was, for the lines' own node may have another clock.
    """

    rule: str
    class_: str
    role: str
    kind: IncidentKind | None
    severity: Severity
    node: str
    source: str
    rank: int | None
    time_s: float
    last_s: float
    line: str
    since_s: float = 0.0
    since_read_s: float = 0.0
    read_s: float = 0.0
    count: int = 1
    line_numbers: list[int] = msgspec.field(default_factory=list)
    told: bool = False
    told_at_s: float | None = None
    dropped: bool = False
    device: str | None = None
    said: str = ""  # the reason in words, where the line alone is not enough

    @property
    def news_s(self) -> float:
        """When it was last read, or told."""
        return self.read_s if self.told_at_s is None else max(self.read_s, self.told_at_s)


class LastWords(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of an event of kind `EVENT_KIND` that names a cause."""

    finding: str
    kind: IncidentKind
    severity: Severity
    rule: str
    line: str
    file: str
    onset_s: float
    explained: bool = False


class Consequences(msgspec.Struct):
    """Lines that follow from some rank's failure, in a job that says little of the failure itself.

    Where processes or heartbeats are seen, those tell what has ended; here only logs are there to tell. An exception of
    the program's own is survived as often as not, so it takes such a line just after it to be the `cause`.
    """

    first: Finding | None = None
    cause: Finding | None = None
    cause_s: float = -1.0
    last_s: float = 0.0
    speakers: set[str] = msgspec.field(default_factory=set)
    root_s: float = float("-inf")
    known: bool = False  # facts or a broken collective tell of the end, or it was a good one

    def note(self, finding: Finding, speaker: str) -> None:
        """Apply a line: one of another failure's consequences, or one that names a cause."""
        if finding.role == "root":
            self.root_s = max(self.root_s, finding.time_s)
        if finding.role == "app" and finding.kind == "exception":
            self._raised(finding)
        if finding.role != "cascade" or finding.kind is None:
            return
        if self.first is None or finding.time_s < self.first.time_s:
            self.first = msgspec.structs.replace(finding, line_numbers=[])
        if len(self.speakers) < MAX_SPEAKERS:
            self.speakers.add(speaker)
        self.last_s = max(self.last_s, finding.last_s)

    def _raised(self, finding: Finding) -> None:
        """Of exceptions at one time the first counts, else the newest; after the first consequence they are others'."""
        if self.first is not None and finding.time_s > self.first.time_s:
            return
        if self.cause is None or finding.time_s - self.cause_s > AT_ONCE_S:
            self.cause = msgspec.structs.replace(finding, line_numbers=[])
        self.cause_s = max(self.cause_s, finding.time_s)

    def expire(self, window: Window, near_s: float) -> None:
        """Forget what the job has outlived or something else explains."""
        for event in window.events:
            ended_well = event.kind == "job_end" and event.fields.get("exit_code") == 0
            told = event.fields.get("finding") is not None and event.message != OUTLIVED
            if event.kind in _FACTS or told or ended_well:
                self.known = True
            elif event.kind in {"restart", "job_start"}:
                self.known, self.first, self.cause, self.speakers = False, None, None, set()
        if self.cause is not None and moved_on(window, None, self.cause_s):
            self.cause = None
        if self.first is not None and moved_on(window, None, self.last_s):
            self.first, self.speakers = None, set()
        if self.first is not None and self.root_s >= self.first.time_s - near_s:
            self.first, self.speakers = None, set()

    def vote(self, window: Window, *, now_s: float, line_s: float, near_s: float, stopped_s: float) -> Vote | None:
        """The vote on a job that has stopped after them; None where there is none to give.

        Parameters
        ----------
        line_s : float
            Time of the newest line of any kind.
        near_s : float
            How far apart lines of one cause are.
        stopped_s : float
            Silence that makes a job stopped, where its end is not told.
        """
        # Whoever speaks first of another's end has witnessed it, and is no suspect.
        first, cause = self.first, self.cause
        if first is None or self.known or line_s - self.last_s > near_s:
            return None
        if cause is not None and first.time_s - self.cause_s > CAUSE_S:
            cause = None
        if cause is None and len(self.speakers) < SPEAKERS:
            return None
        if np.isfinite(window.beats.time_s[: len(window.ranks)]).any():
            return None
        if not (window.finished or window.last or now_s - line_s >= stopped_s):
            return None
        if cause is not None:
            return _last_word(cause, first)
        seen = f"first was {_who(first)} at {_time(first.time_s)}"
        return Vote(
            opinion="anomalous", score=0.6, kind=first.kind, severity=first.severity, onset_s=first.time_s,
            reason=f"only consequences seen; {seen} ({first.rule}): {first.line[:160]}",
        )  # fmt: skip


def _last_word(cause: Finding, first: Finding) -> Vote:
    """The vote on an exception of the program's own that the `first` consequence followed."""
    said = f"{_who(cause)} raised, and did not go on: {cause.line[:160]}"
    return Vote(
        opinion="anomalous", score=0.8, kind=cause.kind, severity=cause.severity, onset_s=cause.time_s,
        reason=f"{said} (then {first.rule}, {_who(first)}: {first.line[:120]})",
        suspects=(Suspect(score=0.7, reason=cause.line[:200], rank=cause.rank, node=cause.node or None),),
    )  # fmt: skip


def _who(finding: Finding) -> str:
    return f"rank {finding.rank}" if finding.rank is not None else finding.node or finding.source


def told_finding(event: EventRecord, now_s: float) -> Finding:
    """The finding that an event of `trainwarden.detectors.logs.ends.last_messages` carries, to be told at once."""
    words = msgspec.convert(event.fields, LastWords)
    finding = Finding(
        rule=words.rule, class_="A", role="root", kind=words.kind, severity=words.severity, node=event.node,
        source=words.file, rank=event.rank, time_s=words.onset_s, last_s=words.onset_s, since_s=words.onset_s,
        since_read_s=now_s, read_s=now_s, line=words.line, told=True, told_at_s=now_s, device=event.device,
    )  # fmt: skip
    raised = f"{_who(finding)} raised, and did not go on: {words.line[:200]}" if words.file else words.line[:200]
    finding.said = f"{raised} ({event.message})" if event.message else raised
    if words.rule in _ADVICE:
        finding.said = f"{_ADVICE[words.rule]}: {finding.said}"
    return finding


def finding_vote(kind: IncidentKind, findings: list[Finding]) -> Vote:
    first = findings[0]
    ranked = {finding.node for finding in findings if finding.rank is not None}
    # A node's line that names no process says less than one of the same node that does.
    named = [one for one in findings if one.rank is not None or (one.node and one.node not in ranked)] or findings
    # What was closed because of a device says less than the lines about the device.
    of_devices = {finding.node for finding in named if finding.device is not None}
    named = [one for one in named if one.node not in of_devices or not of_previous(one.line)]
    # Whoever a scheduler names goes before the node whose output its words stand in.
    named = sorted(named, key=lambda one: node_said(one.line) is None)
    nodes = {one.node for one in findings if one.rank is not None}
    shared = len({one.rank for one in findings if one.rank is not None}) > 1 and (len(nodes) > 1 or "" in nodes)
    if kind == "storage" and shared:
        named = []  # what ranks of several nodes share is none's own
    of_nodes = [(one, node) for one in named for node in nodes_listed(one.node)]
    suspects = tuple(
        Suspect(
            score=1.0 if finding is of_nodes[0][0] else 0.5,
            reason=finding.line[:200],
            rank=finding.rank,
            node=node or None,
            device=finding.device,
        )
        for finding, node in of_nodes[:MAX_SUSPECTS]
    )
    return Vote(
        opinion="anomalous", score=0.95, kind=kind,
        reason=first.said or f"{_who(first)} logged ({first.rule}): {first.line[:200]}{_advice(first)}",
        severity=min(finding.severity for finding in findings), suspects=suspects, onset_s=first.time_s,
        verified=kind == "slow_compute",  # only reports that compare ranks with each other have lines of it
    )  # fmt: skip


def _advice(finding: Finding) -> str:
    return f"; {_ADVICE[finding.rule]}" if finding.rule in _ADVICE else ""


def moved_on(window: Window, column: int | None, since_s: float) -> bool | None:
    """Whether the rank (if it is not known, the job) has gone on well after `since_s`; None if nothing tells yet.

    A line and its rank's steps are told by one clock. Of a job it is not known by whose, so all its ranks' must say so.
    """
    late_s = since_s + 0.3
    if column is None:
        ends_s = window.own_end_s[window.live]
        ends_s = ends_s[np.isfinite(ends_s)]
        return True if ends_s.size and bool((ends_s > late_s).all()) else None
    if window.own_end_s[column] > late_s:
        return True
    progress_s = float(window.beats.progress_s[column])
    if bool(window.live[column]) and progress_s > late_s:
        return True
    return False if np.isfinite(progress_s) else None


def _time(time_s: float) -> str:
    """A time as people read it.

    Examples
    --------
    >>> _time(12.5), _time(1_600_000_000.0)
    ('12.5 s', '2020-09-13T12:26:40Z')
    """
    if time_s < _EPOCH_S:
        return f"{time_s:.1f} s"
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
