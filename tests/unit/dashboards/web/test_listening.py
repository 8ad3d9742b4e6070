"""Idle connections shut nobody out of serve, and make it log next to nothing."""

from __future__ import annotations

import errno
import http.client
import logging
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import uvicorn

from tests.servers.certificates import Authority
from tests.unit.dashboards.web.test_tls import app
from trainwarden.dashboards.web import server
from trainwarden.dashboards.web.guard import Guard
from trainwarden.dashboards.web.server import _how, listen_at
from trainwarden.metrics_http import listening as module
from trainwarden.metrics_http.access import Person, Tokens, digest_of
from trainwarden.metrics_http.listening import Limits, Sparing, places
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import ServeSettings

TOKEN = "a-word-nobody-guesses"
PLACES = 16


class Site:
    """A server with `PLACES` for strangers."""

    def __init__(self, settings: ServeSettings) -> None:
        self._listening = listen_at("127.0.0.1:0")
        self._listening.limit(PLACES)
        self.port = self._listening.getsockname()[1]
        guarded = Guard(app, Tokens({digest_of(TOKEN): Person("ann", "observe")}), SelfMetrics("serve"))
        self._server = uvicorn.Server(_how(settings, guarded, self._listening))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True)
        self._thread.start()

    def strangers(self, stack: ExitStack) -> list[socket.socket]:
        address = ("127.0.0.1", self.port)
        return [stack.enter_context(socket.create_connection(address, timeout=20.0)) for _ in range(5 * PLACES)]

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    with closing(Site(ServeSettings())) as made:
        yield made


def asked(connection: http.client.HTTPConnection) -> int:
    connection.request("GET", "/", headers={"Authorization": f"Bearer {TOKEN}"})
    with connection.getresponse() as answer:
        answer.read()
        return answer.status


def test_idle_connections_beyond_the_places_shut_nobody_out(site: Site) -> None:
    with ExitStack() as stack:
        site.strangers(stack)
        connection = stack.enter_context(closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=60.0)))
        assert asked(connection) == 200
        kept = connection.sock
        site.strangers(stack)
        assert asked(connection) == 200
        assert connection.sock is kept


def test_the_first_who_are_silent_are_hung_up_on_for_the_next(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, not after their time: until then they would hold a descriptor each."""
    for limit in ("HEAD_S", "WHOLE_S"):
        monkeypatch.setattr(server, limit, 3600.0)
    with ExitStack() as stack:
        assert [one.recv(1) for one in site.strangers(stack)[:PLACES]] == [b""] * PLACES


def test_before_a_handshake_as_well(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", "127.0.0.1")
    with closing(Site(ServeSettings(tls_certificate=certificate, tls_key=key))) as site, ExitStack() as stack:
        site.strangers(stack)
        trusting = http.client.ssl.create_default_context(cafile=authority.ca)  # type: ignore[attr-defined]
        secure = http.client.HTTPSConnection("127.0.0.1", site.port, timeout=60.0, context=trusting)
        assert asked(stack.enter_context(closing(secure))) == 200


def test_where_no_descriptor_is_left_a_stranger_goes_and_asyncio_is_told_once_a_second() -> None:
    with ExitStack() as stack:
        pair = [stack.enter_context(one) for one in socket.socketpair()]
        limits = Limits(4, 2, 4)
        limits.enter(pair[0], "10.0.0.1", 0.0)
        assert limits.makes_room(0.0)
        assert pair[1].recv(1) == b""
        assert [limits.makes_room(at_s) for at_s in (0.1, 0.2, 1.0, 1.2)] == [False, True, True, False]


def test_a_full_process_is_no_error_of_accepting(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: socket.socket) -> tuple[socket.socket, object]:
        raise OSError(errno.EMFILE, "Too many open files")

    with listen_at("127.0.0.1:0") as listening, ExitStack() as stack:
        listening.limit(4)
        stack.enter_context(socket.create_connection(listening.getsockname()))
        stack.enter_context(listening.accept()[0])
        monkeypatch.setattr(socket.socket, "accept", full)
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_places_leave_descriptors_for_all_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, expected in ((1_024, 448), (resource.RLIM_INFINITY, 1_024), (64, 16)):
        monkeypatch.setattr(module.resource, "getrlimit", lambda _what, soft=soft: (soft, soft))
        assert places() == expected


def test_the_same_message_is_logged_once_a_minute() -> None:
    sparing = Sparing()

    def said(text: str, at_s: float) -> str | None:
        record = logging.LogRecord("asyncio", logging.ERROR, "", 0, text, None, None)
        record.created = at_s
        return record.getMessage() if sparing.filter(record) else None

    told = [said("no descriptor", at_s) for at_s in (0.0, 1.0, 59.0, 60.0, 61.0)]
    assert told == ["no descriptor", None, None, "no descriptor (and 2 times since)", None]
    assert said("another", 1.0) == "another"
    assert said("no descriptor", 0.0) is not None  # a clock that was set back silences nothing
