"""The local launcher's control socket: one JSON object a line, asked by the engine, answered by the supervisor."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from trainwarden.errors import ConfigError
from trainwarden.protocols import LauncherState
from trainwarden.records import Rank

MAX_LINE_BYTES = 1 << 20  # a split over 100,000 ranks fits
MAX_CLIENTS = 16
MAX_PATH_BYTES = 107  # sun_path of unix(7) less its closing zero
SEND_TIMEOUT_S = 1.0  # a client that does not read its answer must not hold up the ranks

OperationId = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
Why = Annotated[str, msgspec.Meta(max_length=2000)]


class State(msgspec.Struct, frozen=True, tag="state", tag_field="do"):
    """What is true now?"""

    job: str


class Restart(msgspec.Struct, frozen=True, tag="restart", tag_field="do"):
    """Stop `ranks` (all if None) and start them again."""

    job: str
    operation: OperationId
    ranks: tuple[Rank, ...] | None = None
    why: Why = ""


class Rebalance(msgspec.Struct, frozen=True, tag="rebalance", tag_field="do"):
    """Put a micro-batch plan in force."""

    job: str
    operation: OperationId
    micro_batches: tuple[Annotated[int, msgspec.Meta(ge=1, le=2**40)], ...]
    why: Why = ""


class Stop(msgspec.Struct, frozen=True, tag="stop", tag_field="do"):
    """Stop `ranks` (all if None) for good."""

    job: str
    operation: OperationId
    ranks: tuple[Rank, ...] | None = None
    why: Why = ""


Operation = Restart | Rebalance | Stop
Request = State | Operation


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """`error` is one sentence if the request was refused or failed."""

    state: LauncherState | None = None
    error: str | None = None


_DECODER = msgspec.json.Decoder(Request)
Answer = Callable[[Reply], None]


class ControlServer:
    """Listens at `path` (mode 0600) and hands each request to `handle` with the means to answer it, now or later.

    Parameters
    ----------
    selector : selectors.BaseSelector
        The supervisor's; each registered file's `data` is what to call when it is ready.

    Raises
    ------
    ConfigError
        If another launcher answers at `path`, or the path is too long for a socket.
    """

    def __init__(self, path: Path, selector: selectors.BaseSelector, handle: Callable[[Request, Answer], None]) -> None:
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise ConfigError(
                f"run folder '{path.parent}' is too long: its socket's path may have {MAX_PATH_BYTES} bytes"
            )
        _remove_stale(path)
        self._path, self._selector, self._handle = path, selector, handle
        self._clients: dict[socket.socket, bytearray] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._listener.bind(str(path))
        finally:
            os.umask(before)
        self._listener.listen(MAX_CLIENTS)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def close(self) -> None:
        """Hang up on everybody and remove the socket. Safe twice."""
        for client in list(self._clients):
            self._drop(client)
        if self._listener.fileno() >= 0:
            self._selector.unregister(self._listener)
            self._listener.close()
            self._path.unlink(missing_ok=True)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if len(self._clients) >= MAX_CLIENTS:
            client.close()
            return
        client.settimeout(SEND_TIMEOUT_S)
        self._clients[client] = bytearray()
        self._selector.register(client, selectors.EVENT_READ, lambda: self._read(client))

    def _read(self, client: socket.socket) -> None:
        try:
            piece = client.recv(1 << 16)
        except OSError:
            piece = b""
        if not piece:
            self._drop(client)
            return
        buffer = self._clients[client]
        buffer += piece
        while client in self._clients and (end := buffer.find(b"\n")) >= 0:
            line = bytes(buffer[:end])
            del buffer[: end + 1]
            self._take(client, line)
        if len(buffer) > MAX_LINE_BYTES:
            self._answer(client, Reply(error=f"a request may have {MAX_LINE_BYTES} bytes"))
            self._drop(client)

    def _take(self, client: socket.socket, line: bytes) -> None:
        try:
            request = _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._answer(client, Reply(error=f"not a request: {error}"))
            return
        self._handle(request, lambda reply: self._answer(client, reply))

    def _answer(self, client: socket.socket, reply: Reply) -> None:
        if client not in self._clients:  # gone meanwhile; it will ask again
            return
        try:
            client.sendall(msgspec.json.encode(reply) + b"\n")
        except OSError:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        if self._clients.pop(client, None) is not None:
            self._selector.unregister(client)
            client.close()


def _remove_stale(path: Path) -> None:
    """Remove what a killed launcher left at `path`; refuse to push a living one aside."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass
    raise ConfigError(f"another launcher is running in '{path.parent}'")
