"""kill -9 of a real agent at random moments while log lines and events are written; a bus that goes and comes back."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.agent import AgentProcess
from trainwarden.records import EventRecord, LogRecord
from trainwarden.topics import EVENTS, LOGS

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

COLLECTORS = "{processes = {}, logs = {kmsg = false, flood_lines = 100000, rotate_wait_s = 0.1}}"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    agent = AgentProcess(tmp_path, COLLECTORS)
    yield agent
    agent.kill()


class Writer:
    """Appends lines to two logs, rotates one of them, and writes events, like a job and its launcher."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.count = 0

    def write(self, lines: int) -> None:
        for _ in range(lines):
            self.count += 1
            for rank in (0, 1):
                with (self.run_dir / "logs" / f"rank-{rank}.log").open("a") as file:
                    file.write(f"line {self.count} of rank {rank}\n")
            event = EventRecord(id=f"event/{self.count}", job="job", node="node0", time_s=1.0, kind="phase")
            with (self.run_dir / "events.jsonl").open("ab", buffering=0) as events:
                events.write(EVENTS.encode(event) + b"\n")

    def rotate(self) -> None:
        path = self.run_dir / "logs" / "rank-1.log"
        rotated = sorted(path.parent.glob("rank-1.log.*"), key=lambda old: -int(old.suffix[1:]))
        for old in rotated:
            old.rename(old.with_suffix(f".{int(old.suffix[1:]) + 1}"))
        path.rename(path.with_name("rank-1.log.1"))


def lines_of(agent: AgentProcess, rank: int) -> list[str]:
    """Lines of a rank as every reader takes them: those beyond the highest place seen so far."""
    highest = 0
    lines: list[str] = []
    for message in agent.messages(LOGS):
        record = message.record
        assert isinstance(record, LogRecord)
        if record.rank == rank:
            for end, line in zip(record.ends, record.lines, strict=True):
                if end > highest:
                    highest = end
                    lines.append(line)
    return lines


def events_of(agent: AgentProcess) -> list[str]:
    return list(dict.fromkeys(message.record.id for message in agent.messages(EVENTS)))  # type: ignore[attr-defined]


def wait_until_all_arrived(agent: AgentProcess, writer: Writer) -> None:
    expected = [[f"line {number} of rank {rank}" for number in range(1, writer.count + 1)] for rank in (0, 1)]
    events = [f"event/{number}" for number in range(1, writer.count + 1)]
    deadline_s = time.monotonic() + 30.0
    while time.monotonic() < deadline_s:
        if [len(lines_of(agent, rank)) for rank in (0, 1)] == [writer.count] * 2 and len(
            events_of(agent)
        ) == writer.count:
            break
        time.sleep(0.2)
    assert lines_of(agent, 0) == expected[0], agent.tail()
    assert lines_of(agent, 1) == expected[1], agent.tail()
    assert events_of(agent) == events, agent.tail()


@pytest.mark.parametrize("seed", range(3))
def test_killed_at_random_moments_it_loses_nothing(agent: AgentProcess, seed: int) -> None:
    rng = random.Random(seed)
    writer = Writer(agent.run_dir)
    for _ in range(6):
        agent.start()
        # From the middle of the imports to some rounds of work.
        until_s = time.monotonic() + rng.uniform(0.3, 1.5)
        while time.monotonic() < until_s:
            writer.write(rng.randint(1, 5))
            time.sleep(rng.uniform(0.0, 0.05))
        agent.kill()
        writer.write(rng.randint(0, 20))
        if rng.random() < 0.7:
            writer.rotate()
            writer.write(rng.randint(0, 5))
    agent.start()
    wait_until_all_arrived(agent, writer)


def test_while_the_bus_is_away_it_spools_and_then_drains_even_if_killed_in_between(agent: AgentProcess) -> None:
    writer = Writer(agent.run_dir)
    agent.start()
    writer.write(10)
    agent.wait_for("the first lines", LOGS, 2)
    # Another process that holds the write lock: for the agent the bus is away.
    lock = sqlite3.connect(agent.bus_path, isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    try:
        deadline_s = time.monotonic() + 30.0
        while b"bus is away" not in agent.errors.read_bytes():
            assert time.monotonic() < deadline_s, agent.tail()
            writer.write(2)
            time.sleep(0.1)
        agent.kill()
        writer.write(20)
        agent.start()
        spool = agent.folder / "state" / "spool"
        while sum(path.stat().st_size for path in spool.glob("*.seg")) < 2000:
            assert time.monotonic() < deadline_s + 30.0, agent.tail()
            writer.write(2)
            time.sleep(0.1)
    finally:
        lock.execute("ROLLBACK")
        lock.close()
    writer.write(10)
    wait_until_all_arrived(agent, writer)
    agent.stop()
    assert list(spool.glob("*.seg")) == []
