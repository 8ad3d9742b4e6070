"""Answers ``/metrics``: a thread a connection, so many at once, each with a time limit.

The server that comes with prometheus_client waits for a TLS handshake where it accepts, so that one client that says
nothing stops it for all.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from trainwarden.errors import ConfigError
from trainwarden.metrics_http.tls import HANDSHAKE, PLAIN_ANSWER
from trainwarden.metrics_http.web_config import WebConfigFile, is_allowed
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import Settings

log = logging.getLogger("trainwarden.metrics")

PATIENCE_S: Final = 10.0  # for each read and write of a client
LONGEST_S: Final = 30.0  # for all of them: who sends a byte now and then would keep a place for ever
AT_ONCE: Final = 64
READING_S: Final = 0.5  # that somebody has for reading what is wrong with a certificate
_CERTIFICATE: Final = frozenset({"CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE"})
_READ_BYTES: Final = 65_536


class _Handler(WSGIRequestHandler):
    timeout = PATIENCE_S

    def log_message(self, *_said: Any) -> None:
        """Say nothing: a scrape is no news, and what a client sends does not belong into the log."""


class MetricsServer(ThreadingMixIn, WSGIServer):
    """Listens on `address`:`port`, with the TLS and the passwords of `web`."""

    longest_s = LONGEST_S
    daemon_threads = True
    request_queue_size = AT_ONCE

    def __init__(self, address: str, port: int, app: WSGIApplication, web: WebConfigFile | None) -> None:
        self.address_family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        self._web = web
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._open: dict[int, tuple[float, socket.socket]] = {}  # since when, by thread
        super().__init__((address, port), _Handler)
        self.set_app(app)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread of its own, or hang up where too many are asking."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._open[threading.get_ident()] = time.monotonic(), request
        try:
            super().process_request_thread(request, client_address)
        finally:
            del self._open[threading.get_ident()]
            self._free.release()

    def service_actions(self) -> None:
        """Hang up on whoever has been here for too long; called between two clients, and twice a second."""
        for since_s, connection in list(self._open.values()):
            if time.monotonic() - since_s > self.longest_s:
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
            self._open[threading.get_ident()] = self._open[threading.get_ident()][0], secured
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


def app_of(registry: CollectorRegistry, web: WebConfigFile | None) -> WSGIApplication:
    """The metrics of `registry`, for those whom `web` admits."""
    metrics: WSGIApplication = make_wsgi_app(registry)
    if web is None:
        return metrics

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        extra = list(web.now()[0].http_server_config.headers.items())
        if not web.admits(environ.get("HTTP_AUTHORIZATION")):
            start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="metrics"'), *extra])
            return [b"401 Unauthorized\n"]

        def started(status: str, headers: list[tuple[str, str]], *rest: Any) -> Callable[[bytes], object]:
            return start_response(status, [*headers, *extra], *rest)

        return metrics(environ, started)

    return answer


def serve_metrics(metrics: SelfMetrics, port: int | None, settings: Settings) -> int | None:
    """Answer for `metrics` in the background until the process ends; the port in use (None: nobody wants it).

    Raises
    ------
    ConfigError
        If that port of `settings.metrics_address` cannot be listened on, or `settings.metrics_web_config` not be used.
    """
    if port is None:
        return None
    address, named = settings.metrics_address, settings.metrics_web_config
    web = None if named is None else WebConfigFile(Path(named))
    try:
        server = MetricsServer(address, port, app_of(metrics.registry, web), web)
    except OSError as error:
        raise ConfigError(f"metrics: {address}:{port} cannot be listened on ({error.strerror or error})") from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    log.info("metrics served", extra={"fields": {"port": server.server_port}})
    return server.server_port
