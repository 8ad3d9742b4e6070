"""A service that the webhook launcher asks: a real HTTP server over a launcher in memory, written by docs/webhook.md.

`fates` are what becomes of the next submissions and polls: ``done``, ``lost`` (done, and the answer never comes),
``unheard``, ``500``, or bytes that are answered in place of the answer.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from tests.memory_launcher import MemoryLauncher
from trainwarden.errors import LauncherError
from trainwarden.launching import Operation

SECRET = b"a secret of the tests"


class WebhookService:
    """Listens on a free port of this machine until it is closed."""

    def __init__(self, launcher: MemoryLauncher) -> None:
        self.launcher = launcher
        self.fates: deque[str | bytes] = deque()
        self.keys: list[str | None] = []
        self.refused: list[str] = []
        self.now_s = time.time
        self._lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(0.02), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/trainwarden?cluster=a"

    def close(self) -> None:
        """Nobody listens any more. Safe twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10.0)

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["Content-Length"]))
        if (why := self._why_not(request, body)) is not None:
            self.refused.append(why)
            return _send(request, 401, {"title": "refused", "detail": why})
        with self._lock:
            asked = json.loads(body)
            if asked["ask"] == "submit":
                self.keys.append(request.headers["Idempotency-Key"])
            fate = self.fates.popleft() if self.fates and asked["ask"] in ("submit", "poll") else "done"
            if fate == "unheard":
                return None
            if fate == "500":
                return _send(request, 500, {"title": "broken"})
            status, said = self._said(asked)
        if isinstance(fate, bytes):
            request.wfile.write(fate)
        elif fate == "done":
            _send(request, status, said)
        return None

    def _why_not(self, request: BaseHTTPRequestHandler, body: bytes) -> str | None:
        stamp = request.headers.get("X-Trainwarden-Timestamp", "")
        signed = hmac.new(SECRET, stamp.encode() + b":" + body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(signed, request.headers.get("X-Trainwarden-Signature", "")):
            return "the signature is another's"
        return None if abs(self.now_s() - float(stamp)) <= 300.0 else "the request is old"

    def _said(self, asked: dict[str, Any]) -> tuple[int, Any]:
        try:
            if asked["ask"] == "capabilities":
                return 200, self.launcher.capabilities()
            if asked["ask"] == "state":
                return 200, self.launcher.state(asked["job"])
            if asked["ask"] == "poll":
                return 200, self.launcher.poll(asked["job"], asked["operation"])
            return 200, self.launcher.submit(msgspec.convert(asked["operation"], Operation))
        except msgspec.ValidationError as error:
            told = {"operation": asked["operation"]["id"], "state": "refused", "reason": "unfit", "text": str(error)}
            return 200, told
        except LauncherError as error:
            return 404, {"title": "no such job", "detail": str(error)}


def _send(request: BaseHTTPRequestHandler, status: int, said: Any) -> None:
    body = msgspec.json.encode(said)
    request.send_response(status)
    request.send_header("Content-Type", "application/json" if status == 200 else "application/problem+json")
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)
