"""The engine's promises: recorded before done, done once, brakes, modes, escalation, relief."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tests.doubles import metric_value
from tests.engine_doubles import Killed, Rig
from trainwarden.errors import BusUnavailable, LauncherError
from trainwarden.records import IncidentRecord
from trainwarden.topics import INCIDENTS


def slow_evidence(**more: Any) -> dict[str, Any]:
    return {
        "healthy_iteration_s": 0.3, "iteration_s": 0.6, "slow_iterations": 5, "ranks": [0, 1, 2, 3],
        "compute_s": [0.3, 0.3, 0.6, 0.3], "micro_batches": [6, 6, 6, 6], **more,
    }  # fmt: skip


def rebalanced() -> tuple[Rig, IncidentRecord]:
    """A rig whose slow rank got a new split."""
    rig = Rig()
    rig.launcher.phase = "running"
    incident = rig.incident(kind="slow_compute", evidence=slow_evidence())
    rig.tell(incident)
    assert rig.launcher.splits == [(7, 7, 3, 7)]
    return rig, incident


# --- recorded first, done once ---------------------------------------------------------------------------------------


def test_started_is_kept_before_the_launcher_is_called() -> None:
    rig = Rig()
    seen: list[list[tuple[str, str]]] = []
    rig.launcher.before = lambda: seen.append(rig.story())
    rig.tell(rig.incident())
    assert seen == [[("i1/restart/1", "started")]]
    assert rig.story() == [("i1/restart/1", "started"), ("i1/restart/1", "done")]
    first, last = rig.bus.actions()
    assert first.finished_at_s is None
    assert last.finished_at_s == 1000.0


def test_a_bus_that_is_away_stops_the_action_and_delays_it_only() -> None:
    rig = Rig()
    incident = rig.incident()
    rig.bus.away = True
    list(rig.engine.handle([]))
    rig.engine._memory.apply(incident)
    for _ in range(3):
        with pytest.raises(BusUnavailable):
            list(rig.engine.tick(rig.clock.now_s()))
    assert rig.launcher.asked == []
    rig.bus.away = False
    rig.tick()
    assert rig.launcher.asked == [("restart", "i1/restart/1")]
    # Its start is written twice: nobody knows what became of the first record.
    assert rig.story() == [("i1/restart/1", "started")] * 2 + [("i1/restart/1", "done")]


def test_repeats_and_old_revisions_change_nothing() -> None:
    rig = Rig()
    incident = rig.incident()
    rig.tell(incident)
    rig.tell(incident, rig.closed(incident), incident)
    rig.tick(100.0)
    assert rig.launcher.asked == [("restart", "i1/restart/1")]


@pytest.mark.parametrize("launcher_had_done_it", [True, False])
def test_a_start_without_an_end_is_reconciled_with_the_launcher(launcher_had_done_it: bool) -> None:
    rig = Rig()
    incident = rig.incident()
    rig.bus.publish(INCIDENTS, "job", incident)

    def die() -> None:
        if launcher_had_done_it:
            rig.launcher.done.append("i1/restart/1")
        raise Killed

    rig.launcher.before = die
    with pytest.raises(Killed):
        rig.tell(incident)
    rig.launcher.before = lambda: None
    rig.restart_engine()
    rig.tick()
    assert rig.launcher.asked == ([] if launcher_had_done_it else [("restart", "i1/restart/1")])
    assert rig.launcher.done == ["i1/restart/1"]
    assert rig.story() == [("i1/restart/1", "started"), ("i1/restart/1", "done")]


def test_a_start_whose_incident_closed_meanwhile_is_not_done_late() -> None:
    rig = Rig()
    incident = rig.incident()
    rig.launcher.before = lambda: (_ for _ in ()).throw(Killed)
    with pytest.raises(Killed):
        rig.tell(incident)
    rig.launcher.before = lambda: None
    rig.bus.publish(INCIDENTS, "job", rig.closed(incident))
    rig.bus.flush()
    rig.restart_engine()
    rig.tick()
    assert rig.launcher.asked == []
    assert rig.story()[-1] == ("i1/restart/1", "failed")


def test_an_engine_told_to_observe_does_not_finish_what_another_started() -> None:
    rig = Rig()
    rig.launcher.before = lambda: (_ for _ in ()).throw(Killed)
    with pytest.raises(Killed):
        rig.tell(rig.incident())
    rig.launcher.before = lambda: None
    rig.restart_engine(mode="observe")
    rig.tick()
    assert rig.launcher.asked == []
    assert rig.story()[-1] == ("i1/restart/1", "failed")


def test_a_restarted_engine_plans_the_same_and_does_nothing_again() -> None:
    rig, incident = rebalanced()
    for _ in range(3):
        rig.restart_engine()
        rig.tell(incident)
    assert [what for what, _ in rig.launcher.asked] == ["rebalance"]


# --- launcher trouble ------------------------------------------------------------------------------------------------


def test_a_refusal_is_a_failed_action_with_the_reason() -> None:
    rig = Rig(cool_down_s=0.0)
    rig.launcher.failing = LauncherError("no such rank")
    rig.tell(rig.incident())
    action = rig.bus.actions()[-1]
    assert (action.outcome, "no such rank" in action.why) == ("failed", True)
    assert metric_value(rig.metrics, "launcher_errors_total", kind="refused") == 1.0


def test_a_plan_for_ranks_that_are_gone_is_refused_in_one_sentence_and_not_tried_again() -> None:
    rig = Rig(cool_down_s=0.0)
    rig.launcher.phase, rig.launcher._ranks = "running", 3
    incident = rig.incident(kind="slow_compute", evidence=slow_evidence())
    rig.tell(incident)
    for _ in range(5):
        rig.tell(incident)
        rig.tick(60.0)
    assert rig.story() == [("i1/rebalance/1", "started"), ("i1/rebalance/1", "failed")]
    assert rig.bus.actions()[-1].why.endswith("the launcher refused: the counts do not fit the job")
    assert rig.launcher.splits == []


def test_an_absent_launcher_is_tried_again_until_the_deadline() -> None:
    rig = Rig(policy={"launcher_deadline_s": 10.0})
    rig.launcher.before = lambda: setattr(rig.launcher, "unreachable", True)
    rig.tell(rig.incident())
    assert rig.story() == [("i1/restart/1", "started")]
    rig.tick(5.0)
    assert rig.story() == [("i1/restart/1", "started")]
    rig.tick(6.0)
    assert rig.story()[-1] == ("i1/restart/1", "failed")


def test_an_absent_launcher_that_comes_back_does_it_once() -> None:
    rig = Rig()
    rig.launcher.before = lambda: setattr(rig.launcher, "unreachable", True)
    rig.tell(rig.incident())
    rig.launcher.before, rig.launcher.unreachable = lambda: None, False
    rig.tick(2.0)
    assert rig.launcher.done == ["i1/restart/1"]
    assert rig.story()[-1] == ("i1/restart/1", "done")


def test_no_launcher_at_all_is_said_once() -> None:
    rig = Rig()
    rig.launcher.unreachable = True
    rig.tell(rig.incident())
    for _ in range(5):
        rig.tick(30.0)
    assert rig.story() == [("i1/restart/1", "skipped")]
    assert "cannot be reached" in rig.bus.actions()[0].why


def test_a_job_that_the_launcher_does_not_know_is_said_once_in_its_words(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.launcher.job = "another"
    rig.tell(rig.incident())
    for _ in range(20):
        rig.tick(10.0)
    assert rig.story() == [("i1/restart/1", "skipped")]
    assert rig.bus.actions()[0].why == "there is no job job"
    assert len([entry for entry in caplog.records if entry.levelname == "WARNING"]) == 1


# --- modes and people ------------------------------------------------------------------------------------------------


def test_observe_proposes_once_and_touches_nothing() -> None:
    rig = Rig(mode="observe")
    crash, slow = rig.incident(), rig.incident("i2", "slow_compute", evidence=slow_evidence())
    rig.tell(crash, slow)
    rig.tell(rig.later(crash), rig.later(slow))
    rig.restart_engine()
    rig.tick(50.0)
    rig.tell(rig.command("approve", "i1/restart/1"))
    assert sorted(rig.story()) == [("i1/restart/1", "proposed"), ("i2/rebalance/1", "proposed")]
    assert rig.bus.actions()[-1].plan["micro_batches"] == [7, 7, 3, 7]
    assert rig.launcher.asked == []


def test_confirm_waits_for_a_person() -> None:
    rig = Rig(mode="confirm")
    rig.tell(rig.incident())
    rig.tick(5.0)
    assert rig.story() == [("i1/restart/1", "proposed")]
    rig.tell(rig.command("approve", "i1/restart/1"))
    assert [outcome for _, outcome in rig.story()] == ["proposed", "started", "done"]


def test_what_a_person_denies_is_not_done_and_not_asked_again() -> None:
    rig = Rig(mode="confirm")
    rig.tell(rig.incident())
    rig.tell(rig.command("deny", "i1/restart/1"))
    rig.restart_engine()
    rig.tick(100.0)
    assert [outcome for _, outcome in rig.story()] == ["proposed", "skipped"]
    assert "denied by someone" in rig.bus.actions()[-1].why
    assert rig.launcher.asked == []


def test_the_end_of_all_ranks_closes_an_incident_and_cancels_no_restart() -> None:
    """A person may approve it long after; once the job trains again, or is over, it is withdrawn."""
    rig = Rig(mode="confirm")
    rig.tell(incident := rig.incident())
    rig.clock.sleep(8.0)
    rig.tell(rig.closed(incident, unresolved=True, evidence={"closed": "all ranks have ended"}))
    rig.restart_engine()
    rig.tick(60.0)
    assert rig.story() == [("i1/restart/1", "proposed")]
    rig.tell(rig.command("approve", "i1/restart/1"))
    assert rig.launcher.asked == [("restart", "i1/restart/1")]
    assert rig.story()[-1] == ("i1/restart/1", "done")


def test_a_proposal_is_withdrawn_when_what_has_ended_all_ranks_is_resolved() -> None:
    rig = Rig(mode="confirm")
    rig.tell(incident := rig.incident())
    rig.tell(closed := rig.closed(incident, unresolved=True))
    rig.tell(rig.closed(closed, unresolved=False))
    assert rig.story() == [("i1/restart/1", "proposed"), ("i1/restart/1", "skipped")]


@pytest.mark.parametrize("mode", ["auto", "observe"])
def test_a_leak_asks_for_a_restart_once_it_has_ended_its_rank(mode: Literal["auto", "observe"]) -> None:
    rig = Rig(mode=mode)
    rig.launcher.phase = "running"
    rig.tell(leak := rig.incident(kind="memory_leak", reason="rank 2 leaks"))
    rig.tick(60.0)
    assert [name for name, _ in rig.story()] == ["i1/person/1"]
    rig.launcher.phase = "failed"
    followed = ["slow_job: steps take longer"]
    rig.tell(slow := rig.later(leak, evidence={"followed": followed}))
    rig.tick(1.0)
    assert [name for name, _ in rig.story()] == ["i1/person/1"]
    followed = [*followed, "out_of_memory: rank 2 has no memory left"]
    rig.tell(rig.later(slow, evidence={"followed": followed, "ended_at_s": slow.updated_at_s}))
    rig.tick(1.0)
    assert rig.story()[-1] == ("i1/restart/1", "done" if mode == "auto" else "proposed")


def test_a_proposal_is_withdrawn_when_its_incident_closes() -> None:
    rig = Rig(mode="confirm")
    incident = rig.incident()
    rig.tell(incident)
    rig.tell(rig.closed(incident))
    rig.tell(rig.command("approve", "i1/restart/1"))
    assert rig.story() == [("i1/restart/1", "proposed"), ("i1/restart/1", "skipped")]
    assert rig.launcher.asked == []


@pytest.mark.parametrize("job", ["job", "*"])
def test_stop_holds_everything_until_resume(job: str) -> None:
    rig = Rig()
    rig.tell(rig.command("stop", job=job))
    rig.tell(rig.incident())
    rig.tick(10.0)
    assert rig.story() == [("i1/restart/1", "skipped")]
    assert "stopped by someone" in rig.bus.actions()[0].why
    rig.restart_engine()
    rig.tick()
    assert rig.launcher.asked == []
    rig.tell(rig.command("resume", job=job))
    assert [outcome for _, outcome in rig.story()] == ["skipped", "started", "done"]


def test_the_budget_of_an_hour_holds_and_frees_itself() -> None:
    rig = Rig(actions_per_hour=1, cool_down_s=0.0)
    first = rig.incident()
    rig.tell(first)
    rig.tell(rig.closed(first))
    rig.clock.sleep(60.0)
    rig.launcher.phase = "failed"
    second = rig.incident("i2")
    rig.tell(second)
    rig.tick(60.0)
    assert rig.story()[2:] == [("i2/restart/1", "skipped")]
    assert "budget is 1" in rig.bus.actions()[-1].why
    rig.tick(3500.0)
    assert [outcome for _, outcome in rig.story()[3:]] == ["started", "done"]


# --- jobs that stopped -----------------------------------------------------------------------------------------------


def test_several_incidents_of_one_crash_lead_to_one_restart() -> None:
    rig = Rig()
    rig.tell(rig.incident("i1"), rig.incident("i2", "exception"), rig.incident("i3", "hang"))
    rig.tick(30.0)
    assert rig.launcher.asked == [("restart", "i1/restart/1")]


def test_an_exception_that_the_job_survived_is_left_alone() -> None:
    rig = Rig()
    rig.launcher.phase = "running"
    rig.tell(rig.incident(kind="exception"))
    rig.tick(30.0)
    assert rig.story() == []


def test_a_hang_is_restarted_though_every_process_lives() -> None:
    rig = Rig()
    rig.launcher.phase = "running"
    hang = rig.incident(kind="hang")
    rig.tell(hang)
    rig.tick(30.0)
    assert rig.launcher.asked == [("restart", "i1/restart/1")]
    rig.tick(120.0)  # it still hangs
    assert rig.launcher.asked[1:] == [("restart", "i1/restart/2")]


@pytest.mark.parametrize("ahead_s", [-90.0, 0.0, 90.0])
def test_which_restart_was_for_which_hang_is_told_by_no_clock(ahead_s: float) -> None:
    """Detection tells times by a clock that is so far ahead of the engine's."""
    rig = Rig()
    rig.launcher.phase = "running"
    hang = rig.incident(kind="hang", opened_at_s=rig.clock.now_s() + ahead_s)
    rig.tell(hang)
    rig.tick(30.0)
    rig.tick(30.0)
    assert len(rig.launcher.asked) == 1, "it has been restarted, and is given time"
    rig.tell(rig.later(hang, state="closed", closed_at_s=rig.clock.now_s() + ahead_s))
    rig.tick(20.0)
    rig.tell(rig.incident("i2", "hang", opened_at_s=rig.clock.now_s() + ahead_s))
    assert rig.launcher.asked[1:] == [("restart", "i2/restart/1")]


