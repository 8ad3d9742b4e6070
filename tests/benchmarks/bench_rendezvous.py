"""What of a core the rendezvous service takes for 512 torchruns with 8 ranks each, all in one running job.

They are simulated, each with a connection of its own, and speak as often as real ones do. A busy machine changes
nothing: what is counted is the service's own processor time for each beat that was answered.

Run: ``python -m tests.benchmarks.bench_rendezvous`` (half a minute).
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from typing import Any, Final

import psutil

from tests.places import ROOT
from tests.servers.ports import free_ports
from trainwarden.torchrun.line import BEAT_S

NAMES: Final = ("rendezvous_core",)
AGENTS: Final = 512
RANKS: Final = 8
BEATS: Final = 20  # of each agent that are counted
BAR: Final = 0.2
PATIENCE_S: Final = 120.0


class Simulated:
    """One torchrun's connection: it begins each round that it is told to, and says so from then on."""

    def __init__(self, number: int, port: int) -> None:
        self._number, self._unread, self.answers = number, b"", 0
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.beat: dict[str, Any] = {"do": "beat", "waits": True, "port": 1}
        node = f"node-{number:03d}"
        self._say(
            {
                "do": "hello", "job": "job", "life": f"{node}/1", "node": node, "host": "127.0.0.1", "least": AGENTS,
                "most": AGENTS, "beat": self.beat,
            }
        )  # fmt: skip
        while not self.answers:  # of those that it has not heard yet the service keeps a few
            self.hear()

    def _say(self, line: dict[str, Any]) -> None:
        self.socket.sendall(json.dumps(line).encode() + b"\n")

    def speak(self) -> None:
        """Say how it is."""
        self._say(self.beat)

    def hear(self) -> None:
        """Take what has come."""
        *lines, self._unread = (self._unread + self.socket.recv(1 << 20)).split(b"\n")
        self.answers += len(lines)
        for line in lines:
            begin = json.loads(line).get("begin")
            if begin and begin["round"] > self.beat.get("at", 0):
                ranks = list(range(begin["rank"] * RANKS, (begin["rank"] + 1) * RANKS))
                self.beat = {"do": "beat", "at": begin["round"], "ranks": ranks, "alive": ranks}


def benchmarks() -> list[dict[str, Any]]:
    """The one entry, as `trainwarden bench` prints it."""
    [port] = free_ports(1)
    # That no agent counts as lost where this process gets no processor for a while.
    words = ["rendezvous", "--listen", f"127.0.0.1:{port}", "--lost-after", "60"]
    command = [sys.executable, "-m", "trainwarden", *words]
    service = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert service.stdout is not None
        service.stdout.readline()  # it listens
        per_beat_s = _per_beat_s(port, psutil.Process(service.pid))
    finally:
        service.kill()
        service.wait()
    value = per_beat_s * AGENTS / BEAT_S
    row = {
        "name": NAMES[0], "value": value, "unit": f"of a core, {AGENTS} agents", "rounds": BEATS, "spread": None,
        "peer": None, "ratio": None, "bar": f"<= {BAR:g}", "holds": value <= BAR,
    }  # fmt: skip
    return [row]


def _per_beat_s(port: int, service: psutil.Process) -> float:
    agents = [Simulated(number, port) for number in range(AGENTS)]
    with selectors.DefaultSelector() as ready:
        for one in agents:
            ready.register(one.socket, selectors.EVENT_READ, one)
        _speak(agents, ready, lambda: all("at" in one.beat for one in agents), 1_000)
        _speak(agents, ready, lambda: False, 2)  # what each has begun is known
        before, first_s = sum(one.answers for one in agents), _spent_s(service)
        _speak(agents, ready, lambda: False, BEATS)
        answered, spent_s = sum(one.answers for one in agents) - before, _spent_s(service) - first_s
    for one in agents:
        one.socket.close()
    assert answered >= AGENTS * (BEATS - 1), f"of {AGENTS * BEATS} beats {answered} were answered"
    return spent_s / (AGENTS * BEATS)


def _spent_s(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


def _speak(agents: list[Simulated], ready: selectors.BaseSelector, done: Any, times: int) -> None:
    """Let each speak `times` times, spread over the time between two beats, until `done`."""
    until_s = time.monotonic() + PATIENCE_S
    for _ in range(times):
        begun_s = time.monotonic()
        assert begun_s < until_s, "the round does not begin"
        for number, one in enumerate(agents):
            one.speak()
            due_s = begun_s + BEAT_S * (number + 1) / len(agents)
            _hear(ready, due_s)
        if done():
            return


def _hear(ready: selectors.BaseSelector, due_s: float) -> None:
    while True:
        for key, _ in ready.select(max(0.0, due_s - time.monotonic())):
            key.data.hear()
        if time.monotonic() >= due_s:
            return


if __name__ == "__main__":
    print(json.dumps(benchmarks(), indent=2))
