"""`trainwarden watch` never holds its job up: its output is drained whatever becomes of ours."""

from __future__ import annotations

import os
import pty
import select
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.system.runs import WARDEN

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

LINES = 40_000  # of 50 bytes: far more than two pipes hold, and more than the small disk
TALKER = f"""
import sys
for line in range({LINES}):
    print(f"step {{line:08d}} " + "x" * 35, flush=True)
open(sys.argv[1], "w").write("done")
sys.exit(7)
"""


def test_watch_ends_with_a_word_and_leaves_a_run_that_can_be_asked_about(tmp_path: Path) -> None:
    """Only the hook's folder goes to tmpfs, and goes with the command; a refused command leaves nothing at all."""
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    look = "import os; print(os.path.realpath(os.environ['TRAINWARDEN_HOOK_DIR'])); print('words')"

    def warden(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*WARDEN, *words], env=environ, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False
        )

    ended = warden("watch", "--job", "quiet", "--", sys.executable, "-c", look)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("/dev/shm/trainwarden-")
    (run,) = (tmp_path / "trainwarden" / "runs").iterdir()
    assert "job quiet ended with exit code 0: no steps seen, NOT JUDGED: no training step was seen" in ended.stderr
    assert f"records and logs: {run}" in ended.stderr
    assert (run / "logs" / "job.log").read_text().endswith("words\n")
    refused = warden("watch", "--", "no-such-command")
    assert refused.returncode == 2, refused.stderr
    assert warden("watch", "--config", str(tmp_path), "--", "true").returncode == 2
    assert warden("demo", "--bus", "nonsense").returncode == 2
    assert list((tmp_path / "trainwarden" / "runs").iterdir()) == [run]
    assert not Path(ended.stdout.split()[0]).exists()
    asked = warden("status")
    assert f"quiet: exit code 0, 0 steps, not judged; {run}" in asked.stdout, asked.stderr


def environment(run_dir: Path) -> dict[str, str]:
    return {**os.environ, "TRAINWARDEN_RUN_DIR": str(run_dir), "PYTHONPATH": str(ROOT)}


def test_the_job_goes_on_when_the_reader_of_its_output_has_enough(tmp_path: Path) -> None:
    done = tmp_path / "done"
    command = shlex.join([*WARDEN, "watch", "--", sys.executable, "-c", TALKER, str(done)])
    shell = f"set -o pipefail; {{ {command}; echo ended by $? >&2; }} | head -n 1"
    ended = subprocess.run(  # noqa: PLW1510 - its exit code is what is asked
        ["bash", "-c", shell], env=environment(tmp_path / "run"), capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert ended.stdout == f"step {0:08d} {'x' * 35}\n"
    assert done.read_text() == "done"
    assert "ended by 7" in ended.stderr, ended.stderr
    assert len((tmp_path / "run" / "logs" / "job.log").read_bytes().splitlines()) == LINES


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_the_job_goes_on_when_its_log_cannot_be_written(tmp_path: Path) -> None:
    disk, done = tmp_path / "disk", tmp_path / "done"
    disk.mkdir()
    command = shlex.join([*WARDEN, "watch", "--", sys.executable, "-c", TALKER, str(done)])
    shell = f"mount -t tmpfs -o size=1400k tmpfs {disk} && {command}"
    ended = subprocess.run(  # noqa: PLW1510 - its exit code is what is asked
        ["unshare", "-m", "bash", "-c", shell], env=environment(disk / "run"), capture_output=True, timeout=60, cwd=ROOT
    )
    said = ended.stderr.decode()[-3000:]
    assert done.exists(), said
    assert len(ended.stdout.splitlines()) == LINES
    assert ended.returncode == 7, said
    assert "not kept" in said
    assert "Traceback" not in said


def test_a_progress_bar_is_shown_as_it_moves(tmp_path: Path) -> None:
    bar = "import sys, time\nsys.stdout.write('10%\\r'); sys.stdout.flush(); sys.stdin.readline(); print('100%')"
    process = subprocess.Popen(
        [*WARDEN, "watch", "--", sys.executable, "-c", bar],
        env=environment(tmp_path / "run"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 30)
    try:
        assert ready, "nothing was shown while the bar had not ended its line"
        assert os.read(process.stdout.fileno(), 100) == b"10%\r"
    finally:
        rest, _ = process.communicate(b"\n", timeout=30)
    assert rest == b"100%\n"


def test_the_job_goes_on_when_the_terminal_is_closed(tmp_path: Path) -> None:
    """As under nohup, whose terminal answers with an I/O error once it is gone."""
    done = tmp_path / "done"
    master, terminal = pty.openpty()
    command = [*WARDEN, "watch", "--", sys.executable, "-c", TALKER, str(done)]
    process = subprocess.Popen(command, env=environment(tmp_path / "run"), stdout=terminal, stderr=terminal, cwd=ROOT)
    os.close(terminal)
    os.read(master, 10)
    os.close(master)
    try:
        assert process.wait(60) == 7
    finally:
        process.kill()
    assert done.exists()


@pytest.mark.parametrize("answer", ["-", "gone/answer.json"])
def test_the_exit_code_is_the_jobs_though_our_answer_cannot_be_written(tmp_path: Path, answer: str) -> None:
    (tmp_path / "gone").mkdir()
    job = [sys.executable, "-c", "import os, sys; os.rmdir('gone'); sys.exit(7)"]
    command = shlex.join([*WARDEN, "watch", "--json", answer, "--", *job])
    shell = f"{{ {command}; echo ended by $? >&2; }} | head -c 0"
    ended = subprocess.run(
        ["bash", "-c", shell], env=environment(tmp_path / "run"), capture_output=True, text=True, timeout=60,
        cwd=tmp_path, check=True,
    )  # fmt: skip
    assert "ended by 7" in ended.stderr, ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
@pytest.mark.parametrize("size", ["8k", "256k"], ids=["full", "full with the bus"])
def test_the_job_runs_when_the_disk_for_its_run_folder_is_full(size: str, tmp_path: Path) -> None:
    """A full disk let the folder be made and nothing be written into it: the command was refused."""
    done, state = tmp_path / "done", tmp_path / "state"
    state.mkdir()
    command = shlex.join([*WARDEN, "watch", "--", sys.executable, "-c", TALKER, str(done)])
    ended = subprocess.run(
        ["unshare", "-m", "bash", "-c", f"mount -t tmpfs -o size={size} tmpfs {state} && exec {command}"],
        env={**os.environ, "XDG_STATE_HOME": str(state), "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert ended.returncode == 7, ended.stderr
    assert len(ended.stdout.splitlines()) == LINES
    assert done.read_text() == "done"
    assert "runs cannot be kept in" in ended.stderr


def test_a_command_line_that_is_no_utf_8_is_run_as_it_is(tmp_path: Path) -> None:
    odd = b"\xff\xfe.txt"
    show = "import os, sys; os.write(1, os.fsencode(sys.argv[1])); sys.exit(7)"
    ended = subprocess.run(
        [*WARDEN, "watch", "--", sys.executable, "-c", show, odd],
        env=environment(tmp_path / "run") | {"XDG_STATE_HOME": str(tmp_path)},
        capture_output=True, timeout=60, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (7, odd), ended.stderr