def test_a_crash_right_after_a_restart_waits_for_the_cool_down() -> None:
    rig = Rig(cool_down_s=10.0)
    rig.tell(rig.incident())
    rig.launcher.phase = "failed"
    rig.tick(5.0)
    assert len(rig.launcher.asked) == 1
    rig.tick(5.0)
    assert rig.launcher.asked[1:] == [("restart", "i1/restart/2")]


@pytest.mark.parametrize("new_incidents", [True, False])
def test_restarts_that_do_not_help_end_in_a_stop_and_a_sev1_incident(new_incidents: bool) -> None:
    rig = Rig()
    for number in range(4):
        rig.launcher.phase = "failed"
        rig.tell(rig.incident(f"i{number if new_incidents else 0}"))
        rig.tick(15.0)
    assert [what for what, _ in rig.launcher.asked] == ["restart"] * 3 + ["stop"]
    rig.tick(300.0)
    assert len(rig.launcher.asked) == 4
    told = [message.record for message in rig.bus.read(INCIDENTS)]
    loops = [r for r in told if isinstance(r, IncidentRecord) and r.kind == "restart_loop"]
    assert [(loop.severity, loop.state) for loop in loops] == [("sev1", "opened")]


def test_failures_far_apart_are_no_loop() -> None:
    rig = Rig()
    for number in range(6):
        rig.launcher.phase = "failed"
        incident = rig.incident(f"i{number}")
        rig.tell(incident)
        rig.tell(rig.closed(incident))
        rig.clock.sleep(700.0)
    assert [what for what, _ in rig.launcher.asked] == ["restart"] * 6


