"""A job on several real nodes: formed, restarted, moved to a spare and ended; it goes on whatever is lost, and once.

All nodes are of one machine, so their clocks are one, and what the ranks write down can be put in order.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec
import pytest

from tests.places import ROOT
from tests.servers.kafka import ServerMissing
from tests.system.runs import WARDEN
from tests.testbed.nodes import Node, Testbed

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

PORT: Final = 29_401
RANK: Final = r"^[^ ]+ [^ ]+/ring\.py"  # the command line of a rank, not of its launcher
WAIT_S: Final = 60.0
CRASH_S: Final = 10.0  # the bars: from the fault to the first new step
LOST_S: Final = 20.0


class Line(msgspec.Struct, array_like=True):
    """A step of one rank, as `tests/scripts/ring.py` writes it."""

    at_s: float
    attempt: int
    rank: int
    ranks: int
    step: int
    node: str


class Job:
    """`nodes` launchers of one job, the first on the machine of the lease service unless `leases` is another one."""

    def __init__(self, testbed: Testbed, folder: Path, nodes: int, *words: str, steps: int = 250) -> None:
        self.testbed, self.folder, self.nodes = testbed, folder, testbed.nodes[:nodes]
        self.log, self.checkpoints = folder / "log", folder / "checkpoints"
        self.checkpoints.mkdir()
        self.token = folder / "token"
        self.token.write_text("a-word-nobody-guesses")
        self.token.chmod(0o600)
        self.words, self.steps = words, steps
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        for node in self.nodes:
            self.start(node)

    def start(self, node: Node) -> None:
        environ = {**os.environ, "TRAINWARDEN_NODE": node.name, "TRAINWARDEN_RUN_DIR": str(self.folder / node.name)}
        command = [
            *WARDEN, "launch", "--job", "j", "--nproc", "1", "--rdzv", f"{self.home}:{PORT}",
            "--token-file", str(self.token), "--checkpoints", str(self.checkpoints), *self.words,
            "--", "python", str(ROOT / "tests" / "scripts" / "ring.py"), str(self.steps), str(self.log),
        ]  # fmt: skip
        with (self.folder / f"{node.name}.out").open("ab") as out:
            self.processes[node.name] = node.start(*command, cwd=ROOT, env=environ, stdout=out, stderr=out)

    @property
    def home(self) -> str:
        """Where leases are asked for: the last node of the testbed, which may take part."""
        return self.testbed.nodes[-1].address

    def lines(self) -> list[Line]:
        """What all ranks have done, in the order of time."""
        if not self.log.exists():
            return []
        words = [line.split() for line in self.log.read_text().splitlines()]
        return sorted((msgspec.convert(one, Line, strict=False) for one in words), key=lambda one: one.at_s)

    def wait(self, what: str, found: Callable[[list[Line]], Any], within_s: float = WAIT_S) -> Any:
        """What `found` makes of the lines, as soon as that is something."""
        until_s = time.monotonic() + within_s
        while not (result := found(self.lines())):
            assert time.monotonic() < until_s, f"not seen: {what}\n{self.said()}"
            time.sleep(0.1)
        return result

    def trains(self, attempt: int = 0, steps: int = 15) -> None:
        self.wait("steps", lambda lines: any(one.attempt >= attempt and one.step >= steps for one in lines))

    def first_step_after(self, fault_s: float) -> Line:
        """The first step of an attempt that had made none before the fault."""
        attempt = 1 + max(one.attempt for one in self.lines() if one.at_s <= fault_s)
        found = self.wait("a new step", lambda lines: [o for o in lines if o.at_s > fault_s and o.attempt >= attempt])
        first: Line = found[0]
        print(f"first new step {first.at_s - fault_s:.1f} s after the fault")
        return first

    def said(self) -> str:
        return "\n".join(f"--- {one.name}\n{one.read_text()[-4000:]}" for one in sorted(self.folder.glob("*.out")))

    def leader(self) -> Node:
        """Whose launcher says last that it leads."""
        led = [
            (line[:23], node)
            for node in self.nodes
            for line in (self.folder / f"{node.name}.out").read_text().splitlines()
            if "this launcher leads" in line
        ]
        return max(led, key=lambda one: one[0])[1]

    def end(self, *but: Node) -> dict[str, int]:
        """Exit codes of all launchers, once they have ended by themselves."""
        codes = {}
        for node in self.nodes:
            if node not in but:
                try:
                    codes[node.name] = self.processes[node.name].wait(WAIT_S)
                except subprocess.TimeoutExpired:
                    pytest.fail(f"{node.name} does not end\n{self.said()}")
        return codes

    def check(self) -> None:
        """One attempt after the other, each on from a checkpoint that is no further than what was done."""
        lines = [one for one in self.lines() if one.rank == 0]
        assert [one.attempt for one in lines] == sorted(one.attempt for one in lines), "two attempts at once"
        done = 0
        for _, some in groupby(lines, key=lambda one: one.attempt):
            steps = [one.step for one in some]
            assert steps == list(range(steps[0], steps[0] + len(steps)))
            assert done - 30 <= steps[0] <= done  # a checkpoint every ten steps, one of which may be half written
            done = steps[-1] + 1
        assert done == self.steps


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture
def testbed(
    request: pytest.FixtureRequest, tmp_path: Path, require_servers: Callable[[str], NoReturn]
) -> Iterator[Testbed]:
    try:
        with Testbed(request.param, tmp_path) as testbed:
            yield testbed
    except ServerMissing as missing:
        require_servers(str(missing))


def nodes(number: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("testbed", [number], indirect=True, ids=[f"{number} nodes"])


@nodes(4)
def test_a_rank_that_crashes_has_all_restarted_in_place_within_ten_seconds(testbed: Testbed, tmp_path: Path) -> None:
    job = Job(testbed, tmp_path, 4, "--nnodes", "4")
    job.trains()
    assert {one.ranks for one in job.lines()} == {4}
    places = {one.rank: one.node for one in job.lines()}
    fault_s = now_s()
    testbed.nodes[2].run("pkill", "-KILL", "-f", RANK)
    first = job.first_step_after(fault_s)
    assert first.at_s - fault_s < CRASH_S
    assert set(job.end().values()) == {0}
    job.check()
    assert places == {one.rank: one.node for one in job.lines() if one.attempt == 1}


@nodes(5)
def test_a_lost_node_is_replaced_by_a_spare_within_twenty_seconds(testbed: Testbed, tmp_path: Path) -> None:
    job = Job(testbed, tmp_path, 5, "--nnodes", "4", "--spares", "1")
    job.trains()
    trained = {one.node for one in job.lines()}
    lost = next(node for node in job.nodes if node.name in trained and node not in (job.leader(), testbed.nodes[-1]))
    fault_s = now_s()
    lost.kill()
    first = job.first_step_after(fault_s)
    assert first.at_s - fault_s < LOST_S
    assert set(job.end(lost).values()) == {0}
    job.check()
    assert lost.name not in {one.node for one in job.lines() if one.attempt == 1}
    assert first.ranks == 4


@nodes(5)
def test_a_lost_leader_is_followed_and_replaced_within_twenty_seconds(testbed: Testbed, tmp_path: Path) -> None:
    """The lease service is on a node of its own: who keeps it is not what is lost."""
    service = testbed.nodes[4].start(*lease_command(tmp_path), cwd=ROOT)
    job = Job(testbed, tmp_path, 4, "--nnodes", "3", "--spares", "1")
    job.trains()
    lost = job.leader()
    fault_s = now_s()
    spare = lost.name not in {one.node for one in job.lines()}
    lost.kill()
    if not spare:
        first = job.first_step_after(fault_s)
        assert first.at_s - fault_s < LOST_S
    assert set(job.end(lost).values()) == {0}
    job.check()
    testbed.nodes[4].signal(service, signal.SIGTERM)


@nodes(3)
def test_without_a_spare_the_job_ends_on_the_nodes_that_are_left_when_that_was_allowed(
    testbed: Testbed, tmp_path: Path
) -> None:
    job = Job(testbed, tmp_path, 3, "--nnodes", "3", "--min-nodes", "2", "--join-wait", "3")
    job.trains()
    lost = next(node for node in job.nodes if node not in (job.leader(), testbed.nodes[-1]))
    fault_s = now_s()
    lost.kill()
    assert job.first_step_after(fault_s).ranks == 2
    assert set(job.end(lost).values()) == {0}
    job.check()


@nodes(4)
def test_a_lease_service_that_is_killed_and_comes_back_costs_the_job_nothing(testbed: Testbed, tmp_path: Path) -> None:
    home = testbed.nodes[3]
    service = home.start(*lease_command(tmp_path), cwd=ROOT)
    job = Job(testbed, tmp_path, 3, "--nnodes", "3")
    job.trains()
    home.signal(service, signal.SIGKILL)
    service.wait(WAIT_S)
    time.sleep(8.0)  # longer than a lease: nobody leads
    home.start(*lease_command(tmp_path), cwd=ROOT)
    assert set(job.end().values()) == {0}
    job.check()
    assert {one.attempt for one in job.lines()} == {0}


@pytest.mark.parametrize("way", ["to the others", "from the others", "both"])
@nodes(5)
def test_a_node_that_is_cut_off_is_replaced_stops_its_ranks_and_may_come_back(
    testbed: Testbed, tmp_path: Path, way: str
) -> None:
    job = Job(testbed, tmp_path, 5, "--nnodes", "4", "--spares", "1", steps=500)
    job.trains()
    trained = {one.node for one in job.lines()}
    cut = next(node for node in job.nodes if node.name in trained and node not in (job.leader(), testbed.nodes[-1]))
    others = [node for node in testbed.nodes if node is not cut]
    fault_s = now_s()
    if way != "from the others":
        cut.lose(*others)
    if way != "to the others":
        for one in others:
            one.lose(cut)
    first = job.first_step_after(fault_s)
    assert first.at_s - fault_s < LOST_S
    time.sleep(max(0.0, fault_s + 20.0 - now_s()))
    assert not ranks_on(cut)
    if way != "from the others":
        cut.reach(*others)
    if way != "to the others":
        for one in others:
            one.reach(cut)
    assert set(job.end().values()) == {0}
    job.check()


@nodes(3)
def test_a_stop_on_one_node_ends_the_job_on_all(testbed: Testbed, tmp_path: Path) -> None:
    job = Job(testbed, tmp_path, 3, "--nnodes", "3")
    job.trains()
    stopped = next(node for node in job.nodes if node is not job.leader())
    stopped.signal(job.processes[stopped.name], signal.SIGINT)
    assert set(job.end().values()) == {143}
    assert not any(ranks_on(node) for node in job.nodes)


@nodes(4)
def test_a_second_lease_service_splits_no_job(testbed: Testbed, tmp_path: Path) -> None:
    """A node has the service's address itself from now on, so its launcher serves leases there, and knows nothing."""
    home = testbed.nodes[3]
    home.start(*lease_command(tmp_path), cwd=ROOT)
    job = Job(testbed, tmp_path, 3, "--nnodes", "3")
    job.trains()
    leader = job.leader()
    astray = next(node for node in job.nodes if node is not leader)
    astray.run("ip", "address", "add", f"{job.home}/32", "dev", "lo")
    assert set(job.end().values()) == {0}
    job.check()


def lease_command(folder: Path) -> list[str]:
    return [*WARDEN, "lease", "--listen", f"0.0.0.0:{PORT}", "--token-file", str(folder / "token")]


def ranks_on(node: Node) -> str:
    """The command lines of ranks that run on `node`."""
    return "\n".join(one for one in node.run("ps", "-eo", "args").splitlines() if re.match(RANK, one))
