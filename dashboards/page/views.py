"""What the templates are given: plain values, taken from the overview while its lock is held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from trainwarden.actions.coordinator.cluster_status import FRESH_S, cluster
from trainwarden.dashboards.explain.explanation import abstentions, explain, opening
from trainwarden.dashboards.overview.job import SEVERITIES, JobOverview, waits
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.dashboards.page.charts import Series, heat_map, iteration_chart, votes_chart
from trainwarden.records import ActionRecord, IncidentRecord, VerdictRecord, basis_said

SHOWN_OPEN: Final = 50
SHOWN_INCIDENTS: Final = 20
SHOWN_ACTIONS: Final = 50
SHOWN_EVENTS: Final = 50
SHOWN_MARKS: Final = 60
PAGE: Final = 100  # incidents on one page of the list


def job_line(job: JobOverview, now_s: float) -> dict[str, Any]:
    """One job in the table of all."""
    lasting = job.open_incidents()
    pace_s, healthy_s = job.iteration_s, job.healthy_s
    return {
        "name": job.job,
        "state": job.state(now_s),
        "ranks": job.ranks,
        "nodes": len(job.nodes),
        "step": job.pace.highest_step,
        "iteration_s": pace_s,
        "basis": basis_said(*basis) if (basis := job.pace.basis) is not None else None,
        "layout": layout.summary() if (layout := job.layouts.layout()) is not None else None,
        "healthy_s": healthy_s,
        "ratio": pace_s / healthy_s if pace_s is not None and healthy_s else None,
        "worst": lasting[0] if lasting else None,
        "open": len(lasting),
        "waiting": len(job.waiting()),
        "seen_s": job.seen_s,
    }


def home(overview: Overview, now_s: float) -> dict[str, Any]:
    """Jobs, what lasts, and what waits for a word."""
    with overview.lock:
        jobs = list(overview.jobs.values())
        lines = [job_line(job, now_s) for job in jobs]
        lasting = sorted((one for job in jobs for one in job.open_incidents()), key=_gravest)
        waiting = [action for job in jobs for action in job.waiting()]
        ready = overview.ready
        tasks = sorted(overview.tasks.values(), key=lambda task: task.job)
        fresh = overview.coordinator_s is not None and now_s - overview.coordinator_s < FRESH_S
    lines.sort(key=lambda line: (_worst(line["worst"]), line["state"] != "running", line["name"]))
    return {
        "jobs": lines,
        "lasting": lasting[:SHOWN_OPEN],
        "lasting_in_all": len(lasting),
        "waiting": waiting[:SHOWN_ACTIONS],
        "ready": ready,
        "cluster": cluster(tasks, fresh=fresh) if tasks else None,
    }


class JobShown(msgspec.Struct, frozen=True, kw_only=True):
    """What one job's page is made of, copied: charts are drawn from it without the lock."""

    line: dict[str, Any]
    duration: Series | None
    compute: Series | None
    verdicts: list[VerdictRecord]
    incidents: list[IncidentRecord]
    incidents_in_all: int
    actions: list[ActionRecord]
    events: list[Any]
    healthy_s: float | None

    @classmethod
    def of(cls, job: JobOverview, now_s: float, *, most: int = SHOWN_INCIDENTS) -> JobShown:
        """What is known of `job`; the lock of its overview must be held."""
        job.pace.apply_pending()
        incidents = sorted(job.incidents.values(), key=_newest, reverse=True)
        return cls(
            line=job_line(job, now_s),
            duration=Series.of(job.pace, "duration"),
            compute=Series.of(job.pace, "compute"),
            verdicts=list(job.verdicts),
            incidents=incidents[:most],
            incidents_in_all=len(incidents),
            actions=sorted(job.actions.values(), key=lambda one: one.at_s, reverse=True)[:SHOWN_ACTIONS],
            events=list(job.events)[: -SHOWN_EVENTS - 1 : -1],
            healthy_s=job.healthy_s,
        )

    def context(self) -> dict[str, Any]:
        """Charts and tables for the template."""
        by_rank = self.compute or self.duration
        charted = None
        if self.duration is not None:
            charted = iteration_chart(self.duration, self.healthy_s, list(self._marks()))
        return {
            "job": self.line,
            "iterations": charted,
            "heat": None if by_rank is None else heat_map(by_rank),
            "heat_of": "compute time" if self.compute is not None else "iteration time",
            "votes": votes_chart(self.verdicts, charted["span"] if charted else None),
            "incidents": self.incidents,
            "incidents_in_all": self.incidents_in_all,
            "waiting": [one for one in self.actions if waits(one)],
            "actions": self.actions,
            "events": self.events,
        }

    def _marks(self) -> Iterable[tuple[float, str, str]]:
        for one in self.incidents[:SHOWN_MARKS]:
            onset_s = one.onset_s if one.onset_s is not None else one.opened_at_s
            yield onset_s, "onset", f"{one.kind} {one.severity}: {one.reason}"
        for action in self.actions[:SHOWN_MARKS]:
            if action.outcome in ("done", "started", "failed"):
                yield action.finished_at_s or action.at_s, "act", f"{action.kind} {action.outcome}: {action.why}"


