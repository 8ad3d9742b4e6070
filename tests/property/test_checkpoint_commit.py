"""Commit of checkpoints in memory: saves, crashes, kills, lost nodes and flipped bits in any order.

At each restart all ranks restore the same checkpoint, bit by bit what was saved, and the newest of which every shard
still exists undamaged in some tier.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.keeper_doubles import Nodes, content
from trainwarden.actions.keeper import transfer
from trainwarden.checkpoint import shard
from trainwarden.checkpoint.shard import CheckpointError, Header, Id, read_header, verify

SIZE = 700
EVENTS = {
    "save": 5, "one_dies": 2, "one_skips": 1, "tick": 8, "kill_keeper": 1, "lose_node": 1, "cut_off": 1, "mend": 1,
    "damage_own": 1, "damage_kept": 1, "damage_store": 1, "restart": 4,
}  # fmt: skip
"""What happens, by how often."""
DRAWN = st.sampled_from([name for name, often in EVENTS.items() for _ in range(often)])
STORY = st.lists(st.tuples(DRAWN, st.integers(0, 2), st.integers(0, 3000)), min_size=10, max_size=40)


@pytest.fixture(autouse=True, scope="module")
def _small_chunks():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shard, "CHUNK_BYTES", 256)
        patch.setattr(transfer, "CHUNK_BYTES", 256)
        yield


def intact(path: Path) -> Header | None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        header = read_header(descriptor)
        verify(descriptor, header)
        return header
    except CheckpointError:
        return None
    finally:
        os.close(descriptor)


class World:
    """Three nodes with a rank each, and the training that saves there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.nodes = folder, Nodes(folder, 3)
        self.attempt = self.step = 0
        self.floor: Id | None = None
        """What all nodes know to be replicated: saves may not overwrite it."""

    def save(self, _rank: int, _at: int, left_out: int | None = None, dies_after: int | None = None) -> None:
        self.step += 1
        for rank in range(3):
            if rank != left_out or dies_after is not None:
                after = dies_after if rank == left_out else None
                self.nodes.save(Id(self.attempt, self.step), SIZE, rank=rank, dies_after=after)

    def one_dies(self, rank: int, at: int) -> None:
        self.save(rank, at, left_out=rank, dies_after=at % SIZE)

    def one_skips(self, rank: int, at: int) -> None:
        self.save(rank, at, left_out=rank)

    def tick(self, rank: int, _at: int) -> None:
        self.nodes.keepers[self.nodes.names[rank]].tick()
        self.nodes.keepers[self.nodes.names[rank]].file()
        known = [keeper.slots.newest_complete() for keeper in self.nodes.keepers.values()]
        self.floor = None if None in known else min(one for one in known if one is not None)

    def kill_keeper(self, rank: int, _at: int) -> None:
        self.nodes.boot(self.nodes.names[rank])

    def lose_node(self, rank: int, _at: int) -> None:
        self.nodes.lose(self.nodes.names[rank])
        self.floor = None

    def cut_off(self, rank: int, _at: int) -> None:
        self.nodes.away.add(self.nodes.names[rank])

    def mend(self, _rank: int, _at: int) -> None:
        self.nodes.away.clear()

    def damage_own(self, rank: int, at: int) -> None:
        self._damage(sorted((self.folder / self.nodes.names[rank]).rglob("own-*.safetensors")), at)

    def damage_kept(self, rank: int, at: int) -> None:
        self._damage(sorted((self.folder / self.nodes.names[rank]).rglob("kept-*.safetensors")), at)

    def damage_store(self, _rank: int, at: int) -> None:
        self._damage(sorted((self.folder / "store").rglob("*.safetensors")), at)

    def _damage(self, paths: list[Path], at: int) -> None:
        """Flip a bit of each, most often in the data, or cut it off."""
        self.floor = None
        for path in paths:
            data = bytearray(path.read_bytes())
            if data and at % 5:
                data[-1 - at % len(data)] ^= 1 << at % 8
            else:
                del data[at // 5 :]
            path.write_bytes(data)

    def restart(self, _rank: int, _at: int) -> None:
        self.nodes.away.clear()
        expected = self.newest_intact()
        assert self.floor is None or (expected is not None and expected >= self.floor)
        staged = self.nodes.restore()
        assert {one.id for one in staged} == {expected}, [one.words for one in staged]
        if expected is not None:
            for rank, one in enumerate(staged):
                assert self.nodes.bytes_of(one, rank) == content(expected, rank, SIZE)
            self.step = expected.step
        self.attempt += 1

    def newest_intact(self) -> Id | None:
        """By looking at every file: the newest id of which each rank has one that is whole."""
        ranks: dict[Id, set[int]] = {}
        durable = {copy.id for copy in self.nodes.store.copies()}
        for path in self.folder.rglob("*.safetensors"):
            header = intact(path)
            if header is not None and (not path.is_relative_to(self.folder / "store") or header.facts.id in durable):
                ranks.setdefault(header.facts.id, set()).add(header.facts.rank)
        return max((id_ for id_, there in ranks.items() if there == {0, 1, 2}), default=None)


@pytest.mark.thorough
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STORY)
def test_any_order_of_kills_restores_the_newest_whole_checkpoint(story):
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        for event, rank, at in [*story, ("restart", 0, 0)]:
            getattr(world, event)(rank, at)
