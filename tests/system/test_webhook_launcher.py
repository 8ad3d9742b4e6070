"""The webhook launcher and an engine against a service over real sockets that loses, delays and spoils what is said."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.engine_doubles import Rig
from tests.memory_launcher import MemoryLauncher
from tests.servers.webhook import SECRET, WebhookService
from trainwarden.actions.launchers.webhook.client import WebhookConfig, WebhookLauncher
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import Operation
from trainwarden.protocols import Scope
from trainwarden.records import IncidentRecord

pytestmark = [pytest.mark.system, pytest.mark.timeout(60)]


@pytest.fixture
def service() -> Iterator[WebhookService]:
    made = WebhookService(MemoryLauncher(only="job"))
    yield made
    made.close()


def launcher(folder: Path, url: str, secret: bytes = SECRET, timeout_s: float = 0.5) -> WebhookLauncher:
    (folder / "secret").write_bytes(secret)
    config = WebhookConfig(url=url, secret_file=str(folder / "secret"), timeout_s=timeout_s)
    return WebhookLauncher(config, Scope(job="job", node="n0", run_dir="."))


def test_a_restart_is_done_once_whatever_is_lost_and_always_under_its_id(
    service: WebhookService, tmp_path: Path
) -> None:
    rig = Rig()
    rig.adopting = False
    rig.launcher = launcher(tmp_path, service.url)  # type: ignore[assignment]
    rig.launcher._clock = rig.clock  # type: ignore[attr-defined]
    rig.restart_engine()
    incident = IncidentRecord(
        id="i1", job="job", kind="crash", severity="sev1", state="opened", revision=0, opened_at_s=1000.0,
        updated_at_s=1000.0, reason="rank 2 is dead",
    )  # fmt: skip
    spoilt = (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", b"\x00\xff\n\n")
    submitted = ("unheard", "500", "done", "500", "done", "lost")  # with the polls between
    service.fates.extend([*submitted, *spoilt, "500", "unheard", "lost", *spoilt])
    rig.tell(incident)
    for _ in range(60):
        if rig.bus.actions() and rig.bus.actions()[-1].outcome == "done":
            break
        rig.clock.sleep(1.1)
        rig.tell()
    assert [action.outcome for action in rig.bus.actions()] == ["started", "done"]
    assert service.launcher.done == ["i1/restart/1"]
    assert service.keys == ["i1/restart/1"] * 3
    assert not service.fates


def test_a_signature_of_another_secret_is_told_as_the_service_tells_it(service: WebhookService, tmp_path: Path) -> None:
    with pytest.raises(LauncherUnavailable, match="answers 401: the signature is another's"):
        launcher(tmp_path, service.url, b"a secret of nobody").state("job")
    service.now_s = lambda: time.time() + 400.0
    with pytest.raises(LauncherUnavailable, match="answers 401: the request is old"):
        launcher(tmp_path, service.url).state("job")


def drip(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        client.sendall(b"X-More: x\r\n")
        time.sleep(0.05)


def flood(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        client.sendall(b" " * 2**20)


def hang_up(client: socket.socket) -> None:
    client.close()


def say_nothing(client: socket.socket) -> None:
    time.sleep(5.0)


def redirect(client: socket.socket) -> None:
    client.sendall(b"HTTP/1.1 307 Away\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (drip, "did not answer within 0.5 s|cannot be asked"),
        (flood, "answers more than 8388608 bytes|did not answer"),
        (hang_up, "cannot be asked"),
        (say_nothing, "did not answer within 0.5 s"),
        (redirect, "answers 307"),
    ],
)
def test_a_service_that_misbehaves_costs_its_time_limit_at_most(
    tmp_path: Path, does: Callable[[socket.socket], None], said: str
) -> None:
    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(65536)
            with contextlib.suppress(OSError):
                does(client)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        asked_s = time.monotonic()
        with pytest.raises(LauncherUnavailable, match=said):
            launcher(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}/").state("job")
        assert time.monotonic() - asked_s < 1.5


def test_a_host_that_is_no_name_and_a_port_where_nobody_listens_are_one_sentence(tmp_path: Path) -> None:
    for url in ("http://no..such.host.invalid/", f"http://{'a' * 70}.invalid/", "http://127.0.0.1:1/"):
        with pytest.raises(LauncherUnavailable, match="cannot be asked"):
            launcher(tmp_path, url).state("job")


def test_a_question_seen_on_its_way_and_sent_again_does_nothing_twice(service: WebhookService, tmp_path: Path) -> None:
    """Whoever repeats a signed request within its five minutes repeats an operation that is known."""
    made = launcher(tmp_path, service.url)
    sent: list[tuple[bytes, dict[str, str]]] = []
    real = http.client.HTTPConnection.request

    def record(self: http.client.HTTPConnection, method: str, url: str, body: bytes, headers: dict[str, str]) -> None:
        sent.append((body, headers))
        real(self, method, url, body, headers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(http.client.HTTPConnection, "request", record)
        made.submit(Operation(id="i1/restart/1", job="job", kind="restart", expected_generation=1))
    [(body, headers)] = sent
    for _ in range(3):
        connection = http.client.HTTPConnection(urlsplit(service.url).netloc)
        connection.request("POST", "/trainwarden", body, headers)
        assert connection.getresponse().status == 200
        connection.close()
    assert service.launcher.done == ["i1/restart/1"]
