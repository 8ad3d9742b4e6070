"""What the overview knows, as metric families of Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Final, get_args

import numpy as np
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from dashboards.exposition import families
from dashboards.exposition.families import Family
from dashboards.overview.job import SEVERITIES, JobOverview
from dashboards.overview.overview import Overview
from trainwarden.records import ActionKind, IncidentKind, Outcome

MOST: Final = 10  # suspects and slow ranks of a job: what is told must not grow with the cluster
KINDS: Final = get_args(IncidentKind)
MEDIAN: Final = "median"  # in place of a rank

Labels = tuple[str, ...]
Sample = tuple[Family, Labels, float]


class JobsCollector:
    """A collector for a `prometheus_client` registry.

    Examples
    --------
    >>> from trainwarden.clock import SystemClock
    >>> [family.name for family in JobsCollector(Overview(SystemClock())).collect()][:2]
    ['trainwarden_incidents_open', 'trainwarden_incidents']
    """

    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def collect(self) -> Iterable[Metric]:
        """Every family of `families.OF_JOBS`, with what is known now."""
        told: dict[str, Metric] = {}
        for family in families.OF_JOBS:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            told[family.name] = kind(family.name, family.help, labels=family.labels)
        with self._overview.lock:
            samples = [sample for job in self._overview.jobs.values() for sample in _of_job(job)]
            samples += _of_all(self._overview)
        for family, labels, value in samples:
            if math.isfinite(value):
                told[family.name].add_metric(labels, value)  # type: ignore[attr-defined] # both kinds have it
        return told.values()


def _of_all(overview: Overview) -> Iterator[Sample]:
    yield families.STOPPED, (), float(overview.stopped_by() is not None)
    votes: set[tuple[str, str]] = set()
    for job in overview.jobs.values():
        if job.verdict is not None and not job.ended:
            votes |= set(job.verdict.model_versions.items())
    for detector, version in sorted(votes):
        yield families.MODEL, (detector, version, "champion"), 1.0


def _of_job(job: JobOverview) -> Iterator[Sample]:
    yield from _incidents(job)
    yield from _verdict(job)
    yield from _ranks(job)
    for (kind, outcome), number in job.actions_total.items():
        yield families.ACTIONS, (job.job, kind, outcome), float(number)
    for kind in get_args(ActionKind):
        for outcome in get_args(Outcome):
            if (kind, outcome) not in job.actions_total:
                yield families.ACTIONS, (job.job, kind, outcome), 0.0  # a counter's birth is no increase
    yield families.ACTIONS_WAITING, (job.job,), float(len(job.waiting()))
    yield families.RANKS, (job.job,), float(job.ranks)
    yield families.NODES, (job.job,), float(len(job.nodes))
    for node, beat in job.nodes.items():
        yield families.NODE_SEEN, (job.job, node), beat.time_s
    known = (
        (families.ITERATION, job.iteration_s),
        (families.ITERATION_HEALTHY, job.healthy_s),
        (families.STEP, job.pace.highest_step),
    )
    for family, value in known:
        if value is not None:
            yield family, (job.job,), float(value)


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
    if verdict is None:
        return
    yield families.VERDICT_TIME, (job.job,), verdict.time_s
    if job.ended:
        return  # nobody votes any more
    yield families.ANOMALOUS, (job.job,), float(verdict.anomalous)
    for detector, vote in verdict.votes.items():
        if vote.opinion != "abstain":
            yield families.DETECTOR_SCORE, (job.job, detector), vote.score
            yield families.DETECTOR_ANOMALOUS, (job.job, detector), float(vote.opinion == "anomalous")


def _ranks(job: JobOverview) -> Iterator[Sample]:
    compute_s, wait_s = job.pace.recent("compute"), job.pace.recent("wait")
    known = np.flatnonzero(~np.isnan(compute_s))
    if job.ended or not known.size:
        return
    yield families.RANK_COMPUTE, (job.job, MEDIAN), float(np.median(compute_s[known]))
    waits = wait_s[~np.isnan(wait_s)]
    if waits.size:
        yield families.RANK_WAIT, (job.job, MEDIAN), float(np.median(waits))
    ranks = job.pace.ranks
    for row in known[np.argsort(-compute_s[known], kind="stable")][:MOST]:
        yield families.RANK_COMPUTE, (job.job, str(ranks[row])), float(compute_s[row])
        yield families.RANK_WAIT, (job.job, str(ranks[row])), float(wait_s[row])
