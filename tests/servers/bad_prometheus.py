"""A small HTTP server that answers like a Prometheus, or badly: slow, cut off, refusing, partial, hostile."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Answer = tuple[int, dict[str, str], bytes]
Behaviour = Callable[[str, dict[str, str]], Answer | None]
"""From path and parameters to an answer; None means the good one."""

EVERY_S = 15.0


def success(data: Any, **more: Any) -> Answer:
    """A good answer."""
    return 200, {"Content-Type": "application/json"}, json.dumps({"status": "success", "data": data, **more}).encode()


def counts(**by_name: int) -> Answer:
    """How many series there are of each metric."""
    rows = [{"metric": {"__name__": name}, "value": [0, str(count)]} for name, count in by_name.items()]
    return success({"resultType": "vector", "result": rows})


class BadPrometheus:
    """Four healthy GPUs of one node, told of by one metric, as far as `behaviour` does not say otherwise.

    Attributes
    ----------
    asked : list
        Path, parameters and headers of every request.
    drip_s : float
        Pause after each byte of an answer; 0: none.
    promise : int
        Bytes that are promised and never sent.
    """

    def __init__(self, behaviour: Behaviour = lambda path, asked: None) -> None:
        self.behaviour = behaviour
        self.asked: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.drip_s, self.promise = 0.0, 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def good(self, path: str, asked: dict[str, str]) -> Answer:
        """What a Prometheus would say."""
        if path.endswith("/values"):
            return success(["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_ROW_REMAP_FAILURE", "up"])
        if path.endswith("/series"):
            return success([])
        query = asked["query"]
        if query.startswith("count by"):
            return counts(DCGM_FI_DEV_GPU_TEMP=4, DCGM_FI_DEV_ROW_REMAP_FAILURE=4)
        if query.startswith(("sum(", "count(")):
            value = "4" if query.startswith("count") else "480"
            return success({"resultType": "vector", "result": [{"metric": {}, "value": [0, value]}]})
        end_s = float(asked["time"])
        length_s = float(re.search(r"\[(\d+)s\]$", query).group(1))  # type: ignore[union-attr]
        stamps = [EVERY_S * n for n in range(int((end_s - length_s) // EVERY_S) + 1, int(end_s // EVERY_S) + 1)]
        value = "50" if "TEMP" in query else "0"
        series = [
            {
                "metric": {"gpu": str(gpu), "UUID": f"GPU-{gpu}", "Hostname": "n0"},
                "values": [[t, value] for t in stamps],
            }
            for gpu in range(4)
        ]
        return success({"resultType": "matrix", "result": series})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path, _, query = self.path.partition("?")
                self._reply(path, dict(urllib.parse.parse_qsl(query)))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
                self._reply(self.path, dict(urllib.parse.parse_qsl(body)))

            def _reply(self, path: str, asked: dict[str, str]) -> None:
                outer.asked.append((path, asked, dict(self.headers)))
                code, headers, body = outer.behaviour(path, asked) or outer.good(path, asked)
                try:
                    self.send_response(code)
                    for key, value in headers.items():
                        self.send_header(key, value)
                    self.send_header("Content-Length", str(len(body) + outer.promise))
                    self.end_headers()
                    if outer.drip_s:
                        for byte in body:
                            self.wfile.write(bytes([byte]))
                            time.sleep(outer.drip_s)
                    else:
                        self.wfile.write(body)
                except OSError:
                    return  # whoever asked has gone away

            def log_message(self, *words: object) -> None:
                """Nothing is written."""

        return Handler
