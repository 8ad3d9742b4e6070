"""`trainwarden cordon` and `uncordon`: whose launcher is asked, and what is told of the answer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import ManualClock
from tests.engine_doubles import MemoryBus
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.ask.fleet.node_word import answer, command_of
from trainwarden.errors import ConfigError
from trainwarden.records import ActionRecord, HeartbeatRecord, Outcome, Record
from trainwarden.topics import topic_of


def bus_of(*records: Record) -> MemoryBus:
    bus = MemoryBus()
    for record in records:
        bus.publish(topic_of(record), "job", record)
    bus.flush()
    return bus


def beat(node: str, job: str) -> HeartbeatRecord:
    return HeartbeatRecord(job=job, node=node, time_s=1.0)


def eviction(job: str) -> ActionRecord:
    plan = {"nodes": ["n7"]}
    return ActionRecord(
        id="i/evict/1", incident="i", job=job, kind="evict_node", outcome="done", at_s=1.0, why="w", plan=plan
    )


@pytest.mark.parametrize(
    ("records", "given", "job"),
    [
        ([beat("n7", "old"), beat("n7", "llama"), beat("n8", "bert"), eviction("gone")], None, "llama"),
        ([beat("n8", "bert"), eviction("llama")], None, "llama"),
        ([beat("n7", "llama")], "bert", "bert"),
    ],
)
def test_whose_launcher_it_goes_to(records: list[Record], given: str | None, job: str) -> None:
    command = command_of(bus_of(*records), "cordon", "n7", given, at_s=2.0, why="its fan")  # type: ignore[arg-type]
    assert (command.kind, command.node, command.job, command.why) == ("cordon", "n7", job, "its fan")


def test_what_nobody_knows_is_one_sentence() -> None:
    for name, said in ((" ", "name one node"), ("n7\n", "name one node"), ("n99", "nothing was heard of node n99")):
        with pytest.raises(ConfigError, match=f"^uncordon: {said}"):
            command_of(bus_of(beat("n7", "llama")), "uncordon", name, None, at_s=0.0, why="")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "stale"),
    [("started", False), ("done", False), ("failed", False), ("skipped", False), ("failed", True)],  # planned anew
)
def test_the_answer_is_waited_for_and_no_longer(outcome: Outcome, stale: bool) -> None:
    clock, bus = ManualClock(100.0), bus_of(beat("n7", "llama"))
    command = command_of(bus, "cordon", "n7", None, at_s=100.0, why="")  # type: ignore[arg-type]
    action: dict[str, Any] = {"job": "llama", "kind": "cordon_node", "outcome": outcome, "at_s": 100.0, "why": "w"}
    action |= {"plan": {"stale": "true"}} if stale else {}
    for name in (command.id, "command/another"):
        record = ActionRecord(id=f"{name}/cordon/1", command=name, **action)
        bus.publish(topic_of(record), "llama", record)
    bus.flush()
    found = answer(bus, command, clock, 20.0)  # type: ignore[arg-type]
    assert (found is None) == (outcome == "started" or stale)
    assert found is None or found.command == command.id
    assert clock.now_s() == (120.0 if found is None else 100.0)
    assert answer(bus, command, clock, 0.0) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("ahead_s", [-7200.0, 7200.0])
def test_the_answer_is_heard_whatever_the_clock_here_says(tmp_path: Path, ahead_s: float) -> None:
    bus, clock = EmbeddedBus(str(tmp_path / "bus.db")), ManualClock(time.time() + ahead_s)
    command = command_of(bus, "cordon", "n7", "llama", at_s=clock.now_s(), why="")
    done = ActionRecord(
        id="a", command=command.id, job="llama", kind="cordon_node", outcome="done", at_s=time.time(), why="w"
    )
    for record in (command, done):
        bus.publish(topic_of(record), "llama", record)
    bus.flush()
    assert answer(bus, command, clock, 5.0) == done
    bus.close()
