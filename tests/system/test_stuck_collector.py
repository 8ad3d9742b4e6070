"""A real agent, one of whose collectors hangs in a read that does not come back; a real rank goes on training."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.agent import AgentProcess
from trainwarden.records import EventRecord, HeartbeatRecord, LogRecord
from trainwarden.topics import EVENTS, HEARTBEATS, LOGS

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

RANK = """
import time
from trainwarden import hook
while True:
    hook.iteration()
    time.sleep(0.05)
"""
WATCHED_S = 6.0
SILENT_S = 2.5  # after which detection begins to wonder about a node


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "TRAINWARDEN_HOOK_DIR": str(tmp_path / "run" / "hook")}
    (tmp_path / "run" / "hook").mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", RANK], env=environ)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def agent(tmp_path: Path, rank: subprocess.Popen[bytes]) -> Iterator[AgentProcess]:
    """Its collector of dumps asks for the rank's environment, and what answers there is a pipe without a writer."""
    place, real = tmp_path / "proc" / str(rank.pid), Path(f"/proc/{rank.pid}")
    (place / "ns").mkdir(parents=True)
    for name in ("stat", "status"):  # by which it is known as the rank's process
        (place / name).write_bytes((real / name).read_bytes())
    (place / "ns" / "pid").symlink_to((real / "ns" / "pid").readlink())
    os.mkfifo(place / "environ")
    dumps = f'collective_dumps = {{proc = "{tmp_path}/proc"}}'
    agent = AgentProcess(tmp_path, f"{{{dumps}, processes = {{}}, logs = {{kmsg = false}}, iterations = {{}}}}")
    agent.start()
    yield agent
    agent.kill()


def test_heartbeats_and_everything_else_go_on_while_a_collector_hangs(agent: AgentProcess, tmp_path: Path) -> None:
    agent.wait_for("heartbeats", HEARTBEATS, 1)
    log, events = tmp_path / "run" / "logs" / "rank-0.log", tmp_path / "run" / "events.jsonl"
    until_s = time.monotonic() + WATCHED_S
    number = 0
    while time.monotonic() < until_s:
        number += 1
        with log.open("a") as file:
            file.write(f"line {number}\n")
        event = EventRecord(id=f"event/{number}", job="job", node="node0", time_s=1.0, kind="phase")
        with events.open("ab", buffering=0) as file:
            file.write(EVENTS.encode(event) + b"\n")
        time.sleep(0.2)
    time.sleep(1.0)
    records = [message.record for message in agent.messages(HEARTBEATS)]
    times_s = [record.time_s for record in records if isinstance(record, HeartbeatRecord)]
    gaps_s = [after - before for before, after in itertools.pairwise(times_s)]
    assert times_s[-1] - times_s[0] > WATCHED_S - 1.0, agent.tail()
    assert max(gaps_s) < SILENT_S / 2, agent.tail()
    lines = [line for message in agent.messages(LOGS) for line in message.record.lines]  # type: ignore[attr-defined]
    assert [line for line in lines if line.startswith("line ")] == [f"line {one}" for one in range(1, number + 1)]
    told = {message.record.id for message in agent.messages(EVENTS)}  # type: ignore[attr-defined]
    assert {f"event/{one}" for one in range(1, number + 1)} <= told
    assert isinstance(agent.messages(LOGS)[0].record, LogRecord)
    assert "collector is stuck, the others go on collector=collective_dumps" in agent.errors.read_text()


def test_it_stops_when_told_to_though_a_collector_hangs(agent: AgentProcess) -> None:
    agent.wait_for("heartbeats", HEARTBEATS, 20)
    begin_s = time.monotonic()
    agent.stop()
    assert time.monotonic() - begin_s < 15.0
