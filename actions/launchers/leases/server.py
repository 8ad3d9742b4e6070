"""The lease service over HTTP: one question a request, answered from memory at once.

``POST /v1/lease`` takes an `Ask` and gives an `Answer`; ``GET /v1/leases`` says which leases stand; both want the
token. ``GET /healthz`` wants none.
"""

from __future__ import annotations

import hmac
import logging
import stat
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import msgspec

from actions.launchers.leases.table import LeaseTable
from actions.launchers.leases.words import DURATION_S, MOST_EPOCH, Ask
from trainwarden.clock import Clock
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.server import MetricsServer

log = logging.getLogger("trainwarden.lease")

LEAST_CHARS: Final = 16  # a token that can be guessed is none
MAX_BYTES: Final = 16_384
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_STOP_S: Final = 0.2  # between two looks at whether to stop


class _Refusal(Exception):
    """What is answered in place of a lease."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def read_token(path: Path) -> str:
    """The token that `path` holds.

    Raises
    ------
    ConfigError
        If it cannot be read, others may read it, or it is too short or not ASCII.
    """
    try:
        text, mode = path.read_bytes()[:MAX_BYTES].decode("ascii").strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token: {path} cannot be read ({error})") from error
    if mode & (stat.S_IRGRP | stat.S_IROTH | stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"token: others may read {path}; chmod 600 it")
    if len(text) < LEAST_CHARS or len(text.split()) != 1:
        raise ConfigError(f"token: {path} has to hold one word of {LEAST_CHARS} characters at least")
    return text


def application(table: LeaseTable, token: str | None, clock: Clock) -> WSGIApplication:
    """Answers for `table`; `clock` is the one that `table` was begun by. Without `token` everybody is answered."""
    lock = threading.Lock()

    def body_of(environ: WSGIEnvironment) -> bytes:
        """What answers the question of `environ`."""
        route = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if route == ("GET", "/healthz"):
            return b'{"ok":true}'
        if token is not None:
            said = environ.get("HTTP_AUTHORIZATION", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(said, b"Bearer " + token.encode()):
                raise _Refusal(HTTPStatus.UNAUTHORIZED, "the token is not the lease service's")
        if route == ("POST", "/v1/lease"):
            ask = _ask_of(environ)
            with lock:
                return msgspec.json.encode(table.answer(ask, clock.monotonic_s()))
        if route == ("GET", "/v1/leases"):
            with lock:
                standing = table.standing(clock.monotonic_s())
            leases = [{**msgspec.structs.asdict(lease), "left_s": left_s} for lease, left_s in standing.values()]
            return msgspec.json.encode({"leases": leases})
        raise _Refusal(HTTPStatus.NOT_FOUND, "there are POST /v1/lease, GET /v1/leases and GET /healthz")

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            status, body = HTTPStatus.OK, body_of(environ)
        except _Refusal as refusal:
            status, body = refusal.status, msgspec.json.encode({"error": str(refusal)})
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    return answer


def _ask_of(environ: WSGIEnvironment) -> Ask:
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isascii() or not length.isdigit() or not 0 < int(length[:9]) <= MAX_BYTES:
        raise _Refusal(HTTPStatus.BAD_REQUEST, f"a question has 1 to {MAX_BYTES} bytes")
    try:
        ask = msgspec.json.decode(environ["wsgi.input"].read(int(length)), type=Ask)
    except (msgspec.DecodeError, OSError) as error:
        raise _Refusal(HTTPStatus.BAD_REQUEST, str(error)[:500]) from error
    if max(ask.seen_epoch, ask.carried.epoch if ask.carried else 0) > MOST_EPOCH:
        raise _Refusal(HTTPStatus.BAD_REQUEST, f"no job has had more than {MOST_EPOCH} leases")
    return ask


class _Server(MetricsServer):
    longest_s = 1.0  # as long as an asker waits: who is silent keeps its place for no longer than that


class LeaseServer:
    """The service at `listen`, ``HOST:PORT``; port 0 is any that is free.

    Raises
    ------
    ConfigError
        If that cannot be listened on, or others than this machine would be answered without a token.
    """

    def __init__(self, listen: str, token: str | None, clock: Clock, duration_s: float = DURATION_S) -> None:
        host, _, port = listen.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isascii() or not port.isdigit() or int(port[:6]) > 65_535:
            raise ConfigError(f"lease: {listen} is no address; it is HOST:PORT")
        if token is None and host not in LOOPBACK:
            raise ConfigError(f"lease: without a token only this machine is answered; {host} is open to others")
        table = LeaseTable(duration_s, clock.monotonic_s())
        try:
            self._server = _Server(host, int(port), application(table, token, clock), None)
        except (OSError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or error
            raise ConfigError(f"lease: {listen} cannot be listened on ({said})") from error
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.server_port}"

    def run(self, stop: Callable[[], bool]) -> None:
        """Answer until `stop()` is true. Nothing has to be kept then."""
        answering = threading.Thread(target=self._server.serve_forever, args=(_STOP_S,), name="lease", daemon=True)
        answering.start()
        log.info("leases served", extra={"fields": {"address": self.address}})
        while not stop():
            answering.join(_STOP_S)
        self._server.shutdown()
        self._server.server_close()
