"""The keeper: replicated when the neighbour has verified, durable with a manifest, restored from the nearest tier."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from tests.doubles import ManualClock
from tests.keeper_doubles import TOPOLOGY, Nodes, content
from trainwarden.actions.keeper import keeper as keeper_module
from trainwarden.actions.keeper import transfer
from trainwarden.actions.keeper.copies import Copies, Copy
from trainwarden.actions.keeper.service import listing
from trainwarden.actions.keeper.store import Store
from trainwarden.checkpoint import shard
from trainwarden.checkpoint.shard import CheckpointError, Header, Id
from trainwarden.checkpoint.slots import Slot

FIRST, SECOND = Id(0, 10), Id(0, 20)
SIZE = 5000


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(shard, "CHUNK_BYTES", 1024)
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 1024)


def newest(nodes: Nodes, *tiers: str) -> Id | None:
    return nodes.keepers["a"].survey().newest(*tiers)


def restored(nodes: Nodes) -> tuple[set[Id | None], str]:
    """The ids restored on all ranks, each with the right bytes, and rank 0's sentence."""
    staged = nodes.restore()
    for rank, one in enumerate(staged):
        if one.id is not None:
            assert nodes.bytes_of(one, rank) == content(one.id, rank, SIZE)
    return {one.id for one in staged}, staged[0].words


def test_a_sealed_checkpoint_is_replicated_and_then_durable(tmp_path):
    nodes = Nodes(tmp_path, 3)
    nodes.save_all(FIRST, SIZE)
    assert (newest(nodes, "memory"), newest(nodes, "neighbour"), newest(nodes, "store")) == (FIRST, None, None)
    nodes.tick(1)
    assert newest(nodes, "neighbour") == FIRST
    nodes.tick(2)
    assert newest(nodes, "store") == FIRST
    assert nodes.slots(0).newest_complete() == FIRST


def test_memory_comes_first_then_the_neighbour_then_the_store(tmp_path):
    nodes = Nodes(tmp_path, 3)
    nodes.save_all(FIRST, SIZE)
    nodes.tick()
    assert restored(nodes) == ({FIRST}, "step 10 is restored from memory")
    nodes.lose("a")
    assert restored(nodes) == ({FIRST}, "step 10 is restored from the neighbour's memory of b")
    for name in nodes.names:
        nodes.lose(name)
    assert restored(nodes) == ({FIRST}, "step 10 is restored from the store")


def test_a_lost_nodes_replicas_are_made_anew(tmp_path):
    """b held a's replicas, and c holds b's."""
    nodes = Nodes(tmp_path, 3)
    nodes.save_all(FIRST, SIZE)
    nodes.tick()
    nodes.lose("b")
    assert newest(nodes, "neighbour") is None
    restored(nodes)
    nodes.tick()
    assert newest(nodes, "neighbour") == FIRST
    nodes.lose("a")
    assert restored(nodes)[0] == {FIRST}


def test_two_neighbours_lost_are_restored_from_the_store_and_two_apart_from_memory(tmp_path):
    nodes = Nodes(tmp_path, 4, flush_every_s=1000.0)
    nodes.save_all(FIRST, SIZE)
    nodes.tick()
    nodes.save_all(SECOND, SIZE)
    nodes.tick()
    assert (newest(nodes, "neighbour"), newest(nodes, "store")) == (SECOND, FIRST)
    nodes.lose("a")
    nodes.lose("c")
    assert restored(nodes)[0] == {SECOND}
    nodes.lose("a")
    nodes.lose("b")
    ids, words = restored(nodes)
    assert ids == {FIRST}
    assert "step 20 is passed over, as no copy is left of ranks 0, 1" in words


def test_one_skipped_save_costs_that_checkpoint_alone(tmp_path):
    nodes = Nodes(tmp_path, 3)
    nodes.save_all(FIRST, SIZE)
    nodes.tick()
    nodes.save(SECOND, SIZE, rank=0)
    nodes.save(SECOND, SIZE, rank=1, dies_after=100)
    nodes.save(SECOND, SIZE, rank=2)
    nodes.tick()
    assert newest(nodes) == FIRST
    assert restored(nodes)[0] == {FIRST}


def test_a_later_attempt_is_newer_than_any_step_of_the_one_before(tmp_path):
    nodes = Nodes(tmp_path, 2)
    nodes.save_all(Id(0, 100), SIZE)
    nodes.save_all(Id(1, 60), SIZE)
    assert restored(nodes)[0] == {Id(1, 60)}


def corrupt(path, draw: random.Random) -> None:
    """Flip a bit of the file, or cut it."""
    data = bytearray(path.read_bytes())
    if draw.random() < 0.5:
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
    else:
        del data[draw.randrange(len(data)) :]
    path.write_bytes(data)


def file_of(nodes: Nodes, tier: str):
    """Rank 0's shard of the newest checkpoint in a tier."""
    if tier == "store":
        return next(nodes.store.path.glob("step-20-*/rank-000000.safetensors"))
    node, kind = ("a", "own") if tier == "memory" else ("b", "kept")
    slots = nodes.keepers[node].slots
    slot = next(s for s, one in slots.sealed().items() if (s.kind, s.rank) == (kind, 0) and one.facts.id == SECOND)
    return slots.path / slot.name


