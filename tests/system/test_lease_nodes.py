"""Who leads, over real nodes and a real service: one at a time, whoever is killed, stopped or cut off, and soon again.

All nodes are of one machine, so their clocks are one, and what they say can be put in order.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from actions.launchers.leases.client import LeaseClient
from actions.launchers.leases.server import LeaseServer
from actions.launchers.leases.words import Ask
from tests.places import ROOT
from tests.servers.kafka import ServerMissing
from tests.system.runs import WARDEN
from tests.testbed.nodes import Node, Testbed
from trainwarden.clock import BootClock
from trainwarden.errors import LauncherUnavailable
from trainwarden.metrics_http.listener import AT_ONCE

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

DURATION_S: Final = 3.0
LONGER_S: Final = 6.0  # a service takes up to two seconds of a busy machine to begin, thrice
WAIT_S: Final = 90.0
LATE_S: Final = 1.5  # of a busy machine, beside what leases take by their own rules
# Leads if it may, and writes down when it did: the time is from before it looked whether it leads.
CONTENDER: Final = """
import sys, time
from pathlib import Path
from actions.launchers.leases.client import LeaseClient, LeaseKeeper
from actions.launchers.leases.elector import LeaderElector
from trainwarden.clock import BootClock
name, service, token, folder = sys.argv[1:]
clock = BootClock()
client = LeaseClient(service, token, timeout_s=0.5)
keeper = LeaseKeeper(LeaderElector("job", name, name), client.ask, clock)
keeper.start()
with open(f"{folder}/{name}", "a", buffering=1) as acts:
    while True:
        now_s = clock.monotonic_s()
        if (lease := keeper.leads()) is not None:
            acts.write(f"{now_s} {lease.epoch} {name}\\n")
        time.sleep(0.02)
"""

ASK: Final = """
import sys
from urllib.request import Request, urlopen
print(urlopen(Request("http://n3:29401/v1/leases", headers={"Authorization": sys.argv[1]})).read().decode())
"""


class World:
    """Three contenders on nodes of their own, and the lease service on a fourth."""

    def __init__(self, testbed: Testbed, folder: Path, duration_s: float) -> None:
        self.duration_s = duration_s
        self.contenders, self.home = testbed.nodes[:3], testbed.nodes[3]
        self.folder = folder
        self.token = folder / "token"
        self.token.write_text("a-word-nobody-guesses")
        self.token.chmod(0o600)
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        self.serve()
        for node in self.contenders:
            words = [node.name, "n3:29401", "a-word-nobody-guesses", str(folder)]
            self.processes[node.name] = node.start(sys.executable, "-c", CONTENDER, *words, cwd=ROOT)
        self._wait_for_all()

    def _wait_for_all(self) -> None:
        """Who is lost is followed in time by those that have begun to ask: Python takes seconds of a busy machine."""
        until_s = time.monotonic() + WAIT_S
        while not all((self.folder / node.name).exists() for node in self.contenders):
            assert time.monotonic() < until_s, "contenders do not begin"
            time.sleep(0.05)

    def serve(self) -> None:
        words = [
            "lease",
            "--listen",
            "0.0.0.0:29401",
            "--token-file",
            str(self.token),
            "--duration",
            f"{self.duration_s}",
        ]
        command = [*WARDEN, *words]
        self.service = self.home.start(*command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.service.stdout is not None
        assert self.service.stdout.readline() == "leases at 0.0.0.0:29401\n"

    def kill_service(self) -> None:
        self.home.signal(self.service, signal.SIGKILL)
        self.service.communicate(timeout=WAIT_S)

    def acts(self) -> list[tuple[float, int, str]]:
        """When who led under which epoch."""
        lines = [line.split() for path in self.folder.glob("n?") for line in path.read_text().splitlines()]
        return sorted((float(at_s), int(epoch), name) for at_s, epoch, name in lines)

    def wait_for_leader(self, *but: Node, since_s: float = 0.0, within_s: float = WAIT_S) -> tuple[float, Node]:
        """When somebody leads after `since_s`, and who; none of `but`."""
        until_s = time.monotonic() + within_s
        names = {node.name for node in but}
        while True:
            for at_s, _, name in self.acts():
                if at_s > since_s and name not in names:
                    return at_s, next(node for node in self.contenders if node.name == name)
            assert time.monotonic() < until_s, f"nobody leads: {self.acts()[-3:]}"
            time.sleep(0.05)

    def check(self) -> list[int]:
        """Nobody led beside another: in the order of time epochs never fall, and each is one's own. The epochs."""
        acts = self.acts()
        epochs = [epoch for _, epoch, _ in acts]
        assert epochs == sorted(epochs)
        assert len({(epoch, name) for _, epoch, name in acts}) == len(set(epochs))
        return sorted(set(epochs))


