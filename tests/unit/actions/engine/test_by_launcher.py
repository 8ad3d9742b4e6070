"""A launcher that restarts by itself decides about what it sees; the engine asks for the rest, once, and says so."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.engine_doubles import Rig
from trainwarden.actions.brakes.active_brake import BrakeInput
from trainwarden.actions.brakes.brakes import Brakes
from trainwarden.actions.brakes.history import BY_LAUNCHER, STALE
from trainwarden.launching import Capabilities, NodeState
from trainwarden.records import ActionRecord, IncidentRecord, Suspect
from trainwarden.settings import EngineSettings

NODES = (
    NodeState(node="n1", ranks=(0, 1)), NodeState(node="n2", ranks=(2, 3)), NodeState(node="n3", state="spare"),
    NodeState(node="n4", state="spare"), NodeState(node="n5", state="spare"),
)  # fmt: skip


def rig(**settings: Any) -> Rig:
    """A job of two nodes and three spares that has trained for a minute."""
    one = Rig(**settings)
    able = frozenset({"restart", "stop", "evict"})
    one.launcher.able = Capabilities(can=able, restarts_itself=True)  # type: ignore[arg-type]
    one.launcher.phase, one.launcher.attempt_age_s = "running", 60.0
    one.launcher.nodes["job"] = NODES
    return one


def restart_by_itself(one: Rig) -> None:
    """The launcher has just started all ranks again."""
    one.launcher.phase, one.launcher.attempt_age_s = "running", 0.0
    one.launcher.attempt += 1
    one.launcher.generation += 1


def pass_s(one: Rig, seconds: float) -> None:
    """Time passes for the ranks, too."""
    for _ in range(int(seconds)):
        if one.launcher.attempt_age_s is not None:
            one.launcher.attempt_age_s += 1.0
        one.tick(1.0)


def blaming(one: Rig, kind: str, node: str = "n2") -> IncidentRecord:
    return one.incident(kind=kind, severity="sev1", suspects=(Suspect(rank=2, node=node, score=1.0, reason="Xid 79"),))


def last(one: Rig) -> ActionRecord:
    return one.bus.actions()[-1]


@pytest.mark.parametrize("mode", ["observe", "auto"])
def test_nothing_is_asked_for_a_rank_that_others_go_on_without_unless_the_job_is_down(mode: str) -> None:
    one = rig(mode=mode)
    incident = msgspec.structs.replace(one.incident(kind="crash"), evidence={"renewed": True, "survived": []})
    one.tell(incident)
    pass_s(one, 60)
    assert (one.launcher.asked, one.story()) == ([], [])
    one.launcher.phase, one.launcher.attempt_age_s = "failed", None
    pass_s(one, 10)
    assert one.story()[0][0] == "i1/restart/1"


@pytest.mark.parametrize("kind", ["crash", "exception", "out_of_memory"])
def test_a_crash_that_the_launcher_has_restarted_leads_to_no_second_restart_and_that_is_said(kind: str) -> None:
    one = rig()
    incident = one.incident(kind=kind)
    restart_by_itself(one)
    one.clock.sleep(2.0)
    one.launcher.attempt_age_s = 1.0
    one.tell(incident)
    pass_s(one, 300)
    assert one.launcher.asked == []
    assert one.story() == [("i1/restart/1", "skipped")]
    assert last(one).why == "its launcher has seen to it already, all ranks were started again 1 s ago: attempt 2"


def test_a_crash_whose_restart_is_under_way_is_left_to_the_launcher() -> None:
    one = rig()
    one.launcher.phase, one.launcher.attempt_age_s = "restarting", None
    one.tell(one.incident())
    assert (last(one).outcome, last(one).why) == ("skipped", "its launcher starts all ranks again by itself")
    restart_by_itself(one)
    pass_s(one, 30)
    assert (len(one.story()), one.launcher.asked) == (1, [])


def test_a_hang_of_ranks_that_run_is_restarted_once() -> None:
    one = rig()
    one.tell(one.incident(kind="hang", onset_s=one.clock.now_s() - 20.0))
    one.launcher.attempt_age_s = 0.0
    pass_s(one, 100)
    assert one.launcher.asked == [("restart", "i1/restart/1")]
    assert one.story() == [("i1/restart/1", "started"), ("i1/restart/1", "done")]


def test_a_hang_of_an_attempt_that_is_over_is_restarted_only_if_it_lasts() -> None:
    one = rig()
    one.launcher.attempt_age_s = 5.0
    one.tell(incident := one.incident(kind="hang", onset_s=one.clock.now_s() - 20.0))
    pass_s(one, 100)
    assert one.launcher.asked == []
    assert "has seen to it already" in last(one).why
    one.tell(one.later(incident))
    pass_s(one, 30)
    assert one.launcher.asked == [("restart", "i1/restart/1")]


def test_nothing_is_asked_while_the_ranks_of_a_new_attempt_do_not_tell_since_when_they_run() -> None:
    one = rig()
    one.launcher.attempt_age_s = None
    one.tell(one.incident(kind="hang"))
    pass_s(one, 5)
    assert one.story() == []
    one.launcher.attempt_age_s = 0.5
    pass_s(one, 5)
    assert one.launcher.asked == []


def test_a_restart_that_the_launcher_was_quicker_with_is_done_by_it_and_uses_up_no_budget() -> None:
    one = rig(actions_per_hour=1)
    one.launcher.before = lambda: restart_by_itself(one)
    one.tell(one.incident(kind="hang", onset_s=one.clock.now_s() - 20.0))
    action = last(one)
    assert (action.outcome, action.plan[BY_LAUNCHER]) == ("done", "true")
    assert action.why.endswith("its launcher had started all ranks again already: attempt 2")
    assert one.launcher.done == []
    budget = Brakes(EngineSettings(mode="auto", actions_per_hour=1))
    another = msgspec.structs.replace(action, id="i2/restart/1", outcome="started", plan={})
    assert budget.hold(one.clock.now_s(), BrakeInput(action=another, actions=[action])) is None
    one.launcher.before = lambda: None
    pass_s(one, 60)
    assert len(one.launcher.asked) == 1


def test_an_eviction_for_which_the_job_has_changed_is_planned_anew() -> None:
    one = rig()

    def once() -> None:
        one.launcher.before = lambda: None
        restart_by_itself(one)

    one.launcher.before = once
    one.tell(blaming(one, "gpu_lost"))
    assert (last(one).outcome, last(one).plan[STALE]) == ("failed", "true")
    pass_s(one, 3)
    assert [operation.id for operation in one.launcher.operations] == ["i1/evict/2"]
    assert last(one).outcome == "done"


def test_a_launcher_that_calls_everything_stale_is_not_asked_for_ever() -> None:
    one = rig()
    one.launcher.generation = 4
    real = one.launcher.state
    one.launcher.state = lambda job: msgspec.structs.replace(real(job), generation=3)  # type: ignore[method-assign]
    one.tell(blaming(one, "gpu_lost"))
    pass_s(one, 100)
    assert one.launcher.asked == [("evict", "i1/evict/1")]
    assert (last(one).outcome, STALE in last(one).plan) == ("failed", False)


def test_a_lost_gpu_takes_its_node_out_though_all_were_restarted_since() -> None:
    one = rig()
    incident = blaming(one, "gpu_lost")
    one.launcher.attempt_age_s = 0.0
    one.tell(incident)
    [operation] = one.launcher.operations
    assert (operation.kind, operation.targets.nodes) == ("evict", ("n2",))


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        (NODES, "its launcher hears of n2, and decides alone about nodes that are silent"),
        (NODES[:1], "its launcher has seen to it already: it goes on without n2, or is about to"),
        (
            (NODES[0], NodeState(node="n2", state="lost", ranks=(2, 3))),
            "its launcher has seen to it already: it goes on without n2, or is about to",
        ),
        ((NODES[0], NodeState(node="n2", state="cordoned")), "n2 is set aside already"),
    ],
)
def test_a_silent_node_is_the_launchers_own_matter(nodes: tuple[NodeState, ...], said: str) -> None:
    one = rig()
    one.launcher.nodes["job"] = nodes
    one.tell(blaming(one, "node_lost"))
    pass_s(one, 30)
    assert one.launcher.asked == []
    assert (last(one).kind, last(one).outcome, last(one).why) == ("evict_node", "skipped", said)


def test_a_launcher_that_restarts_nothing_by_itself_is_asked_as_before() -> None:
    one = rig()
    one.launcher.able = Capabilities(can=one.launcher.able.can)
    one.launcher.phase, one.launcher.attempt_age_s = "failed", None
    one.tell(one.incident())
    assert one.launcher.asked == [("restart", "i1/restart/1")]
    other = rig()
    other.launcher.able = Capabilities(can=other.launcher.able.can)
    other.tell(blaming(other, "node_lost"))
    assert other.launcher.asked == [("evict", "i1/evict/1")]


# --- a node whose ranks die again and again --------------------------------------------------------------------------


def fail(one: Rig, name: str, node: str = "n2", kind: str = "crash") -> IncidentRecord:
    """A rank on `node` dies, its launcher starts all again, and detection says so two seconds later."""
    restart_by_itself(one)
    one.launcher.failures += 1
    one.tick(2.0)
    suspects = (Suspect(rank=2, node=node, score=1.0, reason="was killed"),)
    one.tell(incident := one.incident(name, kind=kind, suspects=suspects))
    pass_s(one, 10)
    return incident


def test_a_node_whose_ranks_die_again_after_two_of_the_launchers_own_restarts_is_taken_out() -> None:
    one = rig()
    for name in ("i1", "i2"):
        one.tell(one.closed(fail(one, name)))
        pass_s(one, 60)
    assert one.launcher.asked == []
    fail(one, "i3")
    assert one.launcher.asked == [("evict", "i3/evict/1")]
    evicted = last(one)
    assert (evicted.outcome, evicted.plan["nodes"], evicted.severity) == ("done", ["n2"], "sev1")
    assert evicted.after == "i2/restart/1"
    assert evicted.why.startswith("2 restarts for n2 within 600 s have not helped")


def test_it_is_taken_out_where_all_of_it_is_one_incident_and_an_engine_is_killed_meanwhile() -> None:
    one = rig()
    fail(one, "i1")
    for phase in ("restarting", "running"):
        one.launcher.phase, one.launcher.failures = phase, one.launcher.failures + 1  # type: ignore[assignment]
        one.restart_engine()
        pass_s(one, 3)
        assert one.launcher.asked == []
    pass_s(one, 5)
    assert one.launcher.asked == [("evict", "i1/evict/1")]
    told = [(action.id, action.plan["failures"]) for action in one.bus.actions() if action.outcome == "skipped"]
    assert told == [("i1/restart/1", 1), ("i1/restart/2", 2), ("i1/restart/3", 3)]


def test_one_failure_that_is_told_of_thrice_takes_nobody_out() -> None:
    one = rig()
    for place, kind in enumerate(["crash", "exception", "crash"]):
        fail(one, f"i{place}", kind=kind)
        one.launcher.failures = 1
    pass_s(one, 300)
    assert one.launcher.asked == []


@pytest.mark.parametrize("nodes", [("n2", "n1", "n2"), ("n2", "n2", "n1"), ("n1", "n2", "n1", "n2")])
def test_where_another_node_fails_in_between_none_is_taken_out(nodes: tuple[str, ...]) -> None:
    one = rig()
    for place, node in enumerate(nodes):
        one.tell(one.closed(fail(one, f"i{place}", node)))
    assert one.launcher.asked == []


def test_an_incident_that_blames_another_node_with_its_next_failure_takes_neither_out() -> None:
    one = rig()
    incident = fail(one, "i1", "n2")
    for node in ("n1", "n2"):
        one.launcher.failures += 1
        one.tick(1.0)
        suspects = (Suspect(rank=0, node=node, score=1.0, reason="was killed"),)
        one.tell(incident := one.later(incident, suspects=suspects))
        pass_s(one, 10)
    assert one.launcher.asked == []


def test_restarts_of_a_job_in_which_no_rank_has_failed_are_held_against_nobody() -> None:
    """A person, a lost node, growth: the incident is open still, and the ranks were started again."""
    one = rig()
    fail(one, "i1")
    for _ in range(4):
        restart_by_itself(one)
        pass_s(one, 20)
    assert one.launcher.asked == []


def test_failures_of_long_ago_take_nobody_out() -> None:
    one = rig()
    for name in ("i1", "i2"):
        one.tell(one.closed(fail(one, name)))
    pass_s(one, 601)
    fail(one, "i3")
    assert one.launcher.asked == []


def test_a_node_that_cannot_be_spared_is_told_of_once_and_its_launcher_goes_on() -> None:
    one = rig()
    one.launcher.able = Capabilities(can=frozenset({"restart", "stop"}), cannot={"evict": "no"}, restarts_itself=True)
    for place in range(5):
        one.tell(one.closed(fail(one, f"i{place}")))
    assert one.launcher.asked == []
    assert {action.outcome for action in one.bus.actions() if action.kind == "evict_node"} == {"skipped"}


# --- clocks apart ----------------------------------------------------------------------------------------------------


def hang(one: Rig, ahead_s: float, attempt: int | None) -> IncidentRecord:
    """A hang since 20 s, by a clock that is behind the engine's, which is `ahead_s` ahead."""
    now_s = one.clock.now_s() - ahead_s
    return one.incident(kind="hang", onset_s=now_s - 20.0, opened_at_s=now_s, updated_at_s=now_s, attempt=attempt)


