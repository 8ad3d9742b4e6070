"""What was asked of a job's own launcher, past the engine (`trainwarden job suspend` ...), as its nodes tell it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from trainwarden.dashboards.explain.sentences import line, moment
from trainwarden.records import EventRecord

KIND: Final = "operation"
NOBODY: Final = "somebody without a name"


class LauncherOperation(msgspec.Struct, frozen=True):
    """One operation of a launcher: the first event that tells of it, and when it was first seen done."""

    event: EventRecord
    done_s: float | None = None

    @property
    def at_s(self) -> float:
        """When it was first spoken of."""
        return self.event.time_s

    def field(self, name: str) -> str:
        """What the event says of `name`; nothing, if it says none."""
        said = self.event.fields.get(name)
        return said if isinstance(said, str) else ""


class JobWords:
    """Events of operations become one word each; every node of a job tells all of them.

    Examples
    --------
    >>> words = JobWords()
    >>> fields = {"operation": "o", "verb": "evict", "by": "ann (act)", "why": "its fan is loud", "target": "n2"}
    >>> for at_s, stage in ((0.0, "accepted"), (0.2, "accepted"), (3.0, "done")):
    ...     words.apply(EventRecord(id=f"operation/o/{stage}", job="j", node="n1", time_s=at_s, kind="operation",
    ...         fields={**fields, "stage": stage}))
    >>> said = job_word_line(words.but(frozenset())[0])
    >>> said.removeprefix("1970-01-01 00:00:00 UTC ")
    'ann (act) asked the launcher of job j to evict node n2: its fan is loud (done 1970-01-01 00:00:03 UTC)'
    """

    def __init__(self) -> None:
        self._words: dict[str, LauncherOperation] = {}

    def apply(self, event: EventRecord) -> None:
        """Apply an event; one of another kind, or without an operation, says nothing here."""
        operation = event.fields.get("operation")
        if event.kind != KIND or not isinstance(operation, str):
            return
        known = self._words.get(operation)
        ended = [event.time_s] if event.fields.get("stage") == "done" else []
        if known is not None and known.done_s is not None:
            ended.append(known.done_s)
        first = event if known is None or event.time_s < known.at_s else known.event
        self._words[operation] = LauncherOperation(first, min(ended, default=None))

    def forget(self, before_s: float) -> None:
        """Let go of what was last spoken of before `before_s`."""
        self._words = {name: one for name, one in self._words.items() if (one.done_s or one.at_s) >= before_s}

    def but(self, actions: frozenset[str]) -> list[LauncherOperation]:
        """All in order, but those that an engine asked for by one of `actions`: its own log tells of them."""
        return sorted((one for name, one in self._words.items() if name not in actions), key=lambda one: one.at_s)


def job_word_line(word: LauncherOperation) -> str:
    """What somebody asked of a launcher, in one line; text that others may have written is shown, not obeyed."""
    target, why = word.field("target"), word.field("why")
    of_node = f" node {target}" if target else ""
    asked = f"{word.field('by') or NOBODY} asked the launcher of job {word.event.job} to {word.field('verb')}{of_node}"
    ended = "not seen done" if word.done_s is None else f"done {moment(word.done_s)}"
    return line(f"{moment(word.at_s)} {asked}{f': {why}' if why else ''} ({ended})")


def job_word_object(word: LauncherOperation) -> dict[str, Any]:
    """The same, as programs read it."""
    return {
        "at_s": word.at_s,
        "by": word.field("by") or None,
        "kind": word.field("verb"),
        "job": word.event.job,
        "node": word.field("target") or None,
        "why": word.field("why") or None,
        "operation": word.field("operation"),
        "done_at_s": word.done_s,
    }
