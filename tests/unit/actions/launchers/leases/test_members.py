"""Connections of strangers keep no launcher from its answers, neither before nor after it has shown its token."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import msgspec
import pytest

from actions.launchers.leases.questions import Asker, QuestionServer
from tests.servers.certificates import Authority
from trainwarden.errors import LauncherError
from trainwarden.metrics_http.tls import PeerTls

TOKEN = "a-word-nobody-guesses"
MANY = 200
FIRST_BYTES = {False: b"POST /v1/no", True: b"\x16\x03\x01\x02\x00\x01"}


class Said(msgspec.Struct):
    what: str = ""


@contextmanager
def answering(tls: PeerTls | None) -> Iterator[str]:
    routes = {("POST", "/v1/node"): lambda question, _who: question}
    server = QuestionServer("127.0.0.1:0", routes, token=TOKEN, most_bytes=4_096, tls=tls)
    server.start()
    try:
        yield server.address
    finally:
        server.close()


@pytest.fixture(params=[False, True], ids=["plain", "mutual TLS"])
def tls(request: pytest.FixtureRequest, tmp_path: Path) -> PeerTls | None:
    if not request.param:
        return None
    authority = Authority(tmp_path)
    certificate, key = authority.issue("n0", "127.0.0.1")
    return PeerTls(ca=authority.ca, certificate=certificate, key=key)


def strangers(stack: ExitStack, address: str, said: bytes) -> None:
    host, _, port = address.rpartition(":")
    for _ in range(MANY):
        one = stack.enter_context(socket.create_connection((host, int(port)), timeout=60.0))
        if said:
            one.send(said)


@pytest.mark.parametrize("speak", [False, True], ids=["silent", "stalled"])
def test_a_launcher_is_answered_before_and_beside_strangers(tls: PeerTls | None, speak: bool) -> None:
    said = FIRST_BYTES[tls is not None] if speak else b""
    with answering(tls) as address, ExitStack() as stack:
        strangers(stack, address, said)
        member = stack.enter_context(closing(Asker("leader", TOKEN, 60.0, 4_096, tls=tls)))
        for _ in range(3):
            assert member.ask(address, "/v1/node", Said("here"), Said) == Said("here")
            strangers(stack, address, said)


def test_a_launcher_keeps_its_connection_and_a_wrong_token_gets_none(tls: PeerTls | None) -> None:
    with answering(tls) as address, ExitStack() as stack:
        member = stack.enter_context(closing(Asker("leader", TOKEN, 60.0, 4_096, tls=tls)))
        member.ask(address, "/v1/node", Said(), Said)
        (kept,) = member._kept.values()
        socket_kept = kept.sock
        strangers(stack, address, b"")
        member.ask(address, "/v1/node", Said(), Said)
        assert [one.sock for one in member._kept.values()] == [socket_kept]
        other = stack.enter_context(closing(Asker("leader", "another-word", 60.0, 4_096, tls=tls)))
        with pytest.raises(LauncherError, match="401"):
            other.ask(address, "/v1/node", Said(), Said)
        assert not other._kept


def test_a_kept_connection_that_has_ended_is_made_again() -> None:
    with closing(Asker("leader", TOKEN, 60.0, 4_096)) as member:
        with answering(None) as address:
            member.ask(address, "/v1/node", Said(), Said)
        routes = {("POST", "/v1/node"): lambda question, _who: question}
        again = QuestionServer(address, routes, token=TOKEN, most_bytes=4_096)
        again.start()
        assert member.ask(address, "/v1/node", Said("still"), Said) == Said("still")
        again.close()


def test_an_answer_says_that_its_connection_stays_to_members_alone() -> None:
    with answering(None) as address:
        for path, token, status, stays in (("/v1/node", TOKEN, 200, True), ("/v1/none", TOKEN, 404, False),
                                           ("/v1/node", "no", 401, False)):  # fmt: skip
            with closing(http.client.HTTPConnection(address, timeout=60.0)) as connection:
                connection.request("POST", path, b"{}", {"Authorization": f"Bearer {token}"})
                with connection.getresponse() as answer:
                    assert (answer.status, answer.getheader("Connection") != "close") == (status, stays)
