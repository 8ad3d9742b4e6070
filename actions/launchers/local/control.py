"""The local launcher's control socket: one JSON object a line, asked by the engine, answered by the supervisor."""

from __future__ import annotations

import os
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from trainwarden.errors import ConfigError
from trainwarden.launching import Capabilities, LauncherState, Operation, OperationId, Report

MAX_LINE_BYTES = 1 << 20  # a split over 100,000 ranks fits
MAX_CLIENTS = 16
SEND_TIMEOUT_S = 1.0  # a client that does not read its answer must not hold up the ranks
CAPABILITIES: Final = Capabilities(
    can=frozenset({"restart", "rebalance", "stop", "validate"}),
    cannot={
        "move": "this launcher cannot move ranks: it has one node, so they have no other place to go to",
        "pause": "this launcher cannot pause a job: its silence would be taken for a hang",
        "resume": "this launcher cannot resume a job, as it never pauses one",
        "checkpoint": "this launcher cannot ask for a checkpoint; the training script writes its own",
        "cordon": "this launcher cannot cordon a node; a person must",
        "uncordon": "this launcher cannot uncordon a node; a person must",
        "evict": "this launcher cannot evict a node; a person must",
        "replace": "this launcher cannot replace a node; a person must",
    },
)
"""What the local launcher does, and why not the rest."""


class AskState(msgspec.Struct, frozen=True, tag="state", tag_field="do"):
    """What is true now?"""

    job: str


class AskJobs(msgspec.Struct, frozen=True, tag="jobs", tag_field="do"):
    """Which jobs are there for the coordinator?"""


class JobSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose nodes were started with a weight: it needs `minimum` nodes, and uses `maximum`."""

    job: str
    weight: float
    minimum: int
    maximum: int


class Submit(msgspec.Struct, frozen=True, tag="submit", tag_field="do"):
    """Carry `operation` out."""

    operation: Operation


class Poll(msgspec.Struct, frozen=True, tag="poll", tag_field="do"):
    """How far is the operation of that id?"""

    job: str
    operation: OperationId


Request = AskState | Submit | Poll


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """A state, or a report; else `error` is one sentence why there is neither, or `later` why not yet: ask again."""

    state: LauncherState | None = None
    report: Report | None = None
    jobs: tuple[JobSeen, ...] = ()
    error: str | None = None
    later: str | None = None


_DECODER = msgspec.json.Decoder(Request)


class ControlServer:
    """Listens at `path` (mode 0600) and answers each request by what `handle` makes of it, at once.

    Parameters
    ----------
    selector : selectors.BaseSelector
        The supervisor's; each registered file's `data` is what to call when it is ready.

    Raises
    ------
    ConfigError
        If another launcher answers at `path`.
    """

    def __init__(self, path: Path, selector: selectors.BaseSelector, handle: Callable[[Request], Reply]) -> None:
        _remove_stale(path)
        self._path, self._selector, self._handle = path, selector, handle
        self._clients: dict[socket.socket, bytearray] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            with short_path(path) as short:
                self._listener.bind(short)
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
        self._answer(client, self._handle(request))

    def _answer(self, client: socket.socket, reply: Reply) -> None:
        try:
            client.sendall(msgspec.json.encode(reply) + b"\n")
        except OSError:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        if self._clients.pop(client, None) is not None:
            self._selector.unregister(client)
            client.close()


@contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name of `path` for a socket, whose own may have 107 bytes (unix(7)): through its open folder any is short.

    Raises
    ------
    OSError
        If there is no such folder.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _remove_stale(path: Path) -> None:
    """Remove what a killed launcher left at `path`; refuse to push a living one aside."""
    if not path.exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            with short_path(path) as short:
                probe.connect(short)
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except TimeoutError:
            pass
    raise ConfigError(f"another launcher is running in '{path.parent}'")
