"""The log of actions as somebody on call reads it: who, what, when, why, on what evidence, approved by whom."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from trainwarden.commands.builders import EVERY_JOB
from trainwarden.commands.trust import Trust
from trainwarden.dashboards.explain.launcher_operations import JobWords, LauncherOperation
from trainwarden.dashboards.explain.sentences import line, moment, place
from trainwarden.json_objects import action_object, incident_object
from trainwarden.launching import rates_in
from trainwarden.protocols import Message
from trainwarden.records import ActionRecord, CommandRecord, EventRecord, IncidentRecord, Record

MOST: Final = 3  # suspects, votes and metrics
MOST_RATES: Final = 8  # those furthest behind their peers come first
MOST_REFUSED: Final = 100  # who floods the topic does not flood the log


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One action: all its records in order, its incident as it last was, and a person's word on it."""

    records: tuple[ActionRecord, ...]
    incident: IncidentRecord | None = None
    word: CommandRecord | None = None

    @property
    def action(self) -> ActionRecord:
        """The action as it last was."""
        return self.records[-1]

    @property
    def at_s(self) -> float:
        """When it was first spoken of."""
        return self.records[0].at_s


class Word(msgspec.Struct, frozen=True):
    """What somebody has said; `refused` is why it does not count, None if it does."""

    command: CommandRecord
    refused: str | None = None

    @property
    def at_s(self) -> float:
        """When it was said."""
        return self.command.at_s


class ActionLog:
    """Records of the bus, in its order, become entries and words of people.

    Examples
    --------
    >>> log = ActionLog()
    >>> log.apply(ActionRecord(id="i1/restart/1", incident="i1", job="j", kind="restart_process", outcome="done",
    ...     at_s=0.0, finished_at_s=2.0, why="crash: rank 2 was killed"))
    >>> print(*entry_lines(log.entries()[0]), sep=chr(10))
    1970-01-01 00:00:00 UTC restart_process of job j is done (i1/restart/1)
        why: crash: rank 2 was killed
        evidence: the incident is no longer kept
        by: the engine, by itself
        when: done 1970-01-01 00:00:02 UTC
    """

    def __init__(self) -> None:
        self._records: dict[str, list[ActionRecord]] = {}
        self._incidents: dict[str, IncidentRecord] = {}
        self._commands: dict[str, CommandRecord] = {}
        self._refused: deque[Word] = deque(maxlen=MOST_REFUSED)
        self._asked = JobWords()

    def refuse(self, command: CommandRecord, why: str) -> None:
        """Apply a word that does not count."""
        self._refused.append(Word(command, why))

    def apply(self, record: Record) -> None:
        """Take one record in; what says nothing new is passed over."""
        match record:
            case ActionRecord():
                known = self._records.setdefault(record.id, [])
                if not known or _news(known[-1], record):
                    known.append(record)
            case IncidentRecord():
                told = self._incidents.get(record.id)
                if told is None or record.revision > told.revision:
                    self._incidents[record.id] = record
            case CommandRecord():
                self._commands.setdefault(record.id, record)
            case EventRecord():
                self._asked.apply(record)
            case _:
                pass

    def entries(self) -> list[Entry]:
        """All actions, in the order in which they were first spoken of."""
        made = [
            Entry(
                records=tuple(records),
                incident=self._incidents.get(records[-1].cause),
                word=self._word(records),
            )
            for records in self._records.values()
        ]
        return sorted(made, key=lambda entry: entry.at_s)

    def words(self) -> list[Word]:
        """What people (and brakes) have said of more than one action, and the newest that does not count, in order."""
        said = [Word(one) for one in self._commands.values() if one.kind not in ("approve", "deny")]
        return sorted([*said, *self._refused], key=lambda word: word.at_s)

    def asked_of_launchers(self) -> list[LauncherOperation]:
        """What was asked of the jobs' launchers by others than engines, in order."""
        return self._asked.but(frozenset(self._records))

    def forget(self, before_s: float) -> None:
        """Let go of what was last spoken of before `before_s`."""
        self._asked.forget(before_s)
        for name, records in list(self._records.items()):
            if (records[-1].finished_at_s or records[-1].at_s) < before_s:
                del self._records[name]
        for name, command in list(self._commands.items()):
            if command.at_s < before_s and command.kind not in ("approve", "deny"):
                del self._commands[name]
        self._refused = deque((word for word in self._refused if word.at_s >= before_s), MOST_REFUSED)

    def _word(self, records: list[ActionRecord]) -> CommandRecord | None:
        """The newest approval or denial of a plan that was shown."""
        action, shown = records[-1].id, {record.plan_digest for record in records}
        on_it = [one for one in self._commands.values() if one.action == action and one.kind in ("approve", "deny")]
        said = [one for one in on_it if one.kind == "deny" or one.plan_digest in shown]
        return max(said, key=lambda command: command.at_s, default=None)