def now_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.fixture
def world(
    request: pytest.FixtureRequest, tmp_path: Path, require_servers: Callable[[str], NoReturn]
) -> Iterator[World]:
    try:
        with Testbed(4, tmp_path) as testbed:
            yield World(testbed, tmp_path, getattr(request, "param", DURATION_S))
    except ServerMissing as missing:
        require_servers(str(missing))


def test_a_lost_leader_is_followed_and_returns_as_one_of_many(world: World) -> None:
    _, first = world.wait_for_leader()
    lost_s = now_s()
    first.kill()
    at_s, second = world.wait_for_leader(first, since_s=lost_s)
    assert at_s - lost_s < DURATION_S + LATE_S
    time.sleep(DURATION_S)
    assert world.acts()[-1][2] == second.name
    assert world.check() == [1, 2]


@pytest.mark.parametrize("world", [LONGER_S], indirect=True)
def test_a_service_that_is_killed_and_begins_with_nothing_costs_the_leader_nothing(world: World) -> None:
    """Without it only elections stop; a leader that is lost meanwhile is followed once it is back."""
    _, first = world.wait_for_leader()
    for _ in range(3):
        world.kill_service()
        world.serve()
        time.sleep(2.0)  # the leader asks every 0.8 s
    time.sleep(1.0)
    acts = world.acts()
    assert {epoch for _, epoch, _ in acts} == {1}
    assert max(later[0] - earlier[0] for earlier, later in pairwise(acts)) < 1.0
    world.kill_service()
    first.kill()
    time.sleep(LONGER_S)
    back_s = now_s()
    world.serve()
    at_s, _ = world.wait_for_leader(first, since_s=back_s)
    assert LONGER_S - 0.1 < at_s - back_s < 2 * LONGER_S + LATE_S
    assert world.check() == [1, 2]


@pytest.mark.parametrize("way", ["to the service", "from the service", "both"])
def test_a_leader_that_is_cut_off_from_the_service_stops_and_is_followed(world: World, way: str) -> None:
    _, first = world.wait_for_leader()
    cut_s = now_s()
    if way != "from the service":
        first.lose(world.home)
    if way != "to the service":
        world.home.lose(first)
    at_s, second = world.wait_for_leader(first, since_s=cut_s)
    assert at_s - cut_s < DURATION_S + LATE_S
    if way != "from the service":
        first.reach(world.home)
    if way != "to the service":
        world.home.reach(first)
    time.sleep(DURATION_S)
    assert world.acts()[-1][2] == second.name
    assert world.check() == [1, 2]


def test_a_leader_that_stood_still_past_its_end_knows_it(world: World) -> None:
    _, first = world.wait_for_leader()
    process = world.processes[first.name]
    first.signal(process, signal.SIGSTOP)
    stopped_s = now_s()
    _, second = world.wait_for_leader(first, since_s=stopped_s)
    first.signal(process, signal.SIGCONT)
    time.sleep(DURATION_S)
    assert process.poll() is None
    assert world.acts()[-1][2] == second.name
    assert world.check() == [1, 2]


def test_who_leads_is_told_to_whoever_has_the_token(world: World) -> None:
    _, first = world.wait_for_leader()
    told = first.run(sys.executable, "-c", ASK, "Bearer a-word-nobody-guesses")
    assert f'"holder":"{first.name}"' in told
    with pytest.raises(subprocess.CalledProcessError) as refused:
        first.run(sys.executable, "-c", ASK, "Bearer another")
    assert "401" in refused.value.output


def test_clients_that_say_nothing_keep_nobody_from_being_answered_for_long() -> None:
    """As many as are answered at once; the leader has a second question before its lease ends."""
    server = LeaseServer("127.0.0.1:0", None, BootClock())
    done = threading.Event()
    answering = threading.Thread(target=server.run, args=(done.is_set,))
    answering.start()
    host, _, port = server.address.partition(":")
    with contextlib.ExitStack() as stack:
        stack.callback(answering.join)
        stack.callback(done.set)
        for _ in range(AT_ONCE):
            stack.enter_context(socket.create_connection((host, int(port)))).send(b"POST")
        begin_s = now_s()
        while True:
            with contextlib.suppress(LauncherUnavailable):
                LeaseClient(server.address).ask(Ask(job="job", holder="n0"))
                break
            time.sleep(0.05)
        assert now_s() - begin_s < 3.0