def test_a_mistake_in_the_users_code_ends_the_job_at_once() -> None:
    rig = Rig()
    rig.tell(rig.incident(kind="user_error"))
    assert rig.launcher.asked == [("stop", "i1/stop/1")]


@pytest.mark.parametrize(
    ("kind", "action"), [("gpu_lost", "evict_node"), ("metric_anomaly", "validate"), ("log_storm", "ignore")]
)
def test_what_needs_a_person_is_said_once(kind: str, action: str) -> None:
    rig = Rig()
    incident = rig.incident(kind=kind)
    rig.tell(incident)
    rig.tell(rig.later(incident))
    rig.restart_engine()
    rig.tick(10.0)
    (record,) = rig.bus.actions()
    assert (record.kind, record.outcome) == (action, "skipped")
    assert "person" in record.why


# --- slow ranks ------------------------------------------------------------------------------------------------------


def test_a_slow_rank_is_left_alone_until_it_has_cost_as_much_as_a_rebalance() -> None:
    rig = Rig({"slow_compute": [{"action": "rebalance", "overhead_s": 1.0}]})
    rig.launcher.phase = "running"
    incident = rig.incident(kind="slow_compute", evidence=slow_evidence(slow_iterations=3))  # 0.9 s
    rig.tell(incident)
    assert rig.story() == []
    rig.tell(rig.later(incident, evidence=slow_evidence(slow_iterations=4)))
    assert rig.launcher.splits == [(7, 7, 3, 7)]


