"""What was done to a job, in an annotation of the job itself: so every engine knows it, wherever it runs.

It is written with the resourceVersion that it was read at, and a suspension in the same patch; of two engines one is
told that the job has changed.
"""

from __future__ import annotations

from typing import Final, Literal, Self

import msgspec

from trainwarden.launching import Report, Verb

MAX_ENTRIES: Final = 50  # with ids and reasons of full length 60 KB; annotations may have 256 KiB together
MAX_WHY_CHARS: Final = 200
_MAX_ID_CHARS: Final = 512

Stage = Literal["cordon", "uncordon", "evict", "suspend", "empty", "run", "stop", "done", "failed"]
"""What is to be done next: nodes cordoned, pods asked off, the job suspended, its pods gone, all of them running."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accepted operation; `said` is how it ended."""

    id: str
    kind: Verb
    stage: Stage
    nodes: tuple[str, ...] = ()
    why: str = ""
    said: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.stage in ("done", "failed")

    def at(self, stage: Stage) -> Entry:
        """It, at its next stage."""
        return msgspec.structs.replace(self, stage=stage)

    def done(self, said: str = "") -> Entry:
        """It as it is once done."""
        return Entry(id=self.id, kind=self.kind, stage="done", said=said[:MAX_WHY_CHARS])

    def failed(self, said: str) -> Entry:
        """It as it is once it cannot be done."""
        return Entry(id=self.id, kind=self.kind, stage="failed", said=said[:MAX_WHY_CHARS])

    def report(self, text: str = "") -> Report:
        """How far it is."""
        if self.ended:
            return Report(operation=self.id, state=self.stage, text=self.said)  # type: ignore[arg-type]
        return Report(operation=self.id, state="running", text=text)


class Note(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of a job's operations that are remembered, oldest first.

    It counts what was `accepted`, our `own` changes of the job's specification, the restarts among them (`moves`) and
    its own `changes`.

    Examples
    --------
    >>> note = Note().accept(Entry(id="i1/restart/1", kind="restart", stage="suspend"))
    >>> Note.of(note.written()) == note, Note.of("damaged") == Note()
    (True, True)
    """

    accepted: int = 0
    own: int = 0
    moves: int = 0
    changes: int = 0
    entries: tuple[Entry, ...] = ()

    @classmethod
    def of(cls, text: str) -> Self:
        """The note in `text`; an empty one where there is none or it is damaged."""
        try:
            return msgspec.json.decode(text, type=cls)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return cls()

    def find(self, operation: str) -> Entry | None:
        """The operation of that id; None if it was never accepted, or was forgotten for want of room."""
        return next((entry for entry in self.entries if entry.id == operation), None)

    @property
    def under_way(self) -> tuple[Entry, ...]:
        """Operations without an end."""
        return tuple(entry for entry in self.entries if not entry.ended)

    def accept(self, entry: Entry) -> Note:
        """The note once `entry` is accepted; the oldest that have ended make room. A stop ends what would go on."""
        entries = self.entries
        if entry.kind == "stop":
            told = f"the job was stopped by {entry.id}"
            entries = tuple(
                one.failed(told) if one.kind in ("restart", "evict") and not one.ended else one for one in entries
            )
        surplus = len(entries) + 1 - MAX_ENTRIES
        gone = [one.id for one in entries if one.ended][: max(0, surplus)]
        kept = tuple(one for one in entries if one.id not in gone)
        return msgspec.structs.replace(
            self, accepted=self.accepted + 1, changes=self.changes + 1, entries=(*kept, entry)
        )

    def put(self, entry: Entry, suspends: bool | None = None, counts: bool = False) -> Note:
        """The note with that operation as it is now.

        Parameters
        ----------
        suspends : bool or None
            What the specification is told in the same patch; True begins a restart unless the operation is a stop.
        counts : bool
            Whether that changes the specification.
        """
        entries = tuple(entry if known.id == entry.id else known for known in self.entries)
        return msgspec.structs.replace(
            self,
            own=self.own + counts,
            moves=self.moves + (suspends is False),
            changes=self.changes + 1,
            entries=entries,
        )

    def from_the_start(self) -> Note:
        """The note with evictions under way at their first stage again; a step that was taken costs nothing."""
        entries = tuple(
            entry.at("cordon") if entry.kind == "evict" and not entry.ended else entry for entry in self.entries
        )
        return msgspec.structs.replace(self, entries=entries)

    def written(self) -> str:
        """As an annotation."""
        return msgspec.json.encode(self).decode()
