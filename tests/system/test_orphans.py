"""What a rank has started ends with it, wherever it has gone; what belongs to ranks that live is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.places import ROOT
from trainwarden.actions.launchers.local.client import LocalConfig, LocalLauncher
from trainwarden.launching import Operation, Targets
from trainwarden.protocols import Scope

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

SUPERVISE = """
import sys
from pathlib import Path
from trainwarden.actions.launchers.local.coordinator import SupervisorConfig
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.actions.launchers.local.supervisor import Supervisor
from trainwarden.cli.serve.process import StopFlag
from trainwarden.clock import SystemClock
command = (sys.executable, "-S", "-c", sys.argv[2])
place = LocalJob(command=command, ranks=2, run_dir=Path(sys.argv[1]), job="job", node="n")
config = SupervisorConfig(mode="auto", stop_grace_s=0.5)
sys.exit(Supervisor(place, SystemClock(), config=config, adopt=True).run(StopFlag()))
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Lair:
    """A launcher in a process of its own, and what its ranks have let loose."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.launcher = LocalLauncher(LocalConfig(), Scope(job="job", node="n", run_dir=str(folder / "run")))
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, str(folder / "run"), RANK],
            env={**os.environ, "LAIR": str(folder), "PYTHONPATH": str(ROOT)},
        )

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

    def restart(self, ranks: tuple[int, ...] | None) -> None:
        generation = self.launcher.state("job").generation
        name = f"op-{generation}"
        self.launcher.submit(
            Operation(
                id=name, job="job", kind="restart", expected_generation=generation, targets=Targets(ranks=ranks)
            )
        )  # fmt: skip
        self.wait(lambda: self.launcher.poll("job", name).state == "done")


@pytest.fixture
def lair(tmp_path: Path) -> Iterator[Lair]:
    made = Lair(tmp_path)
    yield made
    made.process.terminate()
    made.process.wait(20.0)
    pids = [int(path.read_text()) for path in tmp_path.glob("?-?/*")]
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_what_a_rank_let_loose_ends_with_it_and_what_others_did_goes_on(lair: Lair) -> None:
    zero, one = lair.of("0-0"), lair.of("1-0")
    lair.restart((1,))
    again = lair.of("1-1")
    lair.wait(lambda: not alive(one["session"]) and not alive(one["background"]), 5.0)
    assert all(map(alive, [*zero.values(), *again.values()]))
    lair.restart(None)
    gone = [*zero.values(), *one.values(), *again.values()]
    lair.wait(lambda: not any(map(alive, gone)), 5.0)
    assert all(map(alive, [*lair.of("0-2").values(), *lair.of("1-2").values()]))


def test_a_rank_that_is_killed_leaves_nothing_either(lair: Lair) -> None:
    lair.of("0-0")
    one = lair.of("1-0")
    rank = Path(f"/proc/{one['session']}/status").read_text().partition("PPid:")[2].split()[0]
    os.kill(int(rank), signal.SIGKILL)
    lair.wait(lambda: not alive(one["session"]) and not alive(one["background"]))


BRIEF = """
import os, sys
from pathlib import Path
from trainwarden.cli.shared.stack import LocalStack
stack = LocalStack(Path(sys.argv[1]), {})
rank = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
stack.start("supervise", "--nproc", "2", "--", sys.executable, "-c", rank, sys.argv[2])
for service in ("agent", "detector"):
    stack.start(service)
print(*(stack.pid(service) for service in ("supervise", "agent", "detector")), flush=True)
os._exit(0)
"""


def test_whoever_is_killed_in_its_first_moments_leaves_no_rank_and_no_service(tmp_path: Path) -> None:
    """The services asked who their parent was once they had imported what they need, and found another one."""
    run, began = tmp_path / "run", tmp_path / "a-rank-began"
    run.mkdir()
    ended = subprocess.run(
        [sys.executable, "-c", BRIEF, str(run), str(began)], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    left = [int(word) for word in ended.stdout.split()]
    try:
        assert len(left) == 3
        until_s = time.monotonic() + 60.0
        while any(map(alive, left)):
            assert time.monotonic() < until_s, "services go on without whoever started them"
            time.sleep(0.05)
        assert not began.exists(), "a rank was started for nobody"
    finally:
        for pid in filter(alive, left):
            os.kill(pid, signal.SIGKILL)
