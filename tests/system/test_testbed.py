"""Nodes on one machine are apart as machines are, and nothing of them stays, whatever ends the test."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.places import ROOT
from tests.servers.kafka import ServerMissing
from tests.testbed import quotas
from tests.testbed.nodes import Node, Testbed

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

WAIT_S: Final = 60.0
# Listens on port 7000, prints what comes and answers each byte; UDP, so that a way is one way.
EARS: Final = """
import socket
ears = socket.socket(type=socket.SOCK_DGRAM)
ears.bind(("0.0.0.0", 7000))
print("listening", flush=True)
while True:
    said, who = ears.recvfrom(64)
    print(said.decode(), flush=True)
    ears.sendto(b"yes", who)
"""
# Says a word to a node; the exit code tells whether an answer came.
MOUTH: Final = """
import socket, sys
mouth = socket.socket(type=socket.SOCK_DGRAM)
mouth.settimeout(0.5)
mouth.sendto(sys.argv[2].encode(), (sys.argv[1], 7000))
try:
    mouth.recv(64)
except OSError:
    sys.exit(3)
"""
LISTENS: Final = """
import socket, time
ears = socket.create_server(("", 7001))
print("up", flush=True)
peer = ears.accept()
time.sleep(99)
"""
TALKS: Final = """
import socket
peer = socket.create_connection(("n1", 7001))
print("up", flush=True)
peer.settimeout(2)
peer.recv(1)
"""
TAKES: Final = """
import socket, time
ears = socket.create_server(("", 7002))
print("up", flush=True)
peer, _ = ears.accept()
begin, size = time.monotonic(), 0
while piece := peer.recv(65536):
    size += len(piece)
print(size * 8 / (time.monotonic() - begin) / 1e6)
"""
GIVES: Final = "import socket; socket.create_connection(('n1', 7002)).sendall(bytes(2_500_000))"
# Ends with 5 when it is asked to.
NOTES: Final = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("up", flush=True)
signal.pause()
"""
BUSY: Final = "import time; t = time.time()\nwhile time.time() < t + 1: pass\nprint(time.process_time())"


@pytest.fixture
def testbed(tmp_path: Path, require_servers: Callable[[str], NoReturn]) -> Iterator[Testbed]:
    try:
        with Testbed(3, tmp_path) as made:
            yield made
    except ServerMissing as missing:
        require_servers(str(missing))


