"""Ranks that stand still are looked at once, those that wait for nobody first; what looks may do as it likes."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.hooked_ranks import HookedRanks, sent
from trainwarden import hook
from trainwarden.collectors.stacks.collector import StacksCollector
from trainwarden.hook.layout import CHECKPOINT, WAIT
from trainwarden.records import EventRecord

RECORDED = Path(__file__).parents[3] / "data" / "stacks"


class Node(HookedRanks):
    """Looked at by a program of ours."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.asked = folder / "asked"
        self.command = folder / "looker"
        self.says(f"cat {RECORDED / 'loads.json'}")
        self.collector = self.new()

    def says(self, script: str) -> None:
        self.command.write_text(f'#!/bin/sh\necho "$@" >> {self.asked}\n{script}\n')
        self.command.chmod(self.command.stat().st_mode | stat.S_IXUSR)

    def new(self, **settings: Any) -> StacksCollector:
        return StacksCollector(
            StacksCollector.Config(**{"command": str(self.command), **settings}), self.scope, self.clock
        )

    def events(self, now_s: float) -> list[EventRecord]:
        """What is told until nothing is awaited any more."""
        found = list(self.collector.collect(now_s))
        while self.collector._asked:
            for one in self.collector._asked:
                one.process.wait(30)
            found += self.collector.collect(now_s)
        return sent(found)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.collector.close()


@pytest.fixture
def rank(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., hook.Hook]]:
    def build(number: int, steps: int = 3) -> hook.Hook:
        built = node.join(number, monkeypatch)
        for _ in range(steps):
            built.marked(None)
        return built

    yield build
    for built in node.made:
        built.memory.off = True


def test_nobody_is_looked_at_before_the_job_stands_still_and_then_everybody_once(
    node: Node, rank: Callable[..., hook.Hook]
) -> None:
    rank(0)
    rank(1)
    last_s = node.now_s()
    assert node.events(last_s + 0.9) == []
    found = node.events(last_s + 1.5)
    assert sorted(event.rank for event in found if event.rank is not None) == [0, 1]
    words = {f"rank {number} stands in load_batch (job/train.py:5)" for number in (0, 1)}
    assert {event.message for event in found} == words
    assert found[0].fields["stack"].startswith("load_batch (job/train.py:5)\ntrain_step (job/train.py:8)")
    assert node.events(last_s + 100.0) == []
    assert set(node.asked.read_text().splitlines()) == {f"dump --json --nonblocking --pid {os.getpid()}"}


def test_a_second_standstill_is_looked_at_anew(node: Node, rank: Callable[..., hook.Hook]) -> None:
    built = rank(0)
    (first,) = node.events(node.now_s() + 1.5)
    built.marked(None)
    assert node.events(node.now_s() + 0.5) == []
    (second,) = node.events(node.now_s() + 1.5)
    assert first.id != second.id


def test_who_waits_for_others_is_looked_at_last(node: Node, rank: Callable[..., hook.Hook]) -> None:
    for number in range(3):
        built = rank(number)
        if number < 2:
            assert built.begin_pause(WAIT) is not None
    node.collector = node.new(most=1)
    (event,) = node.events(node.now_s() + 1.5)
    assert event.rank == 2


def test_a_pause_and_a_first_step_get_more_time(node: Node, rank: Callable[..., hook.Hook]) -> None:
    built = rank(0, steps=0)
    assert node.events(node.now_s() + 50.0) == []
    built.marked(None)
    assert built.begin_pause(CHECKPOINT) is not None
    assert node.events(node.now_s() + 9.0) == []
    assert len(node.events(node.now_s() + 11.0)) == 1


def test_after_a_restart_nobody_is_looked_at_twice(node: Node, rank: Callable[..., hook.Hook]) -> None:
    rank(0)
    at_s = node.now_s() + 1.5
    assert len(node.events(at_s)) == 1
    position = node.collector.position()
    node.collector = node.new()
    node.collector.restore(position)
    assert node.events(at_s + 1.0) == []


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'Permission Denied: Try again as root' >&2; exit 1", "Permission Denied"),
        ("echo '[]'", "no thread"),
        ("echo nonsense", "cannot be read"),
        ("head -c 9000000 /dev/zero", "cannot be read"),
        ("kill -9 $$", "cannot be read: "),
    ],
)
def test_who_cannot_be_looked_at_is_said_once(
    node: Node, rank: Callable[..., hook.Hook], caplog: pytest.LogCaptureFixture, script: str, why: str
) -> None:
    node.says(script)
    rank(0)
    rank(1)
    assert node.events(node.now_s() + 1.5) == []
    (record,) = caplog.records
    assert why in record.getMessage()


def test_one_that_does_not_answer_is_ended_and_nobody_waits_for_it(
    node: Node, rank: Callable[..., hook.Hook], caplog: pytest.LogCaptureFixture
) -> None:
    node.says("exec sleep 1000")
    rank(0)
    at_s = node.now_s() + 1.5
    assert list(node.collector.collect(at_s)) == []
    (asked,) = node.collector._asked
    node.clock.sleep(9.0)
    assert list(node.collector.collect(at_s + 9.0)) == []
    assert asked.process.poll() is None
    node.clock.sleep(2.0)
    assert list(node.collector.collect(at_s + 11.0)) == []
    assert asked.process.wait(30) != 0
    assert "has not answered in 10 s" in caplog.text
    node.collector.close()


def test_those_that_are_at_work_are_ended_with_the_agent(node: Node, rank: Callable[..., hook.Hook]) -> None:
    node.says("exec sleep 1000")
    rank(0)
    list(node.collector.collect(node.now_s() + 1.5))
    (asked,) = node.collector._asked
    node.collector.close()
    assert asked.process.wait(30) != 0


def test_without_the_program_it_says_what_to_install(node: Node) -> None:
    assert node.new().supported() is None
    assert "pip install 'trainwarden[stacks]'" in (node.new(command="no-such-program").supported() or "")


def test_a_program_that_cannot_be_started_is_said(
    node: Node, rank: Callable[..., hook.Hook], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    rank(0)
    monkeypatch.setattr(subprocess, "Popen", broken)
    assert node.events(node.now_s() + 1.5) == []
    assert "Permission denied" in caplog.text
