"""What a pass over a recorded folder found, as the JSON objects that contracts fix."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from trainwarden.detectors.logs.log_window import LogWindow
from trainwarden.detectors.pace.change_point import ChangePoint
from trainwarden.detectors.peers.peer_deviation import PeerDeviation
from trainwarden.detectors.recorded.replay import ReplayResult
from trainwarden.detectors.transfers.collective_waits import CollectiveWaits
from trainwarden.json_objects import incident_object
from trainwarden.recorded.job import RecordedJob

MAX_LISTED: Final = 10_000
SPEAKS: Final = 0.5  # the score from which on a vote is for an incident
D = TypeVar("D")


def job_object(result: ReplayResult) -> dict[str, Any]:
    """The object of one job; unknown is null."""
    whole = _whole_job(result.job)
    incidents = [incident_object(record) for record in result.incidents]
    for incident in incidents:
        nameless = whole and _by_steps_alone(result, incident["votes"])
        for suspect in incident["suspects"]:
            suspect["node"] = suspect["node"] or None
            suspect["rank"] = None if nameless else suspect["rank"]
    return {
        "job": result.job.name,
        "rule": result.rule,
        "input": input_object(result.job),
        "incidents": incidents,
        "change_points": _change_points(result, whole),
        "log_findings": _log_findings(result),
        "stragglers": [] if whole else _worst_first([*_stragglers(result), *_waited_for(result)]),
        "abstained": dict(result.abstained),
        "judged": judged_object(result),
    }


def judged_object(result: ReplayResult) -> dict[str, Any]:
    """Which files were read and which were not, what was assumed, and which detectors had input."""
    job = result.job
    return {
        "files": [{"path": one.path, "format": one.format, "rows": one.rows} for one in job.files[:MAX_LISTED]],
        "unread": [{"path": one.path, "why": one.why} for one in job.unread[:MAX_LISTED]],
        "notes": list(job.notes[:MAX_LISTED]),
        "detectors": [name for name in result.detectors if name not in result.abstained],
    }


def input_object(job: RecordedJob) -> dict[str, Any]:
    """How much there was to read; `span_s` is null where nothing carries a time."""
    metrics, iterations = job.metrics, job.iterations
    span = job.span_s
    return {
        "metrics_rows": 0 if metrics is None else int(metrics.times_s.size),
        "replaced_rows": 0 if metrics is None else metrics.replaced,
        "entities": 0 if metrics is None else len(metrics.nodes),
        "metrics": 0 if metrics is None else len(metrics.names),
        "iterations": 0 if iterations is None else int(iterations.step.size),
        "collectives": 0 if job.collectives is None else int(job.collectives.step.size),
        "log_lines": sum(len(log.lines) for log in job.logs),
        "span_s": None if span is None else span[1] - span[0],
    }


def _whole_job(job: RecordedJob) -> bool:
    """True if step times are the whole job's, not those of single ranks."""
    return job.iterations is not None and set(job.iterations.ranks) <= {None} and job.collectives is None


def _by_steps_alone(result: ReplayResult, votes: dict[str, float]) -> bool:
    """Whether only step times speak for an incident: those of a whole job name no rank; logs and facts do."""
    told = [name for name, score in votes.items() if score >= SPEAKS]
    return all(name in result.detectors and result.detectors[name].role.reads == "steps" for name in told)


def _of(result: ReplayResult, kind: type[D]) -> D | None:
    """The detector of `kind`, if it was asked."""
    return next((one for one in result.detectors.values() if isinstance(one, kind)), None)


def _change_points(result: ReplayResult, whole: bool) -> list[dict[str, Any]]:
    detector = _of(result, ChangePoint)
    if detector is None:
        return []
    return [
        {
            "rank": None if whole else change.rank,
            "step": change.step,
            "reported_step": change.reported_step,
            "time_s": change.time_s,
            "before_s": change.before_s,
            "after_s": change.after_s,
            "ratio": change.ratio,
            "direction": change.direction,
            "verified": True,
            "planned": change.planned,
        }
        for change in sorted(detector.found, key=lambda change: change.reported_step)[:MAX_LISTED]
    ]


def _log_findings(result: ReplayResult) -> list[dict[str, Any]]:
    detector = _of(result, LogWindow)
    if detector is None:
        return []
    return [
        {
            "file": finding.source.partition("#")[0],
            "line_number": finding.line_numbers[0],
            "line_numbers": list(finding.line_numbers),
            "rank": finding.rank,
            "node": finding.node or None,
            "class": finding.class_,
            "rule": finding.rule,
            "kind": finding.kind,
            "role": finding.role,
            "count": finding.count,
            "time_s": finding.time_s,
        }
        for finding in list(detector.findings)[:MAX_LISTED]
    ]


def _stragglers(result: ReplayResult) -> list[dict[str, Any]]:
    detector = _of(result, PeerDeviation)
    if detector is None:
        return []
    return [
        {
            "rank": episode.rank,
            "node": episode.node or None,
            "from_step": episode.from_step,
            "to_step": episode.to_step,
            "reported_step": episode.reported_step,
            "ratio": episode.ratio,
            "basis": episode.basis,
            "evidence": episode.evidence,
        }
        for episode in detector.episodes
    ]


def _waited_for(result: ReplayResult) -> list[dict[str, Any]]:
    """Stragglers that collective calls show."""
    detector = _of(result, CollectiveWaits)
    if detector is None:
        return []
    return [
        {
            "rank": spell.rank,
            "node": spell.node or None,
            "from_step": spell.from_step,
            "to_step": spell.to_step,
            "reported_step": spell.reported_step,
            "ratio": 1.0 + spell.share,
            "basis": "peers",
            "evidence": "collectives",
        }
        for spell in detector.spells
    ]


def _worst_first(stragglers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(stragglers, key=lambda one: -float(one["ratio"]))[:MAX_LISTED]
