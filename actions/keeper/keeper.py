"""The keeper of one node: inventory, copies to the next node, copies to the store, and what `restore` asks for.

It holds nothing in its own memory that matters: killed and started again, it finds the slots as they are. Everything
it does follows from which copies exist: a shard that the neighbour lacks is sent, also after the neighbour was lost.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

from trainwarden.actions.keeper.copies import Choice, Copies, Copy, Tier, copy_of
from trainwarden.actions.keeper.silence import PEERS_S, LetGo, Sending, StoreStill, is_long, unless_still, wait_s
from trainwarden.actions.keeper.store import Store
from trainwarden.actions.keeper.transfer import ReadInto, place_for, reading, receive
from trainwarden.checkpoint.shard import CheckpointError, Header, Id, Unsealed, read_header, verify
from trainwarden.checkpoint.slots import SLOTS, Busy, Slot, Slots
from trainwarden.clock import Clock

log = logging.getLogger("trainwarden.keeper")
MOST_KEPT_RANKS: Final = 64  # of the previous node; no node has more devices


class Peer(Protocol):
    """The keeper of another node."""

    def inventory(self) -> list[Copy]:
        """The shards in its memory."""
        ...

    def put(self, descriptor: int, header: Header) -> None:
        """Have it keep the shard; returns once it has verified all of it."""
        ...

    def get(self, copy: Copy) -> AbstractContextManager[ReadInto]:
        """Read a shard of its memory."""
        ...

    def choose(self, key: str) -> Choice:
        """From what the ranks go on that start with `key`, if it keeps a folder."""
        ...


@dataclass(frozen=True, slots=True)
class Staged:
    """A rank's shard lies verified in `slot`, if there is one. `words` say from where, and what was passed over."""

    slot: Slot | None
    id: Id | None
    attempt: int | None
    words: str
    other_topology: str = ""


@dataclass(slots=True)
class Totals:
    """What was counted since the start."""

    sent: int = 0
    sent_bytes: int = 0
    flushed: int = 0
    corrupt: int = 0


