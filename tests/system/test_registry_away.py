"""Registries that cannot be reached, made or written to, with MLflow's real client: one sentence, before any work."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.places import ROOT
from trainwarden.errors import DataError
from trainwarden.trainer_offline.registry.address import cache_folder
from trainwarden.trainer_offline.registry.registry import Registry

pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(120)]


def test_a_registry_that_cannot_be_made_or_written_is_said_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be made: File exists"):
        Registry.at(str(tmp_path / "file"), create=True).models()
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(DataError, match="cannot be written to"):
        Registry.at(str(tmp_path), create=True).models()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    uri = Registry.at(str(tmp_path)).uri
    assert cache_folder(uri).is_relative_to(tmp_path / "cache"), "who may only read keeps the models elsewhere"


def test_a_server_that_is_away_is_one_sentence() -> None:
    with pytest.raises(DataError, match=r"^registry 'http://127\.0\.0\.1:9': the server does not answer$"):
        Registry.at("http://127.0.0.1:9").models()


def test_a_server_that_asks_to_come_again_in_an_hour_is_not_waited_for() -> None:
    """A proxy in front of a server that is away says so; whoever asks has a last good model and asks again."""
    busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 3600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    said: list[str] = []

    def ask(port: int) -> None:
        try:
            Registry.at(f"http://127.0.0.1:{port}").models()
        except DataError as error:
            said.append(str(error))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        asking = threading.Thread(target=ask, args=listening.getsockname()[1:], daemon=True)
        asking.start()
        until_s = time.monotonic() + 60.0
        listening.settimeout(0.5)
        while asking.is_alive() and time.monotonic() < until_s:
            with suppress(TimeoutError):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(busy)
        assert said
        assert said[0].startswith("registry 'http://127.0.0.1:")


PIECES = {
    "head": (b"HTTP/1.1 200 OK\r\nX-More: ", b"x"),
    "body": (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99999\r\n\r\n", b" "),
    "chunks": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
}
ASK = """
import sys
from trainwarden.errors import DataError
from trainwarden.trainer_offline.registry.registry import Registry
try:
    Registry.at(sys.argv[1]).models()
except DataError as error:
    print(error)
"""


@pytest.mark.parametrize(("where", "proxied"), [("head", False), ("body", False), ("chunks", False), ("body", True)])
def test_a_server_whose_answer_drips_is_given_up(where: str, proxied: bool) -> None:
    """MLflow has a limit for each piece of an answer: one byte a second kept a training waiting for ever."""
    first, more = PIECES[where]

    def drip(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.recv(65_536)
            client.sendall(first)
            while True:
                client.sendall(more)
                time.sleep(0.2)

    def serve() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=drip, args=(listening.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        here = f"http://127.0.0.1:{listening.getsockname()[1]}"
        limits = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "1", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
        environ = {**os.environ, "PYTHONPATH": str(ROOT), **limits}
        if proxied:
            environ["http_proxy"] = here
        words = [sys.executable, "-c", ASK, "http://registry.invalid" if proxied else here]
        asked = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert "the server does not answer" in asked.stdout, asked.stderr[-2000:]
