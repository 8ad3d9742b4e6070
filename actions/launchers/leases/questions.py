"""Questions and answers in JSON over HTTP between launchers: small, with a token, answered at once.

Both the lease service and the leader of a job answer this way.
"""

from __future__ import annotations

import hmac
import http.client
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final, TypeVar
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import msgspec

from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.metrics_http.access import Person, Role, Tokens
from trainwarden.metrics_http.listener import KNOWN, MetricsServer
from trainwarden.metrics_http.tls import PeerTls, trouble
from trainwarden.network.host_port import host_and_port

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
MOST_DIGITS: Final = 9  # of a length; a number cut short would be another one
_STOP_S: Final = 0.2  # between two looks at whether to stop

T = TypeVar("T")
Route = tuple[str, str]
Answer = Callable[[bytes, Person | None], bytes]
Routes = Mapping[Route, Answer]
"""By method and path: what answers the bytes of a question (none of a GET), or raises `Refusal`.

It is told whose token came with the question; None where that was the launchers' own, or none is wanted.
"""


Roles = Mapping[Route, Role]
"""What a person needs for a question of that method and path."""


class Refusal(Exception):
    """What is answered in place of what was asked for."""

    def __init__(self, status: HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def application(
    routes: Routes, token: str | None, most_bytes: int, *, people: Tokens | None = None, roles: Roles | None = None
) -> WSGIApplication:
    """Answers by `routes`; without `token` everybody, else all but ``GET /healthz`` want it or that of a person.

    The launchers' own `token` may do all; one of `people` a GET and what `roles` names, if it has the role.
    """
    known = ", ".join(f"{method} {path}" for method, path in routes)

    def body_of(environ: WSGIEnvironment) -> bytes:
        route = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if route == ("GET", "/healthz"):
            return b'{"ok":true}'
        # Read before it is refused: a connection closed with bytes unread takes the refusal along.
        question, person = _read(environ, most_bytes) if route[0] == "POST" else b"", None
        if token is not None:
            said = environ.get("HTTP_AUTHORIZATION", "")
            if not hmac.compare_digest(said.encode("utf-8", "surrogateescape"), b"Bearer " + token.encode()):
                needed = "observe" if route[0] == "GET" else (roles or {}).get(route)
                word = said.removeprefix("Bearer ")
                person = _checked(None if people is None or word == said else people.who(word), needed)
        if KNOWN in environ:
            environ[KNOWN]()
        if route not in routes:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there are {known} and GET /healthz")
        return routes[route](question, person)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            status, body = HTTPStatus.OK, body_of(environ)
        except Refusal as refusal:
            status, body = refusal.status, msgspec.json.encode({"error": str(refusal)})
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status.value} {status.phrase}", headers)
        return [body]

    return answer


def _checked(person: Person | None, needed: Role | None) -> Person:
    if person is None:
        raise Refusal(HTTPStatus.UNAUTHORIZED, "the token is not the one that is wanted here")
    if needed is None or not person.may(needed):
        wants = "the launchers' own token" if needed is None else f"the role {needed}"
        raise Refusal(HTTPStatus.FORBIDDEN, f"{person.name} has the role {person.role}; this needs {wants}")
    return person


def _read(environ: WSGIEnvironment, most_bytes: int) -> bytes:
    length = environ.get("CONTENT_LENGTH") or "0"
    if not length.isascii() or not length.isdigit() or len(length) > MOST_DIGITS or not 0 < int(length) <= most_bytes:
        raise Refusal(HTTPStatus.BAD_REQUEST, f"a question has 1 to {most_bytes} bytes")
    try:
        question: bytes = environ["wsgi.input"].read(int(length))
    except OSError as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, str(error)[:500]) from error
    return question


def decoded(question: bytes, kind: type[T]) -> T:
    """`question` as `kind`.

    Raises
    ------
    Refusal
        If it is none.
    """
    try:
        return msgspec.json.decode(question, type=kind)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # ValueError: bytes that are no text
        raise Refusal(HTTPStatus.BAD_REQUEST, str(error)[:500]) from error


class _Server(MetricsServer):
    silent_s = 1.0  # as long as an asker waits
    longest_s = 2.0  # twice that: for a handshake and the token
    tls: ssl.SSLContext | None = None

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self.tls is None:
            super().finish_request(request, client_address)
        else:
            self.answer_by_tls(request, client_address, self.tls)


