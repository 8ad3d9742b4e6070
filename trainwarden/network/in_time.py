"""An HTTP answer that is read until a deadline and no longer: a limit for each byte would let it drip for ever."""

from __future__ import annotations

import http.client
import io
import math
import socket
from collections.abc import Callable
from typing import Any


class AnswerInTime(http.client.HTTPResponse):
    """Status, headers and body raise TimeoutError once `deadline_s` is over, by `monotonic_s`, or after `silent_s`."""

    def __init__(
        self,
        sock: socket.socket,
        deadline_s: float,
        monotonic_s: Callable[[], float],
        silent_s: float = math.inf,
        **more: object,
    ) -> None:
        super().__init__(sock, **more)  # type: ignore[arg-type]
        self.fp.close()
        self.fp = io.BufferedReader(_Pieces(sock, deadline_s, monotonic_s, silent_s))


def urllib3_pools(monotonic_s: Callable[[], float], times: float = 1.0) -> dict[str, type]:
    """For a pool manager's `pool_classes_by_scheme`: urllib3's, but an answer has a time limit as a whole.

    It is `times` the limit that the caller sets for each piece of an answer; without one there is none.
    """
    from urllib3 import HTTPConnectionPool, HTTPSConnectionPool

    def in_time(kind: Any) -> Any:
        def getresponse(self: Any) -> Any:
            if self.timeout is not None:
                limits = monotonic_s() + times * self.timeout, monotonic_s, self.timeout
                self.response_class = lambda sock, **more: AnswerInTime(sock, *limits, **more)
            return kind.ConnectionCls.getresponse(self)

        connection = type("InTime", (kind.ConnectionCls,), {"getresponse": getresponse})
        return type(kind.__name__, (kind,), {"ConnectionCls": connection})

    return {"http": in_time(HTTPConnectionPool), "https": in_time(HTTPSConnectionPool)}


class _Pieces(io.RawIOBase):
    """The socket's own file: it keeps the socket open when the connection lets go of it before the answer is read."""

    def __init__(
        self, sock: socket.socket, deadline_s: float, monotonic_s: Callable[[], float], silent_s: float
    ) -> None:
        self._sock, self._deadline_s, self._monotonic_s, self._silent_s = sock, deadline_s, monotonic_s, silent_s
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        left_s = self._deadline_s - self._monotonic_s()
        if left_s <= 0.0:
            raise TimeoutError("timed out")
        self._sock.settimeout(min(left_s, self._silent_s))
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
