"""`trainwarden detect --prometheus` on a real Prometheus that wants TLS, a certificate of the client and a password."""

from __future__ import annotations

import json
import shlex
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from tests.servers.exporters import Cluster
from tests.servers.kafka import ServerMissing
from tests.servers.prometheus import Prometheus

pytestmark = pytest.mark.system
PASSWORD = "pass:word@/?"


def openssl(folder: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)


def signed(folder: Path, name: str, authority: str) -> None:
    """`name`.pem, of key and certificate, that `authority` answers for."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", f"{name}.key", "-nodes"]
    openssl(folder, "req", *key, "-out", f"{name}.csr", "-subj", f"/CN={name}")
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1\n")
    of = ["-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial", "-extfile", "san", "-days", "2"]
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *of)
    (folder / f"{name}.pem").write_text((folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    for authority in ("ca", "other"):
        names = ["-keyout", f"{authority}.key", "-out", f"{authority}.crt", "-subj", f"/CN={authority}"]
        openssl(folder, "req", "-x509", *key, *names)
    signed(folder, "server", "ca")
    signed(folder, "warden", "ca")
    signed(folder, "stranger", "other")
    openssl(folder, "ec", "-in", "warden.key", "-aes256", "-passout", "pass:secret", "-out", "locked.key")
    (folder / "locked.pem").write_text((folder / "locked.key").read_text() + (folder / "warden.crt").read_text())
    return folder


@pytest.fixture(scope="module")
def prometheus(folder: Path, require_servers: Callable[[str], Any]) -> Iterator[Prometheus]:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    tls = {
        "cert_file": "server.crt", "key_file": "server.key", "client_auth_type": "RequireAndVerifyClientCert",
        "client_ca_file": "ca.crt",
    }  # fmt: skip
    (folder / "web.yml").write_text(json.dumps({"tls_server_config": tls, "basic_auth_users": {"warden": hashed}}))
    end_s = time.time() - 5.0
    cluster = Cluster(nodes=1, gpus=2, since_s=end_s - 300.0)
    cluster.faults = {(0, "1", "DCGM_FI_DEV_ROW_REMAP_FAILURE"): lambda s: 1.0}
    cluster.write_history(folder / "history.txt", end_s - 900.0, end_s)
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / "warden.pem")
    words = (f"--web.config.file={folder / 'web.yml'}",)
    try:
        server = Prometheus(folder / "server", arguments=words, tls=context, user=("warden", PASSWORD))
    except ServerMissing as missing:
        require_servers(str(missing))
    server.fill(folder / "history.txt")
    with server:
        yield server


def detect(url: str, *words: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "trainwarden.cli.main", "detect", "--since", "14m", "--json", "--prometheus", url]
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )
    return done.returncode, done.stdout, done.stderr


def test_with_its_authority_our_certificate_and_the_password_it_is_read(prometheus: Prometheus, folder: Path) -> None:
    url = prometheus.url.replace("//", "//warden:pass%3Aword%40%2F%3F@")
    words = ("--ca-file", str(folder / "ca.crt"), "--client-cert", str(folder / "warden.pem"))
    code, out, said = detect(url, *words)
    assert code == 1, said
    (incident,) = json.loads(out)["jobs"][0]["incidents"]
    assert (incident["kind"], incident["suspects"][0]["device"]) == ("gpu_memory_error", "1")
    assert "pass" not in said


@pytest.mark.parametrize(
    ("user", "ca", "own", "sentence"),
    [
        ("warden:wrong@", "ca.crt", "warden.pem", "lets nobody in with this token or password (HTTP 401)"),
        ("", "ca.crt", "warden.pem", "lets nobody in with this token or password (HTTP 401)"),
        ("", None, "warden.pem", "no Prometheus answers at https://127.0.0.1"),
        ("", "other.crt", "warden.pem", "no Prometheus answers at https://127.0.0.1"),
        ("", "ca.crt", None, "does not take our certificate (--client-cert)"),
        ("", "ca.crt", "stranger.pem", "does not take our certificate (--client-cert)"),
        ("", "ca.crt", "locked.pem", "--ca-file or --client-cert cannot be used"),
        ("", "ca.crt", "warden.crt", "--ca-file or --client-cert cannot be used"),
        ("", "none.crt", "warden.pem", "--ca-file or --client-cert cannot be used"),
        ("", "history.txt", "warden.pem", "--ca-file or --client-cert cannot be used"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(
    prometheus: Prometheus, folder: Path, user: str, ca: str | None, own: str | None, sentence: str
) -> None:
    words = [] if ca is None else ["--ca-file", str(folder / ca)]
    words += [] if own is None else ["--client-cert", str(folder / own)]
    code, out, said = detect(prometheus.url.replace("//", f"//{user}"), *words)
    assert (code, out) == (2, "")
    assert sentence in said.splitlines()[-1], said
    assert "Traceback" not in said
    assert "wrong" not in said


def test_a_key_with_a_password_of_its_own_does_not_wait_at_a_prompt(folder: Path) -> None:
    words = [sys.executable, "-m", "trainwarden.cli.main", "detect", "--prometheus", "https://127.0.0.1:1"]
    command = shlex.join([*words, "--client-cert", str(folder / "locked.pem")])
    terminal = ["script", "--quiet", "--return", "--command", command, "/dev/null"]
    with subprocess.Popen(terminal, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.wait(60) == 2
        finally:
            process.kill()
        assert "--ca-file or --client-cert cannot be used" in process.stdout.read()
