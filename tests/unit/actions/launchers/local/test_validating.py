"""A validation in the middle of a job: who stands still, what is measured, and that all go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.actions.launchers.local.runner_double import RANKS, Launch
from trainwarden import rundir
from trainwarden.actions.launchers.restart_check import validating
from trainwarden.actions.launchers.restart_check.messages import Outcome
from trainwarden.launching import Findings, Report, Targets

FOUND = Findings(judged=("gemm",), nodes=("n0",))


class FakeMeasurement:
    """Ends when the test says so, with `FOUND`."""

    made: list[FakeMeasurement]

    def __init__(self, place: Any, checks: Any) -> None:
        if self.broken is not None:
            raise self.broken
        self.pid, self.ended, self.killed, self.begun, self.ready = 4242, False, False, False, self.at_first
        self.made.append(self)

    broken: OSError | None = None
    at_first = True

    def begin(self) -> None:
        self.begun = True

    def kill(self) -> None:
        self.killed = self.killed or not self.ended

    def outcome(self) -> Outcome:
        return Outcome(FOUND)


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launch:
    FakeMeasurement.made, FakeMeasurement.at_first = [], True
    monkeypatch.setattr(FakeMeasurement, "broken", None)
    monkeypatch.setattr(validating.Validating.__init__, "__defaults__", (FakeMeasurement,))
    made = Launch(tmp_path)
    made.runner.standing = dict.fromkeys(range(RANKS), 0)
    return made


def ask(launch: Launch, name: str = "v", node: str = "n0") -> Report:
    return launch.submit(msgspec.structs.replace(launch.operation(name, "validate"), targets=Targets(nodes=(node,))))


def request(launch: Launch) -> dict[str, Any] | None:
    path = launch.coordinator._place.run_dir / rundir.PAUSE
    return json.loads(path.read_text()) if path.exists() else None


def stand(launch: Launch) -> None:
    """All ranks stand still for the newest request."""
    asked = request(launch)
    launch.runner.standing = dict.fromkeys(range(RANKS), 0 if asked is None else asked["number"])


def test_all_ranks_stand_still_while_it_is_measured_and_go_on_with_its_answer(launch: Launch) -> None:
    assert launch.state().pausable
    assert (ask(launch).state, ask(launch).text) == ("running", "waits for the ranks")
    assert request(launch) == {"number": 1, "until_s": launch.clock.now_s() + 390.0}
    launch.runner.standing = {0: 1, 1: 1, 2: 0}
    launch.coordinator.advance()
    (measurement,) = FakeMeasurement.made
    assert (measurement.begun, launch.state().phase) == (False, "running")
    stand(launch)
    launch.coordinator.advance()
    assert measurement.begun
    assert (launch.runner.beside, launch.state().phase, launch.poll("v").text) == (4242, "paused", "measures")
    measurement.ended = True
    launch.coordinator.advance()
    assert launch.poll("v") == Report(operation="v", state="done", findings=FOUND)
    assert (request(launch), launch.runner.beside, launch.state().phase) == (None, None, "running")
    assert launch.state().under_way == ()
    assert not measurement.killed
    assert len(launch.runner.starts) == 1


def test_each_request_has_a_number_that_no_rank_has_obeyed(launch: Launch) -> None:
    for number in (1, 2):
        ask(launch, f"v{number}")
        assert request(launch) is not None
        assert request(launch)["number"] == number  # type: ignore[index]
        stand(launch)
        launch.coordinator.advance()
        FakeMeasurement.made[-1].ended = True
        launch.coordinator.advance()
        launch.runner.standing = dict.fromkeys(range(RANKS), 0)
    assert launch.poll("v2").state == "done"


def test_ranks_that_do_not_stand_still_in_time_are_let_go_and_counted(launch: Launch) -> None:
    ask(launch)
    launch.runner.standing = {0: 1, 1: 0, 2: 0}
    launch.clock.sleep(61.0)
    launch.coordinator.advance()
    assert launch.poll("v").text == "2 of 3 ranks did not stand still within 60 s"
    assert request(launch) is None
    assert not FakeMeasurement.made[0].begun
    assert FakeMeasurement.made[0].killed


def test_nobody_stands_still_for_a_process_that_imports(launch: Launch) -> None:
    FakeMeasurement.at_first = False
    assert (ask(launch).state, ask(launch).text) == ("running", "starts")
    launch.clock.sleep(50.0)
    launch.coordinator.advance()
    assert request(launch) is None
    FakeMeasurement.made[0].ready = True
    launch.coordinator.advance()
    assert request(launch) is not None
    launch.coordinator.advance()
    launch.runner.fail(0, 1)
    launch.coordinator.advance()
    assert launch.poll("v").text == "the job failed before it was validated"
    assert (request(launch), launch.state().phase) == (None, "failed")


def test_a_process_that_never_gets_ready_is_killed(launch: Launch) -> None:
    FakeMeasurement.at_first = False
    ask(launch)
    launch.clock.sleep(121.0)
    launch.coordinator.advance()
    assert launch.poll("v").text == "the validation was not ready within 120 s"
    assert FakeMeasurement.made[0].killed


def test_what_was_measured_beside_a_rank_that_went_on_is_no_answer(launch: Launch) -> None:
    ask(launch)
    stand(launch)
    launch.coordinator.advance()
    FakeMeasurement.made[0].ended = True
    launch.runner.standing[2] = 0
    launch.coordinator.advance()
    assert launch.poll("v").text == "rank 2 went on before all was measured"
    assert launch.poll("v").findings is None


def test_a_measurement_that_hangs_is_killed_and_the_ranks_go_on(launch: Launch) -> None:
    ask(launch)
    stand(launch)
    launch.coordinator.advance()
    launch.clock.sleep(301.0)
    launch.coordinator.advance()
    assert launch.poll("v").text == "it was not measured within 300 s"
    assert FakeMeasurement.made[0].killed
    assert request(launch) is None


@pytest.mark.parametrize("standing", [{0: 0, 1: None, 2: 0}, {}])
def test_a_loop_that_takes_no_part_is_not_disturbed(launch: Launch, standing: dict[int, int | None]) -> None:
    launch.runner.standing = standing
    assert not launch.state().pausable
    assert (ask(launch).state, ask(launch).reason) == ("refused", "unfit")
    assert request(launch) is None


def test_a_job_that_is_down_is_measured_without_its_last_ranks_and_waits_for_its_restart_anew(launch: Launch) -> None:
    launch.runner.standing = {}
    launch.runner.fail(1, 9)
    launch.clock.sleep(50.0)
    ask(launch)
    assert launch.runner.asked == {0, 2}
    launch.coordinator.advance()
    assert not FakeMeasurement.made[0].begun
    launch.runner.let_go()
    launch.coordinator.advance()
    assert FakeMeasurement.made[0].begun
    assert launch.state().phase == "failed"
    launch.clock.sleep(20.0)
    FakeMeasurement.made[0].ended = True
    launch.coordinator.advance()
    assert launch.poll("v").state == "done"
    launch.clock.sleep(50.0)
    launch.coordinator.advance()
    assert (launch.state().phase, launch.coordinator.over) == ("failed", False)
    assert launch.submit(launch.operation("r")).state in ("running", "done")
    assert len(launch.runner.starts) == 2


def test_a_restart_waits_until_it_is_measured(launch: Launch) -> None:
    ask(launch)
    assert launch.submit(launch.operation("r")).state == "accepted"
    assert launch.runner.asked == set()
    stand(launch)
    launch.coordinator.advance()
    FakeMeasurement.made[0].ended = True
    launch.coordinator.advance()
    assert (launch.poll("v").state, launch.poll("r").state) == ("done", "running")
    assert launch.runner.asked == {0, 1, 2}


def test_a_stop_ends_it_at_once(launch: Launch) -> None:
    ask(launch)
    stand(launch)
    launch.coordinator.advance()
    launch.coordinator.end()
    assert FakeMeasurement.made[0].killed
    assert request(launch) is None
    launch.runner.let_go()
    assert launch.coordinator.over
    launch.coordinator.close()
    assert launch.poll("v").state == "failed"


def test_a_job_that_ends_well_first_is_not_held_up(launch: Launch) -> None:
    ask(launch)
    launch.runner.running.clear()
    launch.coordinator.advance()
    assert (launch.poll("v").text, launch.coordinator.over) == ("the job ended before it was validated", True)


def test_a_launcher_that_was_killed_asks_nobody_to_stand_still_any_more(launch: Launch) -> None:
    ask(launch)
    stand(launch)
    launch.coordinator.advance()
    assert request(launch) is not None
    launch.kill()
    assert request(launch) is None
    assert (launch.poll("v").state, launch.poll("v").findings) == ("failed", None)


def test_its_answer_is_told_by_every_launcher_after_it(launch: Launch) -> None:
    ask(launch)
    stand(launch)
    launch.coordinator.advance()
    FakeMeasurement.made[0].ended = True
    launch.coordinator.advance()
    launch.kill()
    assert launch.poll("v").findings == FOUND


def test_no_process_slot_is_said_and_the_ranks_go_on(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeMeasurement, "broken", BlockingIOError(11, "Resource temporarily unavailable"))
    ask(launch)
    stand(launch)
    launch.coordinator.advance()
    assert "could not be started (Resource temporarily unavailable)" in launch.poll("v").text
    assert request(launch) is None


def test_another_node_is_no_node_of_this_launcher(launch: Launch) -> None:
    assert ask(launch, node="n7").reason == "unknown_target"
