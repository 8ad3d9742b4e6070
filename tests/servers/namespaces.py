"""Nodes on one machine: network namespaces on a bridge, whose ports and single links can be made slow (tbf)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from itertools import count

_NUMBERS = count()
RATE = "100mbit"  # 84 ms for a message of 1 MiB, which veth carries in one


def why_not() -> str | None:
    """Why there can be no namespaces here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "ip and tc (iproute2) are not installed"
    probe = f"tw{os.getpid()}probe"
    made = subprocess.run(["ip", "netns", "add", probe], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        return f"no network namespace can be made: {made.stderr.strip()}"
    subprocess.run(["ip", "netns", "delete", probe], check=True)
    return None


class Nodes:
    """`number` of them, each with an address of its own on a bridge; `close` takes all away."""

    def __init__(self, number: int) -> None:
        self._name = f"tw{os.getpid() % 10_000}x{next(_NUMBERS)}"
        self._bridge = f"{self._name}b"
        self.number = number
        _ip("netns", "add", self._bridge)
        self._in(self._bridge, "ip", "link", "add", "hub", "type", "bridge")
        self._in(self._bridge, "ip", "link", "set", "hub", "up")
        for node in range(number):
            self._add(node)

    def _add(self, node: int) -> None:
        space, port = self.space(node), f"port{node}"
        _ip("netns", "add", space)
        self._in(space, "ip", "link", "set", "lo", "up")
        self._in(space, "ip", "link", "add", "net0", "type", "veth", "peer", "name", port, "netns", self._bridge)
        self._in(self._bridge, "ip", "link", "set", port, "master", "hub", "up")
        self._in(space, "ip", "address", "add", f"{self.address(node)}/24", "dev", "net0")
        self._in(space, "ip", "link", "set", "net0", "up")

    def space(self, node: int) -> str:
        """The namespace of `node`."""
        return f"{self._name}n{node}"

    def address(self, node: int) -> str:
        return f"10.77.0.{node + 1}"

    def slow_port(self, node: int, rate: str = RATE) -> None:
        """All that `node` sends goes at `rate` from now on."""
        self._in(self.space(node), *_tbf("net0", rate))

    def slow_link(self, one: int, other: int, rate: str = RATE) -> None:
        """What the two send each other goes over a link of their own, at `rate` in both directions."""
        peer = ("peer", "name", "side", "netns", self.space(other))
        self._in(self.space(one), "ip", "link", "add", "side", "type", "veth", *peer)
        for here, there in ((one, other), (other, one)):
            self._in(self.space(here), "ip", "link", "set", "side", "up")
            way = ("dev", "side", "src", self.address(here))
            self._in(self.space(here), "ip", "route", "add", f"{self.address(there)}/32", *way)
            self._in(self.space(here), *_tbf("side", rate))

    def cut(self, one: int, other: int) -> None:
        """What `one` sends to `other` goes nowhere, without a word."""
        self._in(self.space(one), "ip", "route", "add", "blackhole", f"{self.address(other)}/32")

    def command(self, node: int, words: Sequence[str]) -> list[str]:
        """`words` as a command of `node`."""
        return ["ip", "netns", "exec", self.space(node), *words]

    def close(self) -> None:
        for space in (*(self.space(node) for node in range(self.number)), self._bridge):
            subprocess.run(["ip", "netns", "delete", space], check=False, capture_output=True)

    def _in(self, space: str, *words: str) -> None:
        subprocess.run(["ip", "netns", "exec", space, *words], check=True, capture_output=True)


def _tbf(device: str, rate: str) -> list[str]:
    return ["tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "400ms"]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
