"""The application: every route behind the guard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from trainwarden.clock import Clock
from trainwarden.dashboards.exposition.jobs import JobsText
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.dashboards.web.acts import CommandRoutes
from trainwarden.dashboards.web.enter import Enter
from trainwarden.dashboards.web.guard import Guard
from trainwarden.dashboards.web.hooks import Hooks, HookSecrets
from trainwarden.dashboards.web.judge import Judge
from trainwarden.dashboards.web.openapi.document import document
from trainwarden.dashboards.web.problems import Problem, answer, problem
from trainwarden.dashboards.web.reads import Reads
from trainwarden.metrics_http.access import Tokens
from trainwarden.records import CommandRecord
from trainwarden.self_metrics import SelfMetrics

STALE_S = 30.0  # rounds of the loop are tenths of a second


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes work with; `publish` keeps a command on the bus before it returns, `detect` judges a range."""

    overview: Overview
    tokens: Tokens
    metrics: SelfMetrics
    clock: Clock
    publish: Callable[[CommandRecord], None]
    hosts: tuple[str, ...] = ()
    detect: tuple[str, ...] = ("trainwarden", "detect")
    secrets: HookSecrets = field(default_factory=HookSecrets)
    routes: tuple[BaseRoute, ...] = field(default=())


def build(parts: Parts) -> ASGIApp:
    """The ASGI application."""
    own, enter = Own(parts), Enter(parts.tokens, parts.metrics)
    acts = CommandRoutes(parts.overview, parts.clock, parts.metrics, parts.publish)
    app = Starlette(
        routes=[
            *own.routes(),
            *enter.routes(),
            *Reads(parts.overview, parts.clock, Judge(parts.detect, parts.metrics)).routes(),
            *acts.routes(),
            *Hooks(acts, parts.clock, parts.metrics, parts.secrets).routes(),
            *parts.routes,
        ],
        exception_handlers={
            Problem: own.refused,
            HTTPException: _http,
            ClientDisconnect: _gone,
            Exception: own.broken,
        },
    )
    return Guard(app, parts.tokens, parts.metrics, parts.hosts)


class Own:
    """How this service itself is."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._jobs = JobsText(parts.overview)
        self._openapi = document()

    def routes(self) -> list[Route]:
        """Where that hangs."""
        return [
            Route("/healthz", self.healthz),
            Route("/readyz", self.readyz),
            Route("/metrics", self.metrics),
            Route("/openapi.json", self.openapi),
        ]

    async def openapi(self, _request: Request) -> Response:
        """What can be asked."""
        return answer(self._openapi)

    async def healthz(self, _request: Request) -> Response:
        """This process answers."""
        return answer({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        """What was on the bus has been read, and the bus still answers."""
        overview = self._parts.overview
        late = overview.round_s is None or self._parts.clock.now_s() - overview.round_s > STALE_S
        if not overview.ready or late:
            return problem(503, "the bus is away" if overview.ready else "what is on the bus is still being read")
        return answer({"status": "ready", "jobs": len(overview.jobs)})

    async def metrics(self, _request: Request) -> Response:
        """For Prometheus."""
        own = await run_in_threadpool(generate_latest, self._parts.metrics.registry)
        jobs = await run_in_threadpool(self._jobs.render)
        return Response(own + jobs, headers={"content-type": CONTENT_TYPE_LATEST})

    async def refused(self, _request: Request, error: Exception) -> Response:
        """What a route refuses."""
        assert isinstance(error, Problem)
        self._parts.metrics.count("requests_refused_total", "Requests refused.", status=str(error.status))
        return problem(error.status, error.detail, error.headers, **error.more)

    async def broken(self, _request: Request, _error: Exception) -> Response:
        """The marked place for what a route did not expect; the server writes the traceback to its log."""
        self._parts.metrics.count("errors_total", "Requests that broke.")
        return problem(500, "this request broke; the log of serve says why")


async def _gone(_request: Request, _error: Exception) -> Response:
    """Who asks has left in the midst of it: nobody reads this, and nothing of ours is broken."""
    return Response(status_code=400)


async def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(error.status_code, error.detail, dict(error.headers or {}))