def test_the_split_of_the_launcher_is_used_where_evidence_has_none() -> None:
    rig = Rig()
    rig.launcher.phase, rig.launcher.micro_batches = "running", (6, 6, 6, 6)
    rig.tell(rig.incident(kind="slow_compute", evidence=slow_evidence(micro_batches=None)))
    assert rig.launcher.splits == [(7, 7, 3, 7)]


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        ({"micro_batches": None}, "number of micro-batches"),
        ({"compute_s": [0.3, None, 0.6, 0.3]}, "compute time of rank 1"),
        ({"ranks": [0, 1, 2]}, "not known of every rank"),
        ({"micro_batches": [1, 1, 1, 1]}, "no split"),
        ({"layout": {"world_size": 4, "uneven": ["ZeRO-2: so"]}}, "wrong here: ZeRO-2"),
        ({"layout": {"world_size": 4, "sizes": {"tp": 2}}}, "not known whole"),
    ],
)
def test_a_rebalance_that_cannot_be_planned_is_skipped_with_the_reason(evidence: dict[str, Any], why: str) -> None:
    rig = Rig()
    rig.launcher.phase = "running"
    incident = rig.incident(kind="slow_compute", evidence=slow_evidence(**evidence))
    rig.tell(incident)
    rig.tell(rig.later(incident))
    (action,) = rig.bus.actions()
    assert action.outcome == "skipped"
    assert why in action.why
    rig.tell(rig.later(rig.later(incident), evidence=slow_evidence(slow_iterations=9)))  # now it is known
    assert rig.launcher.splits == [(7, 7, 3, 7)]


