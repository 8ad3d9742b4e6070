"""Errors as ``application/problem+json`` (RFC 9457), and JSON answers."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from starlette.responses import Response

_ENCODER = msgspec.json.Encoder()


class Problem(Exception):
    """An answer that says what is wrong: `status` and one sentence; `more` are members for programs."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.more = more


def problem(status: int, detail: str, headers: dict[str, str] | None = None, **more: Any) -> Response:
    """The answer to a request that cannot be met.

    Examples
    --------
    >>> problem(404, "there is no incident 'i9'").body
    b'{"type":"about:blank","title":"Not Found","status":404,"detail":"there is no incident \\'i9\\'"}'
    """
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail} | more
    return Response(_ENCODER.encode(body), status, headers, media_type="application/problem+json")


def answer(value: Any, status: int = 200) -> Response:
    """`value` as JSON."""
    return Response(_ENCODER.encode(value), status, media_type="application/json")
