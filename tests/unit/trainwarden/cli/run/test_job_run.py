"""What is around a training command does not take it down when something of ours breaks."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from trainwarden import rundir
from trainwarden.cli.ask import status
from trainwarden.cli.run.job_run import JobRun
from trainwarden.cli.shared import kept_runs
from trainwarden.cli.shared.output import Voice
from trainwarden.settings import Settings


def test_a_follower_that_breaks_is_said_once_and_asked_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    with JobRun(Settings(job="j", run_dir=str(tmp_path / "run")), own_services=()) as run:

        def broken(_timeout_s: float) -> None:
            raise KeyError("a record nobody thought of")

        monkeypatch.setattr(run.follower, "poll", broken)
        monkeypatch.setattr("time.sleep", lambda _seconds: None)
        for _ in range(3):
            run.look(Voice(stream=said))
    assert said.getvalue().count("watching has ended (KeyError") == 1


@pytest.mark.parametrize("looked", [0, 1])
def test_a_follower_that_breaks_does_not_take_the_exit_code_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked: int
) -> None:
    said = io.StringIO()
    with JobRun(Settings(job="j", run_dir=str(tmp_path / "run")), own_services=()) as run:

        def broken(_timeout_s: float) -> None:
            raise KeyError("a record nobody thought of")

        monkeypatch.setattr(run.follower, "poll", broken)
        monkeypatch.setattr("time.sleep", lambda _seconds: None)
        for _ in range(looked):
            run.look(Voice(stream=said))
        run.drain(Voice(stream=said))
        assert run.result(3)["exit_code"] == 3
    assert said.getvalue().count("watching has ended (KeyError") == 1


def test_records_that_cannot_be_kept_are_said(tmp_path: Path) -> None:
    said = io.StringIO()
    (tmp_path / "file").touch()
    with JobRun(Settings(job="j", run_dir=str(tmp_path / "run")), own_services=()) as run:
        run.keep(tmp_path / "file", Voice(stream=said))
        run.keep(None, Voice(stream=said))
    assert said.getvalue().count("no recorded folder could be written") == 1


def test_embedded_without_a_path_is_the_runs_own_bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with JobRun(Settings(job="j", bus="embedded"), own_services=()) as run:
        assert run.bus_address == f"embedded:{rundir.bus_file(run.run_dir)}"


def test_steps_that_nobody_has_followed_are_not_none_but_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with JobRun(Settings(job="j", bus="embedded"), own_services=()) as run:
        assert run.result(0)["steps"] is None
        (kept,) = kept_runs.kept()
        assert "exit code 0, steps not counted, 0 incident(s)" in status._run_line(kept)
        run.look(Voice(stream=io.StringIO()))
        assert run.result(0)["steps"] == 0
