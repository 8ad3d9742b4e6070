"""Answers ``/metrics``, by a `MetricsServer`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from prometheus_client import CollectorRegistry, make_wsgi_app

from trainwarden.errors import ConfigError
from trainwarden.metrics_http.listener import KNOWN, MetricsServer
from trainwarden.metrics_http.web_config import WebConfigFile
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import Settings

log = logging.getLogger("trainwarden.metrics")


def app_of(registry: CollectorRegistry, web: WebConfigFile | None) -> WSGIApplication:
    """The metrics of `registry`, for those whom `web` admits."""
    metrics: WSGIApplication = make_wsgi_app(registry)
    if web is None:
        return metrics  # everybody may ask, so that nobody is known

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        config = web.now()[0]
        extra, tls = list(config.http_server_config.headers.items()), config.tls_server_config
        if not web.admits(environ.get("HTTP_AUTHORIZATION")):
            start_response("401 Unauthorized", [("WWW-Authenticate", 'Basic realm="metrics"'), *extra])
            return [b"401 Unauthorized\n"]
        if KNOWN in environ and (config.basic_auth_users or (tls is not None and tls.client_ca_file is not None)):
            environ[KNOWN]()

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
