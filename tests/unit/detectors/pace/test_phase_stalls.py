"""A phase that holds up the job for much longer than ever is an incident while it lasts, and no healthy one is."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.unit.detectors.detection_streams import Run
from trainwarden.detectors.testing.streams import Job, event
from trainwarden.records import IncidentKind, IncidentRecord

pytestmark = pytest.mark.thorough  # they take seconds


class Phases:
    """A job whose ranks load data for each step, and stand still in phases between two stretches of steps."""

    def __init__(self, ranks: int = 4, steps: int = 40, step_s: float = 0.3, life: int = 0) -> None:
        self.job = Job(ranks=ranks, step_s=step_s, life=life, pause=lambda rank, step: 0.02).run(steps)
        self.steps = steps
        self.at_s = self.job.end_s
        self.where: dict[int, str] = {}

    def stand(self, phases: Mapping[int, str], lasts_s: float, others: str = "wait") -> Phases:
        """Ranks are in `phases`, `others` in what they do meanwhile."""
        begin_s, now_s, calls = self.at_s, self.at_s, 100 * self.steps
        while (now_s := now_s + 0.2) < begin_s + lasts_s:
            self.job.beat(now_s, self.steps, phase=others, phases=phases, calls=calls, since_s=begin_s)
        self.at_s = begin_s + lasts_s
        for rank, phase in phases.items():
            text = f"rank {rank} spent {lasts_s:.1f} s in {phase} during step {self.steps}"
            over = event("phase", self.at_s, rank, message=text, phase=phase, duration_s=lasts_s, step=self.steps)
            self.job.add(self.at_s + 0.1, over)
        return self

    def go_on(self, steps: int = 40) -> Phases:
        self.job.run(steps, first=self.steps, start_s=self.at_s)
        self.steps += steps
        self.at_s = self.job.end_s
        return self

    def played(self, after_s: float = 4.0) -> Run:
        return Run().play(self.job.records, self.at_s + after_s)


def in_phase(phase: str, *ranks: int) -> dict[int, str]:
    return dict.fromkeys(ranks, phase)


def of(run: Run) -> list[tuple[str, str, list[int | None]]]:
    return [(one.kind, one.state, [who.rank for who in one.suspects]) for one in run.incidents]


def test_a_loader_that_stalls_is_named_while_it_does_and_closed_when_it_goes_on() -> None:
    phases = Phases()
    begin_s = phases.at_s
    run = phases.stand(in_phase("data", 1), 60.0).go_on().played()
    opened = run.opened("data_stall")
    assert of(run) == [("data_stall", "closed", [1])]
    assert 10.0 < opened.opened_at_s - begin_s < 20.0
    assert opened.onset_s == pytest.approx(begin_s, abs=0.3)
    assert opened.reason.startswith("rank 1 has been in data for 12.")
    assert "3 of 4 ranks wait in a collective" in opened.reason
    assert run.incidents[0].reason.startswith("rank 1 spent 60.0 s in data, where less than 0.1 s is usual")


@pytest.mark.parametrize("lasts_s", [20.0, 40.0])
def test_one_rank_of_two_and_a_job_of_one_rank_are_named(lasts_s: float) -> None:
    assert of(Phases(ranks=2).stand(in_phase("data", 0), lasts_s).go_on().played()) == [("data_stall", "closed", [0])]
    assert of(Phases(ranks=1).stand(in_phase("data", 0), lasts_s).go_on().played()) == [("data_stall", "closed", [0])]


def test_peers_that_wait_in_a_forward_pass_are_no_reason_to_doubt() -> None:
    run = Phases().stand(in_phase("data", 2), 30.0, others="compute").go_on().played()
    assert of(run) == [("data_stall", "closed", [2])]


def test_where_all_ranks_wait_for_data_none_is_named() -> None:
    run = Phases().stand(in_phase("data", 0, 1, 2, 3), 30.0).go_on().played()
    assert of(run) == [("data_stall", "closed", [])]
    assert "each of 4 ranks has been in data for 12." in run.opened("data_stall").reason
    assert run.incidents[0].reason.startswith("all ranks spent 30.0 s in data")


def test_where_it_stands_is_in_the_incident() -> None:
    phases = Phases().stand(in_phase("data", 1), 30.0)
    at_s = phases.at_s - 20.0
    phases.job.add(at_s, event("stack", at_s, 1, message="rank 1 stands in fetch (train.py:41)",
                               where="fetch (train.py:41)"))  # fmt: skip
    run = phases.go_on().played()
    assert any(one.reason.endswith("; rank 1 stands in fetch (train.py:41)") for one in run.revisions)
    assert run.incidents[0].reason.endswith(
        "s in data, where less than 0.1 s is usual; rank 1 stood in fetch (train.py:41)"
    )
    assert [one.rank for one in run.incidents[0].suspects] == [1]


@pytest.mark.thorough
def test_a_pause_that_comes_at_every_epoch_is_a_habit() -> None:
    phases = Phases()
    for _ in range(5):
        phases.stand(in_phase("data", 0, 1, 2, 3), 8.0).go_on(30)
    phases.stand(in_phase("data", 0, 1, 2, 3), 20.0).go_on(30)
    assert phases.played().revisions == []


def test_one_stall_does_not_hide_the_next() -> None:
    phases = Phases()
    for _ in range(2):
        phases.stand(in_phase("data", 1), 30.0).go_on()
    assert of(phases.played()) == [("data_stall", "closed", [1]), ("data_stall", "closed", [1])]


@pytest.mark.parametrize("phase", ["evaluation", "checkpoint", "compile"])
@pytest.mark.parametrize("ranks", [(0,), (0, 1, 2, 3)])
def test_evaluations_and_checkpoints_of_a_healthy_job_are_left_in_peace(phase: str, ranks: tuple[int, ...]) -> None:
    phases = Phases()
    for lasts_s in (2.0, 30.0, 25.0, 50.0):
        phases.stand(in_phase(phase, *ranks), lasts_s).go_on(20)
    assert phases.played().revisions == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("phase", "kind"), [("evaluation", "data_stall"), ("checkpoint", "checkpoint"), ("compile", "slow_job")]
)
def test_a_phase_of_all_ranks_with_a_history_is_judged_by_it(phase: str, kind: IncidentKind) -> None:
    phases = Phases()
    for _ in range(4):
        phases.stand(in_phase(phase, 0, 1, 2, 3), 5.0).go_on(20)
    run = phases.stand(in_phase(phase, 0, 1, 2, 3), 90.0).go_on(20).played()
    assert of(run) == [(kind, "closed", [])]
    assert f"has been in {phase} for 60." in run.opened(kind).reason


def test_a_rank_that_loads_data_while_the_others_go_on_holds_up_none() -> None:
    phases = Phases()
    begin_s, now_s = phases.at_s, phases.at_s
    while (now_s := now_s + 0.2) < begin_s + 40.0:
        calls = int(now_s * 10)
        phases.job.beat(now_s, 40, phases={1: "data"}, calls=calls, begun={1: 100}, since_s=begin_s)
    phases.at_s = now_s
    assert phases.go_on().played().revisions == []


@pytest.mark.thorough
def test_long_steps_are_given_three_of_their_length() -> None:
    phases = Phases(step_s=8.0, steps=15)
    assert phases.stand(in_phase("data", 1), 20.0).go_on(10).played().revisions == []


def test_before_the_first_steps_nothing_is_usual() -> None:
    phases = Phases(steps=2)
    assert phases.stand(in_phase("data", 1), 40.0).go_on().played().revisions == []
    phases = Phases(steps=5)
    assert of(phases.stand(in_phase("data", 1), 40.0).go_on().played()) == [("data_stall", "closed", [1])]


@pytest.mark.thorough
def test_a_stall_that_does_not_end_becomes_a_hang() -> None:
    phases = Phases()
    begin_s = phases.at_s
    run = phases.stand(in_phase("data", 1), 150.0).played(after_s=0.0)
    assert of(run) == [("hang", "updated", [1])]
    kinds = {one.kind: one.updated_at_s - begin_s for one in reversed(run.revisions)}
    assert 12.0 < kinds["data_stall"] < 14.0
    assert 119.0 < kinds["hang"] < 125.0


def test_a_stall_that_ends_in_an_exception_becomes_that() -> None:
    phases = Phases().stand(in_phase("data", 1), 30.0)
    at_s = phases.at_s
    phases.job.add(at_s, event("exception", at_s, 1, message="FileNotFoundError: shard-00017.tar"))
    phases.job.add(at_s + 0.1, event("process_exit", at_s, 1, code=1))
    (incident,) = phases.played().incidents
    assert isinstance(incident, IncidentRecord)
    assert incident.kind in {"exception", "user_error"}
    assert [one.rank for one in incident.suspects] == [1]


def test_a_rank_that_has_left_a_long_phase_is_given_time_for_its_step() -> None:
    """As seen of a script that sleeps in its step: after the stall it is in no collective, and all others wait."""
    phases = Phases().stand(in_phase("data", 1), 30.0)
    begin_s, calls = phases.at_s, 100 * phases.steps
    for tick in range(1, 6):
        at_s, asleep = begin_s + 0.2 * tick, {1: 1.0}
        phases.job.beat(at_s, 40, phase="wait", phases={1: "compute"}, calls=calls, cpu_s=asleep, since_s=begin_s)
    phases.at_s = begin_s + 1.2
    assert of(phases.go_on().played()) == [("data_stall", "closed", [1])]
