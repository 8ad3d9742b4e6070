"""A job on several real nodes: formed, restarted, moved to a spare and ended; it goes on whatever is lost, and once.

All nodes are of one machine, so their clocks are one, and what the ranks write down can be put in order.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import pytest

from actions.launchers.cluster.growing import LOOK_S
from tests.places import ROOT
from tests.servers.kafka import ServerMissing
from tests.system.cluster_job import PORT, RANK, WAIT_S, Job, lease_command, now_s, ranks_on
from tests.system.runs import WARDEN
from tests.testbed.nodes import Testbed

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

CRASH_S: Final = 10.0  # the bars: from the fault to the first new step
LOST_S: Final = 20.0


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
    for node in job.nodes:  # what its agent passes on
        events = [json.loads(line) for line in (tmp_path / node.name / "events.jsonl").read_text().splitlines()]
        told = [(one["id"], one["fields"]["attempt"]) for one in events if one["kind"] == "restart"]
        assert told == [("restart/j/attempt/1.2/started", 1), ("restart/j/attempt/1.2/done", 1)]


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


@nodes(4)
def test_a_leader_that_stood_still_is_followed_and_is_a_spare_when_it_wakes(testbed: Testbed, tmp_path: Path) -> None:
    """Its ranks run on meanwhile; the lease service is on a node of its own."""
    testbed.nodes[3].start(*lease_command(tmp_path), cwd=ROOT)
    job = Job(testbed, tmp_path, 3, "--nnodes", "2", "--spares", "1", steps=500)
    job.trains()
    leader = job.leader()
    process, fault_s = job.processes[leader.name], now_s()
    leader.signal(process, signal.SIGSTOP)
    if leader.name in {one.node for one in job.lines()}:
        assert job.first_step_after(fault_s).at_s - fault_s < LOST_S
    else:
        time.sleep(LOST_S)
    leader.signal(process, signal.SIGCONT)
    assert set(job.end().values()) == {0}
    job.check()


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


@nodes(3)
def test_a_job_that_had_to_shrink_grows_at_a_checkpoint_when_the_node_is_back(testbed: Testbed, tmp_path: Path) -> None:
    job = Job(testbed, tmp_path, 3, "--nnodes", "3", "--min-nodes", "2", "--join-wait", "1", steps=700)
    job.trains()
    away = next(node for node in job.nodes if node not in (job.leader(), testbed.nodes[-1]))
    away.signal(job.processes[away.name], signal.SIGKILL)
    job.wait("a smaller job", lambda lines: lines[-1].ranks == 2 and lines[-1].attempt == 1)
    job.start(away)
    job.wait("the whole job", lambda lines: lines[-1].ranks == 3)
    assert set(job.end().values()) == {0}
    job.check()
    sizes = {one.attempt: one.ranks for one in job.lines()}
    assert sizes == {0: 3, 1: 2, 2: 3}
    done = max(one.step for one in job.lines() if one.attempt == 1)
    redone = done - min(one.step for one in job.lines() if one.attempt == 2)
    print(f"{redone} steps of 0.05 s are made twice")
    assert redone <= 2 * LOOK_S / 0.05


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


@nodes(5)
def test_a_half_that_trains_without_the_lease_service_stops_when_the_other_half_could_go_on(
    testbed: Testbed, tmp_path: Path
) -> None:
    """The service is with the spares, and the leader with those who train."""
    home = testbed.nodes[4]
    home.start(*lease_command(tmp_path), cwd=ROOT)
    job = Job(testbed, tmp_path, 2, "--nnodes", "2", "--spares", "2", steps=3000)
    job.trains()
    spares = testbed.nodes[2:4]
    for node in spares:
        job.nodes.append(node)
        job.start(node)
    job.wait("spares", lambda _: all(f"{one.name} is there" in job.said() for one in spares))
    fault_s = now_s()
    for one in job.nodes[:2]:
        one.lose(*spares, home)
    first = job.first_step_after(fault_s)
    time.sleep(1.0)
    lines = job.lines()
    assert {one.node for one in lines if one.attempt == 1} == {one.name for one in spares}
    assert not [one for one in lines if one.attempt == 0 and one.at_s > first.at_s], "two attempts at once"
    assert not any(ranks_on(node) for node in job.nodes[:2])


@nodes(3)
def test_a_stop_on_one_node_ends_the_job_on_all(testbed: Testbed, tmp_path: Path) -> None:
    job = Job(testbed, tmp_path, 3, "--nnodes", "3")
    job.trains()
    stopped = next(node for node in job.nodes if node is not job.leader())
    stopped.signal(job.processes[stopped.name], signal.SIGINT)
    assert set(job.end().values()) == {143}
    assert not any(ranks_on(node) for node in job.nodes)


@nodes(4)
def test_a_job_is_suspended_and_resumed_once_though_its_leader_is_killed_in_between(
    testbed: Testbed, tmp_path: Path
) -> None:
    """The lease service is on a node of its own, where the person sits too."""
    home = testbed.nodes[3]
    home.start(*lease_command(tmp_path), cwd=ROOT)
    job = Job(testbed, tmp_path, 3, "--nnodes", "3", "--min-nodes", "2", "--join-wait", "1")
    place = ("--job", "j", "--rdzv", f"{job.home}:{PORT}", "--token-file", str(job.token))
    job.trains()
    home.run(*WARDEN, "job", "suspend", *place, cwd=ROOT)
    assert not any(ranks_on(node) for node in job.nodes)
    leader, made = job.leader(), len(job.lines())
    leader.signal(job.processes[leader.name], signal.SIGKILL)
    assert "job j: paused" in home.run(*WARDEN, "job", "status", *place, cwd=ROOT)
    assert len(job.lines()) == made
    home.run(*WARDEN, "job", "resume", *place, cwd=ROOT)
    assert set(job.end(leader).values()) == {0}
    job.check()
    assert {one.attempt: one.ranks for one in job.lines()} == {0: 3, 1: 2}


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