class Ears:
    """What a node hears."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.process = node.start(sys.executable, "-c", EARS, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.out = self.process.stdout
        assert self.out.readline() == "listening\n"

    def told_all(self) -> list[str]:
        """All that it heard; it hears nothing more."""
        self.node.signal(self.process, signal.SIGKILL)
        said, _ = self.process.communicate(timeout=WAIT_S)
        return str(said).split()


def says(node: Node, other: Node, word: str) -> bool:
    """Whether `other` answers."""
    code = node.start(sys.executable, "-c", MOUTH, other.name, word).wait(WAIT_S)
    assert code in (0, 3)
    return code == 0


def test_nodes_have_names_addresses_and_processes_of_their_own(testbed: Testbed) -> None:
    first, second, _ = testbed.nodes
    assert first.run("hostname") == "n0\n"
    assert second.run(sys.executable, "-c", "import os, socket; print(os.getpid() < 20, socket.gethostname())") == (
        "True n1\n"
    )
    assert first.run("ip", "-o", "-4", "address", "show", "eth0").split()[3] == "10.77.0.1/24"
    assert socket.gethostname() != "n0"
    assert first.run("id", "-u", uid=65534) == "65534\n"
    assert first.run("pwd", cwd=Path("/tmp")) == "/tmp\n"
    with pytest.raises(subprocess.CalledProcessError, match="exit status 7"):
        first.run("sh", "-c", "exit 7")


def test_a_way_is_cut_alone_and_comes_back(testbed: Testbed) -> None:
    first, second, third = testbed.nodes
    ears = Ears(second)
    assert says(first, second, "a")
    first.lose(second)
    assert not says(first, second, "b")
    assert says(third, second, "c")
    first.reach(second)
    second.lose(first)
    assert not says(first, second, "d"), "the answer is lost"
    second.reach(first)
    assert says(first, second, "e")
    assert ears.told_all() == ["a", "c", "d", "e"]


def test_a_cable_is_taken_out_and_put_in(testbed: Testbed) -> None:
    first, second, third = testbed.nodes
    ears = Ears(second)
    second.unplug()
    assert "NO-CARRIER" in second.run("ip", "link", "show", "eth0")
    assert not says(first, second, "a")
    second.plug()
    assert says(third, second, "b")
    assert ears.told_all() == ["b"]


def test_a_lost_node_says_no_farewell_and_what_ran_on_it_is_gone(testbed: Testbed) -> None:
    """Who talks to it over TCP hears neither an end nor a refusal; afterwards it may be booted anew."""
    first, second, _ = testbed.nodes
    server = second.start(sys.executable, "-c", LISTENS, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "up\n"
    client = first.start(sys.executable, "-c", TALKS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert client.stdout is not None
    assert client.stdout.readline() == "up\n"
    second.kill()
    assert server.wait(WAIT_S) != 0
    _, said = client.communicate(timeout=WAIT_S)
    assert said.splitlines()[-1].startswith("TimeoutError"), said
    second.boot()
    ears = Ears(second)
    assert says(first, second, "again")
    assert ears.told_all() == ["again"]


def test_a_signal_comes_to_the_command_and_not_to_what_stands_around_it(testbed: Testbed) -> None:
    (node, *_) = testbed.nodes
    process = node.start(sys.executable, "-c", NOTES, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    node.signal(process, signal.SIGSTOP)
    node.signal(process, signal.SIGTERM)
    time.sleep(0.2)
    assert process.poll() is None
    node.signal(process, signal.SIGCONT)
    assert process.wait(WAIT_S) == 5


def test_orphans_on_a_node_are_buried(testbed: Testbed) -> None:
    (node, *_) = testbed.nodes
    node.run("sh", "-c", "(sleep 0.1 &) ; exit 0")
    time.sleep(0.3)
    assert " Z " not in node.run("ps", "-e", "-o", "pid,stat,comm").replace("Z+", "Z ")


def test_a_cable_carries_what_it_is_allowed_to(tmp_path: Path, require_servers: Callable[[str], NoReturn]) -> None:
    try:
        made = Testbed(2, tmp_path, rate_mbit=20)
    except ServerMissing as missing:
        require_servers(str(missing))
    with made as testbed:
        first, second = testbed.nodes
        taker = second.start(sys.executable, "-c", TAKES, stdout=subprocess.PIPE, text=True)
        assert taker.stdout is not None
        assert taker.stdout.readline() == "up\n"
        first.run(sys.executable, "-c", GIVES)
        said, _ = taker.communicate(timeout=WAIT_S)
    assert 10 < float(said) < 22  # a busy machine carries less than the cable


def test_a_node_gets_its_share_of_a_processor_and_no_group_stays(
    tmp_path: Path, require_servers: Callable[[str], NoReturn]
) -> None:
    try:
        root = quotas.processor_groups()
        made = Testbed(1, tmp_path, cpus=0.3)
    except ServerMissing as missing:
        require_servers(str(missing))
    with made as testbed:
        mine = list(root.glob(f"{quotas.PREFIX}-{quotas.identity(os.getpid())}-*"))
        assert len(mine) == 1
        assert float(testbed.nodes[0].run(sys.executable, "-c", BUSY)) < 0.6
    assert not mine[0].exists()


# Makes a testbed, says who lives on it, and waits to be killed.
OWNER: Final = """
import subprocess, sys, time
from pathlib import Path
from tests.testbed.nodes import Testbed
with Testbed(2, Path(sys.argv[1]), cpus=1.0) as testbed:
    told = testbed.nodes[0].start("sh", "-c", "setsid sleep 777.5 & exec sleep 777.5", start_new_session=True)
    testbed.nodes[0].run("sh", "-c", "until pgrep -fx 'sleep 777.5' | grep -q .; do :; done")
    print("up", flush=True)
    time.sleep(99)
"""


def test_what_a_killed_test_leaves_is_gone_or_swept_by_the_next(
    tmp_path: Path, require_servers: Callable[[str], NoReturn]
) -> None:
    try:
        root = quotas.processor_groups()
        with Testbed(1, tmp_path):
            pass
    except ServerMissing as missing:
        require_servers(str(missing))
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environ
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "up\n"
    (folder,) = root.glob(f"{quotas.PREFIX}-{quotas.identity(owner.pid)}-*")
    inhabitants = [int(pid) for pid in (folder / "n0" / "cgroup.procs").read_text().split()]
    assert len(inhabitants) >= 2
    assert quotas.sweep(root) == [], "its owner lives"
    owner.kill()
    owner.wait(WAIT_S)
    owner.stdout.close()
    until_s = time.monotonic() + WAIT_S
    while any(Path(f"/proc/{pid}").exists() for pid in inhabitants):
        assert time.monotonic() < until_s, "processes of a dead testbed live on"
        time.sleep(0.05)
    assert folder.name in quotas.sweep(root)
    assert not folder.exists()


def test_without_root_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ServerMissing, match="made by root"):
        Testbed(2, tmp_path)
