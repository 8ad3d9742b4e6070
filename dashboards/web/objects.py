"""The JSON objects of the API that are not incidents or actions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from trainwarden.dashboards.overview.job import SILENT_S, JobOverview
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.json_objects import suspect_object
from trainwarden.records import VerdictRecord


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
