"""Suspects measured between two attempts on one machine: the ranks wait for that, and for nothing that never comes."""

from __future__ import annotations

import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.unit.actions.launchers.local.runner_double import Launch
from tests.unit.actions.launchers.local.test_validating import FOUND, FakeMeasurement
from trainwarden.actions.launchers.local import coordinator
from trainwarden.actions.launchers.restart_check.messages import CheckRequest, Conclusion, Outcome
from trainwarden.errors import BusUnavailable


class Suspicious:
    """Somebody is suspected; `holds` keeps the answer back."""

    def __init__(self, wanted: CheckRequest | None) -> None:
        self.answer, self.holds, self.broken = wanted, threading.Event(), False
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


@pytest.fixture
def suspicious(monkeypatch: pytest.MonkeyPatch) -> Suspicious:
    FakeMeasurement.made, FakeMeasurement.at_first, FakeMeasurement.broken = [], True, None
    monkeypatch.setattr(coordinator, "Measurement", FakeMeasurement)
    return Suspicious(CheckRequest(checks=("gemm",), nodes=("n0",)))


@pytest.fixture
def launch(tmp_path: Path, suspicious: Suspicious) -> Launch:
    return Launch(tmp_path, suspicions=suspicious)


def restart(launch: Launch) -> None:
    launch.submit(launch.operation("r"))
    launch.runner.let_go()
    settle(launch)


def settle(launch: Launch) -> None:
    """Its thread has answered."""
    asking = launch.coordinator._check._asking
    if asking is not None:
        asking.wait(5.0)
    launch.coordinator.advance()


def test_all_ranks_are_gone_when_it_is_measured_and_start_once_it_is(launch: Launch, suspicious: Suspicious) -> None:
    launch.submit(launch.operation("r"))
    settle(launch)
    assert (FakeMeasurement.made, launch.poll("r").text) == ([], "waits for 3 ranks to end")
    launch.runner.let_go()
    launch.coordinator.advance()
    (measurement,) = FakeMeasurement.made
    assert (launch.poll("r").text, launch.state().phase) == ("measures the suspects", "restarting")
    assert (launch.runner.beside, len(launch.runner.starts)) == (4242, 1)
    launch.coordinator.advance()
    assert measurement.begun
    measurement.ended = True
    launch.coordinator.advance()
    assert (launch.poll("r").state, len(launch.runner.starts), launch.runner.beside) == ("done", 2, None)
    assert suspicious.concluded == [Outcome(FOUND)]
    assert launch.runner.said == [
        "measured before the restart: confirmed: it is slow; there is no other node, so the ranks start here again"
    ]


def test_a_restart_costs_nothing_where_nobody_is_suspected(launch: Launch, suspicious: Suspicious) -> None:
    suspicious.answer = None
    restart(launch)
    assert (launch.poll("r").state, FakeMeasurement.made, launch.runner.said) == ("done", [], [])


@pytest.mark.parametrize("ready", [True, False])
def test_one_that_hangs_is_killed_and_the_job_goes_on(launch: Launch, suspicious: Suspicious, *, ready: bool) -> None:
    FakeMeasurement.at_first = ready
    restart(launch)
    launch.clock.sleep(301.0 if ready else 121.0)
    launch.coordinator.advance()
    assert FakeMeasurement.made[0].killed
    assert (launch.poll("r").state, len(launch.runner.starts)) == ("done", 2)
    within = "measured within 300 s" if ready else "ready within 120 s"
    assert suspicious.concluded == [Outcome(None, f"the validation was not {within}")]


def test_a_bus_that_never_answers_is_waited_for_ten_seconds(launch: Launch, suspicious: Suspicious) -> None:
    suspicious.holds.clear()
    launch.submit(launch.operation("r"))
    launch.runner.let_go()
    launch.coordinator.advance()
    assert launch.poll("r").text == "looks for suspects"
    launch.clock.sleep(10.0)
    launch.coordinator.advance()
    assert (launch.poll("r").state, FakeMeasurement.made) == ("done", [])
    suspicious.holds.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_answer_that_breaks_is_none(launch: Launch, suspicious: Suspicious) -> None:
    suspicious.broken = True
    restart(launch)
    assert (launch.poll("r").state, FakeMeasurement.made) == ("done", [])


def test_no_process_slot_is_said_and_the_ranks_start(
    launch: Launch, suspicious: Suspicious, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeMeasurement, "broken", BlockingIOError(11, "Resource temporarily unavailable"))
    restart(launch)
    assert launch.poll("r").state == "done"
    assert suspicious.concluded[0].error is not None


def test_a_stop_ends_it_at_once(launch: Launch) -> None:
    restart(launch)
    launch.coordinator.end()
    assert FakeMeasurement.made[0].killed
    assert (launch.coordinator.over, launch.runner.beside) == (True, None)


def test_nobody_is_measured_beside_ranks_that_go_on(launch: Launch) -> None:
    launch.submit(launch.operation("r", ranks=(1,)))
    settle(launch)
    launch.runner.let_go()
    settle(launch)
    assert (launch.poll("r").state, FakeMeasurement.made) == ("done", [])


def test_a_launcher_that_was_killed_over_it_starts_the_job(launch: Launch) -> None:
    restart(launch)
    launch.kill()
    assert launch.state().phase == "running"
    assert launch.poll("r").state == "failed"
