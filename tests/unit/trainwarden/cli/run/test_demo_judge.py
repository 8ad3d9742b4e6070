"""The demo's judgement can say no: each way of going wrong is noticed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trainwarden.cli.run.demo_fault import Fault
from trainwarden.cli.run.demo_judge import judge
from trainwarden.cli.run.demo_plan import DemoPlan
from trainwarden.cli.run.job_run import JobRun
from trainwarden.cli.shared.follow import JobView
from trainwarden.records import ActionRecord, EventRecord, IncidentKind, IncidentRecord, IterationRecord, Suspect


def plan(fault: str = "slow-rank", **changes: Any) -> DemoPlan:
    values: dict[str, Any] = {
        "fault": fault, "rank": 2, "slowdown": 2.0, "at_step": 30, "ranks": 4, "seed": 0, "steps": 60, "mode": "auto",
    }  # fmt: skip
    return DemoPlan(**{**values, **changes})


def iterations(first: int, last: int, seconds: float) -> list[IterationRecord]:
    steps = tuple(range(first, last + 1))
    return [
        IterationRecord(
            job="j", node="n", rank=rank, incarnation="1-1", steps=steps,
            end_s=tuple(1000.0 + step for step in steps), duration_s=tuple(seconds for _ in steps),
        )
        for rank in range(4)
    ]  # fmt: skip


def slow_rank_view(rank: int = 2, outcome: str = "done") -> JobView:
    view = JobView("j")
    for record in [*iterations(0, 30, 0.4), *iterations(31, 40, 0.8), *iterations(41, 59, 0.45)]:
        view.feed(record)
    suspect = Suspect(score=0.9, reason="computes longest", rank=rank, node="n")
    view.feed(
        IncidentRecord(
            id="i1", job="j", kind="slow_compute", severity="sev3", state="opened", revision=0, opened_at_s=1033.0,
            updated_at_s=1033.0, opened_step=33, reason="rank is slow", suspects=(suspect,),
        )
    )  # fmt: skip
    view.feed(
        ActionRecord(
            id="a1", incident="i1", job="j", kind="rebalance", outcome=cast(Any, outcome), at_s=1034.0, why="cheapest"
        )
    )
    view.feed(EventRecord(id="m", job="j", node="n", time_s=1040.0, kind="microbatch_plan", fields={"step": 40}))
    return view


def fault_of(kind: str, tmp_path: Path) -> Fault:
    fault = Fault(kind, 2, 2.0, tmp_path, tmp_path / "fault.json")
    if kind != "none":
        fault.injected_at_s, fault.injected_at_step = 1030.0, 30
    return fault


def judged(the_plan: DemoPlan, view: JobView, tmp_path: Path, code: int | None = 0) -> dict[str, Any]:
    settings = SimpleNamespace(job="j")
    run = SimpleNamespace(
        follower=SimpleNamespace(view=view), settings=settings, run_dir=tmp_path, bus_address="embedded:x"
    )
    return judge(the_plan, fault_of(the_plan.fault, tmp_path), cast(JobRun, run), code)


def test_a_good_run_is_ok_with_its_numbers(tmp_path: Path) -> None:
    result = judged(plan(), slow_rank_view(), tmp_path)
    assert result["ok"], result["why_not"]
    assert result["iteration_s"] == {"healthy": 0.4, "slow": 0.8, "after_action": 0.45}
    assert result["slowdown_removed_ratio"] == pytest.approx(0.875)
    assert result["incidents"][0]["opened_after_s"] == 3.0
    assert result["incidents"][0]["opened_after_iterations"] == 3
    assert result["actions"][0]["started_after_s"] == 4.0


@pytest.mark.parametrize(
    ("view", "code", "sentence"),
    [
        (slow_rank_view(rank=1), 0, "tell of nothing that happened"),
        (slow_rank_view(outcome="failed"), 0, "no rebalance was done"),
        (slow_rank_view(), 1, "exit code 1"),
        (slow_rank_view(), None, "the job was not done within 170 s, so it was ended"),
        (JobView("j"), 0, "was not found"),
    ],
)
def test_what_went_wrong_is_said(view: JobView, code: int | None, sentence: str, tmp_path: Path) -> None:
    result = judged(plan(), view, tmp_path, code)
    assert not result["ok"]
    assert sentence in result["why_not"]


def test_silence_is_right_without_a_fault_and_an_incident_is_not(tmp_path: Path) -> None:
    quiet = JobView("j")
    for record in iterations(0, 59, 0.4):
        quiet.feed(record)
    assert judged(plan("none"), quiet, tmp_path)["ok"]
    assert judged(plan("none"), slow_rank_view(), tmp_path)["false_alarms"] == 1


@pytest.mark.parametrize("kind", ["slow_job", "slow_compute", "host_contention"])
@pytest.mark.parametrize(("metrics", "false_alarms"), [((), 1), (("rank_run_queue_wait_ratio",), 0)])
def test_what_a_busy_machine_explains_is_told_and_no_false_alarm(
    kind: IncidentKind, metrics: tuple[str, ...], false_alarms: int, tmp_path: Path
) -> None:
    view = slow_rank_view()
    view.feed(
        IncidentRecord(
            id="i2", job="j", kind=kind, severity="sev3", state="opened", revision=0, opened_at_s=1050.0,
            updated_at_s=1050.0, opened_step=50, reason="steps take longer", metrics=metrics,
        )
    )  # fmt: skip
    result = judged(plan(), view, tmp_path)
    assert (len(result["incidents"]), result["false_alarms"], result["ok"]) == (2, false_alarms, not false_alarms)
    assert "steps take longer" in judged(plan("none"), view, tmp_path)["summary"]


@pytest.mark.parametrize(("slow_s", "false_alarms"), [(0.46, 0), (0.42, 1)])
def test_a_slow_job_is_no_false_alarm_where_its_steps_were_slow(
    slow_s: float, false_alarms: int, tmp_path: Path
) -> None:
    view = JobView("j")
    for record in [*iterations(0, 39, 0.4), *iterations(40, 47, slow_s), *iterations(48, 64, 0.4)]:
        view.feed(record)
    view.feed(
        IncidentRecord(
            id="i2", job="j", kind="slow_job", severity="sev3", state="closed", revision=1, opened_at_s=1045.0,
            updated_at_s=1064.0, closed_at_s=1064.0, onset_step=40, opened_step=45, reason="steps take longer",
        )
    )  # fmt: skip
    assert judged(plan("none"), view, tmp_path)["false_alarms"] == false_alarms


def test_the_loss_is_read_from_step_lines_alone(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rank-0.log"
    log.parent.mkdir()
    trace = "    (loss * (dist.get_world_size() / total)).backward()\n"
    log.write_text(f"step 0 loss 5.25 iteration_s 0.4\n{trace}step 1 loss 4.5 iteration_s 0.4\nstep 2 loss 4.")
    assert judged(plan(), slow_rank_view(), tmp_path)["loss"] == {"first": 5.25, "last": 4.5}


def test_a_crash_is_seen_to_where_the_rendezvous_was_quicker_than_the_engine(tmp_path: Path) -> None:
    view = JobView("j")
    for record in iterations(0, 59, 0.4):
        view.feed(record)
    suspect = Suspect(score=0.9, reason="was killed", rank=2, node="n")
    view.feed(
        IncidentRecord(
            id="i1", job="j", kind="crash", severity="sev2", state="opened", revision=0, opened_at_s=1030.1,
            updated_at_s=1030.1, opened_step=30, reason="rank 2 was killed", suspects=(suspect,),
        )
    )  # fmt: skip
    why = "its launcher starts all ranks again by itself"
    skipped = ActionRecord(
        id="a1", incident="i1", job="j", kind="restart_process", outcome="skipped", at_s=1030.2, why=why
    )
    view.feed(skipped)
    assert judged(plan("crash"), view, tmp_path)["why_not"] == "no restart_job or restart_process was done"
    event = EventRecord(
        id="restart/1", job="j", node="n", time_s=1030.4, kind="restart", fields={"attempt": 1, "stage": "started"}
    )
    view.feed(event)
    result = judged(plan("crash"), view, tmp_path)
    assert result["ok"], result["why_not"]
    assert result["first_step_after_fault_s"] == 1.0
