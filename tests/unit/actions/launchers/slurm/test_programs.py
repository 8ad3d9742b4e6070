"""Programs of Slurm that write without end or leave processes behind cost their limits and no more."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trainwarden.actions.launchers.slurm import commands
from trainwarden.actions.launchers.slurm.commands import Commands
from trainwarden.errors import LauncherUnavailable


@pytest.fixture
def squeue(tmp_path: Path) -> Path:
    program = tmp_path / "squeue"
    program.write_text("#!/bin/sh\nexec yes '7 RUNNING'\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("where", ["", ">&2"])
def test_an_answer_without_end_is_given_up_at_its_limit(
    squeue: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """In two seconds it took three gigabytes of the engine's memory, and then the engine."""
    monkeypatch.setattr(commands, "MOST_BYTES", 4 * 1024 * 1024)
    squeue.write_text(f"#!/bin/sh\nexec yes '7 RUNNING' {where}\n")
    asked = Commands(str(squeue.parent), None, 60.0)
    with asked.about("job"), pytest.raises(LauncherUnavailable, match="more than 4 MiB"):
        asked.numbers("job")


def test_what_a_program_has_started_ends_with_its_time() -> None:
    held, end = os.pipe()
    try:
        process = ["/bin/sh", "-c", f"exec 9>/proc/{os.getpid()}/fd/{end}; sleep 600"]
        with pytest.raises(subprocess.TimeoutExpired):
            commands.run_program(process, env=dict(os.environ), timeout_s=0.3)
    finally:
        os.close(end)
    assert os.read(held, 1) == b""  # no process has the other end
    os.close(held)
