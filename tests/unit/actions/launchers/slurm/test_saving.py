"""A checkpoint of a Slurm job: whose tasks get the signal, when it counts as made, and what ends the wait for it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from tests.unit.actions.launchers.slurm.test_client import Desk
from trainwarden.actions.launchers.slurm import saving
from trainwarden.actions.launchers.slurm.saving import JobCheckpoints, steps_that_catch
from trainwarden.errors import ConfigError
from trainwarden.settings import parse

NONE, USR1 = "0" * 16, "0" * 13 + "200"  # signals that are blocked, or caught
CATCHES = f"task 0 0 {NONE} {USR1}\nnode 1\n"


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Desk:
    made = Desk(monkeypatch)
    made.launcher = made.made(checkpoints={"job": JobCheckpoints(folder=str(tmp_path), signal="SIGUSR1")})
    made.slurm.probe = CATCHES * 2
    write(tmp_path, 40)
    return made


def write(folder: Path, step: int) -> None:
    with zipfile.ZipFile(folder / f"step-{step}.pt", "w") as file:
        file.writestr("step", str(step))


@pytest.mark.parametrize(
    ("said", "steps"),
    [
        (CATCHES * 2, ("0",)),
        (CATCHES, ()),  # a node that did not answer
        (CATCHES * 3, ()),
        (f"task 0 0 {NONE} {USR1}\ntask 0 0\nnode 1\n" + CATCHES, ()),  # not started yet, or gone
        (f"task 0 0 {NONE} {NONE}\nnode 1\n" + CATCHES, ()),  # it does not catch it
        (f"task 0 0 {USR1} {USR1}\nnode 1\n" + CATCHES, ()),  # it blocks it
        (f"task 2 0 {NONE} {NONE}\n" + CATCHES * 2, ("0",)),  # another step of the job's: a shell, a monitor
        (f"task 1 0 {NONE} {NONE}\n" + CATCHES * 2, ("0",)),  # the step that looks
        (f"task batch 0 {NONE} {NONE}\n" + CATCHES * 2, ("0",)),
        ("node 1\nnode 1\n", ()),
        ("", ()),
    ],
)
def test_only_steps_whose_tasks_all_catch_the_signal_get_it(said: str, steps: tuple[str, ...]) -> None:
    assert steps_that_catch(said, "USR1", nodes=2, tasks_alone=True) == steps


def test_a_checkpoint_is_asked_for_once_and_done_when_a_newer_one_is_complete(desk: Desk, tmp_path: Path) -> None:
    operation = desk.operation("checkpoint")
    assert [desk.launcher.submit(operation).state for _ in range(3)] == ["running"] * 3
    write(tmp_path, 40)
    (tmp_path / "step-50.pt").write_bytes(b"half of it")
    assert desk.poll().text == "no newer checkpoint is complete yet"
    write(tmp_path, 50)
    assert (desk.poll().state, desk.poll().text) == ("done", "the checkpoint of step 50 is complete")
    assert desk.slurm.said == ["scancel --signal=USR1 7.0"]
    assert desk.made().poll("job", "op").state == "done"


def test_a_job_that_starts_anew_first_has_saved_nothing(desk: Desk) -> None:
    desk.submit("checkpoint")
    desk.slurm.restarts, desk.slurm.state = 1, "PENDING"
    assert (desk.poll().state, desk.poll().text) == (
        "failed", "Slurm job 7 is PENDING, and no checkpoint was complete before",
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["checkpoint", "evict", "restart", "stop"])
def test_what_comes_before_it_is_complete_ends_it(desk: Desk, kind: str) -> None:
    desk.submit("checkpoint", "first")
    desk.submit(kind, "second")  # type: ignore[arg-type]
    assert (desk.poll("first").state, desk.poll("first").text) == (
        "failed", "another operation came before one was complete",
    )  # fmt: skip


def test_a_cordon_does_not_end_it(desk: Desk) -> None:
    desk.submit("checkpoint", "first")
    desk.submit("cordon", "second", node="n3")
    assert desk.poll("first").state == "running"


def test_a_launcher_ended_between_note_and_signal_sends_none(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    operation = desk.operation("checkpoint")
    monkeypatch.setattr(desk.launcher._saving, "send", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        desk.launcher.submit(operation)
    report = desk.made().submit(operation)
    assert (report.state, report.text) == (
        "failed",
        "it is not known whether the signal was sent, and it is not sent twice",
    )
    assert desk.slurm.said == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("unaware", "no step of Slurm job 7 has tasks that all catch SIGUSR1"),
        ("waits", "Slurm job 7 is PENDING, so its script saves nothing"),
        ("stands", "does not say within"),
        ("absent", "there is no folder"),
        ("unnamed", "has no folder and signal for job"),
    ],
)
def test_it_is_refused_where_it_would_be_in_vain_or_end_a_task(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str, words: str
) -> None:
    if fault == "unaware":
        desk.slurm.probe = CATCHES
    elif fault == "waits":
        desk.slurm.state = "PENDING"
    elif fault == "stands":
        monkeypatch.setattr(saving.Search, "wait", lambda *_: False)
    else:
        own = JobCheckpoints(folder=str(tmp_path / "no"), signal="USR1")
        desk.launcher = desk.made(checkpoints={"job" if fault == "absent" else "other": own})
    before = desk.launcher.state("job")
    report = desk.submit("checkpoint")
    assert (report.state, report.reason) == ("refused", "unfit")
    assert words in report.text
    assert (desk.slurm.said, desk.launcher.state("job")) == ([], before)


def test_without_a_signal_in_the_settings_it_is_not_offered(desk: Desk) -> None:
    able = desk.made().capabilities()
    assert "launcher_settings.checkpoints names no job's folder" in (able.refusal("checkpoint") or "")


@pytest.mark.parametrize("name", ["KILL", "STOP", "SIGKILL", "9", "no"])
def test_a_signal_that_nobody_can_catch_is_refused_at_once(name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' is no signal that a script can catch"):
        parse(JobCheckpoints, {"folder": "/ckpt", "signal": name}, "launcher_settings")