def test_a_split_in_force_is_tuned_only_by_measurements_made_under_it() -> None:
    rig, incident = rebalanced()
    stale = slow_evidence(slow_iterations=6)
    rig.tell(incident := rig.later(incident, evidence=stale))
    rig.tick(60.0)
    assert len(rig.launcher.splits) == 1
    worse = slow_evidence(slow_iterations=40, compute_s=[0.35, 0.35, 0.9, 0.35], micro_batches=[7, 7, 3, 7])
    rig.tell(rig.later(incident, evidence=worse))
    assert len(rig.launcher.splits) == 2
    assert rig.launcher.splits[1][2] < 3


@pytest.mark.parametrize("off_s", [-200.0, 0.0, 90.0])
def test_which_measurements_were_made_under_a_split_is_told_by_no_clock(off_s: float) -> None:
    rig = Rig()
    rig.launcher.phase, rig.adopting = "running", False
    rig.tell(incident := rig.incident(kind="slow_compute", evidence=slow_evidence()))
    rig.clock.sleep(10.0)
    before = slow_evidence(slow_iterations=30, compute_s=[0.3, 0.3, 0.9, 0.3])
    rig.tell(incident := rig.later(incident, evidence=before, updated_at_s=rig.clock.now_s() + off_s))
    rig.adopt(0, 1, 2, 3)
    for _ in range(3):
        rig.tick(60.0)
    assert rig.launcher.splits == [(7, 7, 3, 7)]
    under = slow_evidence(slow_iterations=60, compute_s=[0.35, 0.35, 0.9, 0.35], micro_batches=[7, 7, 3, 7])
    rig.tell(rig.later(incident, evidence=under, updated_at_s=rig.clock.now_s() + off_s))
    assert len(rig.launcher.splits) == 2


