"""The Kubernetes launcher and API servers that let their answers drip, over real sockets."""

from __future__ import annotations

import contextlib
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
