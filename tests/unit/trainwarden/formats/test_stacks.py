"""Stacks of ranks: the one that is elsewhere while the others wait, and what names nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from trainwarden.formats.reading import read_job

SAMPLES = ROOT / "tests" / "data" / "formats" / "process_stacks"
WAITS = ("all_reduce (torch/distributed/distributed_c10d.py:4181)", "train (train.py:9)", "<module> (train.py:20)")
LOADS = ("poll (multiprocessing/connection.py:257)", "load_batch (data.py:3)", "train (train.py:7)", WAITS[2])


def spied(number: int, frames: tuple[str, ...]) -> str:
    lines = "\n".join(f"    {frame}" for frame in frames)
    other = 'Thread 99 (idle): "Thread-1"\n    wait (threading.py:324)\n    _bootstrap (threading.py:1002)\n'
    head = f"Process {number}: python train.py\nPython v3.11.7 (/usr/bin/python3.11)\n"
    return f'{head}\nThread {number} (idle): "MainThread"\n{lines}\n{other}'


def faulty(number: int, frames: tuple[str, ...]) -> str:
    rows = []
    for frame in frames:
        call, _, place = frame[:-1].partition(" (")
        file, _, line = place.rpartition(":")
        rows.append(f'  File "{file}", line {line} in {call}')
    return f"Current thread 0x00007fd8df25{number:04x} (most recent call first):\n" + "\n".join(rows) + "\n"


def lines_of(path: Path) -> list[tuple[int | None, str]]:
    return [(log.ranks[0], log.lines[0]) for log in read_job(path).logs]


@pytest.mark.parametrize("written", [spied, faulty])
@pytest.mark.parametrize("name", ["rank_{}.txt", "pyspy-rank{}.dump"])
def test_the_rank_that_does_not_wait_with_the_others_is_named(written: Any, name: str, tmp_path: Path) -> None:
    for rank in range(8):
        (tmp_path / name.format(rank)).write_text(written(4000 + rank, LOADS if rank == 5 else WAITS))
    where = "poll (multiprocessing/connection.py:257), called by load_batch (data.py:3)"
    wait = "7 others wait in all_reduce (distributed/distributed_c10d.py:4181)"
    assert lines_of(tmp_path) == [(5, f"health check: rank5 progress failed: it stands in {where} while {wait}")]


def test_all_ranks_may_be_in_one_file(tmp_path: Path) -> None:
    whole = tmp_path / "dump.txt"
    whole.write_text("\n".join(f"=== rank {one} ===\n{spied(one, LOADS if one == 2 else WAITS)}" for one in range(4)))
    assert [rank for rank, _ in lines_of(whole)] == [2]
    whole.write_text("\n".join(spied(4000 + one, LOADS if one == 2 else WAITS) for one in range(4)))
    assert [line.split(" failed")[0] for _, line in lines_of(whole)] == ["health check: pid_4002 progress"]


def test_json_of_py_spy_and_its_text_say_the_same(tmp_path: Path) -> None:
    for rank in range(4):
        frames = []
        for frame in LOADS if rank == 1 else WAITS:
            call, _, place = frame[:-1].partition(" (")
            file, _, line = place.rpartition(":")
            frames.append({"name": call, "filename": f"/opt/{file}", "short_filename": file, "line": int(line)})
        thread = {"pid": 9 + rank, "thread_id": 1, "thread_name": "MainThread", "active": False, "frames": frames}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps([thread, {**thread, "thread_name": "loader"}]))
    assert [rank for rank, _ in lines_of(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("stacks", "why"),
    [
        ((WAITS,), "stacks of one process"),
        ((WAITS, WAITS, LOADS), "stacks of one process"),  # too few to say who is the odd one
        ((WAITS,) * 8, "none stands apart"),
        ((WAITS,) * 4 + (LOADS,) * 4, "none stands apart"),  # two groups
        ((LOADS,) * 7 + (WAITS,), "none stands apart"),  # most wait for data and for nobody
    ],
)
def test_nobody_is_named_where_nobody_is_waited_for(
    stacks: tuple[tuple[str, ...], ...], why: str, tmp_path: Path
) -> None:
    for rank, frames in enumerate(stacks):
        (tmp_path / f"rank_{rank}.txt").write_text(spied(4000 + rank, frames))
    job = read_job(tmp_path)
    assert not job.logs
    assert not job.files
    assert all(why in one.why for one in job.unread)
    assert len(job.unread) == len(stacks)


def test_real_dumps_are_read() -> None:
    """By py-spy and gdb of four real ranks, of which rank 2 slept while the others waited."""
    assert [rank for rank, _ in lines_of(SAMPLES / "all_ranks.txt")] == [2]


def test_what_a_crash_prints_is_a_log(tmp_path: Path) -> None:
    file = tmp_path / "rank_0.txt"
    file.write_text("Fatal Python error: Segmentation fault\n\n" + faulty(1, LOADS))
    assert [one.format for one in read_job(file).files] != ["process stacks"]
    assert any("Segmentation fault" in line for log in read_job(file).logs for line in log.lines)
