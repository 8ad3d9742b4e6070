"""A real Slurm of one node on this machine: slurmctld and slurmd, without munge, accounting or cgroups."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.servers.kafka import ServerMissing

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
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
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
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=1 RealMemory=100 State=UNKNOWN
PartitionName=all Nodes={node} Default=YES State=UP
"""


class Slurm:
    """One controller and one node, with `settings` added to the configuration.

    Raises
    ------
    ServerMissing
        If a program is not installed or this user may not run them.
    """

    def __init__(self, folder: Path, settings: str = "") -> None:
        for name in PROGRAMS:
            if shutil.which(name) is None:
                raise ServerMissing(f"{name} is not installed")
        if os.geteuid() != 0:
            raise ServerMissing("slurmd runs as root")
        for name in ("state", "spool"):
            (folder / name).mkdir(parents=True)
        self._folder = folder
        self._settings = settings
        self._processes: list[subprocess.Popen[bytes]] = []
        self._environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self, **environ: str) -> None:
        """Start both, and wait until the node is idle; the node's daemon gets `environ` besides."""
        text = _CONF.format(
            folder=self._folder, ports=_free_ports(2), node=NODE, host=socket.gethostname(), settings=self._settings
        )
        (self._folder / "slurm.conf").write_text(text, encoding="utf-8")
        self._run(["slurmctld", "-D"], {})
        self._run(["slurmd", "-D", "-N", NODE], environ)
        self.wait_for_state("IDLE")

    def wait_for_state(self, wanted: str, timeout_s: float = READY_TIMEOUT_S) -> str:
        """What the controller tells of the node once its state has the word `wanted`."""
        end_s, told = time.monotonic() + timeout_s, ""
        while time.monotonic() < end_s:
            told = self.ask("scontrol", "--oneliner", "show", "node", NODE)
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
        """End both."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)

    def tail(self) -> str:
        """The last lines of both logs."""
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(self._folder.glob("*.log")))

    def _run(self, command: list[str], environ: dict[str, str]) -> None:
        with (self._folder / f"{command[0]}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, env={**self._environ, **environ}, start_new_session=True
                )
            )


def _free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