def entry_lines(entry: Entry) -> Iterator[str]:
    """An action as a person reads it; text that others may have written is shown, not obeyed."""
    action = entry.action
    nodes = action.plan.get("nodes")
    on = f" of node {', '.join(map(str, nodes))}" if isinstance(nodes, list | tuple) and nodes else ""
    yield line(f"{moment(entry.at_s)} {action.kind}{on} of job {action.job} is {action.outcome} ({action.id})")
    yield line(f"why: {action.why}", 4)
    if action.severity is not None:
        yield line(f"severity: {action.severity}" + (f", after {action.after}" if action.after else ""), 4)
    if isinstance(advice := action.plan.get("advice"), str):
        yield line(f"advice: {advice}", 4)
    for number, said in enumerate(_evidence(entry.incident) if action.command is None else ()):
        yield line(said if number else f"evidence: {said}", 8 if number else 4)
    for number, said in enumerate(rates_in(action.plan).summary[:MOST_RATES] if action.kind == "validate" else ()):
        yield line(said if number else f"measured: {said}", 8 if number else 4)
    yield line(f"by: {_by(entry)}", 4)
    told = [f"{one.outcome} {moment(one.finished_at_s or one.at_s)}" for one in entry.records]
    yield line(f"when: {', '.join(told)}", 4)


def word_line(word: Word) -> str:
    """What somebody has said, in one line."""
    command = word.command
    of = "all jobs" if command.job == EVERY_JOB else f"job {command.job}"
    named = [f"node {command.node}"] if command.node else []
    named += [f"incidents {command.incident_kind}"] if command.incident_kind else []
    named += [f"action {command.action}"] if command.action and word.refused else []
    until = "" if command.until_s is None else f" until {moment(command.until_s)}"
    why = f": {command.why}" if command.why else ""
    said = f"{moment(command.at_s)} {_speaker(command)} said {command.kind} of {', '.join([of, *named])}{until}{why}"
    return line(said if word.refused is None else f"{said} (refused: {word.refused})")


def entry_object(entry: Entry) -> dict[str, Any]:
    """An action as programs read it: contracts' action, with its history, evidence and who approved it."""
    word = entry.word
    said = (
        None if word is None else {"kind": word.kind, "by": word.by, "at_s": word.at_s, "signed_by": _signed_by(word)}
    )
    return {
        **action_object(entry.action),
        "job": entry.action.job,
        "approved_by": entry.action.by,
        "word": said,
        "evidence": None if entry.incident is None else incident_object(entry.incident),
        "history": [_step(record) for record in entry.records],
    }


def word_object(word: Word) -> dict[str, Any]:
    """What somebody has said, as programs read it."""
    command = word.command
    return {
        "at_s": command.at_s,
        "by": command.by,
        "kind": command.kind,
        "job": None if command.job == EVERY_JOB else command.job,
        "node": command.node,
        "incident_kind": command.incident_kind,
        "until_s": command.until_s,
        "why": command.why or None,
        "action": command.action,
        "signed_by": _signed_by(command),
        "refused": word.refused,
    }


def _signed_by(command: CommandRecord) -> str | None:
    return None if command.signature is None else command.signature.by


def _speaker(command: CommandRecord) -> str:
    """Who has said it; where another's key vouches for that, whose."""
    by, signer = command.by or "somebody without a name", _signed_by(command)
    return by if signer in (None, by) else f"{by} (signed by {signer})"


def _step(record: ActionRecord) -> dict[str, Any]:
    at_s = record.finished_at_s or record.at_s
    return {"outcome": record.outcome, "at_s": at_s, "why": record.why, "plan_digest": record.plan_digest}


def _evidence(incident: IncidentRecord | None) -> Iterator[str]:
    if incident is None:
        yield "the incident is no longer kept"
        return
    since = moment(incident.opened_at_s)
    ended = "" if incident.closed_at_s is None else f", closed {moment(incident.closed_at_s)}"
    yield f"incident {incident.id}, {incident.kind} ({incident.severity}) since {since}{ended}: {incident.reason}"
    for suspect in incident.suspects[:MOST]:
        yield f"{place(suspect) or 'somebody'} (likely to {suspect.score:.0%}): {suspect.reason}"
    votes = sorted(incident.votes.items(), key=lambda vote: -vote[1])[:MOST]
    if votes:
        yield f"votes: {', '.join(f'{name} {score:.2f}' for name, score in votes)}"
    if incident.metrics:
        yield f"metrics most blamed: {', '.join(incident.metrics[:MOST])}"


def _by(entry: Entry) -> str:
    action, word = entry.action, entry.word
    if action.command is not None:
        return f"the engine, as {action.by} had said"
    if word is not None and word.kind == "deny":
        return f"denied by {_speaker(word)} at {moment(word.at_s)}"
    if action.by is not None:
        at = f" at {moment(word.at_s)}" if word is not None else ""
        return f"the engine, approved by {action.by}{at} (plan {action.plan_digest})"
    if action.outcome == "proposed":
        if action.plan_digest is None:
            return "nobody; it is only shown"
        return f"nobody yet; it waits for a word: trainwarden actions approve {action.id}"
    return "nobody" if action.outcome == "skipped" else "the engine, by itself"


def _news(known: ActionRecord, record: ActionRecord) -> bool:
    told = (known.outcome, known.plan_digest, known.plan.get("held"))
    return told != (record.outcome, record.plan_digest, record.plan.get("held"))


def taken(messages: Iterable[Message], trust: Trust, job: str | None = None, since_s: float | None = None) -> ActionLog:
    """The log of what `messages` carry; of `job` alone, and of what was last spoken of at `since_s` or later."""
    log = ActionLog()
    for message in messages:
        record = message.record
        if job is not None and getattr(record, "job", None) not in (job, EVERY_JOB):
            continue
        refusal = trust.refusal(message)
        if refusal is not None and isinstance(record, CommandRecord):
            log.refuse(record, refusal.why)
        else:
            log.apply(record)
    if since_s is not None:
        log.forget(since_s)
    return log
