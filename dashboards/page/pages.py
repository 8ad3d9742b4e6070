"""The routes of the page: all jobs, one job, incidents, what changes, and its own files."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from trainwarden.clock import Clock
from trainwarden.commands.builders import EVERY_JOB
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.dashboards.page import views
from trainwarden.dashboards.page.charts import Series
from trainwarden.dashboards.page.events import Listeners
from trainwarden.dashboards.page.lines import ReadLogs, around
from trainwarden.dashboards.page.panels import RANGES_S, panels, wanted_span
from trainwarden.dashboards.page.render import asset, render
from trainwarden.errors import BusUnavailable

log = logging.getLogger("trainwarden.page")

FILES: Final = {"page.css": "text/css", "page.js": "text/javascript", "icon.svg": "image/svg+xml"}
_FRESH: Final = {"cache-control": "no-store"}


class Pages:
    """The page, live: from `overview` alone, but for log lines, which are read when they are asked for.

    `here` is the node whose own users alone can ask.
    """

    def __init__(
        self, overview: Overview, clock: Clock, read_logs: ReadLogs, read_metrics: ReadLogs, here: str | None = None
    ) -> None:
        self._overview = overview
        self._clock = clock
        self._read_logs = read_logs
        self._read_metrics = read_metrics
        self._here = here
        self._one_reader = asyncio.Semaphore(1)
        self._listeners = Listeners(overview)

    def close(self) -> None:
        """Let everybody go who listens: the server ends."""
        self._listeners.close()

    def routes(self) -> list[Route]:
        """Where the pages hang."""
        return [
            Route("/", self.home),
            Route("/jobs/{job:path}", self.job),
            Route("/incidents", self.incidents),
            Route("/incidents/{id:path}", self.incident),
            Route("/logs/{id:path}", self.logs),
            Route("/numbers/{id:path}", self.numbers),
            Route("/events", self.events),
            Route("/static/{name}", self.file),
        ]

    async def home(self, request: Request) -> Response:
        """All jobs, what lasts, and what waits for a word."""
        return await self._shown(
            request, "home.html", lambda: views.home(self._overview, self._clock.now_s()), live=EVERY_JOB
        )

    async def job(self, request: Request) -> Response:
        """One job."""
        name = request.path_params["job"]

        def context() -> dict[str, Any] | None:
            with self._overview.lock:
                job = self._overview.jobs.get(name)
                shown = None if job is None else views.JobShown.of(job, self._clock.now_s())
            return None if shown is None else shown.context()

        return await self._shown(request, "job.html", context, live=name, missing=f"There is no job “{name[:100]}”.")

    async def incidents(self, request: Request) -> Response:
        """The list of incidents, a page at a time."""
        asked = request.query_params
        number = asked.get("page", "1")
        page = int(number) if number.isascii() and number.isdigit() and 0 < len(number) < 7 else 1
        job, lasting = asked.get("job"), asked.get("open") == "true"
        return await self._shown(
            request,
            "incidents.html",
            lambda: views.incidents(self._overview, job, lasting, max(1, page)),
            live=job or EVERY_JOB,
        )

    async def incident(self, request: Request) -> Response:
        """One incident."""
        name = request.path_params["id"]

        def context() -> dict[str, Any] | None:
            with self._overview.lock:
                found = views.find(self._overview, name)
                shown = None if found is None else views.incident(*found, self._here)
            return None if shown is None else shown | {"ranges": RANGES_S, "before_s": _before_s(request)}

        missing = f"There is no incident “{name[:100]}”; it may have been too long ago."
        with self._overview.lock:
            found = views.find(self._overview, name)
        return await self._shown(request, "incident.html", context, live=found[0].job if found else "", missing=missing)

    async def logs(self, request: Request) -> Response:
        """Log lines around the first error of an incident; one reader at a time, since a broker may be far."""
        with self._overview.lock:
            found = views.find(self._overview, request.path_params["id"])
        if found is None:
            return PlainTextResponse("no such incident", 404)
        incident = found[1]
        async with self._one_reader:
            try:
                lines = await run_in_threadpool(around, incident, self._read_logs)
            except BusUnavailable as error:
                log.info("log lines could not be read", extra={"fields": {"error": str(error)}})
                return HTMLResponse(render("logs.html", found=None, why="the bus is away"), headers=_FRESH)
        return HTMLResponse(render("logs.html", found=lines, why=""), headers=_FRESH)

    async def numbers(self, request: Request) -> Response:
        """Metrics of an incident's suspect beside its peers', the job's loss and throughput."""
        with self._overview.lock:
            found = views.find(self._overview, request.path_params["id"])
            pace = None if found is None else Series.of(found[0].pace, "duration")
        if found is None:
            return PlainTextResponse("no such incident", 404)
        span = wanted_span(found[1], _before_s(request), self._clock.now_s())
        async with self._one_reader:
            try:
                drawn = await run_in_threadpool(panels, found[1], span, self._read_metrics, self._read_logs, pace)
            except BusUnavailable as error:
                log.info("metrics could not be read", extra={"fields": {"error": str(error)}})
                return HTMLResponse(render("numbers.html", numbers=None, why="the bus is away"), headers=_FRESH)
        return HTMLResponse(render("numbers.html", numbers=drawn, why=""), headers=_FRESH)

    async def events(self, _request: Request) -> Response:
        """Server-sent events."""
        return self._listeners.stream()

    async def file(self, request: Request) -> Response:
        """One of our own files."""
        name = request.path_params["name"]
        if name not in FILES:
            return PlainTextResponse("no such file", 404)
        return Response(asset(name), media_type=FILES[name], headers={"cache-control": "no-cache"})

    async def _shown(
        self,
        request: Request,
        template: str,
        context: Callable[[], dict[str, Any] | None],
        *,
        live: str,
        missing: str = "",
    ) -> Response:
        """`template` with what `context` gives; drawn beside the loop that answers."""
        person = request.state.person
        around_it = {
            "frozen": False, "live": live, "person": person, "may_act": person.may("act"),
            "may_approve": person.may("approve"),
            "stopped_by": self._overview.stopped_by(live or EVERY_JOB),
        }  # fmt: skip

        def drawn() -> tuple[str, int]:
            told = context()
            if told is None:
                return render("missing.html", **(around_it | {"live": ""}), what=missing), 404
            return render(template, **told, **around_it), 200

        text, status = await run_in_threadpool(drawn)
        return HTMLResponse(text, status, headers=_FRESH)


def _before_s(request: Request) -> float:
    """How much of the time before an incident is asked for; the shortest unless it is one of the choices."""
    asked = request.query_params.get("before", "")
    return next((one for one in RANGES_S if asked == f"{one:.0f}"), RANGES_S[0])