@pytest.mark.thorough
def test_a_thousand_seeded_flips_and_truncations_fall_to_the_next_tier(tmp_path):
    nodes, draw = Nodes(tmp_path, 2, flush_every_s=0.0), random.Random(11)
    tiers = ("memory", "neighbour", "store")
    counts = dict.fromkeys((*tiers[1:], "older"), 0)
    for id_ in (FIRST, SECOND):
        nodes.save_all(id_, SIZE)
        nodes.tick()
    files = {tier: file_of(nodes, tier) for tier in tiers}
    good = {tier: path.read_bytes() for tier, path in files.items()}
    for number in range(1000):
        bad = tiers[: 1 + number % 3]
        for tier in tiers:
            files[tier].write_bytes(good[tier])
        for tier in bad:
            corrupt(files[tier], draw)
        nodes.boot("a")
        staged = nodes.stage(0)
        assert staged.id == (FIRST if len(bad) == 3 else SECOND)
        assert nodes.bytes_of(staged, 0) == content(staged.id, 0, SIZE)
        place = {1: "the neighbour's memory of b", 2: "the store", 3: "memory"}[len(bad)]
        assert staged.words.startswith(f"step {staged.id.step} is restored from {place}"), staged.words
        counts["older" if len(bad) == 3 else tiers[len(bad)]] += 1
    assert counts == {"neighbour": 334, "store": 333, "older": 333}


def test_what_is_corrupt_is_not_sent_and_counts_no_more(tmp_path):
    nodes = Nodes(tmp_path, 2)
    nodes.save_all(FIRST, SIZE)
    path = nodes.slots(0).path / "own-0-0.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    nodes.tick()
    assert nodes.keepers["a"].totals.corrupt == 1
    assert newest(nodes) is None
    assert [copy.rank for copy in nodes.keepers["b"].inventory()] == [1]


def test_a_peer_that_is_away_stops_neither_the_keeper_nor_a_restore(tmp_path):
    nodes = Nodes(tmp_path, 3)
    nodes.save_all(FIRST, SIZE)
    nodes.tick()
    nodes.away.add("c")
    nodes.tick()
    staged = nodes.stage(0)
    assert staged.id == FIRST
    assert "c does not answer" in staged.words


