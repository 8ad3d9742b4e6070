"""What the rendezvous service decides: rounds, spares, losses, failures, and nothing without half of the agents."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.actions.launchers.torchrun.agents import Agent, World
from trainwarden.actions.launchers.torchrun.members import GRACE_S
from trainwarden.actions.launchers.torchrun.messages import ENCODE, Memory
from trainwarden.actions.launchers.torchrun.table import BACK_OFF_S, CANNOT_CODE, GAVE_UP_CODE, STOP_S, JobTable


def with_spare(**more: float) -> World:
    """Two nodes that train and one that waits."""
    world = World("a", "b", "c", least=2, most=2, **more)
    assert world.seats == ["a", "b"]
    return world


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_a_round_begins_once_all_nodes_wait():
    world = World("a", least=2, most=2)
    assert (world.seats, world.state().phase) == ([], "pending")
    world.start("b")
    world.pass_s(0.3)
    assert [agent.rounds for agent in world.agents.values()] == [[(1, 0)], [(1, 1)]]
    assert (world.state().phase, world.state().ranks_running) == ("running", (0, 1, 2, 3))


def test_an_elastic_job_waits_its_last_call_for_more_nodes():
    world = World(least=1, most=3)
    world.start("a")
    world.pass_s(0.8)
    assert world.seats == []
    world.pass_s(0.5)
    assert world.seats == ["a"]


def test_more_nodes_join_an_elastic_job_and_a_lost_one_shrinks_it():
    world = World("a", "b", least=1, most=3)
    world.start("c")
    world.pass_s(1.0)
    assert (world.seats, world.table.memory.round) == (["a", "b", "c"], 2)
    world.kill("b")
    world.pass_s(1.0)
    assert (world.seats, world.table.memory.round) == (["a", "c"], 3)
    assert world.state().failures == 0


def test_nodes_with_unequal_numbers_of_ranks_end_the_job_in_one_sentence():
    world = World("a", least=2, most=2)
    world.start("b").ranks = 3
    world.pass_s(0.5)
    assert (world.table.memory.over, world.table.memory.reason) == (
        CANNOT_CODE, "b has 3 ranks and a 2: all need the same --nproc-per-node",
    )  # fmt: skip


def test_a_spare_inherits_the_slot_of_a_killed_node_at_once():
    world = with_spare()
    world.kill("a")
    world.pass_s(GRACE_S + 0.5)
    assert (world.seats, world.table.memory.round) == (["c", "b"], 2)
    assert (world.agents["c"].rounds, world.agents["b"].rounds) == ([(2, 0)], [(1, 1), (2, 1)])


def test_a_connection_that_is_back_in_time_restarts_nothing():
    world = with_spare()
    world.table.closed(world.agents["a"].life, world.now_s)
    world.pass_s(0.0)
    world.connect("a", world.table)
    world.pass_s(5.0)
    assert world.table.memory.round == 1


def test_a_frozen_node_is_replaced_and_waits_as_a_spare_when_it_is_back():
    world = with_spare()
    world.cut("b")
    world.pass_s(1.5)
    assert world.table.memory.round == 1
    world.pass_s(1.5)
    assert (world.seats, world.table.memory.round) == (["a", "c"], 2)
    world.agents["b"].reachable = True
    world.pass_s(5.0)
    assert (world.seats, world.table.memory.round, world.agents["b"].beat.waits) == (["a", "c"], 2, True)


def test_a_node_that_comes_back_for_good_takes_its_own_place_before_a_spare():
    world = with_spare()
    world.agents["a"].stuck = True  # so that the new process is there before the next round begins
    world.kill("b")
    world.pass_s(0.6)
    world.start("b")
    world.pass_s(0.3)
    world.agents["a"].stuck = False
    world.pass_s(0.5)
    assert world.seats == ["a", "b"]


def test_a_node_whose_ranks_do_not_end_is_waited_for_only_so_long():
    world = with_spare()
    world.agents["a"].stuck = True
    world.ask("restart")
    world.pass_s(STOP_S - 1.0)
    assert world.table.memory.round == 1
    world.pass_s(2.0)
    assert (world.seats, world.table.memory.round) == (["c", "b"], 2)


# --- failures and ends ------------------------------------------------------------------------------------------------


def test_a_failed_rank_restarts_all_and_is_counted_once():
    world = with_spare()
    world.agents["b"].fail(2)
    world.pass_s(1.0)
    assert (world.seats, world.table.memory.round, world.state().failures) == (["a", "b"], 2, 1)
    assert "rank 2 ended with code 7 on b" in world.table.memory.reason


def test_ranks_that_fail_because_a_node_is_lost_are_no_failure_of_the_job():
    world = with_spare()
    world.kill("a")
    world.agents["b"].fail(3)
    world.pass_s(1.0)
    assert (world.seats, world.table.memory.round, world.state().failures) == (["c", "b"], 2, 0)
    assert "torchrun on a has ended" in world.table.memory.reason


def test_three_failures_without_a_newer_checkpoint_end_the_job_for_all_with_our_code():
    world = with_spare()
    for agent in world.agents.values():
        agent.sees(10)
    for _ in range(3):
        assert world.table.memory.over is None
        world.agents["a"].fail()
        world.pass_s(1.0 + BACK_OFF_S)
    assert {agent.over for agent in world.agents.values()} == {GAVE_UP_CODE}
    assert "3 failures without a newer checkpoint" in world.table.memory.reason


def test_failures_with_progress_between_them_go_on():
    world = with_spare()
    for step in range(6):
        for agent in world.agents.values():
            agent.sees(10 * step)
        world.agents["a"].fail()
        world.pass_s(1.0)
    assert (world.table.memory.over, world.state().failures, world.table.memory.round) == (None, 6, 7)


def test_where_no_folder_of_checkpoints_is_known_old_failures_are_forgiven():
    world = with_spare(lost_after_s=9_000.0)
    for _ in range(4):
        world.agents["a"].fail()
        world.pass_s(1.0)
        world.now_s += 3_700.0
    assert (world.table.memory.over, world.table.memory.round) == (None, 5)


def test_the_newest_checkpoint_that_all_see_is_handed_out():
    world = with_spare()
    world.agents["a"].sees(30)
    world.agents["b"].sees(20)
    world.ask("restart")
    world.pass_s(0.5)
    assert world.table.memory.resume is not None
    assert world.table.memory.resume.path == "/checkpoints/step-20.pt"


def test_the_first_round_goes_on_from_what_lies_in_the_folder_but_may_start_over():
    world = World(least=2, most=2)
    for node in ("a", "b"):
        world.start(node).sees(40)
    world.pass_s(1.0)
    assert world.table.memory.resume is not None
    assert (world.table.memory.round, world.table.memory.resume.step) == (1, 40)
    agent = world.agents["b"]
    agent.beat = msgspec.structs.replace(agent.beat, first_step=0)
    world.pass_s(0.5)
    assert world.table.memory.over is None


def test_a_job_whose_ranks_have_all_ended_well_is_over_for_spares_too():
    world = with_spare()
    world.agents["a"].finish()
    world.pass_s(3.0)
    assert world.table.memory.over is None
    world.kill("a")  # which sat in torchrun's own exit barrier
    world.agents["b"].finish()
    world.pass_s(0.5)
    assert (world.table.memory.over, world.agents["c"].over, world.state().phase) == (0, 0, "ended")


def test_what_cannot_begin_anew_without_a_node_that_has_finished_ends():
    world = World("a", "b", least=2, most=2)
    world.agents["a"].finish()
    world.agents["b"].fail()
    world.pass_s(1.0)
    assert (world.table.memory.over, world.agents["b"].over) == (CANNOT_CODE, CANNOT_CODE)


# --- services that were killed, emptied, doubled, frozen, cut off -----------------------------------------------------


def test_an_empty_service_adopts_what_agents_carry_and_restarts_nothing():
    world = with_spare()
    generation, world.table = world.state().generation, JobTable("j", 2.0, world.now_s)
    world.now_s += 600.0
    world.connect("a", world.table)
    world.pass_s(1.0)
    for node in ("b", "c"):
        world.connect(node, world.table)
    world.pass_s(5.0)
    assert (world.seats, world.table.memory.round) == (["a", "b"], 1)
    assert world.state().generation > generation
    world.kill("a")
    world.pass_s(1.0)
    assert (world.seats, world.table.memory.round) == (["c", "b"], 2)


@pytest.mark.thorough
@pytest.mark.parametrize("heard", [1, 2])
def test_a_service_that_hears_half_of_the_agents_begins_nothing_and_stops_nobody(heard: int):
    world = World("a", "b", "c", "d", least=1, most=4)
    world.table = JobTable("j", 2.0, world.now_s)
    for node in ("c", "d"):
        world.cut(node)
    for node in ("a", "b")[:heard]:
        world.connect(node, world.table)
    world.pass_s(700.0)
    assert (world.table.memory.round, world.table.memory.target) == (1, 1)
    assert all(len(agent.rounds) == 1 for agent in world.agents.values())


def test_a_service_that_is_cut_off_from_half_begins_nothing():
    world = World("a", "b", "c", "d", least=1, most=4)
    world.cut("c")
    world.cut("d")
    world.pass_s(700.0)
    assert (world.table.memory.round, world.table.memory.target) == (1, 1)
    world.ask("cordon", "d")  # somebody says that it is out
    world.pass_s(1.0)
    assert world.seats == ["a", "b"]


def test_of_two_services_only_that_with_more_than_half_begins_a_round():
    world = World("a", "b", "c", "d", "e", least=1, most=5)
    other = JobTable("j", 2.0, world.now_s)
    for node in ("d", "e"):
        world.connect(node, other)
        world.table.closed(world.agents[node].life, world.now_s - 10.0)
    world.pass_s(10.0)
    assert (world.seats, other.memory.round) == (["a", "b", "c"], 1)
    for node in ("d", "e"):
        assert world.agents[node].rounds == [(1, 3 if node == "d" else 4)]
        world.connect(node, world.table)
    world.pass_s(2.0)
    assert world.seats == ["a", "b", "c", "d", "e"]


def test_agents_that_went_to_another_service_are_not_taken_for_dead():
    world = World("a", "b", "c", "d", "e", least=1, most=5)
    other = JobTable("j", 2.0, world.now_s)
    for node in ("c", "d", "e"):
        agent = world.agents[node]
        world.table.beat(agent.life, msgspec.structs.replace(agent.beat, moves=True), world.now_s)
        world.table.closed(agent.life, world.now_s)
        world.connect(node, other)
    world.pass_s(0.1)
    assert world.table.memory.target == 1
    world.pass_s(10.0)
    assert (world.table.memory.round, [seat.node for seat in other.memory.roster]) == (1, ["c", "d", "e"])


def test_who_went_to_another_service_and_was_started_anew_on_its_node_is_gone():
    world = World("a", "b", least=1, most=2)
    agent = world.agents["b"]
    world.table.beat(agent.life, msgspec.structs.replace(agent.beat, moves=True), world.now_s)
    world.table.closed(agent.life, world.now_s)
    world.talk["b"] = JobTable("j", 2.0, world.now_s)
    world.pass_s(10.0)
    assert world.table.memory.round == 1  # where it is, and whether it trains, is not known here
    world.kill("b")
    world.start("b")
    world.pass_s(1.0)
    assert (world.table.memory.round, world.seats, world.state().phase) == (2, ["a", "b"], "running")


def test_a_service_that_stood_still_gives_everybody_a_full_time_out():
    world = with_spare()
    world.now_s += 60.0
    world.table.closed(world.agents["b"].life, world.now_s)  # its agents had gone elsewhere meanwhile
    world.table.tick(world.now_s)
    assert world.table.memory.target == 1
    world.pass_s(0.0)
    world.connect("b", world.table)
    world.pass_s(10.0)
    assert world.table.memory.round == 1


def test_a_service_that_hears_of_a_later_round_takes_it_over():
    world = with_spare()
    later = msgspec.structs.replace(world.table.memory, round=7, target=7)
    world.agents["a"].memory = later
    world.agents["a"].beat = msgspec.structs.replace(world.agents["a"].beat, at=7)
    world.connect("a", world.table)
    assert world.table.memory.round == 7
    world.pass_s(0.1)
    assert world.agents["a"].beat.at == 7


def test_the_memory_survives_the_wire():
    world = with_spare()
    world.ask("cordon", "c")
    assert msgspec.json.decode(ENCODE(world.table.memory), type=Memory) == world.table.memory


# --- what the launcher of several nodes could do ----------------------------------------------------------------------


def test_nodes_are_seated_by_the_place_that_a_person_gave_them_then_by_name():
    world = World(least=3, most=3)
    for node, place in (("n10", None), ("n2", None), ("z", 0)):
        world.start(node, place=place)
    world.pass_s(1.0)
    assert world.seats == ["z", "n2", "n10"]


def test_a_place_after_the_last_is_a_spares_until_nobody_else_comes():
    world = World(least=2, most=2)
    world.start("spare", place=2)
    world.start("a", place=0)
    world.pass_s(0.5)
    assert world.seats == []
    world.start("b", place=1)
    world.pass_s(0.3)
    assert world.seats == ["a", "b"]


def test_the_number_of_failures_is_the_jobs_own():
    world = World("a", least=1, most=1, failures=1)
    world.agents["a"].fail()
    world.pass_s(1.0)
    assert world.table.memory.over == GAVE_UP_CODE


def test_after_a_second_failure_in_vain_the_next_round_waits_and_detection_may_name_a_node():
    world = with_spare()
    for seconds, rounds in ((1.0, 2), (BACK_OFF_S - 1.0, 2), (1.5, 3)):
        if seconds != 1.5:
            world.agents["a"].fail()
        world.pass_s(seconds)
        assert world.table.memory.round == rounds


@pytest.mark.parametrize("kind", ["least", "spares"])
def test_a_torchrun_that_does_not_fit_the_job_is_refused_in_one_sentence(kind):
    world = World("a", "b", least=2, most=2, spares=0)
    more = Agent("c", "c/1", 1 if kind == "least" else 2, 2, spares=0)
    said = world.table.misfit(more.hello(), world.now_s)
    assert said == {
        "least": "a was started for --nnodes 2:2, and c for 1:2", "spares": "the job has its 2 nodes and 0 spares",
    }[kind]  # fmt: skip
    assert world.table.misfit(world.agents["a"].hello(), world.now_s) is None
    world.kill("b")
    world.pass_s(1.0)
    assert kind == "least" or world.table.misfit(more.hello(), world.now_s) is None


def test_the_end_of_a_restart_names_the_newest_checkpoint():
    """An engine records it with its action, and explain shows that."""
    world = with_spare()
    for agent in world.agents.values():
        agent.sees(40)
    world.ask("restart")
    world.pass_s(1.0)
    (kept,) = world.table.memory.kept
    assert (kept.report.state, kept.report.text) == ("done", "the newest checkpoint that its nodes see is of step 40")


def test_a_script_that_was_given_an_older_checkpoint_than_the_newest_is_not_ended():
    """Two neighbours were lost with the newest one, so that the nodes' memory, or the store, had the one before."""
    world = with_spare()
    for agent in world.agents.values():
        agent.sees(40)
    world.ask("restart")
    world.pass_s(1.0)
    agent = world.agents["b"]
    agent.beat = msgspec.structs.replace(agent.beat, restored=20, first_step=20)
    world.pass_s(0.5)
    assert world.table.memory.over is None
    agent.beat = msgspec.structs.replace(agent.beat, first_step=19)
    world.pass_s(0.5)
    assert world.table.memory.over == CANNOT_CODE