AHEAD_S = (-3600.0, -60.0, -3.0, 0.0, 3.0, 60.0, 3600.0)


@pytest.mark.parametrize("ahead_s", AHEAD_S)
def test_a_hang_of_the_attempt_that_runs_is_restarted_once_whatever_the_engines_clock_says(ahead_s: float) -> None:
    one = rig(policy={"stale_s": 7200.0})
    one.launcher.attempt, one.launcher.attempt_age_s = 1, 25.0
    one.tell(hang(one, ahead_s, attempt=1))
    assert one.launcher.asked == [("restart", "i1/restart/1")]
    one.launcher.attempt_age_s, one.launcher.attempt = 0.0, 2
    pass_s(one, 100)
    assert len(one.launcher.asked) == 1


@pytest.mark.parametrize("ahead_s", AHEAD_S)
def test_a_hang_of_an_attempt_that_is_over_is_not_restarted_whatever_the_engines_clock_says(ahead_s: float) -> None:
    one = rig(policy={"stale_s": 7200.0})
    one.launcher.attempt, one.launcher.attempt_age_s = 1, 5.0
    one.tell(incident := hang(one, ahead_s, attempt=0))
    pass_s(one, 100)
    assert one.launcher.asked == []
    assert last(one).why == "its launcher has seen to it already, all ranks were started again 5 s ago: attempt 2"
    one.tell(msgspec.structs.replace(incident, revision=1, state="updated"))
    pass_s(one, 30)
    assert one.launcher.asked == [("restart", "i1/restart/1")]


