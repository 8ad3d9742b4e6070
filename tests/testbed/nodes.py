"""Nodes as namespaces: each has its own network, processes, host name and, if asked, its share of a processor.

All namespaces are without names and live by one process each, which ends when its standard input does: the pipe's
other end is the test's. So a test that is killed leaves nothing, whatever it had no time for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests.servers.kafka import ServerMissing
from tests.testbed.quotas import Quotas
from trainwarden.cli.run.machines import HOLD, PATIENCE_S, SWITCH, Holder
from trainwarden.errors import ConfigError

PROGRAMS: Final = ("ip", "tc", "unshare", "nsenter", "setpriv")
NOBODYS_MAC: Final = "02:00:00:00:00:01"  # locally administered
_NODE: Final = f'mount --bind "$1" /etc/hosts; hostname "$2"; ip link set lo up; {HOLD}'


class Node:
    """One machine of a testbed. It is on after `boot` and off after `kill`.

    Attributes
    ----------
    name, address : str
        Its host name, which all nodes can resolve, and its address.
    """

    def __init__(self, testbed: Testbed, number: int) -> None:
        self.name, self.address = f"n{number}", f"10.77.0.{number + 1}"
        self._mac = f"02:77:00:00:00:{number + 1:02x}"  # a machine keeps it over a boot: others remember it
        self._testbed, self._port = testbed, f"port{number}"
        self._procs: Path | None = None
        self._holder: Holder | None = None
        self._started: list[subprocess.Popen[Any]] = []

    def boot(self) -> None:
        """Switch it on, with nothing of before: processes, connections and routes are new."""
        assert self._holder is None, f"{self.name} is on"
        testbed = self._testbed
        if testbed.quotas is not None:
            self._procs = testbed.quotas.give(self.name, testbed.cpus)
        flags = ["--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc"]
        self._holder = Holder(["unshare", *flags, "sh", "-ec", _NODE, "sh", str(testbed.hosts), self.name], forks=True)
        far_end = ["peer", "name", "eth0", "address", self._mac, "netns", str(self.pid)]
        testbed.switch("ip", "link", "add", self._port, "type", "veth", *far_end)
        testbed.switch("ip", "link", "set", self._port, "master", "br0", "up")
        self.run("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run("ip", "link", "set", "eth0", "up")
        if testbed.rate_mbit is not None:
            self.slow(testbed.rate_mbit)
            testbed.switch("tc", "qdisc", "add", "dev", self._port, *_limit(testbed.rate_mbit))
        self._wait_for_link()

    def kill(self) -> None:
        """The node is lost: nobody hears of it again, not even the end of a connection, and nothing on it runs on."""
        if self._holder is not None:
            self.unplug()
            self._holder.kill()
            self._holder = None
            with contextlib.suppress(subprocess.CalledProcessError):  # gone with the other end by now
                self._testbed.switch("ip", "link", "del", self._port)
            for process in self._started:
                process.wait(PATIENCE_S)

    def forget(self) -> None:
        """Close what is left open of the commands that were begun on it; they are gone."""
        for process in self._started:
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
        self._started.clear()

    def unplug(self) -> None:
        """Take the cable out: nothing comes through, and the node sees that."""
        self._testbed.switch("ip", "link", "set", self._port, "down")

    def plug(self) -> None:
        """Put the cable in again; what is sent after this comes through."""
        self._testbed.switch("ip", "link", "set", self._port, "up")
        self._wait_for_link()

    def _wait_for_link(self) -> None:
        """The kernel takes note of a carrier up to a second later; net/core/link_watch.c."""
        until_s = time.monotonic() + PATIENCE_S
        show = ("ip", "link", "show")
        while "state UP" not in self.run(*show, "eth0") or "state UP" not in self._testbed.switch(*show, self._port):
            assert time.monotonic() < until_s, f"the link of {self.name} does not come up"
            time.sleep(0.01)

    def lose(self, *others: Node) -> None:
        """What this node sends to `others` is lost from now on, silently; what they send comes through."""
        for other in others:
            never = ["lladdr", NOBODYS_MAC, "nud", "permanent", "dev", "eth0"]
            self.run("ip", "neighbour", "replace", other.address, *never)

    def reach(self, *others: Node) -> None:
        """The end of `lose`."""
        for other in others:
            self.run("ip", "neighbour", "del", other.address, "dev", "eth0")

    def slow(self, rate_mbit: float, device: str = "eth0") -> None:
        """What it sends goes at `rate_mbit` from now on."""
        self.run("tc", "qdisc", "replace", "dev", device, *_limit(rate_mbit))

    def slow_link(self, other: Node, rate_mbit: float) -> None:
        """What the two send each other goes over a cable of their own, at `rate_mbit` each way."""
        ends = [f"to-{other.name}", "netns", str(self.pid), "type", "veth", "peer"]
        ends += ["name", f"to-{self.name}", "netns", str(other.pid)]
        self._testbed.switch("ip", "link", "add", *ends)
        for here, there in ((self, other), (other, self)):
            cable = f"to-{there.name}"
            here.run("ip", "link", "set", cable, "up")
            here.run("ip", "route", "add", f"{there.address}/32", "dev", cable, "src", here.address)
            here.slow(rate_mbit, cable)

    @property
    def pid(self) -> int:
        """Its first process, as this machine numbers it: by that others enter its namespaces."""
        assert self._holder is not None, f"{self.name} is off"
        return self._holder.pid

    def run(self, *command: str, **how: Any) -> str:
        """What `command` says on this node; `how` is as for `start`.

        Raises
        ------
        subprocess.CalledProcessError
            If it fails; with all that it said.
        """
        process = self.start(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **how)
        try:
            said, _ = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.signal(process, signal.SIGKILL)
            raise
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command, said)
        return str(said)

    def start(
        self, *command: str, uid: int | None = None, cwd: Path | None = None, **how: Any
    ) -> subprocess.Popen[Any]:
        """Begin `command` on this node, as user `uid` if given; `how` is `subprocess.Popen`'s.

        Its exit code is that of `command`; signals come to it by `signal`.
        """
        assert self._holder is not None, f"{self.name} is off"
        around = self._holder.inside("--uts", "--ipc", "--mount", "--pid")
        if self._procs is not None:
            around = ["sh", "-c", 'echo 0 > "$0" && exec "$@"', str(self._procs), *around]
        who = [] if uid is None else ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
        # A session of its own: its process group would else be one that cannot be seen from inside.
        within = ["env", "-C", str(cwd or Path.cwd()), *who, "setsid", *command]
        process = subprocess.Popen([*around, *within], **{"stdin": subprocess.DEVNULL, **how})
        self._started.append(process)
        return process

    def signal(self, process: subprocess.Popen[Any], number: signal.Signals) -> None:
        """Send `number` to the command that `start` has begun, not to what stands around it here."""
        until_s = time.monotonic() + PATIENCE_S
        while not (inner := _child(process.pid)):
            if process.poll() is not None:
                return
            assert time.monotonic() < until_s, "the command does not begin"
            time.sleep(0.005)
        with contextlib.suppress(ProcessLookupError):
            os.kill(inner, number)
            if number == signal.SIGCONT:
                process.send_signal(number)  # nsenter stops with what it runs


class Testbed:
    """`nodes` nodes on a switch; a context manager, at whose end all is gone.

    Parameters
    ----------
    folder : Path
        For the files of the testbed itself.
    rate_mbit : float, optional
        What a node's cable carries each way (tbf); default: what the machine can.
    cpus : float, optional
        How many processors' time each node gets; default: no limit.

    Raises
    ------
    ServerMissing
        Where this cannot be done, with the reason: not root, no such program, no control groups.

    Examples
    --------
    ::

        with Testbed(3, tmp_path, rate_mbit=100) as testbed:
            first, second, third = testbed.nodes
            first.run("ping", "-c1", "n2")
            third.kill()
    """

    __test__ = False  # no test of pytest's

    def __init__(self, nodes: int, folder: Path, *, rate_mbit: float | None = None, cpus: float | None = None) -> None:
        if os.geteuid() != 0:
            raise ServerMissing("namespaces and control groups are made by root")
        for name in PROGRAMS:
            if shutil.which(name) is None:
                raise ServerMissing(f"{name} is not installed")
        self.rate_mbit, self.cpus = rate_mbit, cpus or 0.0
        self.nodes = [Node(self, number) for number in range(nodes)]
        self.hosts = folder / "hosts"
        names = [f"{node.address} {node.name}" for node in self.nodes]
        self.hosts.write_text("\n".join(["127.0.0.1 localhost", *names, ""]), encoding="utf-8")
        self.quotas = None if cpus is None else Quotas()
        self._switch: Holder | None = None

    def __enter__(self) -> Self:
        try:
            self._switch = Holder(["unshare", "--net", "sh", "-ec", SWITCH])
            for node in self.nodes:
                node.boot()
        except ConfigError as error:
            self.close()
            raise ServerMissing(str(error)) from error
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all that runs on the nodes, and the nodes; twice does no harm."""
        for node in self.nodes:
            node.kill()
            node.forget()
        if self._switch is not None:
            self._switch.kill()
            self._switch = None
        if self.quotas is not None:
            self.quotas.remove()
            self.quotas = None

    def switch(self, *command: str) -> str:
        """What `command` says where the nodes' cables come together."""
        assert self._switch is not None
        return self._switch.run(*command)


def _child(pid: int) -> int:
    """The first child of `pid`, 0 if it has none."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return int(children[0]) if children else 0


def _limit(rate_mbit: float) -> list[str]:
    """tbf's words. Its bucket holds 10 ms of the rate, so that timers of 4 ms do not hold it back; tc-tbf(8)."""
    burst_bytes = max(32_000, round(rate_mbit * 1e6 / 8 * 0.01))
    return ["root", "tbf", "rate", f"{rate_mbit}mbit", "burst", f"{burst_bytes}", "latency", "50ms"]
