"""The leader's hand in the ledger: what is accepted, what has its turn, and what is done.

Nothing is begun before all nodes that are there have the ledger it stands in. So a leader that follows knows of all
that was begun, and what it does not know of has changed nothing and may be asked for again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from actions.launchers.leases.words import Epoch, Name, SeenEpoch
from trainwarden.launching import Operation, OperationId, Report, Targets

KEPT_OPERATIONS: Final = 32  # of a ledger; one that is forgotten is refused as stale
MOST_BY_CHARS: Final = 160  # twice a name
MOST_WHY_CHARS: Final = 300
MOST_ASIDE: Final = 64  # nodes that a ledger keeps out of the job
Stage = Literal["accepted", "done"]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**53)]


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation that was accepted.

    Attributes
    ----------
    attempt, epoch : int
        The number of the newest attempt then, and the epoch of the leader that began it; 0 if there was none.
    node : str, optional
        That it is about.
    order : tuple of int
        Of a move that is not done: the node ranks of that attempt, in the order that the next one is to have.
    by, why : str
        Who asked for it, and why. A name with a role in parentheses is that of a token; any other only what the asker
        says of itself.
    done : bool
        Whether it is; a `Ledger` holds no other end.
    """

    id: OperationId
    kind: Literal["restart", "stop", "pause", "resume", "cordon", "uncordon", "evict", "move"]
    attempt: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    epoch: SeenEpoch = 0
    node: Name | None = None
    order: tuple[Annotated[int, msgspec.Meta(ge=0, le=2**31)], ...] = ()
    by: Annotated[str, msgspec.Meta(max_length=MOST_BY_CHARS)] = ""
    why: Annotated[str, msgspec.Meta(max_length=MOST_WHY_CHARS)] = ""
    done: bool = False

    def operation(self, job: str) -> Operation:
        """What was asked of `job`, as far as it is still known."""
        targets = Targets() if self.node is None else Targets(nodes=(self.node,))
        return Operation(
            id=self.id, job=job, kind=self.kind, expected_generation=0, targets=targets, why=self.why, by=self.by
        )

    @property
    def asker(self) -> str:
        """Who asked for it, and why, in one sentence."""
        return f"{self.by or 'somebody without a name'}{': ' if self.why else ''}{self.why}"