@pytest.mark.thorough
def test_a_restore_waits_for_a_peer_that_starts_with_it(tmp_path):
    """b, whose memory is empty, is asked before a listens; without waiting the job would begin anew."""
    nodes = Nodes(tmp_path, 2, flush_every_s=1000.0)
    nodes.save_all(FIRST, SIZE)
    nodes.tick(2)
    nodes.save_all(SECOND, SIZE)
    nodes.tick(2)
    nodes.lose("b")
    nodes.away.add("a")

    class Mending(ManualClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            if self.monotonic_s() > 5:
                nodes.away.clear()

    nodes.keepers["b"]._clock = Mending()
    assert nodes.stage(1).id == SECOND
    nodes.away.add("a")
    nodes.lose("b")
    staged = nodes.stage(1)  # it never answers: what the store has is better than nothing
    assert staged.id == FIRST
    assert staged.words.startswith("step 10 is restored from the store; a does not answer")
    assert nodes.clock.monotonic_s() >= keeper_module.PEERS_S


def test_a_store_that_cannot_be_written_is_said_and_counted(tmp_path):
    nodes = Nodes(tmp_path, 2)
    nodes.store.path.parent.write_text("no folder")
    nodes.save_all(FIRST, SIZE)
    nodes.tick()
    assert newest(nodes, "neighbour") == FIRST
    assert any("store" in place for place in nodes.keepers["a"].away)
    nodes.store.path.parent.unlink()
    nodes.tick()
    assert newest(nodes, "store") == FIRST
    assert nodes.keepers["a"].away == {}


@contextmanager
def flushing(nodes: Nodes, monkeypatch) -> Iterator[Event]:
    """The store takes a shard of the first node until the event is set."""
    begun, goes_on, put = Event(), Event(), Store.put

    def slow(self, descriptor: int, header: Header, check) -> None:
        begun.set()
        goes_on.wait(20)
        put(self, descriptor, header, check)

    monkeypatch.setattr(Store, "put", slow)
    thread = Thread(target=nodes.keepers["a"].file, daemon=True)
    thread.start()
    assert begun.wait(20)
    try:
        yield goes_on
    finally:
        goes_on.set()
        thread.join(20)
        assert not thread.is_alive()


def test_a_store_that_takes_a_long_shard_is_not_away(tmp_path, monkeypatch):
    nodes = Nodes(tmp_path, 1)
    keeper, at_seal, seal = nodes.keepers["a"], [], Store.seal

    def sealing(self, id_: Id, world: int) -> bool:
        keeper.tick()
        at_seal.append(dict(keeper.away))
        return seal(self, id_, world)

    monkeypatch.setattr(Store, "seal", sealing)
    nodes.save_all(FIRST, SIZE)
    nodes.tick(store=False)
    with flushing(nodes, monkeypatch):
        nodes.clock.sleep(30.0)
        keeper.tick()
        assert keeper.away == {}
        assert keeper.stage(0, 1, TOPOLOGY.format(1), None).words == "step 10 is restored from memory"
    nodes.clock.sleep(4.0)
    keeper.tick()
    assert (keeper.away, at_seal) == ({}, [{}])
    nodes.save_all(SECOND, SIZE)
    nodes.tick(store=False)
    with flushing(nodes, monkeypatch):
        nodes.clock.sleep(61.0)
        keeper.tick()
        assert keeper.away.keys() == {"store"}


@pytest.mark.parametrize(("fetched", "tier", "flushed"), [(FIRST, "store", 2), (SECOND, "neighbour", 1)])
def test_a_fetch_ends_a_flush_only_if_it_needs_that_slot(tmp_path, monkeypatch, fetched, tier, flushed):
    nodes = Nodes(tmp_path, 2)
    keeper = nodes.keepers["a"]
    for id_ in (FIRST, SECOND):
        nodes.save_all(id_, SIZE)
        nodes.tick(store=id_ == FIRST)
    verified = []
    with flushing(nodes, monkeypatch):
        copies = keeper.survey().by_id[fetched]
        keeper.bring(next(copy for copy in copies if (copy.rank, copy.tier) == (0, tier)))
        monkeypatch.setattr(keeper, "_corrupt", verified.append)
    assert (keeper.totals.flushed, keeper.away, verified) == (flushed, {}, [])
    nodes.tick()
    assert newest(nodes, "store") == SECOND


def test_a_manifest_comes_last(tmp_path):
    nodes = Nodes(tmp_path, 2)
    nodes.save_all(FIRST, SIZE)
    nodes.tick(1)
    nodes.keepers["a"].tick()
    nodes.keepers["a"].file()
    assert nodes.store.unfinished() == [FIRST]
    assert nodes.store.copies() == []
    nodes.keepers["b"].tick()
    nodes.keepers["b"].file()
    assert nodes.store.unfinished() == []
    assert {copy.rank for copy in nodes.store.copies()} == {0, 1}


def test_the_store_keeps_the_newest(tmp_path):
    nodes = Nodes(tmp_path, 2, keep=2)
    for step in range(10, 60, 10):
        nodes.save_all(Id(0, step), SIZE)
        nodes.tick()
    assert {copy.step for copy in nodes.store.copies()} == {40, 50}


def test_only_the_previous_node_may_have_shards_kept(tmp_path):
    nodes = Nodes(tmp_path, 3)
    with pytest.raises(CheckpointError, match="not the previous node"):
        nodes.keepers["a"].receive("b", lambda _: 0)


def test_a_neighbour_cannot_fill_the_memory_with_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(keeper_module, "MOST_KEPT_RANKS", 1)
    nodes = Nodes(tmp_path, 3)
    nodes.save(FIRST, SIZE, rank=0)
    descriptor = nodes.slots(0).open(Slot("own", 0, 0))
    nodes.keepers["b"].receive("a", lambda buffer: os.readv(descriptor, [buffer]))
    os.close(descriptor)
    nodes.save(FIRST, SIZE, rank=2)
    descriptor = nodes.slots(2).open(Slot("own", 2, 0))
    with pytest.raises(CheckpointError, match="1 ranks"):
        nodes.keepers["b"].receive("a", lambda buffer: os.readv(descriptor, [buffer]))
    os.close(descriptor)


def test_another_topology_is_not_restored_and_named(tmp_path):
    nodes = Nodes(tmp_path, 2)
    nodes.save_all(FIRST, SIZE)
    staged = nodes.keepers["a"].stage(0, 4, "world 4", None)
    assert (staged.id, staged.other_topology) == (None, "world 2")


def test_the_list_says_what_would_be_lost(tmp_path):
    nodes = Nodes(tmp_path, 2, flush_every_s=1000.0)
    nodes.save_all(FIRST, SIZE)
    nodes.tick()
    nodes.save_all(SECOND, SIZE)
    keeper = nodes.keepers["a"]
    listed = listing(keeper, keeper.survey(), now_s=25.0)
    assert {(row["step"], row["tier"]) for row in listed["checkpoints"]} == {
        (20, "memory"), (10, "memory"), (10, "neighbour"), (10, "store"),
    }  # fmt: skip
    assert {what: back["step"] for what, back in listed["if_lost"].items()} == {
        "a process": 20, "a node": 10, "all nodes": 10,
    }  # fmt: skip
    assert listed["if_lost"]["a process"]["age_s"] == 5.0


def test_of_an_unknown_id_nothing_is_complete():
    assert not Copies([]).is_complete(FIRST)


def test_a_copy_that_says_another_world_does_not_complete_one():
    copy = Copy(
        tier="memory", node="a", attempt=0, step=1, rank=0, world=2, topology="", digest="d", size=1, saved_at_s=0.0
    )
    assert Copies([copy]).missing(Id(0, 1)) == [1]