class Keeper:
    """See the module.

    Parameters
    ----------
    ring : sequence of str
        All nodes of the job in the order in which each copies to the next: neighbours should share no power or switch.
    peers : mapping of str to Peer
        The other nodes of the ring.
    store : Store, optional
    flush_every_s : float
        The least time between two checkpoints in the store.
    keep : int
        How many checkpoints the store holds.
    """

    def __init__(
        self, slots: Slots, *, job: str, node: str, ring: Sequence[str], peers: Mapping[str, Peer], clock: Clock,
        store: Store | None = None, flush_every_s: float = 600.0, keep: int = 3,
    ) -> None:  # fmt: skip
        self.slots, self.job, self.node = slots, job, node
        self.totals = Totals()
        self.away: dict[str, str] = {}
        """Peers and the store that did not answer, with the reason."""
        self._store, self._clock = store, clock
        self._flush_every_s, self._keep = flush_every_s, keep
        self._flushed_at_s: float | None = None
        self._pruned_at: Id | None = None
        self._lock = threading.Lock()
        """Held while an own slot is sent or fetched, or taken to flush it: a restore must not find it in use."""
        self._guard = threading.Lock()
        self._sending: Sending | None = None  # to the store; changed under the guard
        self._stored: list[Copy] = []  # what the last look at the store has found
        self._looked_at_s: float | None = None
        self._safe: Id | None = None
        self.join(ring, peers)

    def join(self, ring: Sequence[str], peers: Mapping[str, Peer]) -> None:
        """Be part of this ring from now on."""
        at, several = list(ring).index(self.node), len(ring) > 1
        self._next: str | None = ring[(at + 1) % len(ring)] if several else None
        self._previous: str | None = ring[at - 1] if several else None
        self._peers, self.ring = dict(peers), tuple(ring)
        for name in list(self.away):
            if name not in self._peers and name != "store":
                self.away.pop(name, None)

    def inventory(self) -> list[Copy]:
        """The sealed shards in this node's memory."""
        found = self.slots.sealed().items()
        return [
            copy_of(header, "memory" if slot.kind == "own" else "neighbour", self.node)
            for slot, header in found
            if header.facts.job == self.job
        ]

    def survey(self) -> Copies:
        """All copies that can be reached now."""
        found = self.inventory()
        for node, peer in self._peers.items():  # of now: another ring has another mapping
            with self._watched(node, peer):
                copies = peer.inventory()
                if any(copy.node != node or copy.tier == "store" for copy in copies):
                    raise CheckpointError("it lists what is not its own")
                found += copies
        if self._store is not None and self._looked_at_s is not None and self._old_s:
            self._say_away("store", "it stands still, or takes long to write")
        return Copies(found + self._stored)

    def tick(self) -> Copies:
        """One round of work; returns the copies that were there at its beginning."""
        copies = self.survey()
        newest = copies.newest(self.safe_tier)
        if newest is not None and newest != self.slots.newest_complete():
            self.slots.set_newest_complete(newest)
            self._retire(newest)
        self._safe = newest
        self._give_way()
        self._replicate(copies, newest)
        return copies

    def file(self) -> None:
        """One round of the store, where there is one; it hangs as long as that does, and `tick` goes on meanwhile."""
        if (store := self._store) is None:
            return
        with self._watched("store"):
            self._look(store)
            self._flush(store, self._safe, Copies(self._stored).newest("store"))
            self._look(store)

    def _look(self, store: Store) -> None:
        self._stored, self._looked_at_s = store.copies(), self._clock.monotonic_s()

    @property
    def _old_s(self) -> float:
        """How long to wait for another look at the store, if there is one; none while it takes a shard."""
        sending = self._sending
        if self._store is None or (sending is not None and not sending.is_still):
            return 0.0
        return wait_s(self._looked_at_s, self._clock.monotonic_s())

    @property
    def store_works(self) -> bool:
        """Whether the store has answered, or taken a byte, within `STILL_S`."""
        if (sending := self._sending) is not None:
            return not sending.is_still
        return self._looked_at_s is not None and not is_long(self._clock.monotonic_s() - self._looked_at_s)

    def _give_way(self, needed: Slot | None = None) -> None:
        """Free the slot that the store is sent, if it is the `needed` one or the store has taken nothing for long."""
        with self._guard:
            if self._sending is not None and (self._sending.slot == needed or self._sending.is_still):
                self._sending.let_go()

    @property
    def safe_tier(self) -> Tier:
        """A checkpoint in this tier survives the loss of any one node; one node alone has its memory only."""
        return "memory" if self._next is None else "neighbour"

    def receive(self, node: str, read: ReadInto) -> Header:
        """Keep a shard that the previous node sends.

        Raises
        ------
        CheckpointError
            If it is refused or damaged.
        """
        if node != self._previous:
            raise CheckpointError(f"{node} is not the previous node of {self.node}")
        kept = {slot: header for slot, header in self.slots.sealed().items() if slot.kind == "kept"}

        def check(header: Header) -> None:
            facts = header.facts
            ids = [one.facts.id for slot, one in kept.items() if slot.rank == facts.rank]
            if facts.job != self.job:
                raise CheckpointError("it is of another job")
            if len(ids) >= SLOTS and facts.id < min(ids):
                raise CheckpointError("it is older than what is kept")
            if not ids and len({slot.rank for slot in kept}) >= MOST_KEPT_RANKS:
                raise CheckpointError(f"{MOST_KEPT_RANKS} ranks of a node are kept and no more")

        return receive(read, self.slots, "kept", check)[1]

    @contextmanager
    def offer(self, digest: str) -> Iterator[tuple[int, Header]]:
        """A shard of this node's memory, open for sending.

        Raises
        ------
        CheckpointError
            If it is not here any more.
        """
        slot = next((slot for slot, header in self.slots.sealed().items() if header.digest == digest), None)
        if slot is None:
            raise CheckpointError("the shard is not here any more")
        with self.slots.reading(slot) as descriptor:
            yield descriptor, read_header(descriptor)

    def stage(self, rank: int, world: int, topology: str, at_most: Id | None) -> Staged:
        """Put the newest usable shard of `rank` into one of its slots.

        Keepers often start together with the ranks. While a peer or the store does not answer and may hold something
        newer, wait: only a rank whose own newest shard is restored is sure that there is none.
        """
        since_s = self._clock.monotonic_s()
        own = [copy.id for copy in self.inventory() if (copy.tier, copy.rank) == ("memory", rank)]
        fetched: dict[str, str] = {}
        newest = max((id_ for id_ in own if at_most is None or id_ <= at_most), default=None)
        while True:
            copies = self.survey()
            staged = self._stage(copies, rank, (world, topology), at_most, fetched)
            is_sure = staged.id is not None and staged.id == newest
            until_s = since_s + (PEERS_S if self.away.keys() & self._peers.keys() else self._old_s)
            if is_sure or self._clock.monotonic_s() >= until_s:
                return staged
            self._clock.sleep(0.5)

    def bring(self, copy: Copy) -> Slot:
        """The slot of ours in which the copy lies, verified; it is fetched where it lies elsewhere.

        Raises
        ------
        CheckpointError
            If it cannot be had.
        """
        with self._lock:
            slot, trouble = self._bring(copy)
        if slot is None:
            raise CheckpointError(trouble)
        return slot

    def peer(self, node: str) -> Peer:
        """The keeper of another node of the ring.

        Raises
        ------
        CheckpointError
            If the ring has no such node any more.
        """
        if (found := self._peers.get(node)) is None:
            raise CheckpointError(f"{node} is not in the ring")
        return found

    def _stage(
        self, copies: Copies, rank: int, layout: tuple[int, str], at_most: Id | None, fetched: dict[str, str]
    ) -> Staged:
        """One try; `fetched` holds from where shards came in the tries before."""
        words: list[str] = [f"{node} does not answer ({why})" for node, why in self.away.items()]
        words += ["the store does not answer"] * bool(self._old_s and "store" not in self.away)
        attempt = max((id_.attempt for id_ in copies.by_id), default=None)
        other = ""
        for id_ in copies.newest_first():
            if at_most is not None and id_ > at_most:
                continue
            theirs = copies.by_id[id_][0]
            if (theirs.world, theirs.topology) != layout:
                other = other or theirs.topology
                continue
            if missing := copies.missing(id_):
                words.append(f"step {id_.step} is passed over, as no copy is left of {_ranks(missing)}")
                continue
            for copy in copies.sources(id_, rank, self.node):
                place = fetched.get(copy.digest) or place_of(copy, self.node)
                with self._lock:
                    slot, trouble = self._bring(copy)
                if slot is not None:
                    fetched[copy.digest] = place
                    said = [f"step {id_.step} is restored from {place}", *words]
                    return Staged(slot, id_, attempt, "; ".join(said))
                words.append(f"rank {rank}'s shard of step {id_.step} in {place} is unusable ({trouble})")
        return Staged(None, None, attempt, "; ".join(words), other)

    def _bring(self, copy: Copy) -> tuple[Slot | None, str]:
        """The slot in which the copy lies, verified, or why it does not."""
        try:
            if (copy.node, copy.tier) == (self.node, "memory"):
                slot = next(slot for slot, header in self.own() if header.digest == copy.digest)
                return (slot, "") if (why := self._corrupt(slot)) is None else (None, why)

            def check(header: Header) -> None:
                _same(header, copy)
                self._give_way(place_for(self.slots, "own", header))  # the store is sent that shard once more

            with self.opened(copy) as read:
                slot, _ = receive(read, self.slots, "own", check)
            log.info("shard fetched", extra={"fields": {"rank": copy.rank, "step": copy.step, "from": copy.tier}})
            return slot, ""
        except (CheckpointError, OSError, StopIteration) as error:
            return None, str(error)

    @contextmanager
    def opened(self, copy: Copy) -> Iterator[ReadInto]:
        """Read a shard from wherever it is."""
        if copy.tier != "store" and copy.node != self.node:
            with self.peer(copy.node).get(copy) as read:
                yield read
        elif copy.tier == "store":
            with self._opened_there(copy) as read:
                yield read
        else:
            with self.offer(copy.digest) as (descriptor, _):
                yield reading(descriptor)

    @contextmanager
    def _opened_there(self, copy: Copy) -> Iterator[ReadInto]:
        """Read a shard from the store; once that hangs it counts as empty until it answers."""
        store = self._store
        if store is None or self._looked_at_s is None:
            raise CheckpointError("the store does not answer")
        try:
            with closing(unless_still(lambda: store.open(copy))) as shard:
                yield lambda buffer: unless_still(lambda: shard.read(buffer))
        except StoreStill as error:
            self._stored, self._looked_at_s = [], None
            self._say_away("store", str(error))
            raise

    def _replicate(self, copies: Copies, newest: Id | None) -> None:
        """Send the next node what it lacks: first what other nodes have begun, then the newest.

        A checkpoint counts once all ranks have sent the same one; nodes that each sent their own newest might never.
        """
        if self._next is None or self._next in self.away:
            return
        there = {
            copy.digest
            for listed in copies.by_id.values()
            for copy in listed
            if (copy.node, copy.tier) == (self._next, "neighbour")
        }
        begun = {id_ for id_, listed in copies.by_id.items() if any(copy.tier == "neighbour" for copy in listed)}
        for slot, header in sorted(self.own(), key=lambda one: one[1].facts.id in begun, reverse=True):
            if header.digest not in there and (newest is None or header.facts.id >= newest):
                if not self._lock.acquire(blocking=False):
                    return  # a rank restores
                try:
                    with self._watched(f"copy to {self._next}"):
                        self._send(slot, header)
                finally:
                    self._lock.release()

    def _send(self, slot: Slot, header: Header) -> None:
        assert self._next is not None
        try:
            with self.slots.reading(slot) as descriptor:
                self.peer(self._next).put(descriptor, header)
        except Busy:  # the trainer writes it again: the next round has the newer one
            return
        except CheckpointError:
            self._corrupt(slot)
            raise
        self.totals.sent += 1
        self.totals.sent_bytes += header.size

    def _flush(self, store: Store, newest: Id | None, durable: Id | None) -> None:
        """Write to the store what another node has begun, else the newest complete checkpoint when it is due."""
        own = self.own()
        ids = {header.facts.id for _, header in own}
        wanted = next((id_ for id_ in store.unfinished() if id_ in ids), None)
        now_s = self._clock.monotonic_s()
        if durable != self._pruned_at and any(header.facts.rank == 0 for _, header in own):
            store.prune(self._keep)
            self._pruned_at = durable
        if wanted is None:
            due = self._flushed_at_s is None or now_s - self._flushed_at_s >= self._flush_every_s
            if not due or newest is None or newest not in ids or (durable is not None and newest <= durable):
                return
            wanted = newest
        for slot, header in own:
            if header.facts.id == wanted and not store.has(header):
                try:
                    self._put(store, slot, header)
                except (Busy, LetGo):  # the next round has the newer one, or this one again
                    return
                except CheckpointError:
                    self._corrupt(slot)
                    raise
                self.totals.flushed += 1
                self._flushed_at_s = now_s
        store.seal(wanted, next(header.facts.world for _, header in own if header.facts.id == wanted))

    def _put(self, store: Store, slot: Slot, header: Header) -> None:
        with ExitStack() as stack:
            with self._lock:
                descriptor = stack.enter_context(self.slots.reading(slot))
                sending = self._sending = Sending(slot, descriptor, self._clock)
            try:
                store.put(descriptor, header, sending.check)
                self._look(store)  # the look before is as old as the shard is long
            finally:
                with self._guard:
                    self._sending = None

    def own(self) -> list[tuple[Slot, Header]]:
        """The sealed shards of this node's own ranks, newest first."""
        found = [
            (slot, one) for slot, one in self.slots.sealed().items() if slot.kind == "own" and one.facts.job == self.job
        ]
        return sorted(found, key=lambda one: one[1].facts.id, reverse=True)

    def _corrupt(self, slot: Slot) -> str | None:
        """What is wrong with a shard, if anything; it is unsealed then, so that nothing counts on it any more."""
        try:
            with self.slots.reading(slot) as descriptor:
                verify(descriptor, read_header(descriptor))
        except (Busy, Unsealed, FileNotFoundError) as error:  # written anew meanwhile
            return str(error)
        except CheckpointError as error:
            self.totals.corrupt += 1
            log.warning("corrupt shard discarded", extra={"fields": {"slot": slot.name, "why": str(error)}})
            with suppress(Busy), self.slots.writing(slot):
                pass
            return str(error)
        return None

    def _retire(self, newest: Id) -> None:
        """Free the slots of ranks that are elsewhere since an earlier attempt."""
        sealed = self.slots.sealed()
        active = {(slot.kind, slot.rank) for slot, one in sealed.items() if one.facts.id.attempt >= newest.attempt}
        for slot in sealed:
            if (slot.kind, slot.rank) not in active:
                self.slots.remove(slot)

    @contextmanager
    def _watched(self, node: str, peer: Peer | None = None) -> Iterator[None]:
        """Note who does not answer; the keeper goes on without."""
        try:
            yield
        except (OSError, CheckpointError) as error:
            if peer is not None and self._peers.get(node) is not peer:
                return  # of the ring before
            self._say_away(node, str(error))
        else:
            self.away.pop(node, None)

    def _say_away(self, node: str, why: str) -> None:
        if self.away.get(node) != why:
            log.warning("no answer", extra={"fields": {"from": node, "why": why}})
        self.away[node] = why


def _same(header: Header, copy: Copy) -> None:
    if header.digest != copy.digest:
        raise CheckpointError("it is another shard than was listed")


def place_of(copy: Copy, here: str) -> str:
    """Where a copy lies, in words of the node `here`."""
    if copy.tier == "store":
        return "the store"
    where = "" if copy.node == here else f" of {copy.node}"
    return f"memory{where}" if copy.tier == "memory" else f"the neighbour's memory{where}"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
