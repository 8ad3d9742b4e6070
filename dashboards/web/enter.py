"""Signing in: a browser trades its token for a cookie that no script can read."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from trainwarden.dashboards.page.render import render
from trainwarden.metrics_http.access import Tokens
from trainwarden.self_metrics import SelfMetrics

MAX_TOKEN_CHARS: Final = 1_024
COOKIE: Final = "trainwarden_token"
REMEMBERED_S: Final = 12 * 3_600
_FRESH: Final = {"cache-control": "no-store"}


def cookie_name(request: Request) -> str:
    """The cookie's name at this port: browsers keep one jar for all ports of a host, and two runs are two tokens."""
    return f"{COOKIE}_{request.url.port or request.url.scheme}"


def wants_page(request: Request) -> bool:
    """Whether a person's browser asks, not a program."""
    return request.method == "GET" and "text/html" in request.headers.get("accept", "")


def sign_in(status: int, wrong: str = "") -> Response:
    """The form that takes a token; `wrong` says what was wrong with the last one."""
    text = render("enter.html", wrong=wrong, frozen=False, live="", person=None, may_act=False, stopped_by=None)
    return HTMLResponse(text, status, headers=_FRESH)


class Enter:
    """``/enter``."""

    def __init__(self, tokens: Tokens, metrics: SelfMetrics) -> None:
        self._tokens = tokens
        self._metrics = metrics

    def routes(self) -> list[Route]:
        """Where it hangs."""
        return [Route("/enter", self.by_link, methods=["GET"]), Route("/enter", self.by_form, methods=["POST"])]

    async def by_link(self, request: Request) -> Response:
        """The address that `serve` prints."""
        token = request.query_params.get("token")
        return sign_in(200) if token is None else self._entered(request, token)

    async def by_form(self, request: Request) -> Response:
        """The form of `sign_in`."""
        try:
            said = parse_qs((await request.body()).decode("utf-8", "replace"), max_num_fields=10)
        except ValueError:  # more fields than our form has
            said = {}
        return self._entered(request, said.get("token", [""])[0])

    def _entered(self, request: Request, token: str) -> Response:
        token = token.strip()
        if len(token) > MAX_TOKEN_CHARS or self._tokens.who(token) is None:
            self._metrics.count("requests_refused_total", "Requests refused.", status="401")
            return sign_in(401, "This server does not know that token.")
        answer = RedirectResponse("/", 303, headers=_FRESH)
        answer.set_cookie(
            cookie_name(request),
            token,
            max_age=REMEMBERED_S,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer
