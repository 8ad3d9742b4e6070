"""A listening socket that strangers' connections can neither fill nor make a process log without end.

Limits hold where connections are accepted: before a TLS handshake, of which the server behind hears only afterwards.
"""

from __future__ import annotations

import errno
import logging
import resource
import socket
import time
from contextlib import suppress
from typing import Any, Final, Self

from trainwarden.metrics_http.strangers import Strangers

SILENT_S: Final = 10.0  # for a TLS handshake; a request has times of its own
LONGEST_S: Final = 3_600.0
MOST: Final = 1_024  # strangers, and as many who have shown a token
LEAST: Final = 16
RESERVE: Final = 128  # descriptors for the bus, files, and connections that are closed but not yet gone
BACKLOG: Final = 128  # that asyncio accepts in one go, before it closes any
FULL_EVERY_S: Final = 1.0
SAME_EVERY_S: Final = 60.0
_KINDS: Final = 256  # of messages that are remembered


def places() -> int:
    """How many strangers, and how many known callers, this process has descriptors for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if soft == resource.RLIM_INFINITY else max(LEAST, min(MOST, (soft - RESERVE) // 2))


class Listening(socket.socket):
    """Accepts as many connections as there are places; who goes for the next one, `Strangers` says."""

    _limits: Limits | None = None

    @classmethod
    def at(cls, host: str, port: int) -> Self:
        """One that listens there.

        Raises
        ------
        OSError, UnicodeError
            If it cannot be listened on.
        """
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        made = cls(fileno=socket.create_server((host, port), family=family, backlog=BACKLOG).detach())
        # asyncio sets it on sockets of its own making alone; without it each answer waits 40 ms for the asker's system.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def limit(self, most: int | None = None, *, of_one: int | None = None, known: int | None = None) -> None:
        """Accept no more than `most` strangers from now on; None: as many as there are descriptors for.

        Half of them, or `of_one`, may have one address; `known` callers, or as many as strangers, keep their places.
        """
        most = places() if most is None else most
        self._limits = Limits(most, max(1, most // 2) if of_one is None else of_one, most if known is None else known)

    def accept(self) -> tuple[socket.socket, Any]:
        """See `socket.socket.accept`."""
        if self._limits is None:
            return super().accept()
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            if self._limits.makes_room(time.monotonic()):
                raise BlockingIOError from error  # asyncio looks again, by when a descriptor is free
            raise
        self._limits.enter(connection, str(address[0]), time.monotonic())
        return connection, address

    def speaks(self, descriptor: int) -> None:
        """A request has begun on that connection."""
        if self._limits is not None:
            self._limits.speaks(descriptor)

    def known(self, descriptor: int) -> None:
        """The caller of that connection has shown who it is."""
        if self._limits is not None:
            self._limits.known(descriptor)


class Limits:
    """Connections by their descriptor, as long as they are open."""

    def __init__(self, most: int, most_of_one: int, most_known: int) -> None:
        self._most_known = most_known
        self._strangers: Strangers[int] = Strangers(most, most_of_one, silent_s=SILENT_S, longest_s=LONGEST_S)
        self._open: dict[int, socket.socket] = {}
        self._known: set[int] = set()
        self._full_s = float("-inf")

    def enter(self, connection: socket.socket, address: str, now_s: float) -> None:
        """A new one; somebody else's is ended for it, where there is no place."""
        for ended in [number for number, one in self._open.items() if one.fileno() < 0]:
            self._forget(ended)
        for late in self._strangers.overdue(now_s):
            self._end(late)
        number = connection.fileno()
        self._open[number] = connection
        goes = self._strangers.enter(number, address, now_s)
        if goes is not None:
            self._end(goes)

    def speaks(self, number: int) -> None:
        """That one is not silent."""
        self._strangers.speaks(number)

    def known(self, number: int) -> None:
        """That one keeps its place, while there are any for known callers."""
        if len(self._known) < self._most_known and number in self._open:
            self._known.add(number)
            self._strangers.leave(number)

    def makes_room(self, now_s: float) -> bool:
        """End a stranger's connection, as no descriptor is left.

        Returns
        -------
        bool
            False once in `FULL_EVERY_S` where there is none: asyncio is then told, which logs it and waits.
        """
        first = self._strangers.first()
        if first is not None:
            self._end(first)
            return True
        if now_s - self._full_s < FULL_EVERY_S:
            return True
        self._full_s = now_s
        return False

    def _end(self, number: int) -> None:
        with suppress(OSError):
            self._open[number].shutdown(socket.SHUT_RDWR)  # whoever serves it reads its end, and closes it
        self._strangers.leave(number)

    def _forget(self, number: int) -> None:
        self._open.pop(number)
        self._known.discard(number)
        self._strangers.leave(number)


class Sparing(logging.Filter):
    """Lets the same message of a logger through once in `SAME_EVERY_S`, with how often it was left out before."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[tuple[object, ...], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter`."""
        broke = record.exc_info[0] if record.exc_info else None
        kind = record.name, record.levelno, str(record.msg)[:200].partition("\n")[0], broke
        since_s, left_out = self._said.pop(kind, (float("-inf"), 0))
        if record.created - since_s < SAME_EVERY_S and record.created >= since_s:
            self._said[kind] = since_s, left_out + 1
            return False
        while len(self._said) >= _KINDS:
            del self._said[next(iter(self._said))]
        self._said[kind] = record.created, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out} times since)", None
        return True
