"""Runs are kept on disk, newest first, within limits; tmpfs holds the hook's files alone and only while a run runs."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from trainwarden import rundir
from trainwarden.cli.ask.runs import runs
from trainwarden.cli.shared import kept_runs
from trainwarden.settings import RunsSettings

LIMITS = RunsSettings()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder and a tmpfs of the test's own."""
    shm = tmp_path / "shm"
    shm.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(rundir, "_SHM", shm)
    return tmp_path


def ended(job: str, began_s: float | None = None) -> Path:
    run = kept_runs.begin(job, ["python", "train.py"], LIMITS)
    if began_s is not None:
        run._about = msgspec.structs.replace(run._about, started_at_s=began_s)
    run.finished({"exit_code": 0, "steps": 3, "incidents": []})
    run.close()
    return run.path


def test_only_the_hooks_files_lie_on_tmpfs_and_only_while_it_runs(home: Path) -> None:
    run = kept_runs.begin("j", ["python"], LIMITS)
    (folder,) = (home / "shm").iterdir()
    assert (run.path / rundir.HOOK).resolve() == folder
    assert [path for path in run.path.iterdir() if path.resolve().is_relative_to(home / "shm")] == [run.path / "hook"]
    assert run.path.is_relative_to(home / "state")
    run.close()
    assert list((home / "shm").iterdir()) == []
    assert run.path.is_dir()


def test_a_small_tmpfs_is_left_to_the_job(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rundir, "HOOK_ROOM_BYTES", shutil.disk_usage(home).free + 1)
    run = kept_runs.begin("j", [], LIMITS)
    assert list((home / "shm").iterdir()) == []
    assert (run.path / rundir.HOOK).is_dir()
    assert run.words == ["there is too little room on /dev/shm: the hook's files go to disk"]


def test_runs_are_told_newest_first_with_how_they_ended() -> None:
    first = ended("one")
    first.rename(first.with_name("20200101T000000-one-00000000"))
    running = kept_runs.begin("two", ["torchrun", "t.py"], LIMITS)
    two, one = kept_runs.kept()
    assert (two.about.job, two.about.command, two.running, two.about.result) == (
        "two",
        ("torchrun", "t.py"),
        True,
        None,
    )
    assert (one.about.job, one.running, one.about.result) == (
        "one",
        False,
        {"exit_code": 0, "steps": 3, "incidents": []},
    )
    running.discard()  # as of a command that is refused
    assert list(rundir._SHM.iterdir()) == []
    assert [run.about.job for run in kept_runs.kept()] == ["one"]


@pytest.mark.parametrize(
    "limits", [RunsSettings(keep=2), RunsSettings(keep_days=1), RunsSettings(total_bytes=1_048_576)]
)
def test_what_is_beyond_a_limit_goes_oldest_first_and_never_what_runs(limits: RunsSettings) -> None:
    for day in range(1, 4):
        path = ended("old", began_s=time.time() - 5 * 86_400.0)
        (path / "big").write_bytes(b"x" * 600_000)
        path.rename(path.with_name(f"2020010{day}T000000-old-0000000{day}"))
    beyond = kept_runs.begin("runs", [], LIMITS)  # the oldest and largest of all, and it runs
    beyond._keep(msgspec.structs.replace(beyond._about, started_at_s=time.time() - 9 * 86_400.0))
    (beyond.path / "big").write_bytes(b"x" * 2_000_000)
    oldest = beyond.path.rename(beyond.path.with_name("20200101T000000-a-00000000"))
    running = kept_runs.begin("new", [], LIMITS)
    assert kept_runs.expire(limits) == [
        f"{2 if limits.keep_days != 1 else 3} earlier run(s) expired in {kept_runs.place()} (settings: runs)"
    ]
    assert running.path.is_dir()
    assert (oldest / "big").exists()
    left = [run.path.name for run in kept_runs.kept()][1:-1]
    assert left == ([] if limits.keep_days == 1 else ["20200103T000000-old-00000003"])


def test_tmpfs_is_taken_back_from_a_run_whose_command_was_killed(home: Path) -> None:
    run = kept_runs.begin("j", [], LIMITS)
    os.close(run._lock)  # as the kernel does at a kill
    assert len(list((home / "shm").iterdir())) == 1
    kept_runs.expire(LIMITS)
    assert list((home / "shm").iterdir()) == []


def test_without_a_place_to_keep_runs_there_is_one_all_the_same(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "state").write_text("a file in the way")
    monkeypatch.setattr("tempfile.tempdir", str(home))
    run = kept_runs.begin("j", [], LIMITS)
    assert "runs cannot be kept in" in run.words[0]
    assert run.path.is_dir()
    run.finished({"exit_code": 0, "steps": 3, "incidents": []})
    run.close()
    assert [one.path for one in kept_runs.kept()] == [run.path]  # so that `explain` finds what `watch` has told
    monkeypatch.setattr("os.getuid", lambda: -7)  # of another user
    assert kept_runs.kept() == []


def test_a_folder_that_says_nothing_goes_too_unless_it_is_young_or_runs() -> None:
    old, young, running = (kept_runs.begin(name, [], LIMITS) for name in ("old", "young", "running"))
    for run in (old, young, running):
        (run.path / "run.json").write_bytes(b"")
        if run is not running:
            run.close()
    long_ago_s = time.time() - 3 * 86_400.0
    for run in (old, running):
        os.utime(run.path, (long_ago_s, long_ago_s))
    assert kept_runs.expire(LIMITS) == [f"1 earlier run(s) expired in {kept_runs.place()} (settings: runs)"]
    assert [run.path.is_dir() for run in (old, young, running)] == [False, True, True]


@pytest.mark.thorough
def test_age_and_bytes_limit_runs_and_their_number_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number in range(60):
        kept_runs.begin(f"j{number}", ["python"], RunsSettings()).close()
    assert len(kept_runs.kept()) == 60
    assert runs() == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 61
    assert said[-1].startswith("60 runs, ")


def test_a_command_line_that_is_no_utf_8_is_kept_readable() -> None:
    run = kept_runs.begin("j", ["python", os.fsdecode(b"a\xff")], LIMITS)
    assert run._about.command == ("python", "a\N{REPLACEMENT CHARACTER}")
    run.close()
