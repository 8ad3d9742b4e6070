"""TLS of the API, by an authority of our own: who is let in, and what the others are told."""

from __future__ import annotations

import datetime
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from tests.servers.certificates import Authority
from trainwarden.dashboards.web.server import _how, listen_at, tls_of
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.tls import trouble
from trainwarden.settings import ServeSettings

PAST = datetime.timedelta(days=-1)


async def app(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"fine"})


class Site:
    """A server with a certificate for 127.0.0.1, and its authority."""

    def __init__(self, folder: Path, *, verify: bool = False, ends: datetime.timedelta = datetime.timedelta(1)) -> None:
        self.authority = Authority(folder)
        certificate, key = self.authority.issue("server", "127.0.0.1", ends=ends)
        ca = self.authority.ca if verify else None
        settings = ServeSettings(tls_certificate=certificate, tls_key=key, tls_client_ca=ca)
        self._listening = listen_at("127.0.0.1:0")
        self.port = self._listening.getsockname()[1]
        self._server = uvicorn.Server(_how(settings, app))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True)
        self._thread.start()

    def ask(self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> str:
        """What is answered, or our own sentence of why nothing is."""
        kind: Any = http.client.HTTPConnection if tls is None else http.client.HTTPSConnection
        more = {} if tls is None else {"context": tls}
        with closing(kind(host, self.port, timeout=5.0, **more)) as connection:
            try:
                connection.request("GET", "/")
                return str(connection.getresponse().read().decode())
            except OSError as error:
                return trouble(error)

    def trusting(self, *own: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.ca)
        if own:
            context.load_cert_chain(*own)
        return context

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(5.0)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with closing(Site(tmp_path)) as made:
        yield made


@pytest.fixture
def strict(tmp_path: Path) -> Iterator[Site]:
    with closing(Site(tmp_path, verify=True)) as made:
        yield made


def test_who_trusts_the_authority_is_answered_and_who_asks_in_plain_text_is_told(site: Site) -> None:
    assert site.ask(site.trusting()) == "fine"
    assert site.ask() == "this port speaks TLS: ask by https://\n"
    assert site.ask(site.trusting()) == "fine"
    with socket.create_connection(("127.0.0.1", site.port)) as raw:
        raw.sendall(b"\x00\xff neither\r\n\r\n")
        raw.settimeout(5.0)
        assert raw.recv(1) in (b"", b"\x15")  # hung up on, or an alert before that
    assert site.ask(site.trusting()) == "fine"


def test_a_server_that_is_not_the_one_is_said(site: Site, tmp_path: Path) -> None:
    assert site.ask(ssl.create_default_context()).startswith("its certificate is not good: unable to get")
    wrong = site.ask(site.trusting(), "localhost")
    assert wrong == "its certificate is not good: Hostname mismatch, certificate is not valid for 'localhost'"


def test_a_certificate_that_is_out_of_date_is_said(tmp_path: Path) -> None:
    with closing(Site(tmp_path, ends=PAST)) as site:
        assert site.ask(site.trusting()) == "its certificate is not good: certificate has expired"


def test_clients_show_a_certificate_of_the_authority(strict: Site, tmp_path: Path) -> None:
    assert strict.ask(strict.trusting(*strict.authority.issue("ann"))) == "fine"
    assert strict.ask(strict.trusting()) == "it wants a certificate of ours"
    late = strict.trusting(*strict.authority.issue("late", ends=PAST))
    assert strict.ask(late) == "it says that our certificate is out of date"
    (tmp_path / "other").mkdir()
    other = strict.trusting(*Authority(tmp_path / "other", "other").issue("eve"))
    assert strict.ask(other) == "it does not trust who signed our certificate"
    assert strict.ask() == "this port speaks TLS: ask by https://\n"


def test_old_versions_of_tls_are_not_spoken(site: Site) -> None:
    context = tls_of(ServeSettings(tls_certificate=site.authority.issue("x")[0], tls_key=site.authority.issue("x")[1]))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_who_says_nothing_holds_nobody_up(site: Site) -> None:
    silent = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(50)]
    assert site.ask(site.trusting()) == "fine"
    for one in silent:
        one.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tls_key": None}, "tls_certificate and tls_key need each other"),
        ({"tls_certificate": None}, "tls_certificate and tls_key need each other"),
        ({"tls_certificate": None, "tls_key": None}, "tls_client_ca needs both"),
        ({"tls_key": "/nowhere.key"}, r"serve.tls_certificate: /nowhere.key cannot be used \(No such file"),
        ({"tls_client_ca": "/nowhere.pem"}, r"/nowhere.pem cannot be used \(No such file"),
        ({"tls_key": "other.key"}, r"with .*other.key cannot be used \(key values mismatch\)"),
        ({"tls_key": "ca.pem"}, "cannot be used"),
    ],
)
def test_files_that_cannot_be_used_are_one_sentence(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    authority.issue("other")
    right: dict[str, Any] = {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": authority.ca}
    told = {name: str(tmp_path / value) if value else None for name, value in change.items()}
    with pytest.raises(ConfigError, match=said):
        tls_of(ServeSettings(**right | told))


def test_a_plain_server_is_said_to_be_one() -> None:
    with listen_at("127.0.0.1:0") as listening:

        def answer() -> None:
            asker = listening.accept()[0]
            with asker:
                asker.recv(9_999)
                asker.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        with socket.create_connection(listening.getsockname()) as raw, pytest.raises(ssl.SSLError) as raised:
            ssl.create_default_context().wrap_socket(raw, server_hostname="127.0.0.1")
        answering.join()
    assert trouble(raised.value) == "it does not speak TLS"
