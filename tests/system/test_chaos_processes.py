"""Chaos with real processes, drawn from a seed and killed with -9: two engines, and a job on several nodes.

`tests/chaos` has the same in one process and two hundred times.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.places import ROOT
from tests.servers.kafka import ServerMissing
from tests.system.nodes_job import RANK, Job, rendezvous_command
from tests.system.test_engine_kill import CountingLauncher, Engine, Ranks, incident, story
from tests.testbed.nodes import Node, Testbed
from trainwarden import rundir
from trainwarden.bus.address import connect
from trainwarden.topics import INCIDENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

MANY = 4
FAULTS = 3


@pytest.mark.parametrize("seed", [1, 2])
def test_two_engines_that_are_killed_in_turn_do_everything_once(seed: int, tmp_path: Path) -> None:
    draw, run_dir = random.Random(seed), rundir.prepare(tmp_path / "run")
    address = f"embedded:{run_dir / 'bus.db'}"
    launcher, bus = CountingLauncher(seed), connect(address)
    engines = [Engine(address, run_dir, launcher.endpoint) for _ in range(2)]
    ranks = Ranks(address, launcher)
    expected = {"i0/restart/1", *(f"i{number}/rebalance/1" for number in range(1, MANY))}
    try:
        for number in range(MANY):
            told = incident(number)
            for _ in range(draw.choice([1, 2])):  # delivered again
                bus.publish(INCIDENTS, "job", told)
            bus.flush()
            time.sleep(draw.uniform(0.0, 1.5))
            killed = draw.choice(engines)
            killed.kill()
            killed.start()
        deadline = time.monotonic() + 60.0
        while {name for name, outcomes in story(bus).items() if "done" in outcomes} != expected:
            assert time.monotonic() < deadline, (story(bus), (run_dir / "engine.log").read_text()[-3000:])
            time.sleep(0.1)
    finally:
        ranks.close()
        for engine in engines:
            engine.close()
        launcher.close()
        outcomes_of = story(bus)
        bus.close()
    assert dict(launcher.effects) == dict.fromkeys(expected, 1)
    assert {name: outcomes[0] for name, outcomes in outcomes_of.items()} == dict.fromkeys(expected, "started")


@pytest.fixture
def testbed(tmp_path: Path, require_servers: Callable[[str], NoReturn]) -> Iterator[Testbed]:
    try:
        with Testbed(4, tmp_path) as testbed:
            yield testbed
    except ServerMissing as missing:
        require_servers(str(missing))


@pytest.mark.parametrize("seed", [1, 2])
def test_a_job_whose_first_node_ranks_and_rendezvous_are_killed_trains_to_its_end_once(
    seed: int, testbed: Testbed, tmp_path: Path
) -> None:
    draw, home = random.Random(seed), testbed.nodes[3]
    service = home.start(*rendezvous_command(tmp_path), cwd=ROOT)
    job = Job(testbed, tmp_path, 3, "--nnodes", "2", "--spares", "1", "--max-restarts", "10", steps=600)
    job.trains()
    for what in draw.choices(["first node", "rank", "rendezvous"], k=FAULTS):
        print(what)
        if what == "rendezvous":
            home.signal(service, signal.SIGKILL)
            service.wait(10.0)
            time.sleep(draw.uniform(0.0, 3.0))
            service = home.start(*rendezvous_command(tmp_path), cwd=ROOT)
        elif what == "rank":
            draw.choice(_training(job)).run("pkill", "-KILL", "-f", RANK)
        else:
            first = job.first()
            first.signal(job.processes[first.name], signal.SIGKILL)
            job.processes[first.name].wait(10.0)
            job.start(first)
        time.sleep(draw.uniform(1.0, 5.0))
    assert set(job.end().values()) == {0}
    job.check()


def _training(job: Job) -> list[Node]:
    """Nodes of the newest attempt."""
    lines = job.lines()
    names = {one.node for one in lines if one.attempt == lines[-1].attempt}
    return [node for node in job.nodes if node.name in names]
