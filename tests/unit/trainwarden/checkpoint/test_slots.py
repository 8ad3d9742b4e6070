"""The memory of a node: whose it is, what is written next, and what happens when it is too small."""

from __future__ import annotations

import os
import stat

import pytest

from tests.keeper_doubles import content, write_shard
from trainwarden.checkpoint import slots as slots_module
from trainwarden.checkpoint.shard import CheckpointError, Facts, Id
from trainwarden.checkpoint.slots import Busy, Slot, Slots, TooSmall, job_folder


def facts(step: int, attempt: int = 0, rank: int = 0) -> Facts:
    return Facts("j", Id(attempt, step), rank, 1, "world 1", float(step))


@pytest.fixture
def slots(tmp_path):
    opened = Slots(job_folder("j", str(tmp_path / "memory")))
    yield opened
    opened.close()


def steps(slots: Slots) -> set[int]:
    return {header.facts.id.step for header in slots.sealed().values()}


def test_folder_and_files_are_of_this_user_alone(slots):
    write_shard(slots, facts(1), b"x" * 100)
    assert stat.S_IMODE(slots.path.stat().st_mode) == 0o700
    assert [stat.S_IMODE(one.stat().st_mode) for one in slots.path.iterdir()] == [0o600]


def test_a_folder_that_others_may_enter_is_refused(tmp_path):
    (tmp_path / "job-j").mkdir(mode=0o755)
    with pytest.raises(CheckpointError, match="0700"):
        Slots(tmp_path / "job-j")


def test_a_link_in_place_of_the_folder_or_a_slot_is_not_followed(tmp_path, slots):
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "other").symlink_to(slots.path)
    with pytest.raises(OSError):
        Slots(tmp_path / "other")
    (slots.path / "own-0-0.safetensors").symlink_to(victim)
    with pytest.raises(OSError):
        write_shard(slots, facts(1), b"x")
    (slots.path / "own-0-0.safetensors").unlink()
    (slots.path / "own-0-0.safetensors").hardlink_to(victim)
    with pytest.raises(CheckpointError, match="plain file"):
        write_shard(slots, facts(1), b"x")
    assert victim.read_bytes() == b"precious"


def test_a_name_of_a_job_stays_within_the_memory(tmp_path):
    assert job_folder("../../etc", str(tmp_path)).parent == tmp_path


def test_the_oldest_goes_first(slots):
    for step in (10, 20, 30):
        write_shard(slots, facts(step), b"x" * 100)
    assert steps(slots) == {20, 30}


def test_the_newest_complete_one_never_goes(slots):
    write_shard(slots, facts(10), b"x" * 100)
    slots.set_newest_complete(Id(0, 10))
    for step in (20, 30, 40):
        write_shard(slots, facts(step), b"x" * 100)
        assert steps(slots) == {10, step}


def test_a_save_that_dies_leaves_the_one_before(slots):
    write_shard(slots, facts(10), b"x" * 100)
    write_shard(slots, facts(20), b"x" * 100)
    write_shard(slots, facts(30), b"x" * 100, dies_after=50)
    assert steps(slots) == {20}


def test_a_slot_that_is_being_sent_is_not_written(slots):
    write_shard(slots, facts(10), b"x" * 100)
    write_shard(slots, facts(20), b"x" * 100)
    with slots.reading(Slot("own", 0, 0)), pytest.raises(Busy):
        write_shard(slots, facts(30), b"x" * 100)
    assert steps(slots) == {10, 20}


def test_too_small_a_memory_is_said_with_the_bytes_needed(slots, monkeypatch):
    monkeypatch.setattr(slots, "room_bytes", lambda: 1000)
    with pytest.raises(TooSmall, match=r"a slot needs \d+ bytes, .* 1000 are free; .* need \d+ bytes a rank"):
        write_shard(slots, facts(1), b"x" * 5000)
    assert steps(slots) == set()


def test_the_machine_keeps_memory_of_its_own(slots, monkeypatch):
    """A tmpfs may be larger than the memory that is free."""
    monkeypatch.setattr(slots_module, "_free_memory_bytes", lambda: slots_module._SPARE_BYTES + 77)
    assert slots.room_bytes() == 77


def test_an_allocated_slot_has_its_memory(slots):
    with slots.writing(Slot("own", 0, 0)) as descriptor:
        slots.allocate(descriptor, 100_000)
        assert os.fstat(descriptor).st_blocks * 512 >= 100_000


def test_a_header_that_changes_is_read_again(slots):
    for step in range(1, 6):
        write_shard(slots, facts(step), content(Id(0, step), 0, 100))
        assert max(steps(slots)) == step


def test_memory_that_a_slot_has_is_not_allocated_again(slots, monkeypatch):
    asked = []
    monkeypatch.setattr(slots_module.os, "posix_fallocate", lambda *words: asked.append(words[2]))
    with slots.writing(Slot("own", 0, 0)) as descriptor:
        os.pwrite(descriptor, b"x" * 100_000, 0)
        slots.allocate(descriptor, 100_000)
        assert asked == []
        slots.allocate(descriptor, 90_000)
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, 100_000)  # a file of holes
        slots.allocate(descriptor, 100_000)
    assert asked == [90_000, 100_000]
