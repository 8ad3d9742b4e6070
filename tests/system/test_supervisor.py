"""The local launcher with real small processes: crash, restart in place, exit codes, nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actions.launchers.local.client import LocalConfig, LocalLauncher
from actions.launchers.local.supervisor import Supervisor, SupervisorConfig
from trainwarden import rundir
from trainwarden.clock import SystemClock
from trainwarden.errors import ConfigError
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(60)]

# Writes who it is, starts a child of its own, and then does as told by a file named after its rank.
RANK = """
import os, pathlib, signal, subprocess, sys, time
run, rank = pathlib.Path(os.environ["TRAINWARDEN_RUN_DIR"]), os.environ["RANK"]
if os.environ.get("STUBBORN"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
words = "attempt", os.environ["TRAINWARDEN_ATTEMPT"], "port", os.environ["MASTER_PORT"], "pids", os.getpid(), child.pid
print(*words, flush=True)
while True:
    order = run / f"order-{rank}"
    if order.exists():
        word = order.read_text()
        order.unlink()
        sys.exit(int(word))
    time.sleep(0.01)
"""


class Run:
    """A supervisor in a thread, its launcher client, and what can be seen from outside."""

    def __init__(self, run_dir: Path, ranks: int = 2, environ: dict[str, str] | None = None, **config: Any) -> None:
        self.run_dir = run_dir
        self.launcher = LocalLauncher(LocalConfig(run_dir=str(run_dir)))
        self._over = threading.Event()
        self.codes: list[int] = []
        supervisor = Supervisor(
            [sys.executable, "-S", "-c", RANK], ranks, run_dir, "job", "node", SystemClock(),
            {**os.environ, **(environ or {})}, SupervisorConfig(**{"stop_grace_s": 0.5, **config}),
        )  # fmt: skip
        self._thread = threading.Thread(target=lambda: self.codes.append(supervisor.run(self._over.is_set)))
        before = [len(self.lives(rank)) for rank in range(ranks)]
        self._thread.start()
        for rank in range(ranks):
            self.wait(lambda rank=rank: len(self.lives(rank)) > before[rank])

    def lives(self, rank: int) -> list[dict[str, int]]:
        """Each start of `rank`: attempt, port, pid, pid of its child."""
        log = rundir.rank_log(self.run_dir, rank)
        # What follows the last newline is a line that is still being written.
        lines = log.read_text().rpartition("\n")[0].splitlines() if log.exists() else []
        words = [line.split() for line in lines if line.startswith("attempt")]
        return [{"attempt": int(w[1]), "port": int(w[3]), "pid": int(w[5]), "child": int(w[6])} for w in words]

    def order(self, rank: int, code: int) -> None:
        """Make `rank` exit with `code`."""
        part = self.run_dir / f"part-{rank}"
        part.write_text(str(code))
        part.replace(self.run_dir / f"order-{rank}")

    def events(self, kind: str) -> list[EventRecord]:
        path = self.run_dir / rundir.EVENTS
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [event for line in lines if (event := EVENTS.decode(line)).kind == kind]

    def wait(self, true: Callable[[], object], timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text() for path in sorted((self.run_dir / "logs").glob("*.log")))
                pytest.fail(f"waited {timeout_s} s; logs:\n{logs[-2000:]}")
            time.sleep(0.01)

    def code(self) -> int:
        """The job's exit code, once it has ended by itself."""
        self._thread.join(20.0)
        assert not self._thread.is_alive(), self.launcher.state("job")
        return self.codes[0]

    def end(self) -> None:
        self._over.set()
        self._thread.join(20.0)
        assert not self._thread.is_alive()


def alive(pid: int) -> bool:
    """Whether `pid` runs (a zombie that nobody has reaped yet does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def start(**kwargs: Any) -> Run:
        made.append(Run(tmp_path, **kwargs))
        return made[-1]

    yield start
    for run in made:
        run.end()
        pids = [pid for rank in range(8) for life in run.lives(rank) for pid in (life["pid"], life["child"])]
        run.wait(lambda pids=pids: not any(map(alive, pids)))  # nothing of any rank is left, whatever the test did


def test_a_job_that_ends_well_ends_with_zero(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto")
    run.order(0, 0)
    run.order(1, 0)
    assert run.code() == 0
    assert {(event.rank, event.fields["code"]) for event in run.events("process_exit")} == {(0, 0), (1, 0)}
    assert not (run.run_dir / rundir.LAUNCHER_SOCKET).exists()


def test_in_observe_mode_a_failure_ends_the_job_with_the_first_ranks_code(runs: Callable[..., Run]) -> None:
    run = runs(mode="observe", cascade_grace_s=0.2)
    run.order(1, 7)
    assert run.code() == 7
    first, *others = run.events("process_exit")
    assert (first.rank, first.fields["code"], "asked" in first.fields) == (1, 7, False)
    assert [(event.rank, event.fields["signal"], event.fields["asked"]) for event in others] == [(0, "SIGTERM", True)]


def test_a_killed_rank_is_known_at_once_and_restarted_in_place(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto", engine_grace_s=30.0)
    os.kill(run.lives(1)[0]["pid"], signal.SIGKILL)
    killed_s = time.time()
    run.wait(lambda: run.events("process_exit"))
    (event,) = run.events("process_exit")
    assert (event.rank, event.fields["signal"], event.fields["pid"]) == (1, "SIGKILL", run.lives(1)[0]["pid"])
    assert event.time_s - killed_s < 5.0  # generous: it is milliseconds, but this machine may be busy
    assert run.launcher.state("job").phase == "failed"
    run.launcher.restart("job", "op", None, "rank 1 was killed")
    run.wait(lambda: len(run.lives(0)) == len(run.lives(1)) == 2)
    first, second = run.lives(0)
    assert (first["attempt"], second["attempt"]) == (0, 1)
    assert first["port"] != second["port"]
    assert not alive(first["pid"])
    assert not alive(first["child"])
    assert run.launcher.state("job").phase == "running"
    stages = [(event.fields["stage"], event.fields["attempt"]) for event in run.events("restart")]
    assert stages == [("started", 1), ("done", 1)]


def test_without_a_restart_a_failed_job_ends_after_the_grace(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto", engine_grace_s=0.5)
    run.order(0, 5)
    assert run.code() == 5


def test_a_stopped_and_stubborn_rank_is_restarted_all_the_same(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto", environ={"STUBBORN": "1"})
    os.kill(run.lives(0)[0]["pid"], signal.SIGSTOP)
    run.launcher.restart("job", "op", None, "it hangs")
    run.wait(lambda: len(run.lives(0)) == len(run.lives(1)) == 2)
    assert {event.fields["signal"] for event in run.events("process_exit")} == {"SIGKILL"}


def test_asked_to_stop_it_stops_its_ranks(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto")
    run.end()
    assert run.codes == [143]


def test_a_failure_before_the_stop_gives_the_code(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto")
    run.order(1, 9)
    run.wait(lambda: run.launcher.state("job").phase == "failed")
    run.launcher.stop("job", "op", None, "no use")
    assert run.code() == 9


def test_a_command_that_does_not_exist_is_said_in_its_log(tmp_path: Path) -> None:
    supervisor = Supervisor(["no-such-command-here"], 1, tmp_path, "job", "node", SystemClock())
    assert supervisor.run() == 127
    assert "no-such-command-here cannot be started" in rundir.rank_log(tmp_path, 0).read_text()


def test_a_second_launcher_in_the_same_folder_is_refused(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto")
    second = Supervisor(["true"], 1, run.run_dir, "job", "node", SystemClock())
    with pytest.raises(ConfigError, match="another launcher"):
        second.run()
    assert run.launcher.state("job").ranks_running == (0, 1)


def test_a_launcher_after_a_killed_one_knows_what_was_done(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from actions.launchers.local.supervisor import Supervisor
from trainwarden.clock import SystemClock
command = [sys.executable, "-S", "-c", {RANK!r}]
Supervisor(command, 2, Path({str(tmp_path)!r}), "job", "node", SystemClock()).run()
"""
    launcher = LocalLauncher(LocalConfig(run_dir=str(tmp_path)))
    first = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 20.0
        logs = [rundir.rank_log(tmp_path, rank) for rank in range(2)]
        while not all(log.exists() and b"pids" in log.read_bytes() for log in logs):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        launcher.rebalance("job", "op-1", [5, 3], "slow")
        pids = [int(word) for log in logs for word in log.read_text().split()[5:]]
        leaders = [int(log.read_text().split()[5]) for log in logs]
    finally:
        first.kill()
        first.wait()
    while any(map(alive, leaders)):  # the kernel ends the ranks of a killed launcher
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for pid in pids:  # their own children are theirs to watch; a killed launcher cannot
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run = Run(tmp_path, mode="auto")
    try:
        assert [life["attempt"] for life in run.lives(0)] == [0, 1]
        run.launcher.rebalance("job", "op-1", [1, 7], "a repeat after the launcher's death")
        assert run.launcher.state("job").micro_batches == (5, 3)
        run.launcher.rebalance("job", "op-2", [6, 2], "slower")
        plan = json.loads((tmp_path / rundir.PLAN).read_bytes())
        assert (plan["number"], plan["micro_batches"]) == (2, [6, 2])
        assert plan["history"] == [{"number": 1, "micro_batches": [5, 3]}]
    finally:
        run.end()


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"{}\n",
        b'{"do":"restart","job":"job"}\n',
        b'{"do":"rebalance","job":"job","operation":"x","micro_batches":[0,8]}\n',
        b"\xff\xfe\n",
    ],
)
def test_nonsense_on_the_socket_gets_one_sentence(runs: Callable[..., Run], line: bytes) -> None:
    run = runs(mode="auto")
    path = run.run_dir / rundir.LAUNCHER_SOCKET
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5.0)
        client.connect(str(path))
        client.sendall(line)
        assert b'"error":"not a request' in client.recv(65536)
    assert run.launcher.state("job").phase == "running"


def test_a_client_that_sends_without_end_is_cut_off(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(5.0)
        client.connect(str(run.run_dir / rundir.LAUNCHER_SOCKET))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            client.sendall(b"x" * (1 << 22))
    assert run.launcher.state("job").phase == "running"


def test_ranks_get_torchs_words_and_ours(tmp_path: Path) -> None:
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    supervisor = Supervisor(
        ["python", "-c", show], 2, tmp_path, "job", "node", SystemClock(), {"PATH": os.environ["PATH"]}
    )
    assert supervisor.run() == 0
    environ = json.loads(rundir.rank_log(tmp_path, 1).read_text())
    assert (environ["RANK"], environ["LOCAL_RANK"], environ["WORLD_SIZE"], environ["LOCAL_WORLD_SIZE"]) == (
        "1",
        "1",
        "2",
        "2",
    )
    assert environ["TRAINWARDEN_HOOK_DIR"] == str(tmp_path / "hook")
    assert environ["PYTHONPATH"].endswith("inject")
    assert (environ["MASTER_ADDR"], environ["OMP_NUM_THREADS"]) == ("127.0.0.1", "1")