def test_restart_is_the_last_rung_and_costs_its_overhead_first() -> None:
    rig, incident = rebalanced()
    still = {"compute_s": [0.35, 0.35, 0.3, 0.35], "micro_batches": [7, 7, 3, 7], "iteration_s": 0.4}
    rig.clock.sleep(60.0)
    rig.tell(incident := rig.later(incident, evidence=slow_evidence(slow_iterations=5000, **still)))
    assert [what for what, _ in rig.launcher.asked] == ["rebalance"]
    rig.clock.sleep(600.0)
    rig.tell(rig.later(incident, evidence=slow_evidence(slow_iterations=6100, **still)))
    rig.tick()
    rig.tick()
    assert rig.launcher.asked[1:] == [("restart", "i1/restart/1")]
    skipped = next(action for action in rig.bus.actions() if action.kind == "checkpoint_job")
    assert (skipped.outcome, skipped.why) == ("skipped", "this launcher does not offer checkpoint")


def test_relief_brings_the_even_split_back_once() -> None:
    rig, incident = rebalanced()
    rig.clock.sleep(60.0)
    healthy = slow_evidence(compute_s=[0.35, 0.35, 0.15, 0.35], micro_batches=[7, 7, 3, 7], iteration_s=0.36)
    closed = rig.closed(incident, evidence=healthy)
    rig.tell(closed)
    rig.restart_engine()
    rig.tell(closed)
    rig.tick(100.0)
    assert rig.launcher.splits == [(7, 7, 3, 7), (6, 6, 6, 6)]


def test_replicas_of_several_ranks_are_split_and_brought_back_together() -> None:
    pairs = {"world_size": 4, "sizes": {"tp": 2, "cp": 1, "dp": 2, "pp": 1}, "sources": ["settings"]}
    rig = Rig()
    rig.launcher.phase = "running"
    incident = rig.incident(kind="slow_compute", evidence=slow_evidence(layout=pairs))
    rig.tell(incident)
    assert rig.launcher.splits == [(8, 8, 4, 4)]
    rig.clock.sleep(60.0)
    healthy = slow_evidence(compute_s=[0.4, 0.4, 0.2, 0.2], micro_batches=[8, 8, 4, 4], iteration_s=0.36, layout=pairs)
    rig.tell(rig.closed(incident, evidence=healthy))
    rig.tick(100.0)
    assert rig.launcher.splits == [(8, 8, 4, 4), (6, 6, 6, 6)]


def test_an_incident_that_closed_only_because_the_split_works_keeps_the_split() -> None:
    rig, incident = rebalanced()
    rig.clock.sleep(60.0)
    same = slow_evidence(compute_s=[0.35, 0.35, 0.3, 0.35], micro_batches=[7, 7, 3, 7], iteration_s=0.36)
    rig.tell(rig.closed(incident, evidence=same))
    rig.tick(100.0)
    assert rig.launcher.splits == [(7, 7, 3, 7)]


