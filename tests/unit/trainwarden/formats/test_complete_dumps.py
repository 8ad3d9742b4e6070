"""Dumps taken on demand: complete ones say that nobody waits; a pending call, a missing rank or a rank ahead do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainwarden.formats.reading import read_job

RANKS = 4


def dumps() -> dict[int, Any]:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(RANKS)))}}
    status = {"0": {"last_enqueued_collective": 30, "last_completed_collective": 30}}
    entries = [
        {"collective_seq_id": seq, "process_group": ["0", "default_pg"], "state": "completed", "is_p2p": False,
         "profiling_name": "nccl:all_reduce", "pg_id": 0, "time_created_ns": 1_790_000_000_000_000_000 + seq}
        for seq in range(20, 31)
    ]  # fmt: skip
    return {rank: json.loads(json.dumps({"version": "2.9", "pg_config": config, "pg_status": status,
                                         "entries": entries})) for rank in range(RANKS)}  # fmt: skip


def lines(folder: Path, told: dict[int, Any]) -> list[str]:
    for rank, raw in told.items():
        (folder / f"rank{rank}.json").write_text(json.dumps(raw), encoding="utf-8")
    return [line for log in read_job(folder).logs for line in log.lines]


def test_complete_dumps_of_all_ranks_say_that_nobody_waits(tmp_path: Path):
    assert lines(tmp_path, dumps()) == [f"health check: rank{rank} passed" for rank in range(RANKS)]
    assert any("nobody waited when they were written" in note for note in read_job(tmp_path).notes)


def pending(told: dict[int, Any]) -> None:
    told[1]["entries"][-1]["state"] = "started"


def ahead(told: dict[int, Any]) -> None:
    told[1]["entries"].append({**told[1]["entries"][-1], "collective_seq_id": 31})


def enqueued(told: dict[int, Any]) -> None:
    told[1]["pg_status"]["0"]["last_enqueued_collective"] = 31


def missing(told: dict[int, Any]) -> None:
    del told[3]


def without_groups(told: dict[int, Any]) -> None:
    told[2]["pg_config"] = {}


def empty(told: dict[int, Any]) -> None:
    told[2]["entries"] = []


def sent(told: dict[int, Any]) -> None:
    told[2]["entries"][3]["is_p2p"] = True


@pytest.mark.parametrize("damage", [pending, ahead, enqueued, missing, without_groups, empty, sent])
def test_what_is_pending_missing_or_ahead_is_no_pass(damage: Callable[[dict[int, Any]], None], tmp_path: Path):
    told = dumps()
    damage(told)
    assert lines(tmp_path, told) == []
