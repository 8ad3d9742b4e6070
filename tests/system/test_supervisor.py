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

from trainwarden import rundir
from trainwarden.actions.launchers.local.client import LocalConfig, LocalLauncher
from trainwarden.actions.launchers.local.coordinator import SupervisorConfig
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.actions.launchers.local.supervisor import Supervisor
from trainwarden.clock import SystemClock
from trainwarden.errors import ConfigError
from trainwarden.launching import Operation, Plan, Report, Verb
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(60)]

# Writes who it is, starts a child of its own, and then does as told by a file named after its rank.
RANK = """
import os, pathlib, signal, subprocess, sys, time
run, rank = pathlib.Path(os.environ["TRAINWARDEN_RUN_DIR"]), os.environ["RANK"]
if os.environ.get("STUBBORN"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(
    [sys.executable, "-S", "-c", "import time; time.sleep(600)"], start_new_session=bool(os.environ.get("OWN_SESSION"))
)
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


def place(run_dir: Path, *command: str, ranks: int = 1) -> LocalJob:
    return LocalJob(command=command, ranks=ranks, run_dir=run_dir, job="job", node="node")


def client(run_dir: Path) -> LocalLauncher:
    return LocalLauncher(LocalConfig(), Scope(job="job", node="node", run_dir=str(run_dir)))


def submit(launcher: LocalLauncher, kind: Verb, name: str, split: tuple[int, ...] = ()) -> Report:
    """What the launcher answers at once to an operation planned from what is true now."""
    generation = launcher.state("job").generation
    return launcher.submit(
        Operation(id=name, job="job", kind=kind, expected_generation=generation, plan=Plan(micro_batches=split))
    )


class Run:
    """A supervisor in a thread, its launcher client, and what can be seen from outside."""

    def __init__(self, run_dir: Path, ranks: int = 2, environ: dict[str, str] | None = None, **config: Any) -> None:
        self.run_dir = run_dir
        self.launcher = client(run_dir)
        self._over = threading.Event()
        self.codes: list[int] = []
        supervisor = Supervisor(
            place(run_dir, sys.executable, "-S", "-c", RANK, ranks=ranks), SystemClock(),
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

    def wait(self, true: Callable[[], object], timeout_s: float = 60.0) -> None:
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
    assert submit(run.launcher, "restart", "op").state == "running"
    run.wait(lambda: len(run.lives(0)) == len(run.lives(1)) == 2)
    first, second = run.lives(0)
    assert (first["attempt"], second["attempt"]) == (0, 1)
    assert first["port"] != second["port"]
    assert not alive(first["pid"])
    assert not alive(first["child"])
    run.wait(lambda: run.launcher.poll("job", "op").state == "done")
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
    began_s = time.monotonic()
    assert submit(run.launcher, "restart", "op").text == "waits for 2 ranks to end"
    assert time.monotonic() - began_s < 0.4  # the answer does not wait for the grace of 0.5 s
    run.wait(lambda: len(run.lives(0)) == len(run.lives(1)) == 2)
    assert {event.fields["signal"] for event in run.events("process_exit")} == {"SIGKILL"}


def test_pipes_that_somebody_holds_cost_one_grace_and_not_one_a_rank(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto", ranks=8)
    held = [os.open(f"/proc/{run.lives(rank)[0]['pid']}/fd/1", os.O_WRONLY) for rank in range(8)]
    try:
        began_s = time.monotonic()
        assert submit(run.launcher, "restart", "op").state == "running"
        run.wait(lambda: run.launcher.state("job").attempt == 1)
        took_s = time.monotonic() - began_s
    finally:
        for descriptor in held:
            os.close(descriptor)
    run.wait(lambda: all(len(run.lives(rank)) == 2 for rank in range(8)))
    assert took_s < 3.0  # one by one it was more than four


def test_asked_to_stop_it_stops_its_ranks(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto")
    run.end()
    assert run.codes == [143]


def test_a_failure_before_the_stop_gives_the_code(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto")
    run.order(1, 9)
    run.wait(lambda: run.launcher.state("job").phase == "failed")
    submit(run.launcher, "stop", "op")
    assert run.code() == 9
    assert run.launcher.poll("job", "op").state == "done"  # its last word outlives it


def test_a_command_that_does_not_exist_is_said_in_its_log(tmp_path: Path) -> None:
    supervisor = Supervisor(place(tmp_path, "no-such-command-here"), SystemClock())
    assert supervisor.run() == 127
    assert "no-such-command-here cannot be started" in rundir.rank_log(tmp_path, 0).read_text()


def test_a_second_launcher_in_the_same_folder_is_refused(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto")
    second = Supervisor(place(run.run_dir, "true"), SystemClock())
    with pytest.raises(ConfigError, match="another launcher"):
        second.run()
    assert run.launcher.state("job").ranks_running == (0, 1)


def test_a_launcher_after_a_killed_one_knows_what_was_done(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.actions.launchers.local.supervisor import Supervisor
from trainwarden.clock import SystemClock
command = (sys.executable, "-S", "-c", {RANK!r})
place = LocalJob(command=command, ranks=2, run_dir=Path({str(tmp_path)!r}), job="job", node="node")
Supervisor(place, SystemClock()).run()
"""
    launcher = client(tmp_path)
    first = subprocess.Popen([sys.executable, "-c", code])
    try:
        deadline = time.monotonic() + 20.0
        logs = [rundir.rank_log(tmp_path, rank) for rank in range(2)]
        while not all(log.exists() and b"pids" in log.read_bytes() for log in logs):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert submit(launcher, "rebalance", "op-1", (5, 3)).state == "done"
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
        assert submit(run.launcher, "rebalance", "op-1", (1, 7)).state == "done"  # a repeat after the launcher's death
        assert run.launcher.state("job").micro_batches == (5, 3)
        assert submit(run.launcher, "rebalance", "op-2", (6, 2)).state == "done"
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
        b'{"do":"submit","operation":{"id":"x","job":"job","kind":"rebalance","expected_generation":1,'
        b'"plan":{"micro_batches":[0,8]}}}\n',
        b"\xff\xfe\n",
    ],
)
def test_nonsense_on_the_socket_gets_one_sentence(runs: Callable[..., Run], line: bytes) -> None:
    run = runs(mode="auto")
    path = run.run_dir / rundir.LAUNCHER_SOCKET
    assert path.stat().st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(5.0)
        stranger.connect(str(path))
        stranger.sendall(line)
        assert b'"error":"not a request' in stranger.recv(65536)
    assert run.launcher.state("job").phase == "running"


def test_a_client_that_sends_without_end_is_cut_off(runs: Callable[..., Run]) -> None:
    run = runs(mode="auto")
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(5.0)
        stranger.connect(str(run.run_dir / rundir.LAUNCHER_SOCKET))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            stranger.sendall(b"x" * (1 << 22))
    assert run.launcher.state("job").phase == "running"


def test_ranks_get_torchs_words_and_ours(tmp_path: Path) -> None:
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    supervisor = Supervisor(place(tmp_path, "python", "-c", show, ranks=2), SystemClock(), {"PATH": os.environ["PATH"]})
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
