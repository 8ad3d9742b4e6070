"""One signed request to one URL and its answer, within a limit of time and of size, whatever the other side does."""

from __future__ import annotations

import http.client
import io
import socket
from typing import Final
from urllib.parse import urlsplit

import msgspec

from trainwarden.clock import Clock
from trainwarden.errors import ConfigError, LauncherUnavailable
from trainwarden.signing import signed_headers

MAX_ANSWER_BYTES: Final = 8 * 2**20  # the state of 100,000 ranks takes 2 MB


class Answer(msgspec.Struct, frozen=True):
    """What came back."""

    status: int
    media: str
    body: bytes


class Exchange:
    """Asks `url`. It follows no redirect and knows no proxy: what is sent was signed for that address alone.

    Parameters
    ----------
    secret : bytes
        Known to both sides.
    timeout_s : float
        For one answer as a whole; connecting may take as long again.

    Raises
    ------
    ConfigError
        If `url` is none.
    """

    def __init__(self, url: str, secret: bytes, timeout_s: float, clock: Clock) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
        except ValueError as error:
            raise ConfigError(f"launcher_settings.url: '{url}' is no address ({error})") from error
        if parts.scheme not in ("http", "https") or not host or parts.username is not None or parts.fragment:
            raise ConfigError(f"launcher_settings.url: '{url}' is no address like https://HOST:PORT/PATH")
        self.host = parts.netloc
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._place = (host, port)
        self._target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._secret, self._timeout_s, self._clock = secret, timeout_s, clock

    def ask(self, body: bytes, **headers: str) -> Answer:
        """What is answered to `body`, which is signed with the time.

        Raises
        ------
        LauncherUnavailable
            If nothing, or too much, is answered in time.
        """
        sent = {"User-Agent": "trainwarden", "Content-Type": "application/json", **headers}
        sent |= signed_headers(self._secret, body, self._clock.now_s())
        host, port = self._place
        connection = self._kind(host, port, timeout=self._timeout_s)
        try:
            connection.connect()
            deadline_s = self._clock.monotonic_s() + self._timeout_s
            connection.response_class = lambda sock, **more: _InTime(sock, deadline_s, self._clock, **more)  # type: ignore[assignment]
            connection.request("POST", self._target, body, sent)
            response = connection.getresponse()
            said = response.read(MAX_ANSWER_BYTES + 1)
            if len(said) > MAX_ANSWER_BYTES:
                raise LauncherUnavailable(f"{self.host} answers more than {MAX_ANSWER_BYTES} bytes")
            return Answer(response.status, response.headers.get_content_type(), said)
        except TimeoutError:
            raise LauncherUnavailable(f"{self.host} did not answer within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException, UnicodeError) as error:  # the last of a host that is no name
            raise LauncherUnavailable(f"{self.host} cannot be asked ({str(error) or type(error).__name__})") from error
        finally:
            connection.close()


class _InTime(http.client.HTTPResponse):
    """Read until the deadline and no longer: a limit for each byte would let an answer drip for ever."""

    def __init__(self, sock: socket.socket, deadline_s: float, clock: Clock, **more: object) -> None:
        super().__init__(sock, **more)  # type: ignore[arg-type]
        self.fp.close()
        self.fp = io.BufferedReader(_Pieces(sock, deadline_s, clock))


class _Pieces(io.RawIOBase):
    """The socket's own file: it keeps the socket open when the connection lets go of it before the answer is read."""

    def __init__(self, sock: socket.socket, deadline_s: float, clock: Clock) -> None:
        self._sock, self._deadline_s, self._clock = sock, deadline_s, clock
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        left_s = self._deadline_s - self._clock.monotonic_s()
        if left_s <= 0.0:
            raise TimeoutError
        self._sock.settimeout(left_s)
        return self._file.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()
