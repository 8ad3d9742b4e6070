"""The JSON objects of incidents and actions: the same in demo, watch, launch, status and on the web.

People's scripts read them; fields are added freely and never renamed or removed.
"""

from __future__ import annotations

from typing import Any

from trainwarden.records import ActionRecord, IncidentRecord, Suspect


def suspect_object(suspect: Suspect) -> dict[str, Any]:
    """One suspect; unknown places are null."""
    return {
        "rank": suspect.rank,
        "node": suspect.node,
        "device": suspect.device,
        "score": round(suspect.score, 4),
        "reason": suspect.reason,
    }


def incident_object(record: IncidentRecord) -> dict[str, Any]:
    """One incident, most likely suspect and most blamed metric first.

    Examples
    --------
    >>> record = IncidentRecord(id="i1", job="j", kind="hang", severity="sev2", state="opened", revision=0,
    ...     opened_at_s=10.0, updated_at_s=10.0, reason="rank 2 does not move")
    >>> incident_object(record)["closed_at_s"] is None
    True
    """
    return {
        "id": record.id,
        "job": record.job,
        "kind": record.kind,
        "severity": record.severity,
        "opened_at_s": record.opened_at_s,
        "closed_at_s": record.closed_at_s,
        "closed_why": record.evidence.get("closed"),
        "unresolved": record.unresolved,
        "onset_s": record.onset_s,
        "onset_step": record.onset_step,
        "opened_step": record.opened_step,
        "reason": record.reason,
        "suspects": [suspect_object(suspect) for suspect in record.suspects],
        "metrics": list(record.metrics),
        "votes": dict(record.votes),
        "model_versions": dict(record.model_versions),
        "output": list(record.evidence.get("output", ())),
    }


def action_object(record: ActionRecord) -> dict[str, Any]:
    """One action as it last was."""
    return {
        "id": record.id,
        "incident": record.incident,
        "command": record.command,
        "kind": record.kind,
        "outcome": record.outcome,
        "at_s": record.at_s,
        "finished_at_s": record.finished_at_s,
        "plan": record.plan,
        "plan_digest": record.plan_digest,
        "by": record.by,
        "severity": record.severity,
        "after": record.after,
        "blames": record.blames,
        "why": record.why,
    }
