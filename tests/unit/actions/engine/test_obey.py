"""Several engines, a person's stop, approvals, brakes: nothing runs that was not approved, nothing after a stop."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.doubles import metric_value
from tests.engine_doubles import MemoryConsumer, Rig
from tests.unit.actions.engine.test_handler import slow_evidence
from trainwarden.actions.brakes.history import UNDONE, took_effect
from trainwarden.actions.remedies.engine_state import EngineState, with_outcome
from trainwarden.errors import LauncherError
from trainwarden.launching import LauncherState
from trainwarden.records import ActionRecord, IncidentRecord
from trainwarden.service_loop import shortened
from trainwarden.topics import ACTIONS, COMMANDS, INCIDENTS, MAX_RECORD_BYTES

# --- several engines -------------------------------------------------------------------------------------------------


def test_an_engine_that_lost_a_partition_does_nothing_about_its_incidents() -> None:
    rig = Rig()
    rig.bus.publish(INCIDENTS, "job", rig.incident())
    rig.bus.flush()
    rig.share_out(frozenset({1}))
    rig.tick(100.0)
    assert (rig.story(), rig.launcher.asked) == ([], [])
    rig.share_out(frozenset({0, 1}))
    rig.tick()
    assert rig.launcher.asked == [("restart", "i1/restart/1")]


def test_what_another_member_has_started_is_left_to_it() -> None:
    first = Rig()
    first.launcher.slow = True
    first.tell(first.incident())
    assert first.story() == [("i1/restart/1", "started")]
    second = Rig()
    second.bus, second.launcher, second.clock = first.bus, first.launcher, first.clock
    second.restart_engine()
    second.share_out(frozenset({1}))
    second.tick(100.0)
    assert second.story() == [("i1/restart/1", "started")]
    assert first.launcher.asked == [("restart", "i1/restart/1")]


def test_what_another_engine_does_to_the_job_is_heard_and_waited_for() -> None:
    rig = Rig()
    at_s = rig.clock.now_s()
    other = ActionRecord(
        id="i0/restart/1", incident="i0", job="job", kind="restart_job", outcome="started", at_s=at_s, why="of another"
    )
    rig.tell(other)
    rig.tell(rig.incident())
    rig.tick(30.0)
    assert rig.launcher.asked == []
    rig.tell(with_outcome(other, "done", at_s + 30.0))
    rig.tick(60.0)
    assert rig.launcher.asked == [("restart", "i1/restart/1")]


def test_what_other_engines_did_is_forgotten_in_time() -> None:
    rig = Rig()
    other = ActionRecord(
        id="i0/restart/1",
        incident="i0",
        job="other",
        kind="restart_job",
        outcome="done",
        at_s=rig.clock.now_s(),
        why="it",
    )
    rig.tell(other, rig.command("approve", "i0/restart/1"), rig.incident())
    rig.tick(1.0)
    memory = rig.engine._memory
    assert set(memory.actions) == {"i0/restart/1", "i1/restart/1"}
    rig.tick(8 * 86_400.0)
    assert set(memory.actions) == {"i1/restart/1"}, "its incident lasts"
    assert not memory.approved


def test_what_is_said_between_a_plan_and_its_call_is_heard_first() -> None:
    rig = Rig()
    state, said = rig.launcher.state, []

    def say_stop(job: str) -> LauncherState:
        if not said:  # a person says stop while the launcher is asked how the job is
            said.append(rig.command("stop", job="*"))
            rig.bus.publish(COMMANDS, "*", said[0])
            rig.bus.flush()
        return state(job)

    rig.launcher.state = say_stop  # type: ignore[method-assign]
    rig.tell(rig.incident())
    rig.tick(1.0)
    assert rig.launcher.asked == []
    assert rig.story() == [("i1/restart/1", "skipped")]


def test_an_engine_that_hears_nobody_does_nothing() -> None:
    rig = Rig()
    rig.bus.deaf = True
    rig.restart_engine()
    rig.share_out(frozenset({0}))
    rig.bus.publish(INCIDENTS, "job", rig.incident())
    rig.bus.flush()
    rig.engine.handle(MemoryConsumer(rig.bus, (INCIDENTS,)).poll(0.0))
    rig.engine._memory.apply(rig.incident())
    rig.tick(10.0)
    assert (rig.story(), rig.launcher.asked) == ([], [])
    rig.bus.deaf = False
    rig.tick()
    assert rig.launcher.asked == [("restart", "i1/restart/1")]


# --- stop ------------------------------------------------------------------------------------------------------------


def test_a_stop_is_kept_until_it_is_lifted_however_long_ago_it_was_said() -> None:
    rig = Rig()
    rig.tell(rig.command("stop", job="*"))
    rig.clock.sleep(60 * 86_400.0)
    rig.restart_engine()
    rig.tell(rig.incident())
    assert rig.launcher.asked == []
    assert rig.bus.actions()[-1].plan["held"] == "stop"


@pytest.mark.parametrize("job", ["job", "*"])
def test_a_stop_by_nobody_is_a_stop(job: str) -> None:
    rig = Rig()
    rig.tell(msgspec.structs.replace(rig.command("stop", job=job), by=""))
    rig.tell(rig.incident())
    assert rig.launcher.asked == []
    rig.tell(msgspec.structs.replace(rig.command("resume", job=job), by=""))
    assert rig.launcher.asked == [("restart", "i1/restart/1")]


def test_the_last_word_on_the_bus_counts_whatever_the_clocks_say() -> None:
    rig = Rig()
    early, late = rig.command("stop", job="*"), rig.command("resume", job="*")
    rig.tell(late)  # of a clock that is ahead
    rig.tell(msgspec.structs.replace(early, at_s=early.at_s - 3600.0))
    rig.tell(rig.incident())
    assert rig.launcher.asked == []


def test_what_is_started_but_not_yet_heard_of_is_stopped_too() -> None:
    rig = Rig()
    rig.launcher.unreachable = True
    rig.launcher.state = lambda job: LauncherState(job=job, phase="failed", generation=1)  # type: ignore[method-assign]
    rig.tell(rig.incident())
    assert rig.story() == [("i1/restart/1", "started")]
    rig.tell(rig.command("stop", job="*"))
    rig.launcher.unreachable = False
    rig.tick(5.0)
    assert rig.launcher.asked == []
    assert rig.story()[-1][1] == "failed"
    assert "stopped by someone" in rig.bus.actions()[-1].why


def test_a_restart_that_a_brake_held_back_is_done_when_the_brake_goes_off_even_hours_later() -> None:
    rig = Rig()
    rig.tell(rig.command("stop", job="*"))
    rig.tell(rig.incident())
    rig.tick(5 * 3600.0)
    rig.tell(rig.command("resume", job="*"))
    assert rig.launcher.asked == [("restart", "i1/restart/1")]


def test_a_clock_that_stands_an_hour_ahead_for_a_round_frees_no_budget() -> None:
    rig = Rig(actions_per_hour=1, cool_down_s=0.0)
    rig.tell(rig.incident("i1"))
    rig.clock.sleep(10.0)
    rig.launcher.phase, rig.clock.ahead_s = "failed", 3700.0
    rig.tell(msgspec.structs.replace(rig.incident("i2"), opened_at_s=1010.0, updated_at_s=1010.0))
    assert rig.launcher.asked == [("restart", "i1/restart/1")]
    rig.clock.ahead_s = 0.0
    rig.tick(3700.0)
    assert len(rig.launcher.asked) == 2


def test_a_job_that_flaps_uses_up_no_other_jobs_budget() -> None:
    rig = Rig(actions_per_hour=2, cool_down_s=0.0)
    for number in range(3):
        rig.launcher.phase = "failed"
        rig.tell(rig.incident(f"i{number}"))
    assert [outcome for _, outcome in rig.story()].count("done") == 2
    rig.launcher.phase = "failed"
    rig.tell(msgspec.structs.replace(rig.incident("j1"), job="another"))
    assert rig.launcher.asked[-1] == ("restart", "j1/restart/1")


def test_a_word_that_is_read_again_does_not_undo_a_later_one() -> None:
    rig = Rig()
    stop, resume = rig.command("stop"), rig.command("resume")
    rig.engine._memory.apply(resume, 3)
    rig.engine._memory.apply(stop, 4)
    rig.engine._memory.apply(resume, 3)
    assert rig.engine._memory.stopped_by("job") == "someone"


# --- what runs is what was approved ----------------------------------------------------------------------------------


def proposed(**settings: Any) -> tuple[Rig, IncidentRecord]:
    """A rig that has shown a person the split (7, 7, 3, 7)."""
    rig = Rig(mode="confirm", **settings)
    rig.launcher.phase = "running"
    incident = rig.incident(kind="slow_compute", evidence=slow_evidence())
    rig.tell(incident)
    assert rig.bus.actions()[-1].plan["micro_batches"] == [7, 7, 3, 7]
    return rig, incident


def test_the_plan_that_was_approved_is_carried_out_although_a_better_one_is_known() -> None:
    rig, incident = proposed()
    word = rig.command("approve", "i1/rebalance/1")
    rig.tell(rig.later(incident, evidence=slow_evidence(compute_s=[0.6, 0.3, 0.3, 0.3], slow_iterations=9)))
    rig.tell(word)
    assert rig.launcher.splits == [(7, 7, 3, 7)]
    assert rig.bus.actions()[-1].by == "someone"


def test_a_plan_that_has_stood_is_replaced_and_asked_about_again() -> None:
    rig, incident = proposed()
    old = rig.command("approve", "i1/rebalance/1")
    rig.clock.sleep(120.0)
    rig.tell(rig.later(incident, evidence=slow_evidence(compute_s=[0.6, 0.3, 0.3, 0.3], slow_iterations=9)))
    assert rig.bus.actions()[-1].plan["micro_batches"] == [3, 7, 7, 7]
    rig.tell(old)
    assert rig.launcher.splits == []
    rig.tell(rig.command("approve", "i1/rebalance/1"))
    assert rig.launcher.splits == [(3, 7, 7, 7)]


def test_an_approval_ends_with_the_state_from_which_its_plan_was_made() -> None:
    rig, _ = proposed()
    word = rig.command("approve", "i1/rebalance/1")
    rig.launcher.generation += 1  # somebody else has acted on the job
    rig.tick(1.0)
    rig.tell(word)
    assert rig.launcher.splits == []
    rig.tell(rig.command("approve", "i1/rebalance/1"))
    assert rig.launcher.splits == [(7, 7, 3, 7)]


def test_an_approval_that_comes_twice_is_carried_out_once_and_an_old_one_approves_no_later_plan() -> None:
    """On a bus without signatures as well: a word is of one action, one plan and one state of the job."""
    rig, incident = proposed()
    old = rig.command("approve", "i1/rebalance/1")
    rig.launcher.generation += 1  # somebody else has acted on the job
    rig.tick(1.0)
    for _ in range(3):
        rig.tell(old)
    assert rig.launcher.splits == []
    word = rig.command("approve", "i1/rebalance/1")
    rig.tell(word)
    for one in (word, old, word):
        rig.tell(one)
        rig.restart_engine()
        rig.tick(1.0)
    assert rig.launcher.splits == [(7, 7, 3, 7)]
    rig.tell(rig.closed(incident))
    rig.tell(rig.incident("i2", kind="slow_compute", evidence=slow_evidence()))
    rig.tell(word, old)
    rig.tick(600.0)
    rig.restart_engine()
    rig.tick(1.0)
    assert rig.launcher.splits == [(7, 7, 3, 7)]


@pytest.mark.parametrize("plan", [{}, {"micro_batches": "no numbers"}, {"nodes": 5}])
def test_a_record_whose_plan_is_not_what_its_digest_says_is_shown_anew(plan: dict[str, Any]) -> None:
    rig, _ = proposed()
    kept = rig.bus.kept[ACTIONS.name]
    cut = msgspec.structs.replace(rig.bus.actions()[-1], plan=plan)  # as the service loop shortens what is too large
    kept[-1] = msgspec.structs.replace(kept[-1], record=cut)
    rig.restart_engine()
    rig.tell(rig.command("approve", "i1/rebalance/1"))
    rig.tick(1.0)
    assert rig.launcher.splits == [(7, 7, 3, 7)]


def test_an_approval_that_names_no_plan_approves_nothing() -> None:
    rig, _ = proposed()
    rig.tell(msgspec.structs.replace(rig.command("approve", "i1/rebalance/1"), plan_digest=None))
    assert rig.launcher.splits == []


def test_a_launcher_that_breaks_ends_no_engine() -> None:
    rig = Rig()
    rig.launcher.before = lambda: (_ for _ in ()).throw(KeyError("its own mistake"))
    rig.tell(rig.incident())
    rig.tick(1.0)
    assert rig.story() == [("i1/restart/1", "started")]
    assert metric_value(rig.metrics, "launcher_errors_total", kind="broken") > 0
    rig.tick(120.0)
    assert rig.story()[-1] == ("i1/restart/1", "failed")
    assert "KeyError" in rig.bus.actions()[-1].why


@pytest.mark.parametrize("most_bytes", [100, 250])
def test_what_the_bus_takes_no_record_of_is_not_begun_and_breaks_no_engine(most_bytes: int) -> None:
    rig = Rig()
    rig.bus.most_bytes = most_bytes
    rig.tell(rig.incident())
    rig.tick(10.0)
    known = rig.engine._memory.actions["i1/restart/1"]
    assert (rig.launcher.asked, known.outcome, took_effect(known)) == ([], "failed", False)
    rig.bus.most_bytes = MAX_RECORD_BYTES
    rig.tick(60.0)
    assert rig.story() == [("i1/restart/3", "started"), ("i1/restart/3", "done")]


def test_an_end_that_was_shortened_has_the_plan_of_its_start() -> None:
    memory = EngineState(lambda kind: None)  # type: ignore[arg-type, return-value]
    started = ActionRecord(
        id="a", incident="i", job="job", kind="evict_node", outcome="started", at_s=1.0, why="", plan={"nodes": ["n1"]}
    )
    memory.apply(started)
    memory.apply(msgspec.structs.replace(started, outcome="done", plan={}, finished_at_s=2.0))
    assert (memory.actions["a"].outcome, memory.actions["a"].plan) == ("done", {"nodes": ["n1"]})


def test_an_end_that_was_shortened_still_says_that_nothing_was_done() -> None:
    """A restart that the launcher had refused counted as one in vain for an engine that read of it."""
    memory, long = EngineState(lambda kind: None), "n" * 40  # type: ignore[arg-type, return-value]
    started = ActionRecord(
        id="a", incident="i", job="job", kind="restart_process", outcome="started", at_s=1.0, why="", plan={"why": long}
    )
    memory.apply(started)
    ended = msgspec.structs.replace(started, outcome="failed", plan={"why": long, UNDONE: "true"}, finished_at_s=2.0)
    shorter = shortened(ended)
    assert shorter.plan == {UNDONE: "true"}
    assert shortened(shorter).plan == shortened(shortened(shorter)).plan == {}
    wordy = msgspec.structs.replace(shorter, why="w" * 99)
    assert shortened(wordy) == msgspec.structs.replace(shorter, why="w" * 64)
    memory.apply(shorter)
    assert memory.actions["a"] == ended


def test_a_relief_that_failed_is_tried_again() -> None:
    rig = Rig(cool_down_s=0.0)
    rig.launcher.phase = "running"
    incident = rig.incident(kind="slow_compute", evidence=slow_evidence())
    rig.tell(incident)
    rig.launcher.failing = LauncherError("a rank is not there")
    rig.tell(rig.closed(incident))
    assert rig.story()[-1] == ("i1/relief/1", "failed")
    rig.launcher.failing = None
    rig.tick(30.0)
    assert rig.story()[-1] == ("i1/relief/2", "done")
    assert rig.launcher.splits[-1] == (6, 6, 6, 6)


def test_an_engine_whose_reader_was_put_out_does_nothing_until_it_has_read_what_it_missed() -> None:
    rig = Rig()
    rig.tick()
    rig.bus.deaf = True
    rig.bus.publish(COMMANDS, "*", rig.command("stop", job="*"))
    rig.bus.publish(INCIDENTS, "job", rig.incident())
    rig.bus.flush()
    rig.engine._memory.apply(rig.incident())
    rig.tick(1.0)
    assert (rig.story(), rig.launcher.asked) == ([], [])
    rig.bus.deaf = False
    rig.tick(1.0)
    assert (rig.story(), rig.launcher.asked) == ([("i1/restart/1", "skipped")], [])


def test_an_incident_that_breaks_planning_holds_up_no_other() -> None:
    rig = Rig()
    rig.launcher.phase = "running"
    incident = rig.incident(kind="slow_compute", evidence=slow_evidence())
    rig.tell(incident)
    done = rig.bus.actions()[-1]
    rig.clock.sleep(500.0)
    rig.tell(msgspec.structs.replace(done, plan={"odd": 1}, at_s=rig.clock.now_s()))  # written by others
    rig.tell(rig.closed(incident))
    rig.launcher.phase = "failed"
    rig.tell(msgspec.structs.replace(rig.incident("j1"), job="another"))
    assert rig.launcher.asked[-1] == ("restart", "j1/restart/1")
    assert metric_value(rig.metrics, "errors_total", kind="KeyError") > 0
