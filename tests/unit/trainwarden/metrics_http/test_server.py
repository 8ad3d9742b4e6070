"""The metrics server: TLS, passwords, and clients that say nothing."""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

import bcrypt
import pytest

from trainwarden.errors import ConfigError
from trainwarden.metrics_http.listener import AT_ONCE, MetricsServer
from trainwarden.metrics_http.server import serve_metrics
from trainwarden.metrics_http.web_config import WebConfigFile
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import Settings

HASH = bcrypt.hashpw(b"open sesame", bcrypt.gensalt(4)).decode()
TLS = "tls_server_config: {cert_file: server.pem, key_file: server.key"


def written(folder: Path, text: str) -> Path:
    path = folder / "web.yml"
    path.write_text(text, encoding="utf-8")
    return path


def certificate(folder: Path, name: str, san: str) -> None:
    """A certificate that signs itself: `name`.pem and `name`.key."""
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-addext", f"subjectAltName={san}",
    ]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    certificate(folder, "server", "IP:127.0.0.1")
    certificate(folder, "prometheus", "DNS:prometheus")
    return folder


def basic(name: str, password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def get(port: int, headers: dict[str, str] | None = None, tls: ssl.SSLContext | None = None) -> tuple[int, str, dict]:
    connection = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        if tls is None
        else http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=tls)
    )
    try:
        connection.request("GET", "/metrics", headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


def trusting(folder: Path, own: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=folder / "server.pem")
    if own is not None:
        context.load_cert_chain(folder / f"{own}.pem", folder / f"{own}.key")
    return context


def served(web_config: Path | None) -> int:
    settings = Settings(metrics_web_config=None if web_config is None else str(web_config))
    port = serve_metrics(SelfMetrics("agent"), 0, settings)
    assert port is not None
    return port


def test_without_a_file_everybody_who_reaches_it_is_answered() -> None:
    status, body, headers = get(served(None))
    assert status == 200
    assert "trainwarden_agent_build_info" in body
    assert headers["Content-Type"].startswith("text/plain")


WRONG = (
    {},
    basic("prom", "wrong"),
    basic("other", "open sesame"),
    basic("prom", "open sesame" + "x" * 100),
    {"Authorization": "Basic ?"},
    {"Authorization": "Bearer x"},
)


@pytest.mark.parametrize("headers", WRONG)
def test_a_wrong_password_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    port = served(written(tmp_path, f"basic_auth_users: {{prom: '{HASH}'}}"))
    status, body, answered = get(port, headers)
    assert (status, answered["WWW-Authenticate"]) == (401, 'Basic realm="metrics"')
    assert "trainwarden" not in body


def test_the_right_password_and_headers_of_the_file(tmp_path: Path) -> None:
    text = f"basic_auth_users: {{prom: '{HASH}'}}\nhttp_server_config: {{headers: {{X-Frame-Options: deny}}}}"
    port = served(written(tmp_path, text))
    for _ in range(2):  # the second time from memory
        status, body, headers = get(port, basic("prom", "open sesame"))
        assert (status, headers["X-Frame-Options"]) == (200, "deny")
        assert "trainwarden_agent_build_info" in body


def test_tls_is_spoken_and_plain_text_is_not(certificates: Path) -> None:
    port = served(written(certificates, TLS + ", min_version: TLS13}"))
    assert get(port, tls=trusting(certificates))[0] == 200
    assert get(port)[:2] == (400, "this port speaks TLS: ask by https://\n")
    old = trusting(certificates)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        get(port, tls=old)


def test_clients_show_a_certificate_with_a_name_that_is_allowed(certificates: Path) -> None:
    asked = TLS + ", client_auth_type: RequireAndVerifyClientCert, client_ca_file: prometheus.pem"
    port = served(written(certificates, asked + ", client_allowed_sans: [prometheus]}"))
    assert get(port, tls=trusting(certificates, "prometheus"))[0] == 200
    for own in (None, "server"):
        with pytest.raises((OSError, http.client.HTTPException)):
            get(port, tls=trusting(certificates, own))
    other = served(written(certificates, asked + ", client_allowed_sans: [somebody-else]}"))
    with pytest.raises((OSError, http.client.HTTPException)):
        get(other, tls=trusting(certificates, "prometheus"))


@pytest.mark.parametrize("tls", [False, True])
def test_silent_clients_stop_nobody(certificates: Path, tls: bool) -> None:
    """Found in prometheus_client's server: the handshake was waited for before the next client was accepted."""
    port = served(written(certificates, TLS + "}") if tls else None)
    with ExitStack() as silent:
        for _ in range(4 * AT_ONCE):
            silent.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert get(port, tls=trusting(certificates) if tls else None)[0] == 200


def test_no_more_threads_than_places() -> None:
    port = served(None)
    before = threading.active_count()
    with ExitStack() as silent:
        for _ in range(2 * AT_ONCE):
            silent.enter_context(socket.create_connection(("127.0.0.1", port))).send(b"GET")
        assert get(port)[0] == 200
        assert threading.active_count() - before <= AT_ONCE


@pytest.mark.thorough
def test_a_client_that_says_nothing_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MetricsServer, "silent_s", 0.05)
    port = served(None)
    with socket.create_connection(("127.0.0.1", port), timeout=60) as silent:
        assert silent.recv(1) == b""


