"""What the API can be asked: jobs, incidents, verdicts, actions, nodes.

The JSON objects of the API that are not incidents or actions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trainwarden.clock import Clock
from trainwarden.dashboards.explain.explanation import explain, opening
from trainwarden.dashboards.overview.job import SILENT_S, JobOverview
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.dashboards.web.judge import Judge
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
from trainwarden.json_objects import action_object, incident_object, suspect_object
from trainwarden.records import IncidentRecord, VerdictRecord


def job_object(job: JobOverview, now_s: float) -> dict[str, Any]:
    """One job as it is now."""
    lasting = job.open_incidents()
    return {
        "job": job.job,
        "state": job.state(now_s),
        "ranks": job.ranks,
        "nodes": len(job.nodes),
        "step": job.pace.highest_step,
        "iteration_s": job.iteration_s,
        "healthy_s": job.healthy_s,
        "layout": layout.summary() if (layout := job.layouts.layout()) is not None else None,
        "last_seen_s": job.seen_s,
        "open_incidents": len(lasting),
        "worst": lasting[0].severity if lasting else None,
        "actions_waiting": len(job.waiting()),
    }


def verdict_object(record: VerdictRecord) -> dict[str, Any]:
    """One verdict with all its votes."""
    return {
        "id": record.id,
        "job": record.job,
        "at_s": record.time_s,
        "anomalous": record.anomalous,
        "kind": record.kind,
        "severity": record.severity,
        "reason": record.reason,
        "rule": record.rule,
        "phase": record.phase or None,
        "step": record.step,
        "iteration_s": record.iteration_s,
        "suspects": [suspect_object(suspect) for suspect in record.suspects],
        "votes": {
            name: {"opinion": vote.opinion, "score": vote.score if vote.opinion != "abstain" else None}
            | ({"reason": vote.reason} if vote.reason else {})
            | ({"provisional": True} if vote.provisional else {})
            for name, vote in record.votes.items()
        },
        "model_versions": record.model_versions,
    }


def node_objects(overview: Overview, now: Callable[[], float] = time.time) -> list[dict[str, Any]]:
    """Every node that sends heartbeats or is not healthy, with the kinds of incidents that suspect it."""
    now_s = now()
    told = {one["node"]: one for one in overview.nodes.objects(now_s)}
    nodes: dict[str, dict[str, Any]] = {
        name: {"node": name, "jobs": [], "ranks": 0, "seen_s": None, "kinds": []}
        for name, one in told.items()
        if one["state"] != "healthy"
    }
    for job in overview.jobs.values():
        suspected = {suspect.node: kind for kind, suspect in reversed(job.suspects(1_000)) if suspect.node}
        for name, beat in job.nodes.items():
            node = nodes.setdefault(name, {"node": name, "jobs": [], "ranks": 0, "seen_s": None, "kinds": []})
            node["jobs"].append(job.job)
            node["ranks"] += len(beat.ranks)
            node["seen_s"] = max(node["seen_s"] or 0.0, job.node_seen_s[name])
            if name in suspected:
                node["kinds"].append(suspected[name])
    for name, node in nodes.items():
        one = told.get(name, {})
        silent = node["seen_s"] is None or now_s - node["seen_s"] > SILENT_S
        well = "silent" if silent else "healthy"
        known = one.get("state", "healthy")
        node["state"] = known if known != "healthy" else "suspect" if node["kinds"] else well
        node.update({key: one.get(key) for key in ("since_s", "why", "advice")}, history=one.get("history", []))
        node["jobs"] = node["jobs"] or one.get("jobs", [])
    return sorted(nodes.values(), key=lambda node: node["node"])


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
                if asked.open is UNSET or (asked.open == "true") == one.wants_action
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
