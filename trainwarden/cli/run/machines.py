"""Machines within this one, for a demo of several nodes: each has its own network, processes and host name.

Their namespaces have no names and live by one process each, which ends when its standard input does: so nothing stays
of them when this process ends, however it does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from trainwarden.errors import ConfigError

PROGRAMS: Final = ("ip", "unshare", "nsenter", "setsid", "hostname")
PATIENCE_S: Final = 20.0
# An ignored SIGCHLD makes the kernel bury the orphans that come to process 1.
HOLD: Final = "echo up; exec env --ignore-signal=CHLD cat"
SWITCH: Final = f"ip link add br0 type bridge; ip link set br0 up; {HOLD}"
_MACHINE: Final = f'hostname "$1"; ip link set lo up; mount -t tmpfs -o mode=1777 tmpfs /dev/shm; {HOLD}'


def why_none() -> str | None:
    """Why there can be no machines within this one; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces are made by root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    return f"{missing[0]} is not installed" if missing else None


class Machine:
    """One machine; `address` is where the others reach it."""

    def __init__(self, number: int, switch: Holder) -> None:
        self.number = number
        self.name, self.address = f"node-{number}", f"10.78.0.{number + 1}"
        self._switch, self._port = switch, f"port{number}"
        flags = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc"]
        self._holder = Holder(["unshare", *flags, "sh", "-ec", _MACHINE, "sh", self.name], forks=True)
        far_end = ["peer", "name", "eth0", "netns", str(self._holder.pid)]
        switch.run("ip", "link", "add", self._port, "type", "veth", *far_end)
        switch.run("ip", "link", "set", self._port, "master", "br0", "up")
        self._holder.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self._holder.run("ip", "link", "set", "eth0", "up")

    def start(self, command: Sequence[str], environ: Mapping[str, str], output: Path) -> subprocess.Popen[bytes]:
        """Begin `command` on it; what it says is added to `output`."""
        with output.open("ab") as file:
            return subprocess.Popen(
                [*self._holder.inside("--uts", "--ipc", "--mount", "--pid"), "setsid", *command],
                env=dict(environ), stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            )  # fmt: skip

    def lose(self) -> None:
        """It is gone: nobody hears of it again, not even the end of a connection. Safe twice."""
        with suppress(subprocess.CalledProcessError):
            self._switch.run("ip", "link", "set", self._port, "down")
        self._holder.kill()


class Machines:
    """`count` machines on a switch; a context manager, at whose end they and all that runs on them are gone.

    Raises
    ------
    ConfigError
        Where there can be none, with the reason.
    """

    def __init__(self, count: int) -> None:
        if (reason := why_none()) is not None:
            raise ConfigError(f"several nodes on this machine: {reason}")
        self._switch: Holder | None = None
        self._count = count
        self.all: list[Machine] = []

    def __enter__(self) -> Self:
        try:
            self._switch = Holder(["unshare", "--net", "sh", "-ec", SWITCH])
            for number in range(self._count):
                self.all.append(Machine(number, self._switch))
        except (OSError, subprocess.SubprocessError) as error:
            self._close()
            raise ConfigError(f"several nodes on this machine: {error}") from error
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for machine in self.all:
            machine.lose()
        if self._switch is not None:
            self._switch.kill()


class Holder:
    """A process that keeps namespaces; `pid` is who lives in them, as it is numbered here."""

    def __init__(self, command: list[str], *, forks: bool = False) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"up\n":
            _, said = self._process.communicate(timeout=PATIENCE_S)
            why = said.decode(errors="replace").strip()[:500]
            raise ConfigError(f"several nodes on this machine: no namespaces can be made ({why})")
        self.pid = self._process.pid
        if forks:
            self.pid = int(Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()[0])

    def inside(self, *more: str) -> list[str]:
        """What runs a command in the network and the other namespaces."""
        return ["nsenter", "--target", str(self.pid), "--net", *more]

    def run(self, *command: str) -> str:
        """What `command` says in the network."""
        around = self.inside()
        return subprocess.run(
            [*around, *command], check=True, capture_output=True, text=True, timeout=PATIENCE_S
        ).stdout

    def kill(self) -> None:
        """End everything in the namespaces, and wait for it. Safe twice."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._process.communicate(timeout=PATIENCE_S)
