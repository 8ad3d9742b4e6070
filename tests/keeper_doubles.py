"""Nodes of a job whose keepers call each other directly, and trainers that write shards without torch."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.doubles import ManualClock
from trainwarden.actions.keeper.copies import Choice, Copy
from trainwarden.actions.keeper.folder import Folder
from trainwarden.actions.keeper.keeper import Keeper, Staged
from trainwarden.actions.keeper.store import Store
from trainwarden.actions.keeper.transfer import ReadInto
from trainwarden.checkpoint import shard
from trainwarden.checkpoint.shard import CRC_HERE, CRCS, Facts, Header, Id, header_bytes, lay_out, read_header, verify
from trainwarden.checkpoint.slots import Slots, job_folder, seal

TOPOLOGY = "world {}"


def content(id_: Id, rank: int, size: int) -> bytes:
    """What rank `rank` holds at `id_`."""
    return random.Random(f"{id_} {rank}").randbytes(size)


def write_shard(
    slots: Slots, facts: Facts, data: bytes, *, dies_after: int | None = None, name: str = "model/w"
) -> None:
    """Save as a trainer does; one that dies has written so many bytes."""
    tensors = lay_out([(name, "U8", (len(data),))])
    chunks = [CRCS[CRC_HERE](data[at : at + shard.CHUNK_BYTES], 0) for at in range(0, len(data), shard.CHUNK_BYTES)]
    prefix = header_bytes(facts, tensors, chunks)
    with slots.writing(slots.next_of("own", facts.rank)) as descriptor:
        slots.allocate(descriptor, len(prefix) + len(data))
        os.pwrite(descriptor, data[:dies_after], len(prefix))
        if dies_after is None:
            seal(descriptor, prefix)


class DirectPeer:
    """Another node's keeper, without a network; away where the node is."""

    def __init__(self, nodes: Nodes, asking: str, node: str) -> None:
        self._nodes, self._asking, self._node = nodes, asking, node

    @property
    def _keeper(self) -> Keeper:
        if self._node in self._nodes.away:
            raise ConnectionRefusedError(111, "Connection refused")
        return self._nodes.keepers[self._node]

    def inventory(self) -> list[Copy]:
        return self._keeper.inventory()

    def put(self, descriptor: int, header: Header) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        left = self._nodes.dies_after

        def read(buffer: memoryview) -> int:
            nonlocal left
            if left is None:
                return os.readv(descriptor, [buffer])
            got = os.readv(descriptor, [buffer[:left]]) if left else 0
            left -= got
            return got

        self._keeper.receive(self._asking, read)

    def choose(self, key: str) -> Choice:
        folder = self._nodes.folders[self._keeper.node]
        return folder.choose(key)

    @contextmanager
    def get(self, copy: Copy) -> Iterator[ReadInto]:
        with self._keeper.offer(copy.digest) as (descriptor, _):
            yield lambda buffer: os.readv(descriptor, [buffer])


class Nodes:
    """A ring of nodes `a`, `b`, ... with one rank each."""

    def __init__(
        self, folder: Path, count: int, *, flush_every_s: float = 0.0, keep: int = 3, files: bool = False
    ) -> None:
        self.names = "abcdefgh"[:count]
        self.clock = ManualClock()
        self.away: set[str] = set()
        self.dies_after: int | None = None
        """A keeper that copies to its neighbour gets so many bytes there."""
        self.keepers: dict[str, Keeper] = {}
        self.folders: dict[str, Folder] = {}
        self.store = None if files else Store(folder / "store", "j")
        self._folder, self._flush_every_s, self._keep = folder, flush_every_s, keep
        for name in self.names:
            self.boot(name)

    def boot(self, name: str) -> None:
        """A keeper that has only what its node's memory holds."""
        if name in self.keepers:
            self.keepers[name].slots.close()  # as the kernel does when a process ends
        peers = {other: DirectPeer(self, name, other) for other in self.names if other != name}
        slots = Slots(job_folder("j", str(self._folder / name)))
        self.keepers[name] = Keeper(
            slots,
            job="j",
            node=name,
            ring=self.names,
            peers=peers,
            clock=self.clock,
            store=self.store,
            flush_every_s=self._flush_every_s,
            keep=self._keep,
        )
        if self.store is None:
            self.folders[name] = Folder(
                self.keepers[name], self.clock, store=self._folder / "store",
                flush_every_s=self._flush_every_s,
            )  # fmt: skip

    def lose(self, name: str) -> None:
        """The node and its memory are gone; an empty one takes its place."""
        shutil.rmtree(self._folder / name)
        self.boot(name)

    def slots(self, rank: int) -> Slots:
        return self.keepers[self.names[rank]].slots

    def save(self, id_: Id, size: int, *, rank: int, dies_after: int | None = None) -> None:
        world = len(self.names)
        facts = Facts("j", id_, rank, world, TOPOLOGY.format(world), float(id_.step))
        write_shard(self.slots(rank), facts, content(id_, rank, size), dies_after=dies_after)

    def save_all(self, id_: Id, size: int) -> None:
        for rank in range(len(self.names)):
            self.save(id_, size, rank=rank)

    def tick(self, rounds: int = 3, *, store: bool = True) -> None:
        """Rounds of all keepers; without `store` that hangs, or nobody looks after it yet."""
        for _ in range(rounds):
            for keeper in self.keepers.values():
                copies = keeper.tick()
                if keeper.node in self.folders:
                    self.folders[keeper.node].tick(copies)
                if store:  # the service has a thread for it
                    self.folders.get(keeper.node, keeper).file()

    def stage(self, rank: int, at_most: Id | None = None) -> Staged:
        world = len(self.names)
        self.keepers[self.names[rank]].file()
        return self.keepers[self.names[rank]].stage(rank, world, TOPOLOGY.format(world), at_most)

    def restore(self) -> list[Staged]:
        """As `restore` does on all ranks: propose, and go back to the oldest proposal until all agree."""
        bound: Id | None = None
        while True:
            staged = [self.stage(rank, bound) for rank in range(len(self.names))]
            ids = [one.id for one in staged]
            if None in ids:
                return [Staged(None, None, one.attempt, one.words) for one in staged]
            if len(set(ids)) == 1:
                return staged
            bound = min(id_ for id_ in ids if id_ is not None)

    def bytes_of(self, staged: Staged, rank: int) -> bytes:
        """The data of a staged shard, verified."""
        assert staged.slot is not None
        descriptor = self.slots(rank).open(staged.slot)
        try:
            header = read_header(descriptor)
            verify(descriptor, header)
            return os.pread(descriptor, header.data_bytes, header.data_start)
        finally:
            os.close(descriptor)
