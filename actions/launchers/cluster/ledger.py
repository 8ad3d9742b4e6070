"""The leader's hand in the ledger: what is accepted, what has its turn, and what is done.

Nothing is begun before all nodes that are there have the ledger it stands in. So a leader that follows knows of all
that was begun, and what it does not know of has changed nothing and may be asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from actions.launchers.cluster.words import KEPT_OPERATIONS, Ledger, LedgerEntry, Report
from trainwarden import launching
from trainwarden.launching import Operation


class LedgerKeeper:
    """The ledger as the leader of `epoch` has it.

    Examples
    --------
    >>> keeper = LedgerKeeper(epoch=1)
    >>> keeper.accept(Operation(id="p", job="j", kind="pause", expected_generation=0), attempt=3)
    >>> keeper.turn.kind, keeper.holds, keeper.report("p").state
    ('pause', True, 'accepted')
    >>> keeper.done()
    >>> keeper.turn, keeper.holds, keeper.report("p").state
    (None, True, 'done')
    """

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self.ledger: Ledger | None = None

    def hear(self, ledger: Ledger | None) -> None:
        """A node has `ledger`; one of a leader before this one is taken on, if it is the newest."""
        if ledger is None or ledger.epoch >= self._epoch:
            return
        if self.ledger is None or ledger.id > self.ledger.id:
            self.ledger = ledger

    def known(self, reports: Iterable[Report]) -> bool:
        """Whether the nodes of `reports` all have it."""
        mine = self.ledger
        return mine is None or all(one.ledger is not None and one.ledger.id >= mine.id for one in reports)

    @property
    def generation(self) -> int:
        """Rises with all that is accepted, and with attempts that nobody asked for."""
        return 0 if self.ledger is None else self.ledger.generation

    @property
    def turn(self) -> LedgerEntry | None:
        """What is to be done now: the oldest entry without an end."""
        return next((one for one in self._entries if not one.done), None)

    @property
    def under_way(self) -> tuple[str, ...]:
        """Ids of what has no end, oldest first."""
        return tuple(one.id for one in self._entries if not one.done)

    @property
    def paused(self) -> bool:
        """Whether the job is paused, and nobody is about to resume it."""
        turn = self.turn
        return self.ledger is not None and self.ledger.paused and (turn is None or turn.kind != "resume")

    @property
    def holds(self) -> bool:
        """Whether no attempt may begin."""
        turn = self.turn
        return self.paused or (turn is not None and turn.kind in ("pause", "stop"))

    def accept(self, operation: Operation, attempt: int) -> None:
        """Write `operation` down, of a kind that a `LedgerEntry` has; what was done long ago makes room."""
        why = f"{operation.by}: {operation.why}"[:300]
        entry = msgspec.convert(
            {"id": operation.id, "kind": operation.kind, "attempt": attempt, "why": why}, LedgerEntry
        )
        done = [one for one in self._entries if one.done]
        full = len(self._entries) >= KEPT_OPERATIONS and bool(done)
        kept = [one for one in self._entries if not full or one is not done[0]]
        self._write(generation=self.generation + 1, entries=(*kept, entry))

    def begins(self) -> None:
        """An attempt begins; one that nobody asked for changes what others have planned from."""
        if self.turn is None:
            self._write(generation=self.generation + 1)

    def done(self) -> None:
        """What has its turn is done."""
        turn = self.turn
        assert turn is not None
        assert self.ledger is not None
        entries = tuple(msgspec.structs.replace(one, done=True) if one is turn else one for one in self._entries)
        paused = {"pause": True, "resume": False}.get(turn.kind, self.ledger.paused)
        self._write(entries=entries, paused=paused)

    def report(self, operation: str) -> launching.Report:
        """How far the operation of that id is."""
        return report(self.ledger, operation)

    @property
    def _entries(self) -> tuple[LedgerEntry, ...]:
        return () if self.ledger is None else self.ledger.entries

    def _write(self, **what: object) -> None:
        before = self.ledger or Ledger(epoch=self._epoch, number=1)
        number = 1 if self.ledger is None else before.number + 1
        self.ledger = msgspec.structs.replace(before, epoch=self._epoch, number=number, **what)


def report(ledger: Ledger | None, operation: str) -> launching.Report:
    """How far the operation of that id is by `ledger`."""
    entries = () if ledger is None else ledger.entries
    found = next((one for one in entries if one.id == operation), None)
    if found is None:
        return launching.Report(operation=operation, state="unknown")
    return launching.Report(operation=operation, state="done" if found.done else "accepted")