class QuestionServer:
    """Listens at `listen`, ``HOST:PORT``; port 0 is any that is free.

    Parameters
    ----------
    people, roles : Tokens, mapping, optional
        Who else is answered; see `application`.
    tls : PeerTls, optional
        Answers those alone whose certificate the same authority has signed.

    Raises
    ------
    ConfigError
        If that cannot be listened on, others than this machine would be answered without a token, or a file of `tls`
        cannot be used.
    """

    def __init__(
        self,
        listen: str,
        routes: Routes,
        *,
        token: str | None,
        most_bytes: int,
        people: Tokens | None = None,
        roles: Roles | None = None,
        tls: PeerTls | None = None,
    ) -> None:
        host, port = host_and_port(listen, "--listen", least_port=0)
        if token is None and host not in LOOPBACK:
            raise ConfigError(f"without a token only this machine is answered; {host} is open to others")
        context = None if tls is None else tls.serving()
        try:
            answers = application(routes, token, most_bytes, people=people, roles=roles)
            self._server = _Server(host, port, answers, None)
        except (OSError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or error
            raise ConfigError(f"{listen} cannot be listened on ({said})") from error
        self._server.tls = context
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_STOP_S,), daemon=True)

    def start(self) -> None:
        """Answer in the background."""
        self._thread.start()

    def wait(self) -> None:
        """Wait a moment, or until nothing answers any more."""
        self._thread.join(_STOP_S)

    def close(self) -> None:
        """Answer no more; after `start`."""
        self._server.shutdown()
        self._server.server_close()


class Asker:
    """Asks by ``POST``. Its connections stay open: strangers at the other's port cannot take the place of one.

    Parameters
    ----------
    whom : str
        What stands before the address in errors.
    timeout_s : float
        For a connection, and for each part of an answer, in seconds.
    most_bytes : int
        Of an answer.
    tls : PeerTls, optional
        Asks by https, those alone whose certificate the same authority has signed for that address.

    Raises
    ------
    ConfigError
        If a file of `tls` cannot be used.
    """

    def __init__(
        self, whom: str, token: str | None, timeout_s: float, most_bytes: int, *, tls: PeerTls | None = None
    ) -> None:
        self._kept: dict[str, http.client.HTTPConnection] = {}  # by address; the newest alone
        self._tls = None if tls is None else tls.asking()
        self._whom, self._timeout_s, self._most_bytes = whom, timeout_s, most_bytes
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    def close(self) -> None:
        """Keep no connection any more."""
        for address in list(self._kept):
            if (connection := self._kept.pop(address, None)) is not None:
                connection.close()

    def __del__(self) -> None:
        if hasattr(self, "_kept"):
            self.close()

    def ask(self, address: str, path: str, question: msgspec.Struct, kind: type[T]) -> T:
        """What is answered at `address` to `question`.

        Raises
        ------
        LauncherUnavailable
            If nobody can be reached there, or what answers is somebody else.
        LauncherError
            If it refuses to answer.
        """
        try:
            status, body = self._exchanged(address, path, msgspec.json.encode(question))
            if status == http.client.OK:
                return msgspec.json.decode(body, type=kind)
        except (OSError, http.client.HTTPException, msgspec.DecodeError, ValueError) as error:
            raise LauncherUnavailable(f"{self._whom} at {address}: {trouble(error)}") from error
        said = body[:300].decode("utf-8", "replace")
        raise LauncherError(f"{self._whom} at {address}: {status} {said}")

    def _exchanged(self, address: str, path: str, question: bytes) -> tuple[int, bytes]:
        """Status and body; by a new connection where the one that was kept has ended meanwhile."""
        if (kept := self._kept.pop(address, None)) is not None:
            with suppress(ConnectionError, ssl.SSLEOFError, http.client.BadStatusLine):
                return self._answered(kept, address, path, question)
        return self._answered(self._connection(address), address, path, question)

    def _answered(
        self, connection: http.client.HTTPConnection, address: str, path: str, question: bytes
    ) -> tuple[int, bytes]:
        kept = False
        try:
            connection.request("POST", path, question, self._headers)
            response = connection.getresponse()
            body = response.read(self._most_bytes)
            if response.isclosed() and not response.will_close:
                self.close()  # of a leader before
                self._kept[address], kept = connection, True
            return response.status, body
        finally:
            if not kept:
                connection.close()

    def _connection(self, address: str) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(address, timeout=self._timeout_s)
        return http.client.HTTPSConnection(address, timeout=self._timeout_s, context=self._tls)