class Ledger(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked of the job and what became of it: every node keeps the newest, so that each leader knows it.

    Attributes
    ----------
    epoch, number : int
        Of the leader that wrote it, and of its writing.
    generation : int
        See `trainwarden.launching.LauncherState`.
    paused : bool
        No ranks are to run until somebody resumes the job.
    aside : tuple of str
        Nodes that take part in no attempt to come, until somebody puts them back.
    entries : tuple of LedgerEntry
        The oldest first; they are carried out one after the other.
    """

    epoch: Epoch
    number: Number
    generation: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    paused: bool = False
    aside: Annotated[tuple[Name, ...], msgspec.Meta(max_length=MOST_ASIDE)] = ()
    entries: Annotated[tuple[LedgerEntry, ...], msgspec.Meta(max_length=KEPT_OPERATIONS)] = ()

    @property
    def id(self) -> tuple[int, int]:
        """By which writings are ordered, over all leaders."""
        return self.epoch, self.number


class LedgerNews:
    """What a node has not told of yet, of the ledgers that it hears one after the other.

    Examples
    --------
    >>> news, pause = LedgerNews(), LedgerEntry(id="p", kind="pause", attempt=1)
    >>> [stage for _, stage in news.of(Ledger(epoch=1, number=1, entries=(pause,)))]
    ['accepted']
    >>> ended = Ledger(epoch=1, number=2, entries=(msgspec.structs.replace(pause, done=True),))
    >>> [stage for _, stage in news.of(ended)], news.of(ended)
    (['done'], [])
    """

    def __init__(self) -> None:
        self._told: set[tuple[str, Stage]] = set()

    def of(self, ledger: Ledger | None) -> list[tuple[LedgerEntry, Stage]]:
        """Each entry with the stage it has come to, once; one that was never seen under way is ``done`` at once."""
        now: list[tuple[LedgerEntry, Stage]]
        now = [] if ledger is None else [(one, "done" if one.done else "accepted") for one in ledger.entries]
        news = [(one, stage) for one, stage in now if (one.id, stage) not in self._told]
        self._told = {(one.id, stage) for one, stage in now}
        return news


class LedgerKeeper:
    """The ledger as the leader of `epoch` has it.

    Examples
    --------
    >>> keeper = LedgerKeeper(epoch=1)
    >>> keeper.accept(Operation(id="p", job="j", kind="pause", expected_generation=0), attempt=(1, 3))
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

    def known(self, ledgers: Iterable[Ledger | None]) -> bool:
        """Whether all nodes have it, by the `ledgers` that they have."""
        mine = self.ledger
        return mine is None or all(one is not None and one.id >= mine.id for one in ledgers)

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

    def accept(self, operation: Operation, attempt: tuple[int, int] | None, order: tuple[int, ...] = ()) -> None:
        """Write `operation` down, of a kind that a `LedgerEntry` has; what was done long ago makes room.

        `attempt` is the newest one's epoch and number, `order` a move's; see `LedgerEntry`.
        """
        by, why = operation.by[:MOST_BY_CHARS], operation.why[:MOST_WHY_CHARS]
        what: dict[str, object] = {
            "id": operation.id,
            "kind": operation.kind,
            "node": next(iter(operation.targets.nodes), None),
        }
        epoch, number = attempt or (0, 0)
        what |= {"epoch": epoch, "attempt": number, "order": order, "by": by, "why": why}
        entry = msgspec.convert(what, LedgerEntry)
        done = [one for one in self._entries if one.done]
        full = len(self._entries) >= KEPT_OPERATIONS and bool(done)
        kept = [one for one in self._entries if not full or one is not done[0]]
        self._write(generation=self.generation + 1, entries=(*kept, entry))

    @property
    def stopped_by(self) -> str | None:
        """Id of the stop that has ended the job."""
        return next((one.id for one in self._entries if one.kind == "stop" and one.done), None)

    @property
    def aside(self) -> tuple[str, ...]:
        """Nodes that take part in no attempt to come."""
        return () if self.ledger is None else self.ledger.aside

    @property
    def aside_then(self) -> frozenset[str]:
        """The same, once all that is under way is done."""
        found = set(self.aside)
        for one in self._entries:
            if one.node is not None and not one.done:
                (found.discard if one.kind == "uncordon" else found.add)(one.node)
        return frozenset(found)

    def put(self, node: str, *, aside: bool) -> None:
        """Have `node` set aside from now on, or taken back."""
        others = tuple(one for one in self.aside if one != node)
        self._write(aside=(*others, node) if aside else others)

    def begins(self) -> None:
        """An attempt begins; one that nobody asked for changes what others have planned from."""
        if self.turn is None:
            self._write(generation=self.generation + 1)

    def done(self) -> None:
        """What has its turn is done."""
        turn = self.turn
        assert turn is not None
        assert self.ledger is not None
        entries = tuple(
            msgspec.structs.replace(one, done=True, order=()) if one is turn else one for one in self._entries
        )
        paused = {"pause": True, "resume": False}.get(turn.kind, self.ledger.paused)
        self._write(entries=entries, paused=paused)

    def report(self, operation: str) -> Report:
        """How far the operation of that id is."""
        return report(self.ledger, operation)

    @property
    def _entries(self) -> tuple[LedgerEntry, ...]:
        return () if self.ledger is None else self.ledger.entries

    def _write(self, **what: object) -> None:
        before = self.ledger or Ledger(epoch=self._epoch, number=1)
        number = 1 if self.ledger is None else before.number + 1
        self.ledger = msgspec.structs.replace(before, epoch=self._epoch, number=number, **what)


def report(ledger: Ledger | None, operation: str) -> Report:
    """How far the operation of that id is by `ledger`."""
    entries = () if ledger is None else ledger.entries
    found = next((one for one in entries if one.id == operation), None)
    if found is None:
        return Report(operation=operation, state="unknown")
    return Report(operation=operation, state="done" if found.done else "accepted")
