"""What stands before every route: host, size, token, role; and the headers of every answer."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, MutableMapping
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from trainwarden.dashboards.web.enter import cookie_name, sign_in, wants_page
from trainwarden.dashboards.web.problems import Problem, problem
from trainwarden.metrics_http.access import Person, Role, Tokens
from trainwarden.self_metrics import SelfMetrics

MAX_BODY_BYTES: Final = 262_144
OPEN: Final = frozenset({"/healthz", "/readyz", "/metrics", "/openapi.json", "/enter"})
OPEN_BELOW: Final = "/static/"
SIGNED: Final = frozenset({"/hooks/grafana", "/hooks/slack"})  # without a token these ask for a signature themselves
OBSERVING_POSTS: Final = frozenset({"/api/v1/detect"})  # asks, and changes nothing
APPROVING_HOOKS: Final = frozenset({"/hooks/alertmanager", "/hooks/grafana"})  # what else an alert asks takes `act`
CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS: Final = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class Guard:
    """ASGI middleware; puts the `Person` who asks into ``scope["state"]["person"]``.

    Parameters
    ----------
    hosts : collection of str
        Names by which this server is known besides localhost. Addresses in numbers are always taken: it is names by
        which a page from elsewhere can make a browser ask us (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, metrics: SelfMetrics, hosts: Collection[str] = ()) -> None:
        self._app = app
        self._tokens = tokens
        self._metrics = metrics
        self._hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                there = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in HEADERS if pair[0] not in there)]
            await send(message)

        request = Request(scope, receive)
        try:
            self._admit(request)
            await self._app(scope, _limited(receive), with_headers)
        except Problem as refused:
            self._metrics.count("requests_refused_total", "Requests refused.", status=str(refused.status))
            if refused.status == 401 and wants_page(request):
                await sign_in(401)(scope, receive, with_headers)
                return
            headers = {"www-authenticate": 'Bearer realm="trainwarden"'} if refused.status == 401 else None
            await problem(refused.status, refused.detail, headers)(scope, receive, with_headers)

    def _admit(self, request: Request) -> None:
        """Raises the `Problem` of a request that must not go on."""
        if not self._known_host(_hostname(request.headers.get("host", ""))):
            raise Problem(421, "this server is not known by that name; serve.hosts lists the names that it has")
        length = request.headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length[:20]) > MAX_BODY_BYTES:
            raise Problem(413, f"a request has {MAX_BODY_BYTES} bytes at most")
        path = request.scope["path"]  # by which routes are found; some Starlettes make `url` of the Host header too
        if path in OPEN or path.startswith(OPEN_BELOW):
            return
        person, by_cookie = self._who(request)
        if person is None and path in SIGNED:
            return
        if person is None:
            raise Problem(401, "a token is needed: Authorization: Bearer TOKEN")
        if by_cookie and request.method not in ("GET", "HEAD") and not _same_origin(request):
            raise Problem(403, "this request came from another page")
        needed = needed_for(request.method, path)
        if not person.may(needed):
            raise Problem(403, f"the role '{needed}' is needed; this token's is '{person.role}'")
        state: MutableMapping[str, Any] = request.scope.setdefault("state", {})
        state["person"] = person
        if "known" in state:
            state["known"]()

    def _known_host(self, name: str) -> bool:
        if name in self._hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _who(self, request: Request) -> tuple[Person | None, bool]:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._tokens.who(token.strip()), False
        cookie = request.cookies.get(cookie_name(request))
        return (self._tokens.who(cookie) if cookie else None), True


def needed_for(method: str, path: str) -> Role:
    """The role that a request needs; whatever has no rule here needs the greatest.

    Examples
    --------
    >>> needed_for("GET", "/api/v1/jobs"), needed_for("POST", "/api/v1/actions/i1/evict/1/approve")
    ('observe', 'approve')
    >>> needed_for("POST", "/api/v1/stop"), needed_for("POST", "/approve"), needed_for("PUT", "/api/v1/detect")
    ('act', 'act', 'act')
    """
    if method in ("GET", "HEAD") or (method == "POST" and path in OBSERVING_POSTS):
        return "observe"
    on_action = path.startswith("/api/v1/actions/") and path.endswith(("/approve", "/deny"))
    return "approve" if method == "POST" and (on_action or path in APPROVING_HOOKS) else "act"


def _hostname(netloc: str) -> str:
    try:
        return (urlsplit(f"//{netloc}").hostname or "").lower()
    except ValueError:
        return ""


def _same_origin(request: Request) -> bool:
    """Whether a browser says that the request was made by our own page."""
    origin = request.headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == request.headers.get("host", "")


def _limited(receive: Receive) -> Receive:
    """`receive` that stops a body without a length from growing without end."""
    taken = 0

    async def limited() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY_BYTES:
            raise Problem(413, f"a request has {MAX_BODY_BYTES} bytes at most")
        return message

    return limited
