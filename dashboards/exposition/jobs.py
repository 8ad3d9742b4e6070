"""What the overview knows, as Prometheus reads it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, get_args

import numpy as np

from trainwarden.dashboards.exposition import families
from trainwarden.dashboards.exposition.families import Family
from trainwarden.dashboards.overview.job import SEVERITIES, JobOverview
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.records import ActionKind, IncidentKind, Outcome

MOST: Final = 10  # suspects and slow ranks of a job: what is told must not grow with the cluster
KINDS: Final = get_args(IncidentKind)
STALE_S: Final = 60.0
MEDIAN: Final = "median"  # in place of a rank

Labels = tuple[str, ...]
Sample = tuple[Family, Labels, float]


class JobsText:
    """The families of `families.OF_JOBS` in Prometheus' text format, with what is known now.

    As `prometheus_client` writes them; but that takes almost three times as long for thousands of jobs' series
    (`trainwarden bench scrape`), for it looks at every label anew. Here the text of a series' labels is kept from one
    scrape to the next.

    Examples
    --------
    >>> from trainwarden.clock import SystemClock
    >>> JobsText(Overview(SystemClock())).render().splitlines()[0]
    b'# HELP trainwarden_incidents_open Incidents that are open, or whose job is down by them.'
    """

    def __init__(self, overview: Overview) -> None:
        self._overview = overview
        self._kept: dict[tuple[str, Labels], str] = {}

    def render(self) -> bytes:
        """The text. Calls may overlap."""
        lines: dict[str, list[str]] = {family.name: _head(family) for family in families.OF_JOBS}
        kept, known = {}, self._kept
        for family, labels, value in samples(self._overview):
            series = family.name, labels
            text = kept[series] = known.get(series) or _series(family, labels)
            lines[family.name].append(f"{text} {value!r}\n")
        self._kept = kept
        return "".join(line for of_family in lines.values() for line in of_family).encode()


def samples(overview: Overview) -> list[Sample]:
    """Every sample; no value is NaN or infinite.

    None before the overview's first round: what is over looks open while its history is half read, and would wake
    somebody each time that the service starts.
    """
    with overview.lock:
        if overview.round_s is None:
            return []
        found = [sample for job in overview.jobs.values() for sample in _of_job(job, overview.round_s)]
        found += _of_all(overview)
    return [sample for sample in found if math.isfinite(sample[2])]


def _head(family: Family) -> list[str]:
    text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
    return [f"# HELP {family.name} {text}\n", f"# TYPE {family.name} {family.kind}\n"]


def _series(family: Family, labels: Labels) -> str:
    """Name and labels; of what cannot be written as UTF-8 a question mark is left."""
    if not labels:
        return family.name
    plain = (value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for value in labels)
    pairs = (f'{name}="{value}"' for name, value in zip(family.labels, plain, strict=True))
    return f"{family.name}{{{','.join(pairs)}}}".encode(errors="replace").decode()


def _of_all(overview: Overview) -> Iterator[Sample]:
    yield families.STOPPED, (), float(overview.stopped_by() is not None)
    if overview.tasks and overview.coordinator_s is not None:
        yield families.COORDINATOR_SEEN, (), overview.coordinator_s
    votes: set[tuple[str, str, str]] = set()
    for job in overview.jobs.values():
        if job.verdict is not None and not job.ended:
            for name, version in job.verdict.model_versions.items():
                vote = job.verdict.votes.get(name)
                votes.add((name, version, "provisional" if vote is not None and vote.provisional else "champion"))
    for labels in sorted(votes):
        yield families.MODEL, labels, 1.0


def _of_job(job: JobOverview, now_s: float | None) -> Iterator[Sample]:
    yield from _incidents(job)
    if job.judged_s is not None:
        yield families.VERDICT_TIME, (job.job,), job.judged_s
    if not job.ended and _recent(job.judged_s, now_s):
        yield from _verdict(job)
    if not job.ended and _recent(job.seen_s, now_s):
        yield from _ranks(job)
    for (kind, outcome), number in job.actions_total.items():
        yield families.ACTIONS, (job.job, kind, outcome), float(number)
    for kind in get_args(ActionKind):
        for outcome in get_args(Outcome):
            if (kind, outcome) not in job.actions_total:
                yield families.ACTIONS, (job.job, kind, outcome), 0.0  # a counter's birth is no increase
    for phase, spent_s in job.transition_s.items():
        yield families.TRANSITION, (job.job, phase), spent_s
    yield families.ACTIONS_WAITING, (job.job,), float(len(job.waiting()))
    yield families.RANKS, (job.job,), float(job.ranks)
    yield families.NODES, (job.job,), float(len(job.nodes))
    for node, seen_s in job.node_seen_s.items():
        yield families.NODE_SEEN, (job.job, node), seen_s
    known = ((families.ITERATION_HEALTHY, job.healthy_s), (families.STEP, job.pace.highest_step))
    for family, value in known:
        if value is not None:
            yield family, (job.job,), float(value)


def _recent(time_s: float | None, now_s: float | None) -> bool:
    """Whether that was a short while ago: what is told of a source that is gone is dropped, not frozen."""
    return time_s is not None and (now_s is None or now_s - time_s <= STALE_S)


def _incidents(job: JobOverview) -> Iterator[Sample]:
    lasting: dict[tuple[str, str], int] = {}
    for incident in job.open_incidents():
        lasting[incident.kind, incident.severity] = lasting.get((incident.kind, incident.severity), 0) + 1
    for kind in KINDS:
        for severity in SEVERITIES:
            total = job.incidents_total[kind, severity]
            yield families.INCIDENTS, (job.job, kind, severity), float(total)
            if total or (kind, severity) in lasting:
                yield families.INCIDENTS_OPEN, (job.job, kind, severity), float(lasting.get((kind, severity), 0))
    told: set[Labels] = set()
    for kind, suspect in job.suspects(MOST):
        rank = "" if suspect.rank is None else str(suspect.rank)
        labels = (job.job, rank, suspect.node or "", suspect.device or "", kind)
        if labels not in told:
            told.add(labels)
            yield families.SUSPECT_SCORE, labels, suspect.score


def _verdict(job: JobOverview) -> Iterator[Sample]:
    verdict = job.verdict
    assert verdict is not None
    yield families.ANOMALOUS, (job.job,), float(verdict.anomalous)
    if job.iteration_s is not None:
        yield families.ITERATION, (job.job,), job.iteration_s
    for detector, vote in verdict.votes.items():
        if vote.opinion != "abstain":
            yield families.DETECTOR_SCORE, (job.job, detector), vote.score
            yield families.DETECTOR_ANOMALOUS, (job.job, detector), float(vote.opinion == "anomalous")


def _ranks(job: JobOverview) -> Iterator[Sample]:
    compute_s, wait_s = job.pace.recent("compute"), job.pace.recent("wait")
    known = np.flatnonzero(~np.isnan(compute_s))
    if not known.size:
        return
    yield families.RANK_COMPUTE, (job.job, MEDIAN), float(np.median(compute_s[known]))
    waits = wait_s[~np.isnan(wait_s)]
    if waits.size:
        yield families.RANK_WAIT, (job.job, MEDIAN), float(np.median(waits))
    ranks = job.pace.ranks
    for row in known[np.argsort(-compute_s[known], kind="stable")][:MOST]:
        yield families.RANK_COMPUTE, (job.job, str(ranks[row])), float(compute_s[row])
        yield families.RANK_WAIT, (job.job, str(ranks[row])), float(wait_s[row])
