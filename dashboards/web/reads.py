"""What the API can be asked: jobs, incidents, verdicts, actions, nodes."""

from __future__ import annotations

import math
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dashboards.overview.overview import Overview
from dashboards.web.objects import job_object, node_objects, verdict_object
from dashboards.web.problems import Problem, answer
from trainwarden.clock import Clock
from trainwarden.json_objects import action_object, incident_object
from trainwarden.records import IncidentRecord

MOST: Final = 1_000  # objects in one answer
DEFAULT: Final = 100


class Reads:
    """The answers, from `overview` alone: nothing here waits for the bus."""

    def __init__(self, overview: Overview, clock: Clock) -> None:
        self._overview = overview
        self._clock = clock

    def routes(self) -> list[Route]:
        """Where the answers hang."""
        return [
            Route("/api/v1/jobs", self.jobs),
            Route("/api/v1/incidents", self.incidents),
            Route("/api/v1/incidents/{id:path}", self.incident),
            Route("/api/v1/verdicts", self.verdicts),
            Route("/api/v1/actions", self.actions),
            Route("/api/v1/nodes", self.nodes),
        ]

    async def jobs(self, _request: Request) -> Response:
        """Every job."""
        with self._overview.lock:
            jobs = [job_object(job, self._clock.now_s()) for job in self._overview.jobs.values()]
        return answer({"jobs": jobs, "stopped_by": self._overview.stopped_by()})

    async def incidents(self, request: Request) -> Response:
        """Incidents, newest first; ``next`` is the cursor of the following page."""
        allow(request, "job", "open", "since_s", "limit", "cursor")
        asked = request.query_params
        lasting, since_s, most = flag(request, "open"), number(request, "since_s"), limit(request)
        with self._overview.lock:
            found = [
                one
                for name, job in self._overview.jobs.items()
                if asked.get("job") in (None, name)
                for one in job.incidents.values()
                if lasting is None or lasting == (one.state != "closed")
                if since_s is None or one.closed_at_s is None or one.closed_at_s >= since_s
            ]
        found.sort(key=_place, reverse=True)
        if (cursor := asked.get("cursor")) is not None:
            after = _placed(cursor)
            found = [one for one in found if _place(one) < after]
        page = found[:most]
        more = f"{page[-1].opened_at_s!r}_{page[-1].id}" if len(found) > most else None
        return answer({"incidents": [incident_object(one) for one in page], "next": more})

    async def incident(self, request: Request) -> Response:
        """One incident with its evidence and actions."""
        with self._overview.lock:
            one = self.known(request.path_params["id"])
            actions = [each for each in self._overview.jobs[one.job].actions.values() if each.incident == one.id]
        said: dict[str, Any] = incident_object(one) | {"evidence": one.evidence, "state": one.state}
        return answer(said | {"actions": [action_object(each) for each in actions]})

    def known(self, incident: str) -> IncidentRecord:
        """The incident of that id.

        Raises
        ------
        Problem
            404 if there is none.
        """
        for job in self._overview.jobs.values():
            if incident in job.incidents:
                return job.incidents[incident]
        raise Problem(404, f"there is no incident '{incident[:100]}'")

    async def verdicts(self, request: Request) -> Response:
        """Verdicts, oldest first: the newest of each job, or with ``since_s`` all that are kept since then."""
        allow(request, "job", "since_s", "limit")
        name, since_s, most = request.query_params.get("job"), number(request, "since_s"), limit(request)
        with self._overview.lock:
            jobs = [job for job in self._overview.jobs.values() if name in (None, job.job)]
            if name is not None and not jobs:
                raise Problem(404, f"there is no job '{name[:100]}'")
            if since_s is None:
                found = [job.verdict for job in jobs if job.verdict is not None]
            else:
                found = [one for job in jobs for one in job.verdicts if one.time_s >= since_s]
        found.sort(key=lambda one: one.time_s)
        return answer({"verdicts": [verdict_object(one) for one in found[-most:]]})

    async def actions(self, request: Request) -> Response:
        """Actions, oldest first, as they are now."""
        allow(request, "job", "limit")
        name, most = request.query_params.get("job"), limit(request)
        with self._overview.lock:
            jobs = [job for job in self._overview.jobs.values() if name in (None, job.job)]
            found = [one for job in jobs for one in job.actions.values()]
        found.sort(key=lambda one: one.at_s)
        return answer({"actions": [action_object(one) | {"job": one.job} for one in found[-most:]]})

    async def nodes(self, _request: Request) -> Response:
        """Every node that sends heartbeats."""
        with self._overview.lock:
            return answer({"nodes": node_objects(self._overview, self._clock.now_s)})


def allow(request: Request, *names: str) -> None:
    """Raises a `Problem` where something is asked that nobody answers: a misspelt filter must not mean all."""
    for name in request.query_params:
        if name not in names:
            raise Problem(400, f"unknown parameter '{name[:40]}'; there are {', '.join(names)}")


def number(request: Request, name: str) -> float | None:
    """A finite number among the parameters."""
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        value = float(text[:40])
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Problem(400, f"{name}: '{text[:40]}' is no number")
    return value


def flag(request: Request, name: str) -> bool | None:
    """``true`` or ``false`` among the parameters."""
    text = request.query_params.get(name)
    if text not in (None, "true", "false"):
        raise Problem(400, f"{name} is true or false, not '{text[:40]}'")
    return None if text is None else text == "true"


def limit(request: Request) -> int:
    """How many objects are asked for."""
    text = request.query_params.get("limit", str(DEFAULT))
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:10]) <= MOST:
        raise Problem(400, f"limit: a whole number from 1 to {MOST}, not '{text[:40]}'")
    return int(text[:10])


def _place(incident: IncidentRecord) -> tuple[float, str]:
    return incident.opened_at_s, incident.id


def _placed(cursor: str) -> tuple[float, str]:
    time_s, _, name = cursor.partition("_")
    try:
        return float(time_s[:40]), name
    except ValueError:
        raise Problem(400, "cursor: that is none of ours") from None
