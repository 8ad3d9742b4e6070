"""`trainwarden launch` on several real nodes: formed, restarted, moved to a spare and ended; whatever is lost, once.

All nodes are of one machine, so their clocks are one, and what the ranks write down can be put in order.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.places import ROOT
from tests.servers.kafka import ServerMissing
from tests.system.nodes_job import PORT, RANK, WAIT_S, Job, now_s, ranks_on, rendezvous_command
from tests.system.runs import WARDEN
from tests.testbed.nodes import Testbed

pytestmark = [pytest.mark.system, pytest.mark.timeout(400)]


@pytest.fixture
def testbed(
    request: pytest.FixtureRequest, tmp_path: Path, require_servers: Callable[[str], NoReturn]
) -> Iterator[Testbed]:
    pytest.importorskip("torch")
    try:
        with Testbed(request.param, tmp_path) as testbed:
            yield testbed
    except ServerMissing as missing:
        require_servers(str(missing))


def nodes(number: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("testbed", [number], indirect=True, ids=[f"{number} nodes"])


@nodes(3)
def test_a_rank_that_crashes_has_all_restarted_in_place_and_a_lost_node_is_replaced(
    testbed: Testbed, tmp_path: Path
) -> None:
    job = Job(testbed, tmp_path, 3, "--nnodes", "2", "--spares", "1", "--node-rank", "{rank}", steps=400)
    job.trains()
    places = {one.rank: one.node for one in job.lines()}
    assert places == {0: "n2", 1: "n1"}, "the last node has the first rank, and n0 waits"
    fault_s = now_s()
    testbed.nodes[1].run("pkill", "-KILL", "-f", RANK)
    job.first_step_after(fault_s)
    assert places == {one.rank: one.node for one in job.lines() if one.attempt == 1}
    for name in places.values():  # what its agent passes on
        events = [json.loads(line) for line in (tmp_path / name / "events.jsonl").read_text().splitlines()]
        told = [(one["id"], one["fields"]["attempt"]) for one in events if one["kind"] == "restart"]
        assert told == [("restart/j/round/2/started", 1), ("restart/j/round/2/done", 1)]
    job.trains(attempt=1)
    fault_s, lost = now_s(), testbed.nodes[1]
    lost.kill()
    first = job.first_step_after(fault_s)
    assert set(job.end(lost).values()) == {0}
    job.check()
    assert {one.rank: one.node for one in job.lines() if one.attempt == first.attempt} == {0: "n2", 1: "n0"}


@nodes(4)
def test_a_first_node_whose_launcher_is_killed_is_replaced_and_comes_back_as_a_spare(
    testbed: Testbed, tmp_path: Path
) -> None:
    """The rendezvous is on a node of its own, and is killed as well: training misses neither."""
    home = testbed.nodes[3]
    service = home.start(*rendezvous_command(tmp_path), cwd=ROOT)
    job = Job(testbed, tmp_path, 3, "--nnodes", "2", "--spares", "1", steps=900)
    job.trains()
    first = job.first()
    fault_s = now_s()
    first.signal(job.processes[first.name], signal.SIGKILL)
    job.first_step_after(fault_s)
    assert not ranks_on(first)
    job.start(first)
    home.signal(service, signal.SIGKILL)
    service.wait(WAIT_S)
    attempts = {one.attempt for one in job.lines()}
    home.start(*rendezvous_command(tmp_path), cwd=ROOT)
    assert set(job.end().values()) == {0}
    job.check()
    assert {one.attempt for one in job.lines()} == attempts
    assert first.name not in {one.node for one in job.lines() if one.attempt == max(attempts)}


@nodes(3)
def test_a_job_that_had_to_shrink_grows_at_a_checkpoint_when_the_node_is_back(testbed: Testbed, tmp_path: Path) -> None:
    job = Job(testbed, tmp_path, 3, "--nnodes", "3", "--min-nodes", "2", "--grow", "now", steps=1500)
    job.trains()
    away = next(node for node in job.nodes if node not in (job.first(), testbed.nodes[-1]))
    away.signal(job.processes[away.name], signal.SIGKILL)
    job.wait("a smaller job", lambda lines: lines[-1].ranks == 2 and lines[-1].attempt == 1)
    job.start(away)
    job.wait("the whole job", lambda lines: lines[-1].ranks == 3)
    assert set(job.end().values()) == {0}
    job.check()
    assert {one.attempt: one.ranks for one in job.lines()} == {0: 3, 1: 2, 2: 3}


@nodes(4)
def test_a_node_that_is_cut_off_is_replaced_and_its_ranks_make_no_step_beside_the_others(
    testbed: Testbed, tmp_path: Path
) -> None:
    job = Job(testbed, tmp_path, 4, "--nnodes", "3", "--spares", "1", steps=1000)
    job.trains()
    trained = {one.node for one in job.lines()}
    cut = next(node for node in job.nodes if node.name in trained and node not in (job.first(), testbed.nodes[-1]))
    others = [node for node in testbed.nodes if node is not cut]
    fault_s = now_s()
    cut.lose(*others)
    for one in others:
        one.lose(cut)
    first = job.first_step_after(fault_s)
    job.trains(first.attempt)
    assert not [one for one in job.lines() if one.attempt < first.attempt and one.at_s > first.at_s]
    cut.reach(*others)
    for one in others:
        one.reach(cut)
    assert set(job.end().values()) == {0}
    job.check()


@nodes(3)
def test_a_job_is_suspended_resumed_and_stopped_on_all_nodes(testbed: Testbed, tmp_path: Path) -> None:
    job = Job(testbed, tmp_path, 2, "--nnodes", "2", steps=5000)
    home = testbed.nodes[-1]
    home.start(*rendezvous_command(tmp_path), cwd=ROOT)
    place = ("--job", "j", "--rdzv", f"{job.home}:{PORT}", "--token-file", str(job.token))
    job.trains()
    home.run(*WARDEN, "job", "suspend", *place, cwd=ROOT)
    assert not any(ranks_on(node) for node in job.nodes)
    assert "job j: paused" in home.run(*WARDEN, "job", "status", *place, cwd=ROOT)
    home.run(*WARDEN, "job", "resume", *place, cwd=ROOT)
    job.trains(attempt=1)
    stopped = job.nodes[1]
    stopped.signal(job.processes[stopped.name], signal.SIGINT)
    assert set(job.end().values()) == {143}
    assert not any(ranks_on(node) for node in job.nodes)
