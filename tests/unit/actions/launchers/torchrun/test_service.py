"""The rendezvous service over real connections on this machine."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from tests.servers.certificates import Authority
from trainwarden.actions.launchers.torchrun import service
from trainwarden.actions.launchers.torchrun.service import AT_ONCE, RendezvousService
from trainwarden.actions.launchers.torchrun.table import JobTable
from trainwarden.clock import BootClock
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.access import Person, Tokens, digest_of
from trainwarden.metrics_http.tls import PeerTls

TOKEN = "a-token-of-twenty-chars"
PATIENCE_S = 30.0
HELLO = {
    "do": "hello", "job": "j", "life": "a/1", "node": "a", "host": "127.0.0.1", "least": 1, "most": 1, "token": TOKEN,
    "beat": {"do": "beat", "waits": True, "port": 5},
}  # fmt: skip


OPEN: list[Peer] = []


@pytest.fixture(autouse=True)
def hang_up() -> Iterator[None]:
    yield
    while OPEN:
        OPEN.pop().close()


class Peer:
    """Somebody who is connected."""

    def __init__(self, address: str, context: ssl.SSLContext | None = None, at: str = "127.0.0.1") -> None:
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S, (at, 0))
        if context is not None:
            self.socket = context.wrap_socket(self.socket, server_hostname=host)
        OPEN.append(self)
        self._file = self.socket.makefile("rb")

    def say(self, line: object) -> Peer:
        self.socket.sendall(json.dumps(line).encode() + b"\n")
        return self

    def hear(self) -> dict:
        line = self._file.readline()
        return json.loads(line) if line else {"hung up": True}

    def until(self, key: str) -> dict:
        """The first line with `key`."""
        while not (word := self.hear()).get(key):
            assert "hung up" not in word, f"hung up before any {key}"
        return word

    def close(self) -> None:
        self._file.close()
        self.socket.close()


@contextmanager
def serving(tls: PeerTls | None = None) -> Iterator[str]:
    over, ready, found = threading.Event(), threading.Event(), []
    people = Tokens({digest_of("watchers-long-token"): Person("ann", "observe")})
    service = RendezvousService("127.0.0.1:0", BootClock(), token=TOKEN, people=people, tls=tls, lost_after_s=30.0)
    thread = threading.Thread(target=service.run, args=(over.is_set, lambda one: (found.append(one), ready.set())))
    thread.start()
    try:
        assert ready.wait(PATIENCE_S)
        yield found[0]
    finally:
        over.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.fixture
def address() -> Iterator[str]:
    with serving() as found:
        yield found


def asked(address: str, token: str, ask: dict) -> dict:
    peer = Peer(address).say({"do": "ask", "token": token, "ask": ask})
    reply = peer.hear()
    return reply


def restart(generation: int) -> dict:
    operation = {"id": "r", "job": "j", "kind": "restart", "expected_generation": generation}
    return {"do": "submit", "operation": operation}


def test_an_agent_is_given_its_round_and_a_new_one_when_somebody_asks(address):
    agent = Peer(address).say(HELLO)
    begin = agent.until("begin")["begin"]
    assert (begin["round"], begin["rank"], begin["world"], begin["port"]) == (1, 0, 1, 5)
    agent.say({"do": "beat", "at": 1, "ranks": [0], "alive": [0]})
    while (state := asked(address, TOKEN, {"do": "state", "job": "j"})["state"])["phase"] != "running":
        time.sleep(0.02)
    assert asked(address, TOKEN, restart(state["generation"]))["report"]["state"] == "accepted"
    assert "restart" in agent.until("stop")["why"]
    agent.say({"do": "beat", "at": 1, "waits": True, "port": 6})
    assert agent.until("begin")["begin"]["round"] == 2


def test_a_job_whose_turn_breaks_ends_no_other(address, monkeypatch, caplog):
    tick = JobTable.tick

    def breaks(table, now_s):
        if table.job == "broken":
            raise LookupError("by the test")
        tick(table, now_s)

    monkeypatch.setattr(JobTable, "tick", breaks)
    Peer(address).say({**HELLO, "job": "broken", "life": "b/1"}).hear()
    assert Peer(address).say(HELLO).until("begin")
    assert [one.message for one in caplog.records].count("a job's turn broke") == 1


def test_an_agent_carries_what_was_decided_as_it_is(address):
    agent = Peer(address).say(HELLO)
    memory = agent.until("begin")["memory"]
    again = Peer(address).say({**HELLO, "life": "a/2", "memory": memory})
    assert "memory" in again.hear()


@pytest.mark.parametrize("token", ["", "watchers-long-token", "another-token-of-mine"])
def test_whoever_has_not_the_agents_token_is_no_agent(address, token):
    assert "token" in Peer(address).say({**HELLO, "token": token}).hear()["error"]


def test_people_may_do_what_their_role_allows(address):
    agent = Peer(address).say(HELLO)
    agent.until("begin")
    assert asked(address, "watchers-long-token", {"do": "state", "job": "j"})["state"]["job"] == "j"
    assert "role observe" in asked(address, "watchers-long-token", restart(0))["error"]
    assert "token" in asked(address, "nobodys-token-at-all", {"do": "state", "job": "j"})["error"]
    assert "no agent of job 'k'" in asked(address, TOKEN, {"do": "state", "job": "k"})["error"]


@pytest.mark.parametrize(
    "line", [b"\n", b"GET / HTTP/1.1\r\n\r\n", b"{}\n", b"\xff\xfe\n", b"[" * 5000 + b"\n", b"x" * (2 << 20)]
)
def test_what_is_no_first_line_is_hung_up_on(address, line):
    peer = Peer(address)
    try:
        peer.socket.sendall(line)
        assert peer.socket.recv(10) == b""
    except ConnectionError:
        pass  # with bytes unread
    agent = Peer(address).say(HELLO)
    assert agent.until("begin")


def test_strangers_that_say_nothing_keep_no_place_from_agents(address):
    agent = Peer(address).say(HELLO)
    agent.until("begin")
    strangers = [Peer(address) for _ in range(3 * AT_ONCE)]
    other = Peer(address).say({**HELLO, "job": "k"})
    assert other.until("begin")
    assert strangers[0].hear() == {"hung up": True}
    for _ in range(10):  # more answers than can have been under way
        assert "hung up" not in agent.say({"do": "beat", "at": 1, "ranks": [0], "alive": [0]}).hear()


def test_an_address_that_opens_many_connections_takes_no_place_of_another(address):
    slow = Peer(address)
    strangers = [Peer(address, at="127.0.0.2") for _ in range(3 * AT_ONCE)]
    assert strangers[0].hear() == {"hung up": True}
    assert slow.say(HELLO).until("begin")


def test_who_connects_and_never_begins_a_handshake_gives_way_to_the_next(tmp_path, monkeypatch):
    """TLS is spoken before anybody is asked who it is: such connections were as many as the process has descriptors."""
    monkeypatch.setattr(service, "FIRST_S", 2 * PATIENCE_S)
    authority = Authority(tmp_path)
    certificate, key = authority.issue("agent", "127.0.0.1")
    tls = PeerTls(ca=authority.ca, certificate=certificate, key=key)
    with serving(tls) as address:
        agent = Peer(address, tls.asking()).say(HELLO)
        agent.until("begin")
        strangers = [Peer(address) for _ in range(AT_ONCE + 1)]
        assert strangers[0].hear() == {"hung up": True}
        assert Peer(address, tls.asking()).say({**HELLO, "job": "k"}).until("begin")
        assert agent.say({"do": "beat", "at": 1, "ranks": [0], "alive": [0]}).hear().get("hung up") is None
        while OPEN:
            OPEN.pop().close()


def test_by_tls_only_certificates_of_the_same_authority_are_heard(tmp_path):
    (tmp_path / "other").mkdir()
    authorities = [Authority(tmp_path), Authority(tmp_path / "other")]
    files = [authority.issue("agent", "127.0.0.1") for authority in authorities]
    ours, theirs = (PeerTls(ca=authorities[0].ca, certificate=one, key=key) for one, key in files)
    with serving(ours) as address:
        assert Peer(address, ours.asking()).say(HELLO).until("begin")
        for context in (theirs.asking(), None):
            with suppress(OSError):  # as TLS says it
                assert "hung up" in Peer(address, context).say(HELLO).hear()
        while OPEN:
            OPEN.pop().close()


def test_others_than_this_machine_are_served_with_a_token_alone():
    with pytest.raises(ConfigError, match="without a token only this machine is served"):
        RendezvousService("0.0.0.0:0", BootClock())