def test_a_script_that_starts_over_is_ended_before_it_overwrites_its_checkpoint():
    world = with_spare()
    for agent in world.agents.values():
        agent.sees(40)
    world.ask("restart")
    world.pass_s(1.0)
    agent = world.agents["b"]
    agent.beat = msgspec.structs.replace(agent.beat, first_step=40)
    world.pass_s(0.5)
    assert world.table.memory.over is None
    agent.beat = msgspec.structs.replace(agent.beat, first_step=0)
    world.pass_s(0.5)
    assert world.table.memory.over == CANNOT_CODE
    assert world.table.memory.reason.startswith("b started over at step 0 although the checkpoint of step 40 is compl")


@pytest.mark.parametrize(("grow", "waits_s"), [("now", 0.0), ("worth", 40.0)])
def test_a_job_that_had_to_shrink_grows_at_a_checkpoint_once_that_is_worth_a_restart(grow, waits_s):
    world = World("a", "b", least=1, most=3, grow=grow)
    for agent in world.agents.values():
        agent.sees(10)
        agent.beat = msgspec.structs.replace(agent.beat, start_s=12.0)  # a third of each second is lost
    world.start("c").sees(10)
    world.pass_s(waits_s + 1.0)
    assert world.table.memory.round == 1
    for node in ("a", "b"):
        world.agents[node].sees(20)
    world.pass_s(1.0)
    assert (world.seats, world.table.memory.round, world.table.memory.resume.step) == (["a", "b", "c"], 2, 20)