@pytest.mark.parametrize("ahead_s", AHEAD_S)
def test_an_eviction_that_has_started_all_ranks_again_counts_for_another_hang_whatever_clocks_say(
    ahead_s: float,
) -> None:
    one = rig(policy={"stale_s": 7200.0}, cool_down_s=0.0)
    one.tell(blaming(one, "gpu_lost"))
    one.launcher.attempt, one.launcher.attempt_age_s = 1, 1.0
    old = msgspec.structs.replace(hang(one, ahead_s, attempt=0), id="i2")
    one.tell(old)
    pass_s(one, 100)
    assert [kind for kind, _ in one.launcher.asked] == ["evict"]


@pytest.mark.parametrize("ahead_s", AHEAD_S)
def test_a_node_that_fails_again_and_again_is_taken_out_whatever_clocks_say(ahead_s: float) -> None:
    one = rig(policy={"stale_s": 7200.0})
    for name in ("i1", "i2", "i3"):
        restart_by_itself(one)
        one.launcher.failures += 1
        one.tick(2.0)
        now_s = one.clock.now_s() - ahead_s
        suspects = (Suspect(rank=2, node="n2", score=1.0, reason="was killed"),)
        incident = one.incident(
            name, suspects=suspects, opened_at_s=now_s, updated_at_s=now_s, onset_s=now_s - 2.5, attempt=1
        )
        one.tell(incident)
        pass_s(one, 10)
        one.tell(msgspec.structs.replace(incident, state="closed", revision=1, closed_at_s=now_s + 10.0))
    assert one.launcher.asked == [("evict", "i3/evict/1")]