def test_a_closing_that_only_repeats_old_evidence_is_believed() -> None:
    rig, incident = rebalanced()
    rig.clock.sleep(60.0)
    rig.tell(rig.closed(incident))
    assert rig.launcher.splits == [(7, 7, 3, 7), (6, 6, 6, 6)]


def test_damaged_evidence_is_no_reason_to_act_or_to_fall_over() -> None:
    rig = Rig()
    rig.launcher.phase = "running"
    rig.tell(rig.incident(kind="slow_compute", evidence={"iteration_s": "soon", "ranks": 7}))
    rig.tick(10.0)
    assert rig.story() == []


def test_an_old_incident_nobody_closed_is_left_alone() -> None:
    rig = Rig()
    incident = rig.incident()
    rig.clock.sleep(7200.0)
    rig.tell(incident)
    assert rig.story() == []


def test_another_jobs_incidents_are_not_this_launchers() -> None:
    rig = Rig()
    rig.engine._job = "another"
    rig.tell(rig.incident())
    assert rig.story() == []


def test_two_slow_ranks_keep_the_split_until_both_have_recovered() -> None:
    rig, incident = rebalanced()
    other = rig.incident("i2", "slow_compute", evidence=slow_evidence(slow_iterations=0))
    rig.tell(other)
    rig.clock.sleep(60.0)
    rig.tell(rig.closed(incident, evidence={}))
    rig.tick(60.0)
    assert len(rig.launcher.splits) == 1
    rig.tell(rig.closed(other))
    assert rig.launcher.splits[1:] == [(6, 6, 6, 6)]


def test_a_crash_need_not_wait_for_a_rebalance_to_settle() -> None:
    rig, _ = rebalanced()
    rig.launcher.phase = "failed"
    rig.tell(rig.incident("i2"))
    assert rig.launcher.asked[1:] == [("restart", "i2/restart/1")]


def test_a_rebalance_waits_for_a_restart_to_settle() -> None:
    rig = Rig(cool_down_s=10.0)
    rig.tell(rig.incident())
    rig.tell(rig.incident("i2", "slow_compute", evidence=slow_evidence()))
    assert rig.launcher.splits == []
    rig.tick(10.0)
    assert rig.launcher.splits == [(7, 7, 3, 7)]


def test_an_incident_reopened_by_an_old_revision_stays_closed() -> None:
    rig = Rig(mode="confirm")
    incident = rig.incident()
    rig.tell(incident)
    rig.tell(rig.closed(incident))
    rig.clock.sleep(1.0)
    rig.tell(rig.later(incident, revision=0))
    assert not rig.engine._memory.cases["i1"].wants_action


def test_an_action_that_ended_cannot_start_again_by_a_late_record() -> None:
    rig = Rig()
    incident = rig.incident()
    rig.tell(incident)
    started = rig.bus.actions()[0]
    rig.tell(started, rig.closed(incident))  # a zombie's flush came late
    rig.restart_engine()
    rig.tick(1.0)
    assert rig.launcher.asked == [("restart", "i1/restart/1")]
    assert rig.story()[-1] == ("i1/restart/1", "started")


def test_what_was_decided_but_not_yet_kept_survives_a_change_of_partitions() -> None:
    rig = Rig(mode="observe")
    incident = rig.incident()
    rig.bus.publish(INCIDENTS, "job", incident)
    rig.bus.flush()
    rig.engine._memory.apply(incident)
    rig.engine._plan(rig.engine._memory.cases["i1"], 1000.0)  # decided, then the round failed
    rig.share_out(frozenset({0}))
    rig.tick()
    assert rig.story() == [("i1/restart/1", "proposed")]


def test_a_job_that_ended_after_its_restart_needs_no_second_word() -> None:
    rig = Rig()
    rig.tell(rig.incident())
    assert rig.story()[-1] == ("i1/restart/1", "done")
    rig.launcher.phase = "ended"
    rig.tick(30.0)
    assert [name for name, _ in rig.story()] == ["i1/restart/1", "i1/restart/1"]


def test_a_job_that_was_over_before_any_restart_is_said_to_be() -> None:
    rig = Rig()
    rig.launcher.phase = "ended"
    rig.tell(rig.incident())
    assert rig.story() == [("i1/restart/1", "skipped")]
