"""One conversation with NCCL's RAS socket, without ever waiting.

The client speaks first, in lines; the server answers each with a line, and the status with a report at whose end it
closes the connection (NCCL, src/ras/client.cc and client_support.cc, protocol 2 since 2.24; JSON since 2.28).
"""

from __future__ import annotations

import socket
from typing import Final, Literal

from trainwarden.errors import CollectorError, ConfigError
from trainwarden.network.host_port import host_and_port

PORT: Final = 28028
PROTOCOL: Final = 2
MAX_BYTES: Final = 64 << 20  # a verbose JSON report has about 300 bytes for each rank of each communicator
_READ_BYTES: Final = 4 << 20  # a turn
_MAX_LINE: Final = 1_024

Stage = Literal["greeting", "timeout", "format", "report", "done"]


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` as `NCCL_RAS_ADDR` has it; only this machine's names and numbers, no look-ups.

    Raises
    ------
    CollectorError
        If the host is no number, or there is no port.

    Examples
    --------
    >>> parse_address("localhost:28028"), parse_address("[::1]:7")
    (('127.0.0.1', 28028), ('::1', 7))
    """
    try:  # NCCL takes a missing host for this machine
        host, port = host_and_port(f"localhost{text}" if text.startswith(":") else text, "NCCL's RAS address")
    except ConfigError as error:
        raise CollectorError(str(error)) from error
    if host == "localhost":
        return "127.0.0.1", port
    try:
        socket.getaddrinfo(host, port, flags=socket.AI_NUMERICHOST)
    except OSError as error:
        raise CollectorError(f"NCCL's RAS address {text[:80]!r} is no number; set `address` to one") from error
    return host, port


class NoGreetingError(CollectorError):
    """A connection was taken, or waits to be, and nobody says anything."""


class Conversation:
    """One request for a verbose status, and its answer as it comes in.

    Parameters
    ----------
    host, port
        A numeric address.
    now_s : float
    patience_s : float
        When to give up. The server itself waits for other processes for up to `timeout_s` and as long again.
    greeting_s : float
        When to give up if the server has not said a word. It says the first one at once, unless it is stopped.
    timeout_s : int

    Raises
    ------
    CollectorError
        If nobody listens.
    """

    def __init__(
        self,
        host: str,
        port: int,
        now_s: float,
        *,
        timeout_s: int = 5,
        patience_s: float = 30.0,
        greeting_s: float = 2.5,
    ) -> None:
        self.stage: Stage = "greeting"
        self.answer = b""
        self._timeout_s = timeout_s
        self._until_s = now_s + patience_s
        self._greeted_until_s = now_s + min(greeting_s, patience_s)
        self._parts: list[bytes] = []
        self._size = 0
        self._line = b""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect((host, port))
        except BlockingIOError:
            self._connected = False
        except OSError as error:
            self._socket.close()
            raise CollectorError(f"nobody listens at NCCL's RAS address {host}:{port} ({error.strerror})") from error
        else:
            self._connected = True
            self._say(f"CLIENT PROTOCOL {PROTOCOL}\n")

    def fileno(self) -> int:
        """The socket's descriptor; -1 when the conversation is over."""
        return self._socket.fileno()

    def close(self) -> None:
        """Hang up. Safe twice."""
        self._socket.close()

    def go_on(self, now_s: float) -> bool:
        """Apply what has come; True when `answer` is whole.

        Raises
        ------
        CollectorError
            If the other side does not speak RAS, says too much, hangs up early or takes too long;
            `NoGreetingError` if it says nothing.
        """
        if now_s >= self._until_s:
            raise CollectorError(f"NCCL's RAS socket did not answer in time (stage {self.stage})")
        self._connect()
        come = self._connected and self._take_in()
        if not come and self.stage == "greeting" and now_s >= self._greeted_until_s:
            raise NoGreetingError("a connection to NCCL's RAS address was not greeted")
        return come

    def _connect(self) -> None:
        if not self._connected:
            failed = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if failed:
                raise CollectorError(f"nobody listens at NCCL's RAS address (error {failed})")
            try:
                self._socket.getpeername()
            except OSError:
                return  # not connected yet
            self._connected = True
            self._say(f"CLIENT PROTOCOL {PROTOCOL}\n")

    def _take_in(self) -> bool:
        """Apply what has come; True when `answer` is whole."""
        taken = 0
        while taken < _READ_BYTES:
            try:
                data = self._socket.recv(65_536)
            except BlockingIOError:
                return False
            except OSError as error:
                raise CollectorError(f"NCCL's RAS socket broke off ({error.strerror})") from error
            taken += len(data)
            if not data:
                return self._ended()
            self._apply(data)
        return False

    def _ended(self) -> bool:
        if self.stage != "report" or not self._size:
            raise CollectorError(f"NCCL's RAS socket hung up early (stage {self.stage})")
        self.answer, self.stage = b"".join(self._parts), "done"
        self._parts = []
        self.close()
        return True

    def _apply(self, data: bytes) -> None:
        while self.stage != "report":
            self._line += data
            line, newline, data = self._line.partition(b"\n")
            if len(line) > _MAX_LINE:
                raise CollectorError("what listens at NCCL's RAS address does not speak RAS")
            if not newline:
                return
            self._line = b""
            self._answered(line.strip())
        self._size += len(data)
        if self._size > MAX_BYTES:
            raise CollectorError(f"NCCL's RAS report has more than {MAX_BYTES} bytes")
        self._parts.append(data)

    def _answered(self, line: bytes) -> None:
        """One line of the other side: say the next one."""
        if self.stage == "greeting":
            if not line.upper().startswith(b"SERVER PROTOCOL "):
                raise CollectorError("what listens at NCCL's RAS address does not speak RAS")
            self.stage = "timeout"
            self._say(f"TIMEOUT {self._timeout_s}\n")
        elif self.stage == "timeout":
            if line.upper() != b"OK":
                raise CollectorError(f"NCCL's RAS socket refused a time-out: {line[:80]!r}")
            self.stage = "format"
            self._say("SET FORMAT json\n")
        elif self.stage == "format":
            # Before 2.28 an error: such a server reports in text.
            self.stage = "report"
            self._say("VERBOSE STATUS\n")

    def _say(self, text: str) -> None:
        try:
            self._socket.send(text.encode(), socket.MSG_NOSIGNAL)  # a line always fits an empty buffer
        except OSError as error:
            raise CollectorError(f"NCCL's RAS socket broke off ({error.strerror})") from error
