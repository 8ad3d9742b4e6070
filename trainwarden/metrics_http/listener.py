"""A server whose places strangers cannot take: a thread a connection, from its first byte on.

The server that comes with prometheus_client waits for a TLS handshake where it accepts, so that one client that says
nothing stops it for all. Here whoever has shown who it is keeps its connection, and strangers have places of their own.
"""

from __future__ import annotations

import errno
import io
import itertools
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from socketserver import ThreadingMixIn
from typing import Any, BinaryIO, Final, cast
from wsgiref.headers import Headers
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication, WSGIEnvironment

from trainwarden.metrics_http.strangers import Strangers
from trainwarden.metrics_http.tls import HANDSHAKE, PLAIN_ANSWER
from trainwarden.metrics_http.web_config import WebConfigFile, is_allowed

PATIENCE_S: Final = 10.0  # for each read and write of a client
LONGEST_S: Final = 30.0  # for all of a stranger's: who sends a byte now and then would keep a place for ever
AT_ONCE: Final = 64  # strangers of one address
STRANGERS: Final = 256  # of all
KEPT_S: Final = 75.0  # that a known caller's connection may be idle: longer than scrapes lie apart
MEMBERS: Final = 4_096  # known callers whose connections are kept
BACKLOG: Final = 1_024  # of connections that the system holds while this process is busy
READING_S: Final = 0.5  # that somebody has for reading what is wrong with a certificate
FULL_S: Final = 0.05  # to wait where the system has no descriptor left for another connection
KNOWN: Final = "trainwarden.known"
"""In a WSGI environment: what an application calls once it knows who asks and has read all of the question.

Such a caller keeps its connection, and takes no place of the strangers.
"""
_CERTIFICATE: Final = frozenset({"CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE"})
_READ_BYTES: Final = 65_536
_LONGEST_LINE: Final = 65_536


class _Answering(ServerHandler):
    """wsgiref's, in HTTP/1.1: the connection stays open where the handler keeps it."""

    http_version = "1.1"
    headers: Headers
    status: str | None
    request_handler: _Handler

    def cleanup_headers(self) -> None:
        """Say whether the connection ends with this answer."""
        super().cleanup_headers()
        whole = self.status is not None and self.status.startswith("200") and "Content-Length" in self.headers
        if not (whole and self.request_handler.keeps()):
            self.request_handler.close_connection = True
            self.headers["Connection"] = "close"