def incident(job: JobOverview, one: IncidentRecord, here: str | None = None) -> dict[str, Any]:
    """One incident with what was done about it, for readers on node `here`; the lock must be held."""
    verdict = opening(one, job.verdicts)
    silent = tuple(abstentions(verdict))
    return {
        "incident": one,
        "evidence": {name: value for name, value in one.evidence.items() if value is not None},
        "actions": (actions := sorted(_about(job, one), key=lambda each: each.at_s)),
        "waiting": [each for each in actions if waits(each)],
        "explained": (explained := explain(one, actions, verdict, here=here)),
        "why_not_others": [words for words in explained.why_not_others if words not in silent],
        "silent": silent,
    }


def _about(job: JobOverview, one: IncidentRecord) -> Iterable[ActionRecord]:
    return (each for each in job.actions.values() if each.incident == one.id)


def incidents(overview: Overview, job: str | None, lasting: bool, page: int) -> dict[str, Any]:
    """One page of the list of incidents, newest first."""
    with overview.lock:
        found = [
            one
            for name, each in overview.jobs.items()
            if job in (None, name)
            for one in each.incidents.values()
            if not lasting or one.wants_action
        ]
    found.sort(key=_newest, reverse=True)
    pages = max(1, -(-len(found) // PAGE))
    page = min(page, pages)
    shown = found[(page - 1) * PAGE : page * PAGE]
    return {"incidents": shown, "in_all": len(found), "page": page, "pages": pages, "job": job, "lasting": lasting}


def find(overview: Overview, name: str) -> tuple[JobOverview, IncidentRecord] | None:
    """The incident called `name` and its job; the lock must be held."""
    for job in overview.jobs.values():
        if name in job.incidents:
            return job, job.incidents[name]
    return None


def _newest(one: IncidentRecord) -> tuple[float, str]:
    return one.opened_at_s, one.id


def _gravest(one: IncidentRecord) -> tuple[int, float]:
    return SEVERITIES.index(one.severity), -one.opened_at_s


def _worst(one: IncidentRecord | None) -> int:
    return len(SEVERITIES) if one is None else SEVERITIES.index(one.severity)


def named(suspects: Sequence[Any]) -> str:
    """Where the suspects are, the most likely three.

    Examples
    --------
    >>> from trainwarden.records import Suspect
    >>> named([Suspect(score=1.0, reason="r", rank=2, node="n1"), Suspect(score=0.5, reason="r", device="GPU-0")])
    'rank 2, node n1; device GPU-0'
    """
    return "; ".join(
        ", ".join(f"{what} {value}" for what in ("rank", "node", "device") if (value := getattr(one, what)) is not None)
        for one in suspects[:3]
    )
