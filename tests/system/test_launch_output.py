"""`trainwarden launch` shows what its ranks write, keeps it, and says where, after failures too."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.system.runs import WARDEN

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

# Rank 1 fails once the other has said all: torchrun ends whoever is left.
RANK = """
import os, sys, time
rank = int(os.environ["RANK"])
sys.stdout.write(f"50%\\r100%\\nrank {rank} says a word\\n")
sys.stderr.write("and complains\\n")
sys.stdout.flush()
if rank == 0:
    open("said", "w")
while not os.path.exists("said"):
    time.sleep(0.01)
sys.exit(5 if rank == 1 else 0)
"""


def test_the_ranks_are_shown_with_their_prefix_and_kept_after_a_failure(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*WARDEN, "launch", "--nproc", "2", "--", "python", "-c", RANK],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True, timeout=100, cwd=tmp_path, check=False,
    )  # fmt: skip
    said = ended.stdout.decode()
    assert ended.returncode == 5, said
    for rank in range(2):
        for line in ("50%\r", "100%\n", f"rank {rank} says a word\n", "and complains\n"):
            assert f"[rank{rank}]: {line}" in said
    (run,) = (tmp_path / "trainwarden" / "runs").iterdir()
    assert f"records and logs: {run}" in said
    assert sorted(path.name for path in (run / "logs").iterdir()) == ["rank-0.log", "rank-1.log"]
    assert (run / "logs" / "rank-1.log").read_text() == "50%\n100%\nrank 1 says a word\nand complains\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_the_ranks_go_on_when_their_logs_cannot_be_written_and_nobody_listens(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    talk = "import os\nfor _ in range(40000): print('x' * 99, flush=True)\n"
    talk += "open(os.environ['DONE'] + os.environ['RANK'], 'w')"
    shell = f'mount -t tmpfs -o size=2m tmpfs {disk}; set -o pipefail; "$@" | head -n 1'
    ended = subprocess.run(
        ["unshare", "-m", "bash", "-c", shell, "-", *WARDEN, "launch", "--nproc", "2", "--", "python", "-c", talk],
        env={
            **os.environ, "TRAINWARDEN_RUN_DIR": str(disk / "run"), "PYTHONPATH": str(ROOT),
            "DONE": str(tmp_path / "done"),
        },
        capture_output=True, timeout=100, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr.decode()[-3000:]
    assert (tmp_path / "done0").exists()
    assert (tmp_path / "done1").exists()


LASTING = """
import os, signal, sys, time
from pathlib import Path
here = Path(os.environ["DONE"] + os.environ["RANK"])
def end(*_):
    here.write_text("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
here.touch()
time.sleep(600)
"""


def test_a_terminal_that_is_closed_ends_the_job_in_order(tmp_path: Path) -> None:
    """The ranks were killed at once, without a word, and no answer was written."""
    answer, done = tmp_path / "answer.json", str(tmp_path / "rank")
    environ = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT), "DONE": done}
    command = [*WARDEN, "launch", "--nproc", "2", "--json", str(answer), "--", "python", "-c", LASTING]
    master, terminal = pty.openpty()
    command = ["env", "--default-signal=HUP", *command]  # who tests under nohup ignores it
    process = subprocess.Popen(command, env=environ, stdout=terminal, stderr=terminal, cwd=tmp_path)
    os.close(terminal)
    try:
        until_s = time.monotonic() + 60.0
        while not all(Path(f"{done}{rank}").exists() for rank in range(2)):
            assert time.monotonic() < until_s
            time.sleep(0.05)
        os.close(master)
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 143
    finally:
        process.kill()
    assert [Path(f"{done}{rank}").read_text() for rank in range(2)] == ["saved", "saved"]
    assert json.loads(answer.read_text())["incidents"] == []


SILENT = """
import gc, os
assert gc.get_freeze_count() > 100_000, "each rank looks through torch for garbage, and copies its pages by that"
print("rank", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "0":
    os._exit(0)
if os.environ["RANK"] == "1":
    os.execv("/bin/true", ["true"])
"""


def test_ranks_that_end_well_without_a_word_to_torchrun_end_the_job(tmp_path: Path) -> None:
    """A forked script that ends its process itself tells torchrun of no end, which waited for ever."""
    (tmp_path / "train.py").write_text(SILENT)
    ended = subprocess.run(
        [*WARDEN, "launch", "--nproc", "3", "--", "python", "train.py"],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True, timeout=100, cwd=tmp_path, check=False,
    )  # fmt: skip
    said = ended.stdout.decode()
    assert ended.returncode == 0, said
    assert sorted(line for line in said.splitlines() if line.startswith("[rank")) == [
        f"[rank{rank}]: rank {rank}" for rank in range(3)
    ]
