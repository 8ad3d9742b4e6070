"""What is measured of a job on one machine: who stands still, who waits, and that nothing holds a job for ever."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import ManualClock
from tests.unit.actions.launchers.torchrun.agents import World
from trainwarden import rundir
from trainwarden.actions.launchers.restart_check import validating
from trainwarden.actions.launchers.restart_check.measuring import JobPlace
from trainwarden.actions.launchers.restart_check.messages import CheckRequest, Conclusion, Outcome
from trainwarden.actions.launchers.torchrun import checks
from trainwarden.actions.launchers.torchrun.checks import JobChecks
from trainwarden.actions.launchers.torchrun.in_job import CUT_SHORT
from trainwarden.actions.launchers.torchrun.messages import Submit
from trainwarden.actions.launchers.torchrun.operations import answer
from trainwarden.errors import BusUnavailable
from trainwarden.launching import Findings, Operation, Report, Targets
from trainwarden.torchrun.standing import Progress

RANKS = 3
FOUND = Findings(judged=("gemm",), nodes=("n0",))
PAUSED_S = 390.0  # validating.STAND_S, LIMIT_S and SPARE_S


class FakeMeasurement:
    """Ends when the test says so, with `FOUND`."""

    made: list[FakeMeasurement]
    broken: OSError | None = None
    at_first = True

    def __init__(self, place: Any, asked: Any) -> None:
        if self.broken is not None:
            raise self.broken
        self.pid, self.ended, self.killed, self.begun, self.ready = 4242, False, False, False, self.at_first
        self.made.append(self)

    def begin(self) -> None:
        self.begun = True

    def kill(self) -> None:
        self.killed = self.killed or not self.ended

    def outcome(self) -> Outcome:
        return Outcome(FOUND)


class Suspicious:
    """Somebody is suspected; `holds` keeps the answer back."""

    def __init__(self) -> None:
        self.answer: CheckRequest | None = CheckRequest(checks=("gemm",), nodes=("n0",))
        self.holds, self.broken = threading.Event(), False
        self.holds.set()
        self.concluded: list[Outcome] = []

    def wanted(self, nodes: Collection[str]) -> CheckRequest | None:
        assert list(nodes) == ["n0"]
        self.holds.wait(10.0)
        if self.broken:
            raise BusUnavailable("by the test")
        return self.answer

    def conclude(self, wanted: CheckRequest, outcome: Outcome) -> Conclusion:
        self.concluded.append(outcome)
        return Conclusion(confirmed=("n0",) if outcome.findings else (), said=outcome.error or "confirmed: it is slow")


class Job(World):
    """One node whose ranks stand still when `standing` says so."""

    def __init__(self, run_dir: Path, suspicions: Suspicious | None, person_s: float | None = None) -> None:
        self.said, self.left, self.run_dir = list[str](), False, run_dir
        self.standing: dict[int, int | None] = dict.fromkeys(range(RANKS), 0)
        self.progress: Progress | None = None
        self.clock = ManualClock(100.0)
        place = JobPlace(job="j", node="n0", ranks=RANKS, run_dir=run_dir)
        self.checks = JobChecks(
            place, self.clock, suspicions, self.said.append, lambda: not self.left, person_s=person_s
        )
        self.checks._ranks.stands = lambda: {  # type: ignore[method-assign]
            rank: self.standing.get(rank) for rank in self.checks._ranks.running
        }
        self.checks._ranks.progress = lambda: self.progress  # type: ignore[method-assign]
        super().__init__("n0", least=1, most=1, ranks=RANKS, checks=self.checks)

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.clock.set_s(self.now_s)
            super().pass_s(0.05)

    def validate(self, *nodes: str) -> Report:
        operation = Operation(
            id=f"v{self.now_s}", job="j", kind="validate", expected_generation=self.table.memory.generation,
            targets=Targets(nodes=nodes),
        )  # fmt: skip
        reply = answer(Submit(operation), self.table, self.now_s)
        assert reply.report is not None
        return reply.report

    @property
    def pause(self) -> dict[str, Any] | None:
        path = self.run_dir / rundir.PAUSE
        return json.loads(path.read_text()) if path.exists() else None

    def stand(self) -> None:
        """All ranks stand still for the newest request."""
        self.standing = dict.fromkeys(range(RANKS), 0 if self.pause is None else self.pause["number"])
        self.pass_s(0.1)

    def answered(self) -> None:
        """Whoever is asked for suspects has answered."""
        asking = self.checks._check._asking
        if asking is not None:
            asking._thread.join(5.0)
        self.pass_s(0.5)

    @property
    def starts(self) -> int:
        return len(self.agents["n0"].rounds)


@pytest.fixture(autouse=True)
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[FakeMeasurement]:
    FakeMeasurement.made = []
    monkeypatch.setattr(FakeMeasurement, "broken", None)
    monkeypatch.setattr(FakeMeasurement, "at_first", True)
    monkeypatch.setattr(checks, "Measurement", FakeMeasurement)
    monkeypatch.setattr(validating.Validating.__init__, "__defaults__", (FakeMeasurement,))
    return FakeMeasurement.made


@pytest.fixture
def suspicious() -> Suspicious:
    return Suspicious()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, None)


@pytest.fixture
def doubted(tmp_path: Path, suspicious: Suspicious) -> Job:
    return Job(tmp_path, suspicious)


# --- in the middle of a job ------------------------------------------------------------------------------------------


def test_all_ranks_stand_still_while_it_is_measured_and_go_on_with_its_answer(job: Job, measurements: Any) -> None:
    assert job.state().pausable
    asked = job.validate("n0")
    job.pass_s(0.1)
    assert (job.report(asked.operation).state, job.report(asked.operation).text) == ("running", "waits for the ranks")
    assert job.pause == {"number": 1, "until_s": pytest.approx(job.now_s + PAUSED_S, abs=0.2)}
    job.standing = {0: 1, 1: 1, 2: 0}
    job.pass_s(0.1)
    (measurement,) = measurements
    assert (measurement.begun, job.state().phase) == (False, "running")
    job.stand()
    assert measurement.begun
    assert (job.checks.pid, job.state().phase, job.report(asked.operation).text) == (4242, "paused", "measures")
    measurement.ended = True
    job.pass_s(0.1)
    assert job.report(asked.operation) == Report(operation=asked.operation, state="done", findings=FOUND)
    assert (job.pause, job.checks.pid, job.state().phase, job.state().under_way) == (None, None, "running", ())
    assert not measurement.killed
    assert job.starts == 1


def test_ranks_that_the_hook_holds_are_given_a_step_ahead_of_all(job: Job, measurements: Any) -> None:
    job.progress = Progress(100, 101, 0.25, 1)
    asked = job.validate("n0")
    job.pass_s(0.1)
    assert job.pause is not None
    assert job.pause["step"] == 101 + 4
    job.progress = Progress(106, 106, 0.25, 1)
    job.stand()
    assert (measurements[0].begun, job.report(asked.operation).text) == (True, "measures")


@pytest.mark.parametrize(
    ("now", "standing", "after_s", "text"),
    [
        (Progress(106, 107, 0.25, 1), {0: 1, 1: 1, 2: 0}, 0.2, "a rank went past step 105, after which all were to"),
        (Progress(105, 106, 0.25, 1), {0: 1, 1: 1, 2: 0}, 10.5, "1 of 3 ranks did not stand still with the others"),
    ],
    ids=["past it", "waits for one that stands"],
)
def test_a_rank_that_cannot_stand_with_the_others_has_all_let_go_soon(
    job: Job, now: Progress, standing: dict[int, int | None], after_s: float, text: str
) -> None:
    job.progress = Progress(100, 101, 0.25, 1)
    asked = job.validate("n0")
    job.pass_s(0.1)
    job.progress, job.standing = now, standing
    job.pass_s(after_s)
    assert job.report(asked.operation).state == "failed"
    assert text in job.report(asked.operation).text
    assert (job.pause, measured_none()) == (None, True)


def measured_none() -> bool:
    return not any(one.begun for one in FakeMeasurement.made)


def test_a_slow_job_has_the_time_of_its_steps_to_stand_still(job: Job) -> None:
    job.progress = Progress(100, 101, 60.0, 1)
    asked = job.validate("n0")
    job.pass_s(200.0)
    assert (job.pause or {})["step"] == 102
    assert job.report(asked.operation).text == "waits for the ranks"
    job.pass_s(170.0)
    assert job.report(asked.operation).text == "3 of 3 ranks did not stand still within 360 s"


def test_each_request_has_a_number_that_no_rank_has_obeyed(job: Job, measurements: Any) -> None:
    for number in (1, 2):
        asked = job.validate("n0")
        job.pass_s(0.1)
        assert job.pause is not None
        assert job.pause["number"] == number
        job.stand()
        measurements[-1].ended = True
        job.pass_s(0.2)
        job.standing = dict.fromkeys(range(RANKS), 0)
    assert job.report(asked.operation).state == "done"


def too_few(job: Job) -> None:
    job.standing = {0: 1, 1: 0, 2: 0}
    job.pass_s(61.0)


def one_went_on(job: Job) -> None:
    job.stand()
    FakeMeasurement.made[0].ended = True
    job.standing[2] = 0
    job.pass_s(0.1)


def hangs(job: Job) -> None:
    job.stand()
    job.pass_s(301.0)


def failed_before(job: Job) -> None:
    job.agents["n0"].fail()
    job.pass_s(0.2)


def stopped(job: Job) -> None:
    job.stand()
    job.ask("stop")
    job.pass_s(0.5)


@pytest.mark.parametrize(
    ("happens", "text"),
    [
        (too_few, "2 of 3 ranks did not stand still within 60 s"),
        (one_went_on, "rank 2 went on before all was measured"),
        (hangs, "it was not measured within 300 s"),
        (failed_before, "the job failed before it was validated"),
        (stopped, "the job is over"),
    ],
)
def test_whatever_becomes_of_it_the_ranks_are_let_go(job: Job, happens: Callable[[Job], None], text: str) -> None:
    asked = job.validate("n0")
    job.pass_s(0.1)
    assert job.pause is not None
    happens(job)
    assert (job.report(asked.operation).state, job.report(asked.operation).text) == ("failed", text)
    assert (job.pause, job.checks.pid, job.report(asked.operation).findings) == (None, None, None)
    assert FakeMeasurement.made[0].killed or FakeMeasurement.made[0].ended


def test_nobody_stands_still_for_a_process_that_imports(job: Job, measurements: Any) -> None:
    FakeMeasurement.at_first = False
    asked = job.validate("n0")
    job.pass_s(50.0)
    assert (job.pause, job.report(asked.operation).text) == (None, "starts")
    job.pass_s(72.0)
    assert job.report(asked.operation).text == "the validation was not ready within 120 s"
    assert measurements[0].killed


def test_what_cannot_be_measured_is_refused_and_disturbs_nobody(job: Job) -> None:
    assert (job.validate("n7").reason, job.pause) == ("unknown_target", None)
    job.validate("n0")
    job.pass_s(0.1)
    assert job.validate("n0").text == "the job is being measured already"
    job.pass_s(0.1)
    job.stand()
    FakeMeasurement.made[0].ended = True
    job.pass_s(0.2)
    for standing in ({0: 0, 1: None, 2: 0}, {}):
        job.standing = standing
        assert (job.state().pausable, job.validate("n0").reason, job.pause) == (False, "unfit", None)


def test_a_job_on_several_nodes_is_not_measured() -> None:
    world = World("a", "b", least=2, most=2)
    assert (world.ask("validate").state, world.state().pausable) == ("refused", False)


def test_a_round_waits_until_a_measurement_that_has_begun_is_over(job: Job, measurements: Any) -> None:
    job.validate("n0")
    job.pass_s(0.1)
    job.stand()
    job.ask("restart")
    job.pass_s(5.0)
    assert (job.starts, job.state().phase) == (1, "restarting")
    measurements[0].ended = True
    job.pass_s(0.5)
    assert (job.starts, job.state().phase, job.pause) == (2, "running", None)


def test_one_that_nobody_works_on_any_more_has_failed(job: Job) -> None:
    asked = job.validate("n0")
    job.checks.close()
    job.pass_s(0.1)
    assert (job.report(asked.operation).state, job.report(asked.operation).text) == ("failed", CUT_SHORT)
    assert job.pause is None


def test_no_process_slot_is_said_and_the_ranks_go_on(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeMeasurement, "broken", BlockingIOError(11, "Resource temporarily unavailable"))
    asked = job.validate("n0")
    job.pass_s(0.1)
    assert "could not be started (Resource temporarily unavailable)" in job.report(asked.operation).text
    assert job.pause is None


# --- before ranks start again ----------------------------------------------------------------------------------------


def test_all_ranks_are_gone_when_it_is_measured_and_start_once_it_is(
    doubted: Job, suspicious: Suspicious, measurements: Any
) -> None:
    assert suspicious.concluded == []  # of the first start nobody is suspected
    doubted.agents["n0"].stuck = True
    asked = doubted.ask("restart")
    doubted.answered()
    assert (measurements, doubted.state().ranks_running) == ([], (0, 1, 2))
    doubted.agents["n0"].stuck = False
    doubted.answered()
    (measurement,) = measurements
    assert (measurement.begun, doubted.checks.pid) == (True, 4242)
    assert (doubted.starts, doubted.state().phase, doubted.state().ranks_running) == (1, "restarting", ())
    measurement.ended = True
    doubted.pass_s(0.5)
    assert (doubted.report(asked.operation).state, doubted.starts, doubted.checks.pid) == ("done", 2, None)
    assert suspicious.concluded == [Outcome(FOUND)]
    assert doubted.said == [
        "measured before the restart: confirmed: it is slow; there is no other node, so the ranks start here again"
    ]


def test_a_failed_rank_is_followed_by_the_same_measurement(doubted: Job, measurements: Any) -> None:
    doubted.agents["n0"].fail()
    doubted.answered()
    assert (len(measurements), doubted.starts) == (1, 1)
    measurements[0].ended = True
    doubted.pass_s(0.5)
    assert doubted.starts == 2


def test_a_restart_costs_nothing_where_nobody_is_suspected(
    doubted: Job, suspicious: Suspicious, measurements: Any
) -> None:
    suspicious.answer = None
    doubted.ask("restart")
    doubted.answered()
    assert (doubted.starts, measurements, doubted.said) == (2, [], [])


@pytest.mark.parametrize("ready", [True, False])
def test_one_that_hangs_is_killed_and_the_job_goes_on(doubted: Job, suspicious: Suspicious, *, ready: bool) -> None:
    FakeMeasurement.at_first = ready
    doubted.ask("restart")
    doubted.answered()
    doubted.pass_s(301.0 if ready else 121.0)
    assert (FakeMeasurement.made[0].killed, doubted.starts) == (True, 2)
    within = "measured within 300 s" if ready else "ready within 120 s"
    assert suspicious.concluded == [Outcome(None, f"the validation was not {within}")]


def test_a_bus_that_never_answers_is_waited_for_ten_seconds(doubted: Job, suspicious: Suspicious) -> None:
    suspicious.holds.clear()
    doubted.ask("restart")
    doubted.pass_s(9.0)
    assert doubted.starts == 1
    doubted.pass_s(2.0)
    assert (doubted.starts, FakeMeasurement.made) == (2, [])
    suspicious.holds.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_answer_that_breaks_is_none(doubted: Job, suspicious: Suspicious) -> None:
    suspicious.broken = True
    doubted.ask("restart")
    doubted.answered()
    assert (doubted.starts, FakeMeasurement.made) == (2, [])


def test_a_measurement_that_cannot_start_is_said_and_the_ranks_start(
    doubted: Job, suspicious: Suspicious, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMeasurement, "broken", BlockingIOError(11, "Resource temporarily unavailable"))
    doubted.ask("restart")
    doubted.answered()
    assert doubted.starts == 2
    assert suspicious.concluded[0].error is not None


def test_a_stop_ends_it_at_once(doubted: Job, measurements: Any) -> None:
    doubted.ask("restart")
    doubted.answered()
    doubted.ask("stop")
    doubted.pass_s(0.5)
    assert (measurements[0].killed, doubted.checks.pid, doubted.state().phase) == (True, None, "ended")


def test_no_round_begins_before_what_ranks_have_left_is_gone(job: Job) -> None:
    job.left = True
    job.ask("restart")
    job.pass_s(3.0)
    assert job.starts == 1
    job.left = False
    job.pass_s(0.5)
    assert job.starts == 2


def test_what_ranks_have_left_is_waited_for_once_a_round(doubted: Job, suspicious: Suspicious) -> None:
    cleaned: list[int] = []
    doubted.checks._clean = lambda: cleaned.append(1) is None
    suspicious.holds.clear()
    doubted.ask("restart")
    doubted.pass_s(5.0)
    assert (doubted.starts, len(cleaned)) == (1, 1)
    suspicious.holds.set()
    doubted.answered()
    FakeMeasurement.made[0].ended = True
    doubted.pass_s(0.5)
    assert (doubted.starts, len(cleaned)) == (2, 1)
    suspicious.answer = None
    doubted.ask("restart")
    doubted.answered()
    assert (doubted.starts, len(cleaned)) == (3, 2)


def test_of_a_job_that_is_over_all_is_closed_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[int] = []
    monkeypatch.setattr(job.checks._check, "cancel", lambda: closed.append(1))
    job.agents["n0"].finish()
    job.pass_s(2.0)
    assert (job.state().phase, len(closed)) == ("ended", 1)


def test_a_folder_that_cannot_be_read_now_tells_of_nobody_who_stands(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    del job.checks._ranks.stands  # type: ignore[method-assign]

    def fails(*_: object) -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Path, "glob", fails)
    assert not job.state().pausable


# --- whoever has to agree --------------------------------------------------------------------------------------------


def test_ranks_that_have_failed_wait_for_somebody_who_asks_for_their_restart(
    tmp_path: Path, suspicious: Suspicious, measurements: Any
) -> None:
    job = Job(tmp_path, suspicious, person_s=60.0)
    job.agents["n0"].fail()
    job.pass_s(30.0)
    assert (job.starts, job.state().phase, job.state().ranks_running, measurements) == (1, "failed", (), [])
    asked = job.ask("restart")
    job.answered()
    assert (job.starts, job.state().phase, len(measurements)) == (1, "restarting", 1)
    measurements[0].ended = True
    job.pass_s(0.5)
    assert (job.starts, job.state().phase, job.report(asked.operation).state) == (2, "running", "done")
    job.ask("restart")
    job.answered()
    measurements[1].ended = True
    job.pass_s(0.5)
    assert job.starts == 3


def test_a_plan_of_micro_batches_is_no_agreement_to_a_restart(tmp_path: Path) -> None:
    job = Job(tmp_path, None, person_s=60.0)
    for split in ((1, 2, 3), (2, 2, 2)):  # plans 1 and 2; the next round is the second
        assert job.ask("rebalance", split=split).state == "accepted"
        job.pass_s(0.2)
    assert [one.until for one in job.table.memory.kept] == [1, 2]
    job.agents["n0"].fail()
    job.pass_s(30.0)
    assert (job.starts, job.state().phase) == (1, "failed")
    job.ask("restart")
    job.pass_s(0.5)
    assert job.starts == 2


def test_a_job_that_nobody_restarts_is_over_after_a_while(tmp_path: Path) -> None:
    job = Job(tmp_path, None, person_s=60.0)
    job.agents["n0"].fail()
    job.pass_s(59.0)
    assert job.state().phase == "failed"
    job.pass_s(2.0)
    assert (job.starts, job.state().phase, job.table.memory.over) == (1, "ended", 75)
    assert job.table.memory.reason.endswith("nobody asked for a restart within 60 s")