def test_a_job_that_grows_with_restarts_alone_is_left_running():
    world = World("a", "b", least=1, most=3, grow="restart")
    world.start("c")
    world.pass_s(60.0)
    assert world.table.memory.round == 1
    world.ask("restart")
    world.pass_s(1.0)
    assert world.seats == ["a", "b", "c"]


def test_spares_do_not_begin_beside_nodes_that_may_all_train_still():
    """All that train are cut off, and most voters are spares: nothing says that training has stopped."""
    world = World("a", "b", "c", least=1, most=1)
    assert world.seats == ["a"]
    world.cut("a")
    world.pass_s(30.0)
    assert (world.table.memory.round, world.table.memory.target) == (1, 1)
    world.ask("cordon", "a")
    world.pass_s(1.0)
    assert world.seats == ["b"]


def test_a_node_on_which_another_torchrun_was_started_is_no_longer_waited_for():
    """Machines that lost their power close no connections; half of them silent would hold the job up for ever."""
    world = with_spare()
    for node in ("b", "c"):
        world.cut(node)
    world.pass_s(10.0)
    assert world.table.memory.round == 1
    for node in ("b", "c"):
        world.start(node)
    world.pass_s(1.0)
    assert (world.seats, world.table.memory.round) == (["a", "b"], 2)


