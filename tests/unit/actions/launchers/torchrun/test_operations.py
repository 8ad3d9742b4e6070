"""What people and engines ask of a torchrun job."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.actions.launchers.torchrun.agents import World
from trainwarden.actions.launchers.torchrun.messages import KEPT_OPERATIONS, AskState, Poll, Submit
from trainwarden.actions.launchers.torchrun.operations import STOPPED_CODE, answer
from trainwarden.actions.launchers.torchrun.table import UNTOLD_S, JobTable
from trainwarden.launching import Operation, Targets


@pytest.fixture
def world() -> World:
    """Two nodes that train and one that waits."""
    return World("a", "b", "c", least=2, most=2)


def ended(world: World, operation: str) -> bool:
    return world.report(operation).state == "done"


def test_a_restart_is_one_round_however_often_it_is_asked_for(world):
    operation = Operation(id="r", job="j", kind="restart", expected_generation=0)
    for _ in range(3):
        assert answer(Submit(operation), world.table, world.now_s).report.state == "accepted"
    world.pass_s(3.0)
    assert (world.table.memory.round, ended(world, "r")) == (2, True)
    assert answer(Poll("j", "r"), world.table, world.now_s).report.state == "done"


def test_an_evicted_node_is_replaced_stays_out_and_waits_again_once_it_is_uncordoned(world):
    report = world.ask("evict", "a")
    world.pass_s(1.0)
    assert (world.seats, ended(world, report.operation)) == (["c", "b"], True)
    assert {one.node: one.state for one in world.state().nodes} == {"a": "cordoned", "b": "healthy", "c": "healthy"}
    world.kill("a")
    world.start("a")
    world.kill("b")
    world.pass_s(10.0)
    assert world.state().phase == "restarting"  # a started anew is out still
    world.ask("uncordon", "a")
    world.pass_s(1.0)
    assert world.seats == ["c", "a"]


def test_a_cordoned_node_goes_on_until_the_next_round(world):
    assert world.ask("cordon", "b").state == "done"
    world.pass_s(1.0)
    assert (world.state().attempt, world.state().ranks_running) == (0, (0, 1, 2, 3))
    world.ask("restart")
    world.pass_s(1.0)
    assert world.seats == ["a", "c"]


def test_nodes_are_moved_to_the_order_that_was_asked_for(world):
    assert world.ask("move", order=("a", "b")).text == "the nodes have that order already"
    report = world.ask("move", order=("b", "a"))
    world.pass_s(1.0)
    assert (world.seats, ended(world, report.operation)) == (["b", "a"], True)


def test_a_paused_job_has_no_ranks_until_it_is_resumed(world):
    paused = world.ask("pause")
    world.pass_s(60.0)
    assert (world.state().phase, world.state().ranks_running, ended(world, paused.operation)) == ("paused", (), True)
    assert world.ask("restart").reason == "unfit"
    resumed = world.ask("resume")
    world.pass_s(1.0)
    assert (world.state().phase, world.state().attempt, ended(world, resumed.operation)) == ("running", 1, True)


def test_a_stopped_job_ends_for_all_agents(world):
    report = world.ask("stop")
    world.pass_s(1.0)
    assert {agent.over for agent in world.agents.values()} == {STOPPED_CODE}
    assert (world.state().phase, ended(world, report.operation)) == ("ended", True)
    assert world.ask("restart").reason == "over"


def test_a_split_is_done_once_ranks_of_all_nodes_can_read_it(world):
    report = world.ask("rebalance", split=(3, 1, 2, 2))
    world.pass_s(1.0)
    assert world.report(report.operation).state == "accepted"
    for agent in world.agents.values():
        agent.beat = type(agent.beat)(at=1, ranks=agent.beat.ranks, alive=agent.beat.alive, split=1)
    world.pass_s(0.2)
    assert (ended(world, report.operation), world.state().micro_batches) == (True, (3, 1, 2, 2))
    for wrong in ((4, 4), (0, 4, 2, 2), (4, 4, 4, 4)):
        assert world.ask("rebalance", split=wrong).reason == "unfit"


@pytest.mark.parametrize("kind", ["evict", "cordon"])
def test_no_word_leaves_fewer_nodes_than_the_job_needs(world, kind):
    world.kill("c")
    world.pass_s(UNTOLD_S)
    assert world.ask(kind, "a").reason == "unfit"
    assert world.ask(kind, "nobody").reason == "unknown_target"
    assert world.ask(kind).reason == "unknown_target"


@pytest.mark.parametrize("kind", ["evict", "cordon"])
def test_a_word_on_a_node_whose_spare_is_still_starting_is_to_be_asked_for_again(kind):
    """A launcher that refuses for good what is possible a moment later leaves a bad node in the job."""
    world = World("a", "b", least=2, most=2, spares=1)
    world.pass_s(UNTOLD_S)
    operation = Operation(id="e", job="j", kind=kind, expected_generation=0, targets=Targets(nodes=("a",)))
    reply = answer(Submit(operation), world.table, world.now_s)
    assert (reply.report, reply.later) == (
        None, "without a 1 nodes are left, and the job needs 2; nodes of the job are still starting",
    )  # fmt: skip
    world.start("c")
    assert answer(Submit(operation), world.table, world.now_s).report.state in ("accepted", "done")
    world.pass_s(1.0)
    assert ended(world, "e")


def test_nodes_that_have_been_there_are_not_waited_for(world):
    world.kill("c")
    world.pass_s(UNTOLD_S)
    assert world.ask("evict", "a").reason == "unfit"


def test_it_is_kept_who_asked_for_what(world):
    world.ask("evict", "a")
    assert [(one.kind, one.by, one.target) for one in world.table.memory.kept] == [("evict", "ann", "a")]


def test_a_service_that_hears_too_few_agents_refuses_to_stop_them(world):
    table = JobTable("j", 2.0, world.now_s)
    world.table = table
    world.connect("a", table)
    for node in ("b", "c"):
        world.cut(node)
    world.pass_s(10.0)
    report = world.ask("restart")
    assert (report.reason, world.table.memory.target) == ("unfit", 1)


def test_what_was_asked_for_is_known_to_the_next_service(world):
    report = world.ask("restart")
    world.pass_s(1.0)
    world.table = JobTable("j", 2.0, world.now_s)
    for node in world.agents:
        world.connect(node, world.table)
    assert answer(Poll("j", report.operation), world.table, world.now_s).report.state == "done"
    state = answer(AskState("j"), world.table, world.now_s).state
    assert (state.attempt, state.generation > 1) == (1, True)


def test_a_checkpoint_is_done_once_a_newer_one_is_complete(world):
    for node in "ab":
        world.agents[node].beat = msgspec.structs.replace(world.agents[node].beat, saves=True)
        world.agents[node].sees(40)
    world.pass_s(0.5)
    report = world.ask("checkpoint")
    assert report.state == "accepted"
    assert world.table.word(world.agents["a"].life).save == report.operation
    world.agents["a"].sees(47)
    world.pass_s(1.0)
    assert world.report(report.operation).state == "accepted"  # b does not see it yet
    for outlives in (None, 40):  # it lies in b's memory alone, and would be lost with b
        world.agents["b"].sees(47, outlives)
        world.pass_s(1.0)
        assert world.report(report.operation).state == "accepted"
    world.agents["b"].sees(48, 47)
    world.pass_s(1.0)
    assert world.report(report.operation).text == "the checkpoint of step 47 is complete"
    assert (world.table.word(world.agents["a"].life).save, world.table.memory.round) == (None, 1)


def test_the_newest_checkpoint_that_was_asked_for_is_told_and_ends_those_before(world):
    for node in "ab":
        world.agents[node].beat = msgspec.structs.replace(world.agents[node].beat, saves=True)
        world.agents[node].sees(40)
    world.pass_s(0.5)
    asked = []
    for _ in range(KEPT_OPERATIONS):
        asked.append(world.ask("checkpoint"))
        world.pass_s(0.2)
        assert world.table.word(world.agents["a"].life).save == asked[-1].operation
    assert {one.state for one in asked} == {"accepted"}
    assert world.report(asked[-1].operation).state == "accepted"
    before = world.report(asked[-2].operation)
    assert (before.state, before.text) == ("failed", "another checkpoint was asked for before one was complete")
    assert world.state().under_way == (asked[-1].operation,)
    assert world.ask("restart").state == "accepted"


def test_a_checkpoint_that_nobody_could_make_or_see_is_refused_and_one_overtaken_has_failed(world):
    assert "no checkpoint folder is configured" in world.ask("checkpoint").text
    for node in "ab":
        world.agents[node].sees(40)
    world.pass_s(0.5)
    assert "TRAINWARDEN_CHECKPOINT_SIGNAL names" in world.ask("checkpoint").text
    for node in "ab":
        world.agents[node].beat = msgspec.structs.replace(world.agents[node].beat, saves=True)
    world.pass_s(0.5)
    report = world.ask("checkpoint")
    world.ask("restart")
    world.pass_s(1.0)
    assert "started anew" in world.report(report.operation).text
    assert world.report(report.operation).state == "failed"
