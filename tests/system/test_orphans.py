"""What a rank has started ends with it, wherever it has gone; what belongs to ranks that live is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.places import ROOT
from tests.system.runs import LEAN, WARDEN

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

# Three ways out of a rank's process group: a session of its own, the background (a double fork), and no environment.
RANK = """
import os, pathlib, subprocess, sys, time
lair = pathlib.Path(os.environ["LAIR"]) / f"{os.environ['RANK']}-{os.environ['TRAINWARDEN_ATTEMPT']}"
lair.mkdir()
sleeper = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
def run(name, **more):
    subprocess.Popen([sys.executable, "-S", "-c", sleeper, str(lair / name)], start_new_session=True, **more)
run("session")
if os.fork() == 0:
    run("background", **quiet)
    os._exit(0)
os.wait()
if os.fork() == 0:
    run("hidden", env={}, **quiet)
    os._exit(0)
os.wait()
for _ in range(6000):
    time.sleep(0.1)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Lair:
    """A job in a process of its own, and what its ranks have let loose."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        words = ["launch", "--nproc", "2", "--mode", "auto", "--job", "job", "--", "python", "-S", "-c", RANK]
        self.process = subprocess.Popen(
            [*WARDEN, *words], stdout=subprocess.DEVNULL,
            env={
                **os.environ, "LAIR": str(folder), "PYTHONPATH": str(ROOT), "TRAINWARDEN_RUN_DIR": str(folder / "run"),
                **LEAN,
            },
        )  # fmt: skip

    def of(self, life: str) -> dict[str, int]:
        """Processes let loose by a rank's life ("RANK-ATTEMPT"), once all three are there."""
        paths = [self.folder / life / name for name in ("session", "background", "hidden")]
        self.wait(lambda: all(path.exists() and path.read_text() for path in paths))
        return {path.name: int(path.read_text()) for path in paths}

    def wait(self, true: Callable[[], object], timeout_s: float = 90.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.fixture
def lair(tmp_path: Path) -> Iterator[Lair]:
    made = Lair(tmp_path)
    yield made
    made.process.terminate()
    made.process.wait(60.0)
    pids = [int(path.read_text()) for path in tmp_path.glob("?-?/*")]
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_what_ranks_let_loose_ends_before_the_next_attempt_and_with_the_job(lair: Lair) -> None:
    zero, one = lair.of("0-0"), lair.of("1-0")
    assert all(map(alive, [*zero.values(), *one.values()]))
    rank = Path(f"/proc/{one['session']}/status").read_text().partition("PPid:")[2].split()[0]
    os.kill(int(rank), signal.SIGKILL)
    lair.wait(lambda: (lair.folder / "0-1").exists() or (lair.folder / "1-1").exists())
    assert not any(map(alive, [*zero.values(), *one.values()]))
    assert all(map(alive, [*lair.of("0-1").values(), *lair.of("1-1").values()]))


BRIEF = """
import os, sys
from pathlib import Path
from trainwarden.cli.shared.stack import LocalStack
stack = LocalStack(Path(sys.argv[1]), {})
for service in ("agent", "detector", "engine"):
    stack.start(service)
print(*(stack.pid(service) for service in ("agent", "detector", "engine")), flush=True)
os._exit(0)
"""


def test_whoever_is_killed_in_its_first_moments_leaves_no_service(tmp_path: Path) -> None:
    """The services asked who their parent was once they had imported what they need, and found another one."""
    run = tmp_path / "run"
    run.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", BRIEF, str(run)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    left = [int(word) for word in ended.stdout.split()]
    try:
        assert len(left) == 3
        until_s = time.monotonic() + 60.0
        while any(map(alive, left)):
            assert time.monotonic() < until_s, "services go on without whoever started them"
            time.sleep(0.05)
    finally:
        for pid in filter(alive, left):
            os.kill(pid, signal.SIGKILL)


def marked(mark: str) -> dict[int, str]:
    """Command lines of the processes that live and have `mark` in their environment, by their ids."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("LAIR") == mark and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = " ".join(process.cmdline())
    return found


BEGIN = "import sys, time; open(sys.argv[1], 'w').close(); time.sleep(600)"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", ["rank.py exec", "torch.distributed.run", None])
def test_whoever_kills_launch_in_its_first_moments_leaves_no_rank(tmp_path: Path, moment: str | None) -> None:
    """A scheduler that starts the job again would have two writers of one folder for checkpoints."""
    mark, begun = str(tmp_path), tmp_path / "begun"
    environ = {
        **os.environ,
        "LAIR": mark,
        "PYTHONPATH": str(ROOT),
        "TRAINWARDEN_RUN_DIR": str(tmp_path / "run"),
        **LEAN,
    }
    words = ["launch", "--nproc", "2", "--mode", "auto", "--", "python", "-S", "-c", BEGIN, str(begun)]
    launch = subprocess.Popen([*WARDEN, *words], stdout=subprocess.DEVNULL, env=environ)

    def has_come() -> bool:
        if moment is None:  # a rank runs
            return begun.exists()
        return any(moment in line for pid, line in marked(mark).items() if pid != launch.pid)

    try:
        until_s = time.monotonic() + 240.0
        while not has_come():
            assert time.monotonic() < until_s
        launch.kill()
        launch.wait()
        while left := marked(mark):
            assert time.monotonic() < until_s, left
            time.sleep(0.05)
    finally:
        launch.kill()
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
