"""`trainwarden serve`: the bus read into the overview, and the overview told over HTTP."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from trainwarden.bus.address import connect
from trainwarden.clock import SystemClock
from trainwarden.commands.keys import signer_of
from trainwarden.commands.trust import Trust, signed
from trainwarden.dashboards.notices.notices import Notices
from trainwarden.dashboards.notices.targets import targets_of
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.dashboards.page.lines import metrics_of_bus, of_bus
from trainwarden.dashboards.page.pages import Pages
from trainwarden.dashboards.web.app import Parts, build
from trainwarden.dashboards.web.hooks import HookSecrets
from trainwarden.errors import ConfigError, WardenError
from trainwarden.metrics_http.access import Person, Tokens, digest_of
from trainwarden.metrics_http.listening import BACKLOG, Listening, Sparing
from trainwarden.metrics_http.tls import ServerContext, server_context
from trainwarden.network.host_port import host_and_port
from trainwarden.protocols import Bus
from trainwarden.records import CommandRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop
from trainwarden.settings import ServeSettings, Settings
from trainwarden.signing import read_secret
from trainwarden.topics import COMMANDS

log = logging.getLogger("trainwarden.serve")

PUBLISH_S = 5.0
SWITCH_S = (
    0.0005  # an answer needs the interpreter several times, and each time waits so long for the thread that reads
)
KEEP_ALIVE_S = 20  # longer than most scrapes lie apart, so that one connection serves them all
HEAD_S = 5.0  # from the first byte of a request (or the connection itself) to the end of its head
WHOLE_S = 20.0  # and to its last byte
UNREAD_S = 30.0  # that an answer waits for somebody who takes none of it
UNFINISHED = frozenset({h11.IDLE, h11.SEND_BODY})


def serve(
    settings: Settings, stop: Callable[[], bool], say: Callable[[str], None], *, config_file: Path | None = None
) -> None:
    """Serve until `stop()` is true; `say` is told where. Processes that judge read `config_file` themselves.

    Raises
    ------
    ConfigError
        If the address, the tokens, the certificate or the keys of commands cannot be used.
    BusUnavailable
        If the bus cannot be opened.
    """
    sys.setswitchinterval(SWITCH_S)
    listening = _bounded(listen_at(settings.serve.listen))
    tokens, own = tokens_of(settings.serve.listen, settings.serve.tokens)
    clock, metrics = SystemClock(), SelfMetrics("serve")
    trust, signer = Trust.of(settings.commands.trusted), signer_of(settings.commands)
    overview = Overview(clock, trust)
    bus = connect(settings.bus, settings.kafka, limit_bytes=settings.runs.bus_bytes)
    pages = Pages(overview, clock, of_bus(bus), metrics_of_bus(bus), settings.node if own else None)
    parts = Parts(
        overview,
        tokens,
        metrics,
        clock,
        lambda command: _publish(bus, signed(command, signer, trust, clock.now_s())),
        hosts=_names(settings),
        detect=_detect(settings, config_file),
        secrets=secrets_of(settings.serve),
        routes=tuple(pages.routes()),
    )
    app = build(parts)
    notices = Notices(overview, targets_of(settings.serve.notices), clock, metrics)
    config = _how(settings.serve, app, listening)
    server = uvicorn.Server(config)
    answering = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="http", daemon=True)
    answering.start()
    notices.start()
    host, port = listening.getsockname()[:2]
    scheme = "https" if config.ssl is not None else "http"
    shown = "localhost" if own else f"[{host}]" if ":" in host else host
    say(f"{scheme}://{shown}:{port}/" + (f"enter?token={own}" if own else ""))
    try:
        ServiceLoop(bus, overview, clock, metrics).run(lambda: stop() or not answering.is_alive())
        if not stop():
            raise WardenError("serve: answering has ended; the log says why")
    finally:
        pages.close()
        server.should_exit = True
        answering.join(5.0)
        bus.close()


def _how(settings: ServeSettings, app: ASGIApp, listening: Listening | None = None) -> uvicorn.Config:
    """How to answer for `app`; with TLS where there is a certificate, which clients may have to answer by their own.

    Raises
    ------
    ConfigError
        If a certificate or its key cannot be used, or one is named without the other.
    """
    config = uvicorn.Config(
        app,
        http=type("Connection", (Connection,), {"listening": listening}),
        loop="asyncio",  # others accept connections by themselves
        backlog=BACKLOG,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    config.load()
    config.ssl = tls_of(settings)
    return config


def tls_of(settings: ServeSettings) -> ServerContext | None:
    """The TLS that `settings` ask for; None if they ask for none.

    Raises
    ------
    ConfigError
        If a file cannot be used, or one is named without what it needs.
    """
    certificate, key, client_ca = settings.tls_certificate, settings.tls_key, settings.tls_client_ca
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("serve: tls_certificate and tls_key need each other, and tls_client_ca needs both")
    return server_context(certificate, key, client_ca, "serve.tls_certificate")


class Connection(H11Protocol):
    """uvicorn's, hung up on when a request is not whole within `WHOLE_S`; uvicorn itself waits for ever.

    ``scope["state"]["known"]`` is to be called once the caller has shown who it is.
    """

    listening: Listening | None = None
    _due: asyncio.TimerHandle | None = None
    _begun_s = 0.0
    _in_body = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, "known": self._is_known}
        self._begins()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        self._tell(Listening.speaks)
        super().data_received(data)
        if self.conn.their_state not in UNFINISHED:
            self._no_longer_due()
        elif self._due is None:
            self._begins()
        elif self.conn.their_state is h11.SEND_BODY and not self._in_body:
            self._in_body = True
            self._hang_up_at(self._begun_s + WHOLE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._no_longer_due()
        super().connection_lost(exc)

    def _begins(self) -> None:
        self._begun_s, self._in_body = self.loop.time(), self.conn.their_state is h11.SEND_BODY
        self._hang_up_at(self._begun_s + (WHOLE_S if self._in_body else min(HEAD_S, WHOLE_S)))

    def _hang_up_at(self, at_s: float) -> None:
        self._no_longer_due()
        self._due = self.loop.call_at(at_s, self.transport.abort)

    def _no_longer_due(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _is_known(self) -> None:
        self._tell(Listening.known)

    def _tell(self, what: Callable[[Listening, int], None]) -> None:
        connection = self.transport.get_extra_info("socket")
        if self.listening is not None and connection is not None:
            what(self.listening, connection.fileno())


def _bounded(listening: Listening) -> Listening:
    """`listening`, which strangers can no longer fill, nor make log without end."""
    for name in ("asyncio", "uvicorn.error"):  # what they send decides how much these say
        logging.getLogger(name).addFilter(Sparing())
    listening.limit()
    return listening


def listen_at(address: str) -> Listening:
    """A socket that listens at ``HOST:PORT``.

    Raises
    ------
    ConfigError
        If it is no such thing, or is taken.
    """
    host, port = host_and_port(address, "serve.listen", least_port=0)
    try:
        listening = Listening.at(host, port)
    except (OSError, UnicodeError) as error:
        said = getattr(error, "strerror", None) or error
        raise ConfigError(f"serve.listen: {address} cannot be listened on ({said})") from error
    # An answer that nobody takes is held in memory; the system gives such connections up where it is told to.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNREAD_S * 1_000))
    return listening


def _publish(bus: Bus, command: CommandRecord) -> None:
    bus.publish(COMMANDS, command.job, command)
    bus.flush(PUBLISH_S)


def tokens_of(address: str, paths: str | tuple[str, ...] | None) -> tuple[Tokens, str | None]:
    """Who may ask at `address`; where no files name them, a token that is made up, for this machine alone.

    Raises
    ------
    ConfigError
        If a file is wrong, or there is none and others could ask.
    """
    if paths:
        return Tokens.of_files(map(Path, [paths] if isinstance(paths, str) else paths)), None
    host = host_and_port(address, "serve.listen", least_port=0)[0]
    try:
        here = ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        here = host == "localhost"
    if not here:
        raise ConfigError(f"serve: to listen on {address} for others, name a file of tokens (--tokens)")
    own = secrets.token_urlsafe(24)
    return Tokens({digest_of(own): Person("local", "act")}), own


def secrets_of(settings: ServeSettings) -> HookSecrets:
    """What the files of secrets hold.

    Raises
    ------
    ConfigError
        If one cannot be read.
    """
    grafana, slack = settings.grafana_secret_file, settings.slack_secret_file
    return HookSecrets(
        grafana=None if grafana is None else read_secret(grafana, "serve.grafana_secret_file"),
        slack=None if slack is None else read_secret(slack, "serve.slack_secret_file"),
        slack_users=settings.slack_users,
    )


def _detect(settings: Settings, config_file: Path | None) -> tuple[str, ...]:
    """The command that judges a range of a job on our bus."""
    config = (f"--config={config_file.absolute()}",) if config_file is not None else ()
    return (sys.executable, "-P", "-m", "trainwarden.cli.main", "detect", f"--bus={settings.bus}", *config)


def _names(settings: Settings) -> tuple[str, ...]:
    host = settings.serve.listen.rpartition(":")[0]
    return (host, socket.gethostname(), *settings.serve.hosts)