@pytest.mark.thorough
@pytest.mark.parametrize("tls", [False, True])
def test_clients_that_send_a_byte_now_and_then_keep_no_place(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setattr(MetricsServer, "longest_s", 0.3)
    port = served(written(certificates, TLS + "}") if tls else None)
    over = threading.Event()
    with ExitStack() as slow:
        dripping = [slow.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(AT_ONCE)]

        def drip() -> None:
            while not over.wait(0.1):
                for one in dripping:
                    with suppress(OSError):
                        one.send(b"\x16" if tls else b"G")

        threading.Thread(target=drip, daemon=True).start()
        slow.callback(over.set)
        for one in dripping:
            one.settimeout(60.0)
            with suppress(ConnectionError):
                while one.recv(1024):
                    pass  # until we are hung up on
        assert get(port, tls=trusting(certificates) if tls else None)[0] == 200


def test_a_certificate_that_comes_after_the_file_that_names_it_is_taken(certificates: Path, tmp_path: Path) -> None:
    for name in ("server.pem", "server.key"):
        shutil.copy(certificates / name, tmp_path)
    path = written(tmp_path, TLS + "}")
    file = WebConfigFile(path)
    path.write_text(TLS.replace("server.", "renewed.") + "}")
    assert file.now()[0].tls_server_config.cert_file == "server.pem"
    for kind in ("pem", "key"):
        shutil.copy(certificates / f"server.{kind}", tmp_path / f"renewed.{kind}")
    assert file.now()[0].tls_server_config.cert_file == "renewed.pem"


def test_a_file_that_changes_is_read_again_and_a_broken_one_is_not_taken(tmp_path: Path) -> None:
    path = written(tmp_path, "")
    file = WebConfigFile(path)
    assert file.admits(None)
    path.write_text(f"basic_auth_users: {{prom: '{HASH}'}}")
    assert not file.admits(None)
    path.write_text("basic_auth_users: [nonsense")
    assert not file.admits(None), "what cannot be read opens no door"
    path.unlink()
    assert not file.admits(None)
    path.write_text("")
    os.utime(path, ns=(1, 1))
    assert file.admits(None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not valid YAML"),
        ("nonsense: 1", "unknown key `nonsense`"),
        ("rate_limit: {interval: 1s}", "unknown key `rate_limit`"),
        ("basic_auth_users: {prom: open sesame}", "'prom' in basic_auth_users is no bcrypt hash"),
        ("tls_server_config: {cert_file: a}", "missing required field `key_file` at tls_server_config"),
        ("tls_server_config: {cert_file: a, key_file: b}", "/a cannot be used (No such file"),
        (TLS + ", client_auth_type: RequestClientCert}", "invalid enum value 'RequestClientCert'"),
        (TLS + ", client_auth_type: RequireAndVerifyClientCert}", "client_ca_file and client_auth_type"),
        (TLS + ", client_allowed_sans: [a]}", "client_allowed_sans needs"),
        ("http_server_config: {headers: {'A\\n': b}}", "http_server_config.headers"),
        (TLS.replace("server.key", "prometheus.key") + "}", "cannot be used"),
    ],
)
def test_a_mistake_is_one_sentence(certificates: Path, text: str, said: str) -> None:
    path = written(certificates, text)
    with pytest.raises(ConfigError) as error:
        WebConfigFile(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(path))


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        served(tmp_path / "none.yml")


def test_a_port_that_is_taken_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match=r"metrics: 127.0.0.1:\d+ cannot be listened on \(Address already in use\)"):
        serve_metrics(SelfMetrics("agent"), served(None), Settings())


def test_without_a_port_nobody_listens() -> None:
    assert serve_metrics(SelfMetrics("agent"), None, Settings()) is None
