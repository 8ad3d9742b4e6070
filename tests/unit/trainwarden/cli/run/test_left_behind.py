"""What a command leaves behind is named, unless it is a helper of a job that has trained."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hook_doubles import write_header
from trainwarden.cli.run.outcome.left_behind import left_behind


@pytest.fixture
def left(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, "TRAINWARDEN_HOOK_DIR": str(tmp_path)})
    there = Path(f"/proc/{process.pid}")
    while (there / "comm").read_text() != "sleep\n" or not (there / "environ").read_bytes():
        os.sched_yield()  # until it has become that program
    yield process
    process.kill()
    process.wait()


def test_what_goes_on_is_named_where_nothing_was_seen_to_train(tmp_path: Path, left: subprocess.Popen[bytes]) -> None:
    found = left_behind(tmp_path, (), 0)
    assert found is not None
    assert found.reason.endswith(f"goes on unwatched: sleep 60 (pid {left.pid})")


def test_a_helper_of_a_job_that_has_trained_does_not_matter(tmp_path: Path, left: subprocess.Popen[bytes]) -> None:
    assert left_behind(tmp_path, (), 30) is None
    assert left_behind(tmp_path, {left.pid}, 0) is None


def test_who_trains_on_matters(tmp_path: Path, left: subprocess.Popen[bytes]) -> None:
    write_header(tmp_path / f"rank-0-{left.pid}.hook", left.pid)
    assert left_behind(tmp_path, (), 30) is not None


def test_processes_of_other_runs_are_none_of_it(tmp_path: Path, left: subprocess.Popen[bytes]) -> None:
    assert left.poll() is None
    assert left_behind(tmp_path / "other", (), 0) is None
