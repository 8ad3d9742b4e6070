"""Files of unchanged scripts: recognised, copied to the neighbour, written to the store, and given to new ranks."""

from __future__ import annotations

import io
import json
import os
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.keeper_doubles import Nodes, write_shard
from trainwarden.actions.keeper import parts, silence, transfer
from trainwarden.actions.keeper.filed import Filed
from trainwarden.actions.keeper.folder import NOTE
from trainwarden.actions.keeper.parts import Entry, pack, unpack
from trainwarden.actions.keeper.transfer import reading
from trainwarden.checkpoint import shard
from trainwarden.checkpoint.shard import CheckpointError, Facts, Id
from trainwarden.checkpoint.slots import Slots
from trainwarden.checkpoints.newest import newest

SIZE = 5_000_000  # more than a chunk


def zipped(step: int) -> bytes:
    """What `torch.save` writes, in kind."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr(zipfile.ZipInfo("data.pkl"), bytes([step % 251]) * SIZE)
    return file.getvalue()


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def part(step: int, node: int) -> bytes:
    return bytes([step % 251, node]) * (SIZE // 2)


def torch_file(step: int, node: int) -> dict[str, bytes]:
    """Rank 0 alone writes."""
    return {f"step-{step}.pt": zipped(step)} if node == 0 else {}


def lightning(step: int, node: int) -> dict[str, bytes]:
    return {f"epoch=1-step={step}.ckpt": zipped(step)} if node == 0 else {}


def hugging_face(step: int, node: int) -> dict[str, bytes]:
    entry = f"checkpoint-{step}"
    model = {f"{entry}/model.safetensors": part(step, 0), f"{entry}/empty": b""}
    mark = {f"{entry}/trainer_state.json": json.dumps({"global_step": step}).encode()}
    return {**model, **mark} if node == 0 else {f"{entry}/rng_state_{node}.pth": b"rng"}


def dcp(step: int, node: int) -> dict[str, bytes]:
    mark = {f"step-{step}/.metadata": b"m"} if node == 0 else {}
    return {f"step-{step}/__{node}_0.distcp": part(step, node), **mark}


def sharded(step: int, node: int) -> dict[str, bytes]:
    """Many files."""
    data = {f"step-{step}/__{rank}_0.distcp": bytes([step % 251]) * 2000 for rank in range(12)}
    return {**data, f"step-{step}/.metadata": b"m"}


def deepspeed(step: int, node: int) -> dict[str, bytes]:
    name = f"global_step{step}"
    mark = {"latest": name.encode()} if node == 0 else {}
    return {f"{name}/zero/rank_{node}.pt": part(step, node), **mark}


def megatron(step: int, node: int) -> dict[str, bytes]:
    mark = {"latest_checkpointed_iteration.txt": str(step).encode()} if node == 0 else {}
    return {f"iter_{step:07d}/mp_rank_{node:02d}/model.pt": part(step, node), **mark}


TRAINERS = (torch_file, lightning, hugging_face, dcp, deepspeed, megatron)


class Job:
    """Three nodes whose ranks write the files of one trainer."""

    def __init__(self, folder: Path, trainer, count: int = 3, **options) -> None:
        self.nodes = Nodes(folder, count, files=True, **options)
        self.trainer, self.count, self.store, self._round = trainer, count, folder / "store", 0

    def files(self, step: int) -> dict[str, bytes]:
        return {name: data for node in range(self.count) for name, data in self.trainer(step, node).items()}

    def path(self, node: int) -> Path:
        return self.nodes.folders[self.nodes.names[node]].path

    def write(self, step: int, *nodes: int) -> None:
        for node in reversed(nodes or range(self.count)):  # the mark is written last
            write(self.path(node), self.trainer(step, node))

    def save(self, step: int) -> None:
        self.write(step)
        self.nodes.tick(5)

    def start(self, *, store: bool = True):
        """What each node says before the ranks of a new attempt start."""
        self._round += 1
        for folder in self.nodes.folders.values() if store else ():
            folder.file()  # a keeper looks at the store every second
        return [folder.fill(f"round {self._round}") for folder in self.nodes.folders.values()]

    def holds(self, folder: Path, step: int) -> None:
        found = newest(folder)
        assert found is not None
        assert found.step == step
        assert {name: (folder / name).read_bytes() for name in self.files(step)} == self.files(step)


@pytest.fixture(autouse=True)
def _room(monkeypatch):
    monkeypatch.setattr(Slots, "room_bytes", lambda self: 10**12)  # of the tests, not of the machine


@pytest.mark.thorough
@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda one: one.__name__)
def test_a_lost_node_is_given_everything_and_no_node_something_newer(tmp_path, trainer):
    """The first node is lost, which alone had the mark; what was not copied by then does not count."""
    job = Job(tmp_path, trainer, flush_every_s=10_000.0)
    (job.path(1) / "events.1234567890.7").write_text("no checkpoint")
    assert [one.step for one in job.start()] == [None] * 3
    job.save(10)
    job.save(20)
    job.write(30)
    job.nodes.lose("a")
    filled = job.start()
    assert [one.step for one in filled] == [20] * 3, filled
    for node in range(3):
        job.holds(job.path(node), 20)
    assert (job.path(1) / "events.1234567890.7").exists()
    job.save(30)  # the next attempt's
    job.nodes.lose("c")
    assert [one.step for one in job.start()] == [30] * 3
    job.holds(job.path(2), 30)


@pytest.mark.thorough
@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda one: one.__name__)
def test_the_store_gets_the_files_as_they_are_and_all_nodes_can_be_lost(tmp_path, trainer):
    job = Job(tmp_path, trainer)
    job.start()
    job.save(10)
    job.save(20)
    job.nodes.tick(5)
    job.holds(job.store, 20)
    assert not list((job.store / ".trainwarden-unfinished").iterdir())
    for name in "abc":
        job.nodes.lose(name)
    filled = job.start()
    assert {(one.step, one.words) for one in filled} == {(20, "step 20 is restored from the store")}
    for node in range(3):
        job.holds(job.path(node), 20)


def test_one_node_alone_goes_on_from_its_own_folder(tmp_path):
    job = Job(tmp_path, torch_file, count=1)
    job.start()
    job.save(10)
    job.write(20)  # killed before the keeper's next round
    (filled,) = job.start()
    assert filled.step == 20
    assert filled.path == job.path(0) / "step-20.pt"
    job.save(30)
    job.save(40)
    assert sorted(one.name for one in job.path(0).iterdir()) == ["step-30.pt", "step-40.pt"]
    job.holds(job.store, 40)


def outliving(job: Job, node: int) -> int | None:
    note = job.nodes.keepers[job.nodes.names[node]].slots.note(NOTE)
    assert note is not None
    return note.get("outlives")


def test_what_is_saved_when_asked_reaches_the_store_at_once_where_no_other_node_has_a_copy(tmp_path):
    job = Job(tmp_path, torch_file, count=1, flush_every_s=10_000.0)
    job.start()
    job.save(10)  # the first
    job.save(20)
    assert (outliving(job, 0), newest(job.store).step) == (10, 10)
    job.nodes.folders["a"].keep_soon()
    job.save(20)  # it was there before it was asked for
    assert outliving(job, 0) == 10
    job.save(30)
    assert (outliving(job, 0), newest(job.store).step) == (30, 30)
    job.save(40)
    assert (outliving(job, 0), newest(job.store).step) == (30, 30)


def test_of_several_nodes_a_copy_of_the_neighbours_outlives_each(tmp_path):
    job = Job(tmp_path, torch_file, flush_every_s=10_000.0)
    job.start()
    job.save(10)
    job.save(20)
    for folder in job.nodes.folders.values():
        folder.keep_soon()
    job.save(30)
    assert ([outliving(job, node) for node in range(3)], newest(job.store).step) == ([30] * 3, 10)


def test_half_written_and_changing_files_are_not_kept(tmp_path, monkeypatch):
    job = Job(tmp_path, dcp, count=1)
    job.start()
    write(job.path(0), {"step-10/__0_0.distcp": b"half"})
    job.nodes.tick()
    assert job.nodes.keepers["a"].inventory() == []
    write(job.path(0), dcp(10, 0))
    slots = Slots(tmp_path / "other" / "slots") if (tmp_path / "other").mkdir() is None else None
    assert slots is not None
    whole = parts._pieces

    def changing(path, start, end):
        yield from whole(path, start, end) if path.name == ".metadata" else grown(path, start, end)

    def grown(path, start, end):
        with path.open("ab") as file:
            file.write(b"x")
        yield from whole(path, start, end)

    monkeypatch.setattr(parts, "_pieces", changing)
    facts = Facts("j", Id(0, 10), 0, 1, "t", 0.0)
    with pytest.raises(CheckpointError, match="is being changed"):
        pack(job.path(0), parts.names_of(job.path(0), Entry("step-10", "step-10/.metadata")), slots, facts)
    assert slots.sealed() == {}


def test_a_damaged_copy_is_passed_over(tmp_path):
    job = Job(tmp_path, dcp, flush_every_s=10_000.0)
    job.start()
    job.save(10)
    slots = job.nodes.slots(1)
    own = next(slot for slot in slots.sealed() if slot.kind == "own")
    descriptor = slots.open(own, write=True)
    os.pwrite(descriptor, b"\xff", os.fstat(descriptor).st_size - 1)
    os.close(descriptor)
    (job.path(1) / "step-10" / "__1_0.distcp").write_bytes(b"damaged too")
    assert [one.step for one in job.start()] == [10] * 3
    for node in range(3):
        job.holds(job.path(node), 10)


def test_too_small_a_memory_is_said_with_the_bytes_and_ranks_are_given_the_store(tmp_path, monkeypatch):
    job = Job(tmp_path, torch_file, count=1)
    write(job.store, torch_file(10, 0))
    size = len(zipped(10))
    monkeypatch.setattr(Slots, "room_bytes", lambda self: 3 * size)
    (filled,) = job.start()
    assert (filled.folder, filled.path, filled.step) == (job.store, job.store / "step-10.pt", 10)
    assert f"need {4 * size} bytes of memory (4 copies)" in filled.words


def test_a_checkpoint_without_a_slot_goes_to_the_store(tmp_path, monkeypatch, caplog):
    """Nothing is known of the size before the first one."""
    job = Job(tmp_path, hugging_face, count=1)
    job.start()
    monkeypatch.setattr(Slots, "room_bytes", lambda self: SIZE // 2)
    job.save(10)
    job.save(20)
    job.holds(job.store, 20)
    said = [record.message for record in caplog.records if "is not kept" in record.message]
    assert len(said) == 1
    assert "a slot needs" in said[0]


@pytest.mark.thorough
def test_a_store_that_hangs_holds_up_neither_copies_nor_restarts(tmp_path, monkeypatch):
    """Each node hangs with a shard half written; memory has one other slot of it until that one is given up."""
    job = Job(tmp_path, dcp)
    job.start()
    job.write(10)
    job.nodes.tick(5, store=False)
    hang, goes_on, put = threading.Barrier(4), threading.Event(), Filed.put

    def hanging(self, read, header):
        pieces = []

        def slowly(buffer: memoryview) -> int:
            if len(pieces) == 3:
                hang.wait(20)
                goes_on.wait(20)
            pieces.append(buffer)
            return read(buffer)

        return put(self, slowly, header)

    monkeypatch.setattr(Filed, "put", hanging)
    threads = [threading.Thread(target=folder.file, daemon=True) for folder in job.nodes.folders.values()]
    for thread in threads:
        thread.start()
    hang.wait(20)
    for step in (20, 30):
        job.write(step)
        job.nodes.tick(5, store=False)
    copies = job.nodes.keepers["a"].survey()
    assert copies.newest("neighbour").step == 20
    job.nodes.clock.sleep(61.0)
    job.nodes.tick(5, store=False)
    copies = job.nodes.keepers["a"].survey()
    assert copies.newest("neighbour").step == 30
    job.nodes.lose("c")
    filled = job.start(store=False)
    assert [one.step for one in filled] == [30] * 3, filled
    assert all("from" in one.words and "the store does not answer" in one.words for one in filled)
    for node in range(3):
        job.holds(job.path(node), 30)
    assert newest(job.store) is None
    monkeypatch.setattr(Filed, "put", put)
    goes_on.set()
    for thread in threads:
        thread.join(20)
    assert not list(job.store.rglob("node-*"))  # what was given up has not got its name
    job.nodes.tick(5)
    job.holds(job.store, 30)


@pytest.mark.thorough
@pytest.mark.parametrize("direct", [False, True], ids=["a part", "files for which memory has no slot"])
def test_a_restart_waits_for_a_store_that_is_being_written(tmp_path, monkeypatch, direct):
    for module in (shard, transfer, parts):
        monkeypatch.setattr(module, "CHUNK_BYTES", 1024)
    job = Job(tmp_path, sharded, count=1)
    job.start()
    job.save(10)
    folder, store, syncs, sync = job.nodes.folders["a"], job.nodes.folders["a"]._filing, threading.Event(), os.fsync

    def slow(descriptor: int) -> None:
        syncs.set()
        time.sleep(0.2)
        sync(descriptor)

    job.write(20)
    if direct:
        store.unfit = Id(0, 20), Entry("step-20", "step-20/.metadata")
    else:
        job.nodes.tick(store=False)
    monkeypatch.setattr(os, "fsync", slow)
    monkeypatch.setattr(silence, "STILL_S", 1.0)
    writes = threading.Thread(target=folder.file, daemon=True)
    writes.start()
    assert syncs.wait(20)
    with ThreadPoolExecutor(2) as pool:
        kept, copied = pool.submit(store.kept), pool.submit(store.copied, 10, folder.path, ".filling")
    writes.join(20)
    assert kept.result().step == 20
    assert copied.result() is None  # it is not the newest any more
    job.holds(job.store, 20)


@pytest.mark.thorough
def test_a_copy_that_was_given_up_is_removed_once_it_ends(tmp_path, monkeypatch):
    job = Job(tmp_path, dcp, count=1)
    job.start()
    job.save(10)
    folder, goes_on, ended, copied = job.nodes.folders["a"], threading.Event(), threading.Event(), Filed.copied

    def hanging(self, into: Path) -> Path:
        into.mkdir()
        goes_on.wait(20)
        try:
            return copied(self, into)
        finally:
            ended.set()

    monkeypatch.setattr(Filed, "copied", hanging)
    monkeypatch.setattr(silence, "STILL_S", 0.5)
    with pytest.raises(CheckpointError, match="the store has not answered"):
        folder._filing.copied(10, folder.path, ".filling")
    goes_on.set()
    assert ended.wait(20)
    deadline_s = time.monotonic() + 20.0
    while left := list(folder.path.glob(".filling*")):
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)


def test_nothing_is_begun_anew_while_the_store_has_never_answered(tmp_path):
    job = Job(tmp_path, torch_file, count=1)
    with pytest.raises(CheckpointError, match="memory holds no whole checkpoint, and the store has not answered"):
        job.start(store=False)
    job.write(10)
    job.nodes.tick(5, store=False)
    (filled,) = job.start(store=False)
    assert filled.step == 10


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "", "a//b", "a\0b", "."])
def test_files_elsewhere_are_refused(tmp_path, name):
    """From a shard whose CRCs are right."""
    folder = tmp_path / "memory" / "slots"
    folder.parent.mkdir()
    slots = Slots(folder)
    write_shard(slots, Facts("j", Id(0, 1), 0, 1, "t", 0.0), b"data", name=name)
    with (
        slots.reading(next(iter(slots.sealed()))) as descriptor,
        pytest.raises(CheckpointError, match="out of the folder"),
    ):
        unpack(reading(descriptor), tmp_path / "into", lambda _: True)
    assert not (tmp_path / "x").exists()
    assert Entry.of("files of " + json.dumps([name, name])) is None


@pytest.mark.parametrize("named", [["last.pt", 1], [1, "last.pt"], ["last.pt", None], ["last.pt"], "last.pt", {"a": 1}])
def test_a_shard_of_another_node_that_names_no_files_is_none_of_ours(named: object) -> None:
    assert Entry.of("files of " + json.dumps(named)) is None
