"""The plug-in over what NCCL 2.28.9's own host code called, recorded without a GPU (tests/data/nccl_host)."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.nccl_player import Player
from tests.places import DATA
from trainwarden.collectors.nccl_profiler import read

ROWS = DATA / "nccl_host" / "rows"
TYPES = {"Group": 1, "Coll": 2, "P2p": 4, "KernelCh": 64, "GroupApi": 256, "CollApi": 512, "P2pApi": 1024}
BORN_NS = 10**12  # the plug-in's clock never stands at 0
HEALTHY = ("ddp_2", "fsdp_2", "pipeline_2", "grouped_2", "split_4", "ddp_v4")
LONG = [pytest.param(name, marks=pytest.mark.thorough) for name in ("ddp_4", "async_2", "slow_host_4")]


@dataclass
class Rank:
    """What one rank recorded, and the plug-in's file after that has been played to it."""

    rows: list[dict[str, Any]]
    header: read.Header
    comms: list[read.Comm]
    calls: dict[int, read.Call]
    took_ns: dict[int, int] = field(default_factory=dict)  # by the recording's handle of the call

    def __post_init__(self) -> None:
        begun: dict[int, tuple[int, int]] = {}
        for row in self.rows:
            if row.get("type") == "KernelCh" and row["do"] == "start":
                begun[row["h"]] = row["parent"], row["gpu"]
            elif row.get("type") == "KernelCh" and row["do"] == "state" and row["h"] in begun:
                call, start = begun[row["h"]]
                self.took_ns[call] = max(self.took_ns.get(call, 0), row["gpu"] - start)

    @property
    def made(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["do"] == "start" and row.get("type") in {"Coll", "P2p"}]


def ranks_of(built: tuple[Path, Path], folder: Path, name: str, held_up_ns: int = 0) -> list[Rank]:
    """All ranks; each is held up for so long between the launch of a call and the word of it."""
    with gzip.open(ROWS / f"{name}.rows.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        if row.get("type") in {"Coll", "P2p"}:
            row["t"] += held_up_ns
    begins = [number for number, row in enumerate(rows) if "file" in row] + [len(rows)]
    return [played(built, folder, rows[first], rows[first + 1 : until]) for first, until in pairwise(begins)]


def played(built: tuple[Path, Path], folder: Path, about: dict[str, Any], rows: list[dict[str, Any]]) -> Rank:
    """Every callback in its order and at its time, all steps sampled; handles are those that the plug-in gave."""
    handles: dict[int, int] = defaultdict(int)
    every = {"TRAINWARDEN_NCCL_EVERY": "1", "RANK": str(about["file"])}
    with Player(built, folder, about["interface"], **every) as player:
        for row in rows:
            player.ask("at", BORN_NS + row["t"])
            player.ask("step", row.get("step", 0))
            if row["do"] == "init":
                comm = about["comms"][row["comm"]]
                told = comm["id"], comm["name"] or "-", comm["nodes"], comm["ranks"], comm["rank"]
                player.ask("init", row["comm"], f"{told[0]:x}", *told[1:])
            elif row["do"] == "finalize":
                player.ask("end", row["comm"])
            elif row["do"] == "start":
                words = [row.get(key, 0) for key in ("captured", "seq", "count", "peer", "channels", "channel")]
                stamp = BORN_NS + row.get("gpu", 0)
                names = row.get("func", "-"), row.get("dtype", "-")
                parent = handles[row.get("parent", 0)]
                event = ("event", row["comm"], TYPES[row["type"]], parent, *words, stamp, *names)
                (handles[row["h"]],) = player.ask(*event)
            elif handles[row["h"]]:  # NCCL tells nothing more of what has no handle
                state = ("state", handles[row["h"]], row.get("state", 0), BORN_NS + row.get("gpu", 0))
                player.ask(*(("halt", handles[row["h"]]) if row["do"] == "stop" else state))
        descriptor = os.open(player.path, os.O_RDONLY)
        header = read.read_header(descriptor)
        assert header is not None
        found = Rank(rows, header, read.read_comms(descriptor), read.read_calls(descriptor, 0, header))
        os.close(descriptor)
    return found


@pytest.mark.parametrize("name", [*HEALTHY, *LONG])
def test_all_that_the_device_said_of_a_healthy_run_is_told(built, tmp_path, name):
    for rank in ranks_of(built, tmp_path, name):
        counts = rank.header.counts
        assert (counts.voided, counts.stale, counts.orphans, counts.foreign, counts.dropped) == (0, 0, 0, 0, 0)
        assert all(comm.trusted for comm in rank.comms)
        assert sum(comm.enqueued for comm in rank.comms) == len(rank.made) == len(rank.calls)
        told = [(call.function, call.device_ns) for call in rank.calls.values()]
        assert told == [(row["func"], rank.took_ns.get(row["h"])) for row in rank.made]


def test_a_rank_that_is_held_up_after_its_launches_is_trusted_all_the_same(built, tmp_path):
    """NCCL tells of a call after its launch, up to 1 ms after the kernel's begin in these recordings."""
    for rank in ranks_of(built, tmp_path, "ddp_2", held_up_ns=50_000_000):
        assert (rank.header.counts.voided, [comm.trusted for comm in rank.comms]) == (0, [True])
        assert all(call.device_ns for call in rank.calls.values())


@pytest.mark.parametrize("name", ["slow_host_2", "slow_gpu_2", LONG[-1]])
def test_who_comes_last_waits_least(built, tmp_path, name):
    """Summed over a step: later calls of one are even."""
    ranks = ranks_of(built, tmp_path, name)
    joined = [dict(((call.seq, call.step), call.device_ns) for call in rank.calls.values()) for rank in ranks]
    waits_ns: dict[int, list[int]] = defaultdict(lambda: [0] * len(ranks))
    for key in joined[0]:
        took = [one[key] for one in joined]
        for place, took_ns in enumerate(took):
            waits_ns[key[1]][place] += took_ns - min(took)
    least = [waits.index(min(waits)) for step, waits in waits_ns.items() if step]
    assert len(least) >= 10
    assert least.count(len(ranks) - 1) >= len(least) - 2  # of those before the first fault


@pytest.mark.parametrize("name", ["graph_2", "graph_off_2", "graph_clear", "graph_toggle_2"])
def test_of_a_job_that_captures_nothing_is_told_from_then_on(built, tmp_path, name):
    """In `graph_2` the same stamps come again and again: 210 of 228."""
    for rank in ranks_of(built, tmp_path, name):
        captured = next(number for number, row in enumerate(rank.rows) if row.get("captured"))
        before = [row["h"] for row in rank.made if row in rank.rows[:captured]]
        assert len(rank.calls) == len(before) > 0
        assert [call.device_ns for call in rank.calls.values()] == [rank.took_ns.get(handle) for handle in before]
        assert rank.header.counts.captured == 1
        assert not any(comm.trusted for comm in rank.comms)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["reload_2", "reload_nohold"])
def test_a_library_that_was_unloaded_and_came_back_goes_on(built, tmp_path, name):
    for rank in ranks_of(built, tmp_path, name):
        assert len(rank.comms) == 2
        assert all(comm.trusted for comm in rank.comms)
        assert sum(comm.enqueued for comm in rank.comms) == len(rank.made)
        assert [call.device_ns for call in rank.calls.values()] == [rank.took_ns.get(row["h"]) for row in rank.made]
