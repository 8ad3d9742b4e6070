"""A restart is done when the job has gone on from its newest whole checkpoint; one that started over ends the job."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.unit.actions.launchers.local.runner_double import Launch
from trainwarden.actions.launchers.checkpoints import resumption
from trainwarden.actions.launchers.checkpoints.resumption import UNNUMBERED
from trainwarden.actions.launchers.local.coordinator import STARTED_OVER_CODE
from trainwarden.checkpoints import newest

PASSED_OVER = "step-80 is newer than step-60 and not whole, so it is passed over"


def checkpoint(folder: Path, step: int) -> None:
    (folder / f"step-{step}").mkdir(parents=True)
    (folder / f"step-{step}" / ".metadata").write_bytes(b"x")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint(tmp_path / "ckpt", 40)
    return tmp_path / "ckpt"


def restarted(tmp_path: Path, folder: Path | None, ranks: tuple[int, ...] | None = None) -> Launch:
    """A job whose ranks have been restarted by the operation ``op``."""
    launch = Launch(tmp_path, checkpoints=folder)
    if folder is not None:
        checkpoint(folder, 60)
        (folder / "step-80").mkdir()  # half-written
    launch.submit(launch.operation(ranks=ranks))
    launch.runner.let_go()
    deadline = time.monotonic() + 10.0
    while len(launch.runner.starts) < 2:  # the folder is searched by a thread
        assert time.monotonic() < deadline
        launch.coordinator.advance()
    return launch


def test_ranks_are_told_of_the_newest_whole_checkpoint_at_every_start(tmp_path: Path, folder: Path) -> None:
    launch = restarted(tmp_path, folder)
    assert launch.runner.resumed_from == [folder / "step-40", folder / "step-60"]


def test_a_restart_is_done_when_all_its_ranks_have_gone_on(tmp_path: Path, folder: Path) -> None:
    launch = restarted(tmp_path, folder)
    assert (launch.poll("op").state, launch.poll("op").text) == ("running", "waits for the first step")
    launch.runner.steps = {0: 60, 2: 61}
    launch.coordinator.advance()
    assert launch.poll("op").state == "running"
    launch.runner.steps[1] = 60
    launch.coordinator.advance()
    assert (launch.poll("op").state, launch.state().phase) == ("done", "running")


def test_a_job_that_started_over_is_stopped_and_its_restart_has_failed(tmp_path: Path, folder: Path) -> None:
    launch = restarted(tmp_path, folder)
    launch.runner.steps = {1: 0}
    launch.coordinator.advance()
    report = launch.poll("op")
    assert report.state == "failed"
    assert "rank 1 started over at step 0" in report.text
    assert f"{folder}/step-60 of step 60 is whole" in report.text
    assert launch.runner.said == [PASSED_OVER, report.text]
    assert launch.submit(launch.operation("again")).reason == "over"
    launch.runner.let_go()
    assert (launch.coordinator.over, launch.coordinator.exit_code) == (True, STARTED_OVER_CODE)


def test_the_step_before_the_checkpoint_is_before_it(tmp_path: Path, folder: Path) -> None:
    launch = restarted(tmp_path, folder)
    launch.runner.steps = {0: 60, 1: 60, 2: 59}
    launch.coordinator.advance()
    assert launch.poll("op").state == "failed"


def test_only_ranks_that_were_restarted_have_to_go_on(tmp_path: Path, folder: Path) -> None:
    launch = restarted(tmp_path, folder, ranks=(1,))
    launch.runner.steps = {0: 0, 1: 60}
    launch.coordinator.advance()
    assert launch.poll("op").state == "done"


def test_without_a_folder_a_restart_is_done_at_once(tmp_path: Path) -> None:
    launch = restarted(tmp_path, None)
    launch.runner.steps = dict.fromkeys(range(3), 0)
    launch.coordinator.advance()
    assert (launch.poll("op").state, launch.state().phase) == ("done", "running")
    assert launch.runner.resumed_from == [None, None]


def test_a_first_start_may_begin_anew(tmp_path: Path, folder: Path) -> None:
    launch = Launch(tmp_path, checkpoints=folder)
    launch.runner.steps = dict.fromkeys(range(3), 0)
    launch.coordinator.advance()
    assert launch.state().phase == "running"


def test_a_launcher_after_a_killed_one_verifies_too(tmp_path: Path, folder: Path) -> None:
    launch = Launch(tmp_path, checkpoints=folder)
    launch.kill()
    launch.runner.steps = {0: 0}
    launch.coordinator.advance()
    assert launch.state().phase == "stopping"


def test_a_script_that_numbers_no_steps_is_said_once_and_believed(tmp_path: Path, folder: Path) -> None:
    launch = restarted(tmp_path, folder)
    launch.runner.steps = dict.fromkeys(range(3))
    launch.coordinator.advance()
    launch.coordinator.advance()
    assert (launch.poll("op").state, launch.runner.said) == ("done", [PASSED_OVER, UNNUMBERED])


def test_no_step_for_long_is_said_and_a_start_over_still_counts(tmp_path: Path, folder: Path) -> None:
    launch = restarted(tmp_path, folder)
    launch.clock.sleep(120.0)
    launch.coordinator.advance()
    assert launch.poll("op").state == "done"
    assert launch.runner.said == [PASSED_OVER, "no first step of all ranks within 120 s of the restart"]
    launch.runner.steps = {0: 0}
    launch.coordinator.advance()
    assert launch.state().phase == "stopping"


def test_a_rank_that_fails_before_its_first_step_ends_the_restart_and_asks_for_another(
    tmp_path: Path, folder: Path
) -> None:
    launch = restarted(tmp_path, folder)
    launch.runner.fail(1, 7)
    launch.coordinator.advance()
    assert (launch.poll("op").state, launch.state().phase) == ("failed", "failed")
    assert launch.submit(launch.operation("again")).state == "running"


def test_a_failure_that_was_pending_is_no_word_on_a_restart_of_others(tmp_path: Path, folder: Path) -> None:
    launch = Launch(tmp_path, checkpoints=folder)
    launch.runner.fail(2, 7)
    launch.submit(launch.operation(ranks=(1,)))
    launch.runner.let_go()
    deadline = time.monotonic() + 10.0
    while len(launch.runner.starts) < 2:
        assert time.monotonic() < deadline
        launch.coordinator.advance()
    assert (launch.poll("op").state, launch.state().phase) == ("running", "failed")
    launch.runner.steps = {1: 40}
    launch.coordinator.advance()
    assert (launch.poll("op").state, launch.state().phase) == ("done", "failed")


class StuckFolder:
    """A file system that says nothing until `answer` is set: the real search waits for it in its thread."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer, self.answered = threading.Event(), 0
        monkeypatch.setattr(newest, "newest", self._newest)

    def _newest(self, _folder: Path) -> None:
        self.answer.wait(20.0)  # a launcher that waits for it is seen by `answered`, and the test ends all the same
        self.answered += 1


def test_a_folder_that_does_not_answer_keeps_no_job_down(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumption, "SEARCH_S", 0.2)
    stuck = StuckFolder(monkeypatch)
    launch = Launch(tmp_path, checkpoints=folder)
    launch.coordinator.advance()
    launch.submit(launch.operation())
    launch.runner.let_go()
    launch.coordinator.advance()
    assert launch.poll("op").text == "looks for the newest checkpoint"
    launch.clock.sleep(0.2)
    launch.coordinator.advance()
    launch.coordinator.advance()
    assert (launch.poll("op").state, len(launch.runner.starts)) == ("done", 2)
    assert launch.runner.said == [resumption.NOT_LOOKED_AT]
    assert stuck.answered == 0
    stuck.answer.set()
