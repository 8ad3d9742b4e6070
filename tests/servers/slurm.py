"""A real Slurm on this machine: slurmctld and a slurmd for each node, without munge, accounting or cgroups."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

from tests.servers.kafka import ServerMissing
from tests.servers.ports import free_ports

NODE: Final = "node7"
READY_TIMEOUT_S: Final = 40.0
PROGRAMS: Final = ("slurmctld", "slurmd", "scontrol", "sbatch")
_CONF: Final = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
ReturnToService=2
SchedulerParameters=sched_interval=1,nohold_on_prolog_fail
HealthCheckInterval=2
HealthCheckNodeState=ANY
{settings}
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """One controller and `nodes`, with `settings` added to the configuration.

    Raises
    ------
    ServerMissing
        If a program is not installed or this user may not run them.
    """

    def __init__(self, folder: Path, settings: str = "", nodes: tuple[str, ...] = (NODE,)) -> None:
        for name in PROGRAMS:
            if shutil.which(name) is None:
                raise ServerMissing(f"{name} is not installed")
        if os.geteuid() != 0:
            raise ServerMissing("slurmd runs as root")
        (folder / "state").mkdir(parents=True)
        # A job's keeper listens on a socket there, and a socket's path has 107 characters at most.
        self._spool = Path(tempfile.mkdtemp(prefix="slurm-"))
        self._spool.chmod(0o755)  # other users' jobs read it
        for node in nodes:
            (self._spool / node).mkdir()
        self._folder, self._nodes = folder, nodes
        self.conf = self._spool / "slurm.conf"
        self._settings = settings
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environ = {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self, **environ: str) -> None:
        """Start all, and wait until the nodes are idle; their daemons get `environ` besides."""
        ports = free_ports(1 + len(self._nodes))
        nodes = [
            f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs=1 RealMemory=100"
            for node, port in zip(self._nodes, ports[1:], strict=True)
        ]
        text = _CONF.format(
            folder=self._folder, spool=self._spool, ports=ports, settings=self._settings, nodes="\n".join(nodes)
        )
        self.conf.write_text(text, encoding="utf-8")
        (self._folder / "slurm.conf").symlink_to(self.conf)
        self.start_controller()
        for node in self._nodes:
            self._run(["slurmd", "-D", "-N", node], environ)
        for node in self._nodes:
            self.wait_for_state("IDLE", node=node)

    def start_controller(self) -> None:
        """Start the controller, anew after `signal_controller` has killed it."""
        self._processes = [process for process in self._processes if process.poll() is None]
        self._controller = self._run(["slurmctld", "-D"], {})

    def signal_controller(self, number: signal.Signals) -> None:
        """Stop, kill or wake the controller."""
        os.killpg(self._controller.pid, number)
        if number == signal.SIGKILL:
            self._controller.wait(20)

    def wait_for_state(self, wanted: str, timeout_s: float = READY_TIMEOUT_S, node: str = NODE) -> str:
        """What the controller tells of the node once its state has the word `wanted`."""
        end_s, told = time.monotonic() + timeout_s, ""
        while time.monotonic() < end_s:
            told = self.ask("scontrol", "--oneliner", "show", "node", node)
            state = next((word.removeprefix("State=") for word in told.split() if word.startswith("State=")), "")
            if wanted in state.split("+"):
                return told
            assert all(process.poll() is None for process in self._processes), self.tail()
            time.sleep(0.2)
        raise AssertionError(f"no state {wanted} within {timeout_s:g} s: {told}\n{self.tail()}")

    def ask(self, *words: str) -> str:
        """What one of Slurm's commands says; empty while the controller is away."""
        done = subprocess.run(words, env=self._environ, capture_output=True, text=True, timeout=30, check=False)
        return done.stdout.strip()

    def stop(self) -> None:
        """End all, the jobs included: their keepers outlive the daemons."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)
        mine = f"SLURM_CONF={self.conf}".encode()
        for environ in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mine in environ.read_bytes().split(b"\0") and int(environ.parent.name) != os.getpid():
                    os.kill(int(environ.parent.name), signal.SIGKILL)
        shutil.rmtree(self._spool, ignore_errors=True)

    def tail(self) -> str:
        """The last lines of all logs."""
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(self._folder.glob("*.log")))

    def _run(self, command: list[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self._folder / f"{command[0]}-{command[-1]}.log").open("ab") as log:
            environ = {**self._environ, **environ}
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environ, start_new_session=True)
        self._processes.append(process)
        return process


@contextlib.contextmanager
def requeuing(folder: Path, nodes: tuple[str, ...], refuse: Callable[[str], NoReturn]) -> Iterator[Slurm]:
    """A running Slurm whose requeued jobs begin after five seconds: else they wait two minutes for old credentials."""
    try:
        server = Slurm(folder, "AuthInfo=cred_expire=5", nodes)
    except ServerMissing as missing:
        refuse(str(missing))
    try:
        server.start()
        yield server
    finally:
        server.stop()
