"""An HTTP answer that is read until a deadline and no longer: a limit for each byte would let it drip for ever."""

from __future__ import annotations

import http.client
import io
import socket
from collections.abc import Callable


class AnswerInTime(http.client.HTTPResponse):
    """Status, headers and body raise TimeoutError once `deadline_s` is over, by `monotonic_s`."""

    def __init__(
        self, sock: socket.socket, deadline_s: float, monotonic_s: Callable[[], float], **more: object
    ) -> None:
        super().__init__(sock, **more)  # type: ignore[arg-type]
        self.fp.close()
        self.fp = io.BufferedReader(_Pieces(sock, deadline_s, monotonic_s))


class _Pieces(io.RawIOBase):
    """The socket's own file: it keeps the socket open when the connection lets go of it before the answer is read."""

    def __init__(self, sock: socket.socket, deadline_s: float, monotonic_s: Callable[[], float]) -> None:
        self._sock, self._deadline_s, self._monotonic_s = sock, deadline_s, monotonic_s
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        left_s = self._deadline_s - self._monotonic_s()
        if left_s <= 0.0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
