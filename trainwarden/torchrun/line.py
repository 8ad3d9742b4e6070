"""The connection to the rendezvous service: kept in a thread, taken up anew, at another endpoint if need be.

Both sides send one JSON object a line (``actions/launchers/torchrun/messages.py``). The job goes on while no service
answers; what was decided is carried here and given to the next one.
"""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

log = logging.getLogger("trainwarden.torchrun")

BEAT_S: Final = 0.5
DEAF_S: Final = 3.0  # a service answers each beat, so one that is silent for so long is not there
CONNECT_S: Final = 1.0
BETWEEN_S: Final = 0.2  # between two tries to connect
BETTER_EVERY_S: Final = 5.0  # the first endpoint that answers is the one of all agents
SAY_EVERY_S: Final = 30.0
MAX_BYTES: Final = 4 << 20
Fields = dict[str, Any]


class Endpoints(NamedTuple):
    """Where services are, the first before others, and how they are asked."""

    addresses: tuple[tuple[str, int], ...]
    token: str = ""
    tls: ssl.SSLContext | None = None


class Refused(Exception):
    """A service has answered that it does not serve us."""


class _Connection:
    """One connection; `lines` are what has come whole."""

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None, timeout_s: float) -> None:
        plain = socket.create_connection(address, timeout=timeout_s)
        try:
            self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=address[0])
        except BaseException:
            plain.close()
            raise
        self.host = str(self.socket.getsockname()[0])
        self._buffer = b""

    def send(self, fields: Fields) -> None:
        self.socket.sendall(json.dumps(fields).encode() + b"\n")

    def lines(self) -> list[Fields]:
        """What has come by now; waits for something for as long as the socket's time-out.

        Raises
        ------
        OSError
            If the other side has hung up, or sends no end.
        ValueError
            If it is no JSON object.
        """
        piece = self.socket.recv(1 << 16)
        if not piece:
            raise ConnectionError("the service has hung up")
        *whole, self._buffer = (self._buffer + piece).split(b"\n")
        if len(self._buffer) > MAX_BYTES:
            raise ConnectionError("the service sends no end")
        found = [json.loads(line) for line in whole]
        if not all(isinstance(one, dict) for one in found):
            raise ValueError("the service sends no objects")
        return found

    def readable(self, wake: int, timeout_s: float) -> bool:
        """Wait for a line or a wake-up."""
        if isinstance(self.socket, ssl.SSLSocket) and self.socket.pending():
            return True
        own = self.socket.fileno()
        waiting = select.poll()  # select() refuses descriptors beyond 1,023, of which a busy agent has more
        for descriptor in (own, wake):
            waiting.register(descriptor, select.POLLIN)
        return any(descriptor == own for descriptor, _ in waiting.poll(1000.0 * timeout_s))


class Line:
    """Talks to a service until it is closed.

    Parameters
    ----------
    hello : callable
        What is said first on each connection, by our own address on it.
    beat : callable
        What is said at least every `BEAT_S`.
    hear : callable
        Called with each object that has come.
    """

    def __init__(
        self, endpoints: Endpoints, hello: Callable[[str], Fields], beat: Callable[[], Fields],
        handle: Callable[[Fields], None],
    ) -> None:  # fmt: skip
        self._endpoints, self._hello, self._beat, self._handle = endpoints, hello, beat, handle
        self._read, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._over = threading.Event()
        self._connection: _Connection | None = None
        self._at = 0
        self.refused: str | None = None
        self.answered_s = time.monotonic()  # when a service was heard last
        self._warned_s = 0.0
        self._thread = threading.Thread(target=self._run, name="trainwarden-rendezvous", daemon=True)

    def start(self) -> None:
        """Talk in the background."""
        self._thread.start()

    def wake(self) -> None:
        """Have a beat said now."""
        with suppress(OSError):
            os.write(self._wake, b".")

    def close(self, patience_s: float = 1.0) -> None:
        """Say a last beat, and hang up."""
        self._over.set()
        self.wake()
        self._thread.join(patience_s)

    def forget(self) -> None:
        """In a forked child: the connection is the parent's, and has to end with it."""
        if self._connection is not None:
            with suppress(OSError):
                os.close(self._connection.socket.detach())

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._connection = self._connected(CONNECT_S)
                self._talk()
            except Refused as error:
                self._warn(f"{error}")
                self.refused = str(error)
                self._over.wait(SAY_EVERY_S)
            except Exception as error:  # noqa: BLE001 - whatever comes from there, the next service is heard
                said = f"{error}" if isinstance(error, (OSError, ValueError)) else repr(error)
                self._warn(f"no rendezvous service answers at {self._where(self._at)} ({said}); the job goes on")
                self._at = (self._at + 1) % len(self._endpoints.addresses)
            finally:
                self._hang_up()
            self._over.wait(BETWEEN_S)

    def _connected(self, timeout_s: float) -> _Connection:
        """A connection to the endpoint `_at` on which a service has answered."""
        address = self._endpoints.addresses[self._at]
        made = _Connection(address, self._endpoints.tls, timeout_s)
        try:
            made.send({**self._hello(made.host), "token": self._endpoints.token})
            while not (words := made.lines()):
                pass
            if "error" in words[0]:
                raise Refused(f"the rendezvous service at {self._where(self._at)} refuses: {words[0]['error']}")
            for word in words:
                self._handle(word)
        except BaseException:
            made.socket.close()
            raise
        self.refused, self.answered_s, self._warned_s = None, time.monotonic(), 0.0
        return made

    def _talk(self) -> None:
        """Beat and hear until the connection ends."""
        due_s = looked_s = time.monotonic()
        while (connection := self._connection) is not None:
            over = self._over.is_set()
            if (now_s := time.monotonic()) >= due_s or over:
                connection.send(self._beat())
                due_s = now_s + BEAT_S
            if over:
                return
            if connection.readable(self._read, max(0.0, due_s - time.monotonic())):
                for word in connection.lines():
                    self._handle(word)
                self.answered_s = time.monotonic()
            with suppress(BlockingIOError):
                if os.read(self._read, 4096):
                    due_s = 0.0
            if time.monotonic() - self.answered_s > DEAF_S:
                raise ConnectionError("it has not answered")
            if self._at and time.monotonic() - looked_s > BETTER_EVERY_S:
                looked_s = time.monotonic()
                self._look_for_better()

    def _look_for_better(self) -> None:
        """Go back to an earlier endpoint once a service answers there."""
        now = self._at
        for self._at in range(now):
            try:
                better = self._connected(CONNECT_S / 2)
            except Exception:  # noqa: BLE001, S112 - it is tried again, and without it all goes on
                continue
            self._hang_up()
            self._connection = better
            return
        self._at = now

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            if not self._over.is_set():  # a service that is not dead must not take us for it
                with suppress(Exception):
                    connection.socket.settimeout(BETWEEN_S)
                    connection.send({**self._beat(), "moves": True})
            with suppress(OSError):
                connection.socket.close()

    def _where(self, number: int) -> str:
        host, port = self._endpoints.addresses[number]
        return f"{host}:{port}"

    def _warn(self, sentence: str) -> None:
        """A warning, now and then."""
        now_s = time.monotonic()
        if not self._warned_s or now_s - self._warned_s > SAY_EVERY_S:
            self._warned_s = now_s
            log.warning("trainwarden: %s", sentence)