class _Handler(WSGIRequestHandler):
    """Answers one request of a stranger; of a known caller as many as it likes."""

    timeout = PATIENCE_S
    protocol_version = "HTTP/1.1"
    server: MetricsServer

    def handle(self) -> None:
        self._known = False
        self.close_connection = True
        self._answer()
        while not self.close_connection:
            self.connection.settimeout(KEPT_S)
            if not cast(io.BufferedReader, self.rfile).peek(1):
                return
            self.connection.settimeout(self.timeout)
            self._answer()

    def _answer(self) -> None:
        self.raw_requestline = self.rfile.readline(_LONGEST_LINE + 1)
        if len(self.raw_requestline) > _LONGEST_LINE:
            self.requestline = self.request_version = self.command = ""
            self.send_error(414)
            return
        if not self.parse_request():
            return
        app = self.server.get_app()
        assert app is not None
        answering = _Answering(
            cast(BinaryIO, self.rfile), cast(BinaryIO, self.wfile), self.get_stderr(), self.get_environ()
        )
        answering.request_handler = self
        answering.run(app)

    def get_environ(self) -> WSGIEnvironment:
        return {**super().get_environ(), KNOWN: self._is_known}

    def keeps(self) -> bool:
        """Whether the connection stays: the caller is known, and nothing of its question is unread."""
        unread = self.command == "GET" and self.headers.get("Content-Length", "0") != "0"
        plain = self.command in ("GET", "POST") and "Transfer-Encoding" not in self.headers
        return self._known and plain and not unread and not self.close_connection

    def _is_known(self) -> None:
        self._known = self._known or self.server.is_known()

    def log_message(self, *_said: Any) -> None:
        """Say nothing: a scrape is no news, and what a client sends does not belong into the log."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Listens on `address`:`port`, with the TLS and the passwords of `web`.

    A connection has a thread from its first byte on; until then it waits beside the listening socket.
    """

    silent_s = PATIENCE_S
    longest_s = LONGEST_S
    daemon_threads = True
    request_queue_size = BACKLOG

    def __init__(self, address: str, port: int, app: WSGIApplication, web: WebConfigFile | None) -> None:
        self.address_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        self._web = web
        self._lock = threading.Lock()  # of what follows
        self._strangers: Strangers[int] = Strangers(
            STRANGERS, AT_ONCE, silent_s=self.silent_s, longest_s=self.longest_s
        )
        self._numbers = itertools.count()
        self._silent: dict[int, socket.socket] = {}  # by number, too; they have no thread
        self._open: dict[int, socket.socket] = {}  # by the connection's number
        self._by_thread: dict[int, int] = {}  # the connection's number
        self._waiting = selectors.DefaultSelector()  # as the silent ones: for the thread that accepts
        self._over, self._ended = threading.Event(), threading.Event()
        super().__init__((address, port), _Handler)
        self.set_app(app)

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        """Answer until `shutdown`."""
        self._ended.clear()
        self.socket.setblocking(False)
        self._waiting.register(self.socket, selectors.EVENT_READ)
        try:
            while not self._over.is_set():
                for key, _ in self._waiting.select(poll_interval):
                    if key.fileobj is self.socket:
                        self._let_in()
                    else:
                        self._speaks(key.data, key.fileobj)
                self.service_actions()
        finally:
            self._waiting.unregister(self.socket)
            self._over.clear()
            self._ended.set()

    def shutdown(self) -> None:
        """End `serve_forever`, and wait until it has ended."""
        self._over.set()
        self._ended.wait()

    def server_close(self) -> None:
        """Listen no more, and hang up on everybody."""
        with self._lock:
            numbers = list(self._open)
        for number in numbers:
            self._hang_up(number)
        super().server_close()
        self._waiting.close()

    def service_actions(self) -> None:
        """Hang up on strangers who have been here for too long; called between two clients, and twice a second."""
        with self._lock:
            overdue = self._strangers.overdue(time.monotonic())
        for number in overdue:
            self._hang_up(number)

    def is_known(self) -> bool:
        """The caller of this thread has shown who it is; whether its connection can be kept."""
        with self._lock:
            self._strangers.leave(self._by_thread[threading.get_ident()])
            return len(self._open) - len(self._strangers) <= MEMBERS

    def _let_in(self) -> None:
        try:
            connection, address = self.get_request()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # the connection that cannot be taken stays ready
                with self._lock:
                    first = self._strangers.first()
                if first is None:
                    self._over.wait(FULL_S)
                else:
                    self._hang_up(first)
            return
        connection.setblocking(True)
        with suppress(OSError):  # a connection that is kept would wait for the asker's acknowledgement in each answer
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        number = next(self._numbers)
        with self._lock:
            self._open[number] = connection
            goes = self._strangers.enter(number, str(address[0]), time.monotonic())
        self._silent[number] = connection
        self._waiting.register(connection, selectors.EVENT_READ, (number, address))
        if goes is not None:
            self._hang_up(goes)

    def _speaks(self, who: tuple[int, Any], connection: Any) -> None:
        number, address = who
        if self._silent.pop(number, None) is None:
            return  # hung up on while others of the same look were served
        with self._lock:
            self._strangers.speaks(number)
        self._waiting.unregister(connection)
        thread = threading.Thread(target=self._answer, args=(number, connection, address), daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            self._forget(number)
            self.shutdown_request(connection)

    def _answer(self, number: int, connection: socket.socket, address: Any) -> None:
        with self._lock:
            self._by_thread[threading.get_ident()] = number
        try:
            self.process_request_thread(connection, address)
        finally:
            self._forget(number)

    def _forget(self, number: int) -> None:
        with self._lock:
            self._strangers.leave(number)
            self._by_thread.pop(threading.get_ident(), None)
            self._open.pop(number, None)

    def _hang_up(self, number: int) -> None:
        """End a connection; its thread closes it, where it has one."""
        if (silent := self._silent.pop(number, None)) is not None:
            self._waiting.unregister(silent)
            self._forget(number)
            self.shutdown_request(silent)
            return
        with self._lock:
            connection = self._open.get(number)
            self._strangers.leave(number)
        if connection is not None:
            with suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def finish_request(self, request: Any, client_address: Any) -> None:
        config, context = (None, None) if self._web is None else self._web.now()
        if context is None or config is None or config.tls_server_config is None:
            super().finish_request(request, client_address)
            return
        self.answer_by_tls(request, client_address, context, config.tls_server_config.client_allowed_sans)

    def answer_by_tls(
        self, request: Any, client_address: Any, context: ssl.SSLContext, sans: Collection[str] = ()
    ) -> None:
        """Answer after a handshake by `context`, if the client's certificate has one of `sans`, where there are any."""
        request.settimeout(PATIENCE_S)
        if (first := request.recv(1, socket.MSG_PEEK)) and first[0] != HANDSHAKE:
            request.recv(_READ_BYTES)  # what is left unread would take the answer with it
            request.sendall(PLAIN_ANSWER)
            return
        with context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as secured:
            with self._lock:
                self._open[self._by_thread[threading.get_ident()]] = secured
            try:
                secured.do_handshake()
            except ssl.SSLError as error:
                if error.reason in _CERTIFICATE:  # who speaks no TLS at all has nothing to read
                    _let_read(secured)
                raise
            if not sans or is_allowed(secured.getpeercert(), sans):
                super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that breaks off, or speaks no TLS, is no news either."""


def _let_read(connection: socket.socket) -> None:
    """Wait until what was sent is read: a connection that is closed with bytes unread takes its last words along."""
    until_s = time.monotonic() + READING_S
    with suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_WR)
        while (left_s := until_s - time.monotonic()) > 0.0:
            connection.settimeout(left_s)
            if not socket.socket.recv(connection, _READ_BYTES):  # not by TLS, where it is one
                return
