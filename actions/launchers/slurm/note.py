"""What was done to a job, in the job's own comment in Slurm: so every engine knows it, wherever it runs.

A note stands behind whatever else the comment says: ``night run trainwarden[2,1,7 i1/evict/1,evict,done,]``. It counts
the operations that were accepted, the requeues that these account for and its own changes, and names the operations,
oldest first.
"""

from __future__ import annotations

import re
from typing import Final, Literal, Self
from urllib.parse import quote, unquote

import msgspec

from trainwarden.launching import Report, Verb

MAX_COMMENT_CHARS: Final = 1024  # Slurm's MAX_STR_LEN; it refuses longer ones
MAX_ID_CHARS: Final = 200
_MAX_WHY_CHARS: Final = 80
_OVERTAKEN: Final = "another operation came before one was complete"
_NOTE: Final = re.compile(r" ?trainwarden\[(\d{1,9}),(\d{1,9}),(\d{1,9})((?: [^\s\[\]]+)*)\]")

Stage = Literal["drain", "resume", "move", "signal", "save", "reserve", "measure", "judge", "done", "failed"]
"""``drain``, ``resume``: nodes are still to be; ``move``: the job is on its way; ``signal``: it is being sent;
``save``: a checkpoint is waited for; ``reserve``, ``measure``, ``judge``: those of a validation; then how it ended.
"""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted operation. It is `restarts` that the job must have reached for it to be done.

    Of a checkpoint it is the requeues that it must not go beyond, and `until` the step that it must have. A validation
    makes `checks` of `nodes`, suspects among the job's nodes `on` (a list of Slurm's), and is over at `until`, in
    seconds UTC; where the job was and how often it was requeued is known of it afterwards too.
    """

    id: str
    kind: Verb
    stage: Stage
    restarts: int = 0
    nodes: tuple[str, ...] = ()
    until: int = 0
    checks: str = ""
    on: str = ""
    why: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self.stage in ("done", "failed")

    def end(self, why: str | None = None, *, told: str = "") -> Entry:
        """It as it is once done, with what is `told` of it, or failed for the reason `why`."""
        stage: Stage = "done" if why is None else "failed"
        if self.kind == "validate":
            return Entry(id=self.id, kind=self.kind, stage=stage, why=why or told, restarts=self.restarts, on=self.on)
        return Entry(id=self.id, kind=self.kind, stage=stage, why=why or told)

    def report(self, text: str = "") -> Report:
        """How far it is."""
        if self.ended:
            return Report(operation=self.id, state=self.stage, text=self.why)  # type: ignore[arg-type]
        return Report(operation=self.id, state="running", text=text)


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """All of a job's operations that are remembered.

    Examples
    --------
    >>> note = Note().accept(Entry(id="i1/restart/1", kind="restart", stage="move", restarts=1), restarts=0)
    >>> note.generation(restarts=0), note.generation(restarts=1), note.generation(restarts=2)
    (1, 1, 2)
    >>> Note.of(note.written("nightly run")) == note
    True
    """

    accepted: int = 0
    restarts: int = 0
    changes: int = 0
    entries: tuple[Entry, ...] = ()

    @classmethod
    def of(cls, comment: str) -> Self:
        """The note in `comment`; an empty one where there is none or it is damaged."""
        found = _NOTE.search(comment)
        if found is None:
            return cls()
        entries = [entry for word in found[4].split() if (entry := _entry(word)) is not None]
        accepted, restarts, changes = (int(number) for number in found.groups()[:3])
        return cls(accepted=accepted, restarts=restarts, changes=changes, entries=tuple(entries))

    def generation(self, restarts: int) -> int:
        """Rises with each accepted operation, and with each requeue that is none of ours."""
        return self.accepted + max(0, restarts - self.restarts)

    def find(self, operation: str) -> Entry | None:
        """The operation of that id; None if it was never accepted, or was forgotten for want of room."""
        return next((entry for entry in self.entries if entry.id == operation), None)

    @property
    def under_way(self) -> tuple[Entry, ...]:
        """Operations without an end."""
        return tuple(entry for entry in self.entries if not entry.ended)

    def accept(self, entry: Entry, restarts: int) -> Note:
        """The note once `entry` is accepted of a job that was requeued `restarts` times."""
        accounted = max(self.restarts, restarts, entry.restarts)
        alone = entry.kind in ("cordon", "uncordon")
        before = (
            one if alone or one.ended or one.kind != "checkpoint" else one.end(_OVERTAKEN) for one in self.entries
        )
        return Note(
            accepted=self.generation(restarts) + 1,
            restarts=accounted,
            changes=self.changes + 1,
            entries=(*before, entry),
        )

    def put(self, entry: Entry, restarts: int) -> Note:
        """The note with that operation as it is now; a requeue that never came about is not accounted for."""
        entries = tuple(entry if known.id == entry.id else known for known in self.entries)
        coming = (other.restarts for other in entries if not other.ended)
        accounted = min(self.restarts, max(restarts, *coming, restarts))
        return msgspec.structs.replace(self, restarts=accounted, changes=self.changes + 1, entries=entries)

    def from_the_start(self) -> Note:
        """The note with evictions under way at their first step again; a step that was taken costs nothing."""
        entries = tuple(
            msgspec.structs.replace(entry, stage="drain") if entry.kind == "evict" and not entry.ended else entry
            for entry in self.entries
        )
        return msgspec.structs.replace(self, entries=entries)

    def closed(self, state: str) -> Note:
        """The note of a job that has ended in `state`: nothing is under way any more."""
        why = f"the job ended as {state}"
        entries = tuple(entry if entry.ended else entry.end(why) for entry in self.entries)
        return msgspec.structs.replace(self, entries=entries)

    def written(self, comment: str) -> str | None:
        """`comment` with this note in place of the one that it has; the oldest that have ended go first.

        None if there is no room for it: what a person wrote is not cut.
        """
        theirs = _NOTE.sub("", comment)
        entries = list(self.entries)
        while True:
            words = "".join(f" {_word(entry)}" for entry in entries)
            text = f"{theirs}{' ' if theirs else ''}trainwarden[{self.accepted},{self.restarts},{self.changes}{words}]"
            if len(text.encode()) <= MAX_COMMENT_CHARS:
                return text
            oldest = next((entry for entry in entries[:-1] if entry.ended), None)
            if oldest is None:
                return None
            entries.remove(oldest)


def _word(entry: Entry) -> str:
    if entry.ended:
        more = [entry.why[:_MAX_WHY_CHARS], *([str(entry.restarts), entry.on] if entry.kind == "validate" else [])]
    elif entry.kind == "checkpoint":
        more = [str(entry.restarts), str(entry.until)]
    elif entry.kind == "validate":
        more = [str(entry.restarts), str(entry.until), entry.checks, entry.on, *entry.nodes]
    else:
        more = [str(entry.restarts), *entry.nodes]
    return ",".join(quote(part, safe="/:") for part in (entry.id, entry.kind, entry.stage, *more))


def _entry(word: str) -> Entry | None:
    """An entry as it was written; None if that is none."""
    parts = [unquote(part) for part in word.split(",")]
    if len(parts) < 4:
        return None
    name, kind, stage, *more = parts
    ended = stage in ("done", "failed")
    names: tuple[str, ...] = ("why",) if ended else ("restarts",)
    if kind == "checkpoint" and not ended:
        names = ("restarts", "until")
    elif kind == "validate":
        names = ("why", "restarts", "on") if ended else ("restarts", "until", "checks", "on")
    if len(more) < len(names):
        return None
    said: dict[str, object] = dict(zip(names, more, strict=False))
    if not ended:
        said["nodes"] = more[len(names) :]
    try:
        return msgspec.convert({"id": name, "kind": kind, "stage": stage, **said}, Entry, strict=False)
    except msgspec.ValidationError:
        return None
