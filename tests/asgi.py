"""Requests to an application without a server or a network."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.types import ASGIApp

HOST = "localhost:8760"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def scope_of(method: str, url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    parts = urlsplit(url)
    pairs = [(name.lower().encode(), value.encode()) for name, value in ({"host": HOST} | dict(headers)).items()]
    return {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": unquote(parts.path), "raw_path": parts.path.encode(), "query_string": parts.query.encode(),
        "root_path": "", "headers": pairs, "server": ("127.0.0.1", 8760), "client": ("127.0.0.1", 50_000),
    }  # fmt: skip


def ask(app: ASGIApp, url: str, *, method: str = "GET", body: bytes = b"", **headers: str) -> Answer:
    """The answer to one request; ``accept_language="x"`` becomes the header ``accept-language``."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    told: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        told.append(message)

    asyncio.run(app(scope_of(method, url, named), receive, send))  # type: ignore[arg-type]
    start = next(message for message in told if message["type"] == "http.response.start")
    text = b"".join(message.get("body", b"") for message in told if message["type"] == "http.response.body")
    return Answer(start["status"], {name.decode(): value.decode() for name, value in start["headers"]}, text)
