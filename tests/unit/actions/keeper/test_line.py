"""A keeper's own connections: strangers take no place from nodes of the ring, and nodes none from this node's ranks."""

from __future__ import annotations

import errno
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.doubles import ManualClock
from tests.servers.certificates import Authority
from trainwarden.actions.keeper import line
from trainwarden.actions.keeper.keeper import Keeper
from trainwarden.actions.keeper.line import MOST_CONNECTIONS, Listener, TlsPeer
from trainwarden.checkpoint.slots import SOCKET, Slots, job_folder
from trainwarden.metrics_http.tls import PeerTls

PATIENCE_S = 20.0


class Node:
    """Keeper `a` of the ring a, b; `b` asks it."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder)
        own, other = (
            PeerTls(ca=authority.ca, certificate=certificate, key=key)
            for certificate, key in (authority.issue(name) for name in "ab")
        )
        self.slots = Slots(job_folder("j", str(folder / "memory")))
        keeper = Keeper(self.slots, job="j", node="a", ring=["a", "b"], peers={}, clock=ManualClock())
        self.listener = Listener(keeper, lambda: {"listed": True})
        self.address = self.listener.serve_nodes(("127.0.0.1", 0), own)
        self.listener.serve_ranks()
        self.serving, self.asking = own.serving(), other.asking()

    def inventory(self) -> object:
        return TlsPeer("a", self.address, "j", self.asking).inventory()

    def listed(self) -> object:
        with socket.socket(socket.AF_UNIX) as rank:
            rank.settimeout(PATIENCE_S)
            rank.connect(f"/proc/self/fd/{self.slots.descriptor}/{SOCKET}")
            rank.sendall(b'{"ask":"list"}\n')
            return json.loads(rank.recv(1000))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.listener.close()


def test_strangers_that_never_begin_a_handshake_take_no_place_of_nodes_and_ranks(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as the keeper takes connections kept all saves and restores from it, those of its own node too."""
    monkeypatch.setattr(line, "_HANDSHAKE_S", 10 * PATIENCE_S)
    with ExitStack() as stack:

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection(node.address, PATIENCE_S))

        strangers = [connected() for _ in range(MOST_CONNECTIONS + 1)]
        assert strangers[0].recv(1) == b"", "the first gives way"
        assert node.inventory() == []
        assert node.listed() == {"listed": True}


def test_nodes_that_have_begun_a_question_are_not_hung_up_on_for_strangers(node: Node) -> None:
    with ExitStack() as stack:
        plain = stack.enter_context(socket.create_connection(node.address, PATIENCE_S))
        slow = stack.enter_context(node.asking.wrap_socket(plain, server_hostname="a"))
        assert node.inventory() == []  # `slow` came before, so its handshake is over as well
        slow.sendall(b'{"ask":')
        strangers = [stack.enter_context(socket.create_connection(node.address, PATIENCE_S)) for _ in range(100)]
        assert strangers[0].recv(1) == b""
        slow.sendall(b'"inventory","job":"j"}\n')
        assert slow.recv(100) == b'{"copies":[]}\n'


@pytest.mark.thorough
def test_more_questions_of_nodes_than_there_are_places_are_hung_up_on(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard, over = threading.Semaphore(0), threading.Event()

    def wait(_keeper: Keeper) -> list[object]:
        heard.release()
        over.wait(PATIENCE_S)
        return []

    monkeypatch.setattr(Keeper, "inventory", wait)
    with ExitStack() as stack:
        stack.callback(over.set)

        def asked() -> ssl.SSLSocket:
            plain = stack.enter_context(socket.create_connection(node.address, PATIENCE_S))
            line = stack.enter_context(node.asking.wrap_socket(plain, server_hostname="a"))
            line.sendall(b'{"ask":"inventory","job":"j"}\n')
            return line

        for _ in range(MOST_CONNECTIONS):
            asked()
            assert heard.acquire(timeout=PATIENCE_S)
        with suppress(ConnectionError):  # with bytes unread
            assert asked().recv(1) == b""
        assert node.listed() == {"listed": True}


class Full(socket.socket):
    """Listens in a process that has no descriptor left for the first connection."""

    is_full = True

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_full:
            self.is_full = False
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_process_that_had_no_descriptor_left_is_not_deaf(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "_FULL_S", 0.0)
    server = Full()
    server.bind(("127.0.0.1", 0))
    server.listen()
    node.listener.serve_nodes_by(server, lambda: node.serving)
    node.address = server.getsockname()
    assert node.inventory() == []
