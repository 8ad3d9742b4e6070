"""Ranks that are forked from a process with their modules imported are what ranks are that were started as usual."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from trainwarden import rundir
from trainwarden.actions.launchers.local.client import LocalConfig, LocalLauncher
from trainwarden.launching import Operation, Targets
from trainwarden.protocols import Scope

pytestmark = [pytest.mark.system, pytest.mark.timeout(90)]

SUPERVISE = """
import sys
from pathlib import Path
from trainwarden.actions.launchers.local.coordinator import SupervisorConfig
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.actions.launchers.local.supervisor import Supervisor
from trainwarden.cli.serve.process import StopFlag
from trainwarden.clock import SystemClock
run_dir, preload, ranks, mode, *command = sys.argv[1:]
modules = tuple(filter(None, preload.split(",")))
place = LocalJob(
    command=tuple(command), ranks=int(ranks), run_dir=Path(run_dir), job="job", node="n", show=1, preload=modules
)
config = SupervisorConfig(mode=mode, stop_grace_s=0.5, cascade_grace_s=20.0)
sys.exit(Supervisor(place, SystemClock(), config=config, adopt=True).run(StopFlag()))
"""

# Everything about itself that a program might rely on, but for what differs from start to start.
SELF = """
STARTS = ("MASTER_PORT", "SUPERVISOR", "TRAINWARDEN_RUN_DIR", "TRAINWARDEN_HOOK_DIR")
import atexit, json, multiprocessing, os, pickle, random, signal, sys, threading
class Mine: pass
def ask(queue): queue.put(os.environ["RANK"])
def own():
    with open("/proc/self/environ") as file:
        return [int(word[5:]) for word in file.read().split(chr(0)) if word.startswith("RANK=")]
if __name__ == "__main__":
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    child = multiprocessing.get_context("spawn").Process(target=ask, args=(queue,))
    child.start(); child.join(); said = queue.get(); del child, queue
    environ = {name: value for name, value in os.environ.items() if name not in STARTS}
    print(json.dumps({
        "argv": sys.argv, "file": __file__, "path": sys.path, "name": __name__, "doc": __doc__,
        "loader": type(__loader__).__name__, "spec": __spec__ is None,
        "globals": sorted(set(globals()) - {"__cached__"}),
        "environ": environ, "child": said, "own": own(), "flags": str(sys.flags),
        "pickled": type(pickle.loads(pickle.dumps(Mine()))).__name__,
        "leads": os.getpid() == os.getpgrp() == os.getsid(0), "parent": os.getppid() == int(os.environ["SUPERVISOR"]),
        "signals": [str(signal.getsignal(number)) for number in (2, 13, 15, 17)],
        "input": os.readlink("/proc/self/fd/0"), "files": len(os.listdir("/proc/self/fd")),
        "main": threading.current_thread() is threading.main_thread(), "unbuffered": sys.stdout.write_through,
    }, sort_keys=True), flush=True)
    atexit.register(print, "at exit", Mine, flush=True)
    {end}
"""

ENDS = {
    "ends well": ("pass", 0),
    "a number": ("sys.exit(3)", 3),
    "a sentence": ("sys.exit('no data')", 1),
    "an exception": ("def deep(): raise ValueError('é ' + chr(0xdcff))\n    deep()", 1),
    "two exceptions": ("try: {}['a']\n    except KeyError as error: raise RuntimeError('b') from error", 1),
    "a syntax": ("exec('a b')", 1),
    "at once": ("os._exit(7)", 7),
    "a signal": ("os.kill(os.getpid(), signal.SIGKILL)", 137),
    "asked by a terminal": ("os.kill(os.getpid(), signal.SIGINT); __import__('time').sleep(9)", 130),
}


class Launch:
    """A launcher in a process of its own, and what its ranks say."""

    def __init__(self, run_dir: Path, preload: str, *command: str, ranks: int = 2, mode: str = "auto") -> None:
        self.run_dir = run_dir
        self.launcher = LocalLauncher(LocalConfig(), Scope(job="job", node="n", run_dir=str(run_dir)))
        self.said = run_dir.with_suffix(".said")
        with self.said.open("wb") as said:
            self.process = subprocess.Popen(
                ["bash", "-c", 'export SUPERVISOR=$$; exec "$@"', "-", sys.executable, "-c", SUPERVISE,
                 str(run_dir), preload, str(ranks), mode, *command],
                env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=said, stderr=said,
            )  # fmt: skip

    def log(self, rank: int) -> str:
        path = rundir.rank_log(self.run_dir, rank)
        return path.read_text(errors="replace") if path.exists() else ""

    def facts(self, rank: int) -> list[dict[str, Any]]:
        """The objects that `rank` has said, in whole lines."""
        lines = self.log(rank).rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait(self, true: Callable[[], object], timeout_s: float = 120.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < deadline, self.said.read_text() + self.log(0)
            time.sleep(0.02)

    def restart(self, ranks: tuple[int, ...] | None = None) -> None:
        generation = self.launcher.state("job").generation
        self.launcher.submit(
            Operation(
                id=f"op-{generation}", job="job", kind="restart", expected_generation=generation,
                targets=Targets(ranks=ranks),
            )
        )  # fmt: skip
        self.wait(lambda: self.launcher.poll("job", f"op-{generation}").state == "done")

    def server(self) -> int:
        """The fork server: the child that is no rank."""
        ranks = {fact["pid"] for rank in range(2) for fact in self.facts(rank)}
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return next(pid for pid in map(int, listed.split()) if pid not in ranks)


def told(log: str) -> dict[str, Any]:
    """What a rank has said of itself by name, and its other lines."""
    lines = log.splitlines()
    facts = [json.loads(line) for line in lines if line.startswith("{")]
    return {**facts[0], "lines": [line for line in lines if not line.startswith("{")], "objects": len(facts)}


def differences(have: dict[str, Any], want: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What stands under a name in both, where that differs; but for environments."""
    names = {name for name in {*want, *have} if have.get(name) != want.get(name)} - {"environ"}
    return {name: (have.get(name), want.get(name)) for name in names}


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    made: list[Launch] = []

    def start(preload: str, *command: str, **more: Any) -> Launch:
        made.append(Launch(tmp_path / f"run-{len(made)}", preload, *command, **more))
        return made[-1]

    yield start
    for one in made:
        one.process.terminate()
        one.process.wait(30.0)