def test_another_run_of_the_same_name_begins_once_all_of_the_last_have_gone():
    world = World("a", "b", least=2, most=2)
    for agent in world.agents.values():
        agent.finish()
    world.pass_s(0.5)
    assert world.table.memory.over == 0
    late = world.start("c")
    world.pass_s(0.5)
    assert late.over == 0  # the others are there still
    for node in ("a", "b", "c"):
        world.kill(node)
    world.pass_s(5.0)
    for node in ("a", "b"):
        world.start(node)
    world.pass_s(0.5)
    assert (world.seats, world.table.memory.round, world.table.memory.over) == (["a", "b"], 1, None)


def test_a_held_torchrun_waits_until_its_node_is_given_and_is_held_anew_once_it_is_started_anew():
    world = World("a", "b", least=1, most=2, held=True)
    world.pass_s(60.0)
    assert (world.seats, world.state().phase) == ([], "pending")
    world.ask("uncordon", "b")
    world.pass_s(3.0)
    assert world.seats == ["b"]
    world.connect("b", world.table)  # the same process, after its connection has ended
    world.pass_s(3.0)
    assert world.seats == ["b"]
    world.kill("b")
    world.start("b")
    world.pass_s(10.0)
    assert {one.node: (one.state, one.waits) for one in world.state().nodes} == {
        "a": ("cordoned", True), "b": ("cordoned", True),
    }  # fmt: skip


