"""The lease service by TLS, with certificates of one authority on both sides, and a token that only asks who leads."""

from __future__ import annotations

import datetime
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from actions.launchers.leases.client import LeaseClient
from actions.launchers.leases.server import LeaseServer
from actions.launchers.leases.words import Ask
from tests.doubles import ManualClock
from tests.servers.certificates import Authority
from trainwarden.cli.serve.lease import lease
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.metrics_http.access import Person, Tokens, digest_of
from trainwarden.metrics_http.tls import PeerTls, peer_tls

TOKEN, OBSERVE = "a-word-nobody-guesses", "a-word-for-lookers-on"
PEOPLE = Tokens({digest_of(OBSERVE): Person("ann", "observe")})
PAST = datetime.timedelta(days=-1)


def files(authority: Authority, name: str, *sans: str, ends: datetime.timedelta = datetime.timedelta(1)) -> PeerTls:
    certificate, key = authority.issue(name, *sans, ends=ends)
    return PeerTls(ca=authority.ca, certificate=certificate, key=key)


class Running:
    """A lease service on a free port of this machine."""

    def __init__(self, tls: PeerTls | None) -> None:
        self._server = LeaseServer("127.0.0.1:0", TOKEN, ManualClock(), people=PEOPLE, tls=tls)
        self.address, self._stop = self._server.address, threading.Event()
        self._thread = threading.Thread(target=self._server.run, args=(self._stop.is_set,))
        self._thread.start()

    def ask(self, tls: PeerTls | None, token: str = TOKEN, address: str | None = None) -> bool:
        """Whether there was an answer."""
        return LeaseClient(address or self.address, token, tls=tls).ask(Ask(job="j", holder="n0")).wait_s >= 0.0

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def running(authority: Authority) -> Iterator[Running]:
    with closing(Running(files(authority, "lease", "127.0.0.1"))) as made:
        yield made


def test_launchers_of_the_same_authority_are_answered(running: Running, authority: Authority) -> None:
    ours = files(authority, "n0")
    assert running.ask(ours)
    with pytest.raises(LauncherError, match=r"401 .*the token is not the one that is wanted here"):
        running.ask(ours, "another-word-nobody-guesses")


def test_everybody_else_is_told_why_not(running: Running, authority: Authority, tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="400 this port speaks TLS: ask by https://"):
        running.ask(None)
    with pytest.raises(LauncherUnavailable, match="it says that our certificate is out of date"):
        running.ask(files(authority, "late", ends=PAST))
    (tmp_path / "b").mkdir()
    other = files(Authority(tmp_path / "b", "other"), "eve")
    with pytest.raises(LauncherUnavailable, match="its certificate is not good: self-signed certificate"):
        running.ask(other)
    with pytest.raises(LauncherUnavailable, match="it does not trust who signed our certificate"):
        running.ask(PeerTls(ca=authority.ca, certificate=other.certificate, key=other.key))
    port = running.address.rpartition(":")[2]
    with pytest.raises(LauncherUnavailable, match="Hostname mismatch, certificate is not valid for 'localhost'"):
        running.ask(files(authority, "n0"), address=f"localhost:{port}")


def test_a_service_that_is_out_of_date_or_speaks_no_tls_is_said(authority: Authority) -> None:
    late = files(authority, "late", "127.0.0.1", ends=PAST)
    for tls, said in ((late, "its certificate is not good: certificate has expired"), (None, "it does not speak TLS")):
        with closing(Running(tls)) as running, pytest.raises(LauncherUnavailable, match=said):
            running.ask(files(authority, "n0"))


def test_who_says_nothing_or_noise_holds_no_launcher_up(running: Running, authority: Authority) -> None:
    host, _, port = running.address.rpartition(":")
    raw = [socket.create_connection((host, int(port))) for _ in range(30)]
    for one in raw[:15]:
        one.sendall(b"\x16\x03\x01\x00\xffnoise")
    assert running.ask(files(authority, "n0"))
    for one in raw:
        one.close()


def test_a_token_for_looking_on_asks_for_no_lease() -> None:
    with closing(Running(None)) as running:
        for token, method, path, status in (
            (OBSERVE, "GET", "/v1/leases", 200),
            (TOKEN, "GET", "/v1/leases", 200),
            (OBSERVE, "POST", "/v1/lease", 403),
            (OBSERVE, "POST", "/v1/look", 400),
            ("", "POST", "/v1/look", 401),
            ("", "GET", "/v1/leases", 401),
        ):
            with closing(http.client.HTTPConnection(running.address, timeout=5.0)) as connection:
                connection.request(method, path, b"{}", {"Authorization": f"Bearer {token}"})
                assert connection.getresponse().status == status, (token, method)


def test_wrong_files_are_one_sentence(authority: Authority, tmp_path: Path) -> None:
    right = files(authority, "lease")
    for wrong in (
        PeerTls(ca="/nowhere", certificate=right.certificate, key=right.key),
        PeerTls(ca=right.ca, certificate=right.certificate, key="/nowhere"),
    ):
        with pytest.raises(ConfigError, match=r"lease: tls: /nowhere cannot be used \(No such file"):
            LeaseServer("127.0.0.1:0", TOKEN, ManualClock(), tls=wrong)
        with pytest.raises(ConfigError, match=r"^tls: /nowhere cannot be used"):
            LeaseClient("127.0.0.1:1", TOKEN, tls=wrong)
    with pytest.raises(ConfigError, match="need each other"):
        peer_tls(right.ca, right.certificate, None)
    assert peer_tls(None, None, None) is None
    word = tmp_path / "word"
    word.write_text(OBSERVE)
    word.chmod(0o600)
    with pytest.raises(ConfigError, match="--observe-token-file: without --token-file"):
        lease(observe_token_file=word)