@pytest.mark.parametrize("end", ENDS)
def test_a_forked_rank_is_what_a_started_one_is(launch: Callable[..., Launch], tmp_path: Path, end: str) -> None:
    statement, code = ENDS[end]
    script = tmp_path / "train me.py"
    script.write_text(SELF.replace("{end}", statement))
    heard = []
    for preload in ("", "json,random"):
        one = launch(preload, sys.executable, "-X", "dev", str(script), "--lr", "1", mode="observe")
        assert one.process.wait(60.0) == code, one.log(0) + one.said.read_text()
        assert "themselves" not in one.said.read_text()
        heard.append([one.log(rank) for rank in range(2)])
    usual, forked = heard
    assert all('"parent": true' in log and '"child": "' in log for log in usual)
    for rank in range(2):
        want, have = (told(logs[rank]) for logs in (usual, forked))
        assert differences(have, want) == {}
        assert differences(have["environ"], want["environ"]) == {}


@pytest.mark.parametrize(
    ("words", "code"), [(("-c", "import sys; print(sys.argv, sys.path[0], __name__)"), 0), (("-m", "json.tool"), 2)]
)
def test_code_and_modules_run_as_scripts_do(launch: Callable[..., Launch], words: tuple[str, ...], code: int) -> None:
    usual, forked = (launch(preload, sys.executable, *words, "no/file", mode="observe") for preload in ("", "json"))
    assert (usual.process.wait(60.0), forked.process.wait(60.0)) == (code, code), usual.said.read_text()
    assert forked.log(1) == usual.log(1) != ""


STAYS = """
import json, os, random, sys, time
print(json.dumps({"pid": os.getpid(), "drawn": random.random(), "early": "fractions" in sys.modules}), flush=True)
time.sleep(600)
"""


def test_ranks_live_on_and_start_as_usual_when_the_server_is_killed(launch: Callable[..., Launch]) -> None:
    one = launch("fractions", sys.executable, "-c", STAYS)
    one.wait(lambda: one.facts(0) and one.facts(1))
    one.restart((1,))
    one.wait(lambda: len(one.facts(1)) == 2)
    server = one.server()
    os.kill(server, signal.SIGKILL)
    time.sleep(0.3)
    assert not gone(one.facts(0)[0]["pid"])
    one.restart()
    one.wait(lambda: len(one.facts(0)) == 2 and len(one.facts(1)) == 3)
    lives = [*one.facts(0), *one.facts(1)]
    assert [life["early"] for life in lives] == [True, False, True, True, False]
    assert len({life["drawn"] for life in lives}) == 5, "each life draws by itself"
    assert "ranks import fractions themselves: " in one.said.read_text()
    assert gone(server)


def test_a_killed_launcher_takes_ranks_and_server_with_it(launch: Callable[..., Launch]) -> None:
    one = launch("fractions", sys.executable, "-c", STAYS)
    one.wait(lambda: one.facts(0) and one.facts(1))
    pids = [one.server(), one.facts(0)[0]["pid"], one.facts(1)[0]["pid"]]
    one.process.kill()
    one.wait(lambda: all(map(gone, pids)), 10.0)


REFUSED = {
    "is not there": ("", "ModuleNotFoundError"),
    "ends": ("import sys; sys.exit(0)", "SystemExit"),
    "has threads": (
        "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
        "1 threads",
    ),
    "has a lock": ("import multiprocessing; lock = multiprocessing.Lock()", "that all ranks would share"),
    "is connected": ("import socket; pair = socket.socketpair()", "which all ranks would share"),
    "dies": ("import os; os._exit(3)", "it has ended"),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_module_that_no_rank_can_be_forked_after_is_said(
    launch: Callable[..., Launch], tmp_path: Path, how: str
) -> None:
    source, sentence = REFUSED[how]
    if source:
        (tmp_path / "own.py").write_text(source)
    (tmp_path / "train.py").write_text(STAYS.replace("time.sleep(600)", "sys.exit(5)"))
    one = launch("own", sys.executable, str(tmp_path / "train.py"), mode="observe")
    assert one.process.wait(60.0) == 5
    assert "ranks import own themselves: " in one.said.read_text()
    assert sentence in one.said.read_text()


def test_an_import_without_end_obeys_a_stop(launch: Callable[..., Launch], tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("import time; open(__file__ + '.came', 'w'); time.sleep(600)")
    (tmp_path / "train.py").write_text("print('trained', flush=True)")
    one = launch("own", sys.executable, str(tmp_path / "train.py"))
    one.wait((tmp_path / "own.py.came").exists)
    one.process.terminate()
    assert one.process.wait(60.0) == 143
    assert one.log(0) == ""
    assert not rundir.rank_log(one.run_dir, 0).exists(), "no rank was started"


def test_a_command_that_is_no_python_is_refused(launch: Callable[..., Launch]) -> None:
    one = launch("json", "torchrun", "train.py")
    assert one.process.wait(30.0) != 0
    assert "--preload: torchrun is not Python" in one.said.read_text()