@pytest.mark.parametrize(("restarts", "gives_way"), [(1, "cd"), (0, "cd"), (0, "ab")])
def test_those_that_cannot_know_of_a_round_begin_another_until_they_hear_of_it(restarts: int, gives_way: str):
    """Service and torchruns are new, and all that could tell them are cut off: one half has to give way then."""
    world = World("a", "b", least=2, most=2)
    for _ in range(restarts):
        world.ask("restart")
        world.pass_s(3.0)
    if gives_way == "cd":
        world.table.change(failures=0)
        world.pass_s(1.0)
    old = world.table.memory
    for node in ("a", "b"):
        world.cut(node)
    world.table = JobTable("j", 2.0, world.now_s)
    for node in ("c", "d"):
        world.start(node)
    world.pass_s(3.0)
    assert (world.seats, world.table.memory.round) == (["c", "d"], 1)
    while gives_way == "ab" and world.table.memory.newer_than <= old.newer_than:
        world.table.change(failures=0)
    for node in ("a", "b"):
        world.agents[node].reachable = True
        world.connect(node, world.table)
    world.pass_s(5.0)
    assert {node for node in "abcd" if world.agents[node].beat.waits} == set(gives_way)
    assert [len(world.agents[node].rounds) for node in "abcd"] == [restarts + 1, restarts + 1, 1, 1]
