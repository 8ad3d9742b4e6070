"""The make-believe exporters of a cluster behind real HTTP: ``/dcgm/NODE/metrics`` and ``/node/NODE/metrics``."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from tests.servers.exporters import Cluster


class _Server(ThreadingHTTPServer):
    request_queue_size = 256  # a connection too many would wait a second


class ExporterServer:
    """Every exporter of `cluster` on one port.

    Attributes
    ----------
    now_s : callable
        The cluster's clock.
    failing, hanging : sets of str
        Paths that answer 500, as dcgm-exporter does if one device fails, and that do not answer.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now_s = time.time
        self.failing: set[str] = set()
        self.hanging: set[str] = set()
        self._over = threading.Event()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    def address(self, kind: str, node: int) -> str:
        """Of one exporter."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/{kind}/{node}/metrics"

    def endpoints(self) -> list[str]:
        """Of all exporters."""
        return [self.address(kind, node) for node in range(self.cluster.nodes) for kind in ("dcgm", "node")]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                _, kind, node, _ = self.path.split("/")
                if self.path in outer.hanging:
                    outer._over.wait(30.0)
                body = outer.cluster.text(kind, int(node), outer.now_s()).encode()
                try:
                    self.send_response(500 if self.path in outer.failing else 200)
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    return  # whoever asked has gone away

            def log_message(self, *words: object) -> None:
                """Nothing is written."""

        return Handler
