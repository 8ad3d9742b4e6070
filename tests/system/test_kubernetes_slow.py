"""The Kubernetes launcher and API servers that let their answers drip, over real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from trainwarden.actions.launchers.kubernetes.api import Api
from trainwarden.errors import LauncherUnavailable

pytestmark = [pytest.mark.system, pytest.mark.timeout(60)]

WAY = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{{name: k, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: u, user: {{token: secret}}}}]
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
"""
PLUG_IN = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{{name: k, cluster: {{server: "http://127.0.0.1:9"}}}}]
users:
- name: u
  user:
    exec: {{apiVersion: client.authentication.k8s.io/v1, command: sh, args: [{folder}/said], interactiveMode: Never}}
contexts: [{{name: c, context: {{cluster: k, user: u}}}}]
"""
PAUSE_S = 0.05


def piece_by_piece(first: bytes, more: bytes) -> Callable[[socket.socket], None]:
    def drip(client: socket.socket) -> None:
        client.sendall(first)
        while True:
            client.sendall(more)
            time.sleep(PAUSE_S)

    return drip


@pytest.mark.parametrize(
    "does",
    [
        pytest.param(piece_by_piece(b"HTTP/1.1 200 OK\r\nX-More: ", b"x"), id="header"),
        pytest.param(piece_by_piece(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), id="continue"),
        pytest.param(piece_by_piece(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"), id="chunk"),
        pytest.param(piece_by_piece(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n", b" "), id="body"),
    ],
)
def test_an_answer_that_drips_is_given_up_within_its_time(
    tmp_path: Path, does: Callable[[socket.socket], None]
) -> None:
    """A limit for each piece held the engine up for as long as there were pieces."""

    def serve() -> None:
        client, _ = listener.accept()
        with client, contextlib.suppress(OSError):
            client.recv(65_536)
            does(client)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        (tmp_path / "way").write_text(WAY.format(port=listener.getsockname()[1]))
        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(LauncherUnavailable, match="did not answer within"):
            Api(str(tmp_path / "way"), None, 0.5).ask("GET", "/version")


def test_a_program_for_credentials_that_never_ends_holds_no_engine_up(tmp_path: Path) -> None:
    """Clouds' kubeconfigs name one; the official client waits for it without a limit."""
    (tmp_path / "way").write_text(PLUG_IN.format(folder=tmp_path))
    os.mkfifo(tmp_path / "go")
    token = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}'
    (tmp_path / "said").write_text(f"echo >> {tmp_path}/starts; read -r _ < {tmp_path}/go; echo '{token}'\n")
    api = Api(str(tmp_path / "way"), None, 0.5)
    said: list[str] = []

    def ask() -> None:
        with pytest.raises(LauncherUnavailable) as refused:
            api.ask("GET", "/version")
        said.append(str(refused.value))
        time.sleep(1.1)  # longer than it is left alone after a silence

    asking = threading.Thread(target=lambda: [ask() for _ in range(3)], daemon=True)
    asking.start()
    asking.join(20.0)
    assert said == ["Kubernetes' credentials did not come within 0.5 s"] * 3
    assert (tmp_path / "starts").read_text() == "\n"
    (tmp_path / "go").write_text("\n")
    until_s = time.monotonic() + 20.0
    while "cannot be reached" not in said[-1]:
        assert time.monotonic() < until_s, said
        ask()
