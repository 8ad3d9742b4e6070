"""What the API can be asked: jobs, incidents, verdicts, actions, nodes."""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trainwarden.clock import Clock
from trainwarden.dashboards.explain.explanation import explain, opening
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.dashboards.web.judge import Judge
from trainwarden.dashboards.web.objects import job_object, node_objects, verdict_object
from trainwarden.dashboards.web.problems import Problem, answer
from trainwarden.dashboards.web.request_model import (
    ActionsAsked,
    DetectAsked,
    IncidentsAsked,
    Nothing,
    VerdictsAsked,
    body,
    query,
)
from trainwarden.json_objects import action_object, incident_object
from trainwarden.records import IncidentRecord

LONGEST_S: Final = 7 * 86_400.0  # the bus keeps no more


class Reads:
    """The answers, from `overview` alone: nothing here waits for the bus; only `judge` takes its time."""

    def __init__(self, overview: Overview, clock: Clock, judge: Judge) -> None:
        self._overview = overview
        self._judge = judge
        self._clock = clock

    def routes(self) -> list[Route]:
        """Where the answers hang."""
        return [
            Route("/api/v1/jobs", self.jobs),
            Route("/api/v1/incidents", self.incidents),
            Route("/api/v1/incidents/{id:path}/explain", self.explain),
            Route("/api/v1/incidents/{id:path}", self.incident),
            Route("/api/v1/verdicts", self.verdicts),
            Route("/api/v1/actions", self.actions),
            Route("/api/v1/nodes", self.nodes),
            Route("/api/v1/detect", self.detect, methods=["POST"]),
        ]

    async def jobs(self, request: Request) -> Response:
        """Every job."""
        query(request, Nothing)
        with self._overview.lock:
            jobs = [job_object(job, self._clock.now_s()) for job in self._overview.jobs.values()]
        return answer({"jobs": jobs, "stopped_by": self._overview.stopped_by()})

    async def incidents(self, request: Request) -> Response:
        """Incidents, newest first; ``next`` is the cursor of the following page."""
        asked = query(request, IncidentsAsked)
        with self._overview.lock:
            found = [
                one
                for name, job in self._overview.jobs.items()
                if asked.job in (UNSET, name)
                for one in job.incidents.values()
                if asked.open is UNSET or (asked.open == "true") == (one.state != "closed")
                if asked.since_s is UNSET or one.closed_at_s is None or one.closed_at_s >= asked.since_s
            ]
        found.sort(key=_place, reverse=True)
        if asked.cursor is not UNSET:
            after = _placed(asked.cursor)
            found = [one for one in found if _place(one) < after]
        page = found[: asked.limit]
        more = f"{page[-1].opened_at_s!r}_{page[-1].id}" if len(found) > asked.limit else None
        return answer({"incidents": [incident_object(one) for one in page], "next": more})

    async def incident(self, request: Request) -> Response:
        """One incident with its evidence and actions."""
        query(request, Nothing)
        with self._overview.lock:
            one = self.known(request.path_params["id"])
            actions = [each for each in self._overview.jobs[one.job].actions.values() if each.incident == one.id]
        said: dict[str, Any] = incident_object(one) | {"evidence": one.evidence, "state": one.state}
        return answer(said | {"actions": [action_object(each) for each in actions]})

    async def explain(self, request: Request) -> Response:
        """One incident in plain words."""
        query(request, Nothing)
        with self._overview.lock:
            one = self.known(request.path_params["id"])
            job = self._overview.jobs[one.job]
            actions = [each for each in job.actions.values() if each.incident == one.id]
            verdict = opening(one, job.verdicts)
        return answer(explain(one, actions, verdict))

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
        asked = query(request, VerdictsAsked)
        with self._overview.lock:
            jobs = [job for job in self._overview.jobs.values() if asked.job in (UNSET, job.job)]
            if asked.job is not UNSET and not jobs:
                raise Problem(404, f"there is no job '{asked.job[:100]}'")
            if asked.since_s is UNSET:
                found = [job.verdict for job in jobs if job.verdict is not None]
            else:
                found = [one for job in jobs for one in job.verdicts if one.time_s >= asked.since_s]
        found.sort(key=lambda one: one.time_s)
        return answer({"verdicts": [verdict_object(one) for one in found[-asked.limit :]]})

    async def actions(self, request: Request) -> Response:
        """Actions, oldest first, as they are now."""
        asked = query(request, ActionsAsked)
        with self._overview.lock:
            jobs = [job for job in self._overview.jobs.values() if asked.job in (UNSET, job.job)]
            found = [one for job in jobs for one in job.actions.values()]
        found.sort(key=lambda one: one.at_s)
        return answer({"actions": [action_object(one) | {"job": one.job} for one in found[-asked.limit :]]})

    async def detect(self, request: Request) -> Response:
        """A range judged; without one the newest verdict and the open incidents of the job."""
        asked = await body(request, DetectAsked)
        with self._overview.lock:
            job = self._overview.jobs.get(asked.job)
            if job is None:
                raise Problem(404, f"there is no job '{asked.job[:100]}'")
            verdict, lasting = job.verdict, job.open_incidents()
        if asked.from_s is None and asked.to_s is None:
            said = {"verdict": None if verdict is None else verdict_object(verdict)}
            return answer({"job": asked.job, **said, "incidents": [incident_object(one) for one in lasting]})
        if asked.from_s is None or asked.to_s is None or not 0.0 < asked.to_s - asked.from_s <= LONGEST_S:
            raise Problem(422, f"a range has from_s and a later to_s, {LONGEST_S / 86_400:.0f} days apart at most")
        return answer(await self._judge.judge(asked.job, asked.from_s, asked.to_s))

    async def nodes(self, request: Request) -> Response:
        """Every node that sends heartbeats."""
        query(request, Nothing)
        with self._overview.lock:
            return answer({"nodes": node_objects(self._overview, self._clock.now_s)})


def _place(incident: IncidentRecord) -> tuple[float, str]:
    return incident.opened_at_s, incident.id


def _placed(cursor: str) -> tuple[float, str]:
    time_s, _, name = cursor.partition("_")
    return float(time_s), name
