"""What `trainwarden serve` knows of a fleet of 1,500 nodes: many jobs, all of them judged, some of them ill."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tests.web_doubles import Web, heartbeat, incident, verdict
from trainwarden.dashboards.exposition import families
from trainwarden.dashboards.exposition.jobs import samples
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.records import IterationRecord, Suspect, Vote

JOBS, NODES_PER_JOB, RANKS_PER_NODE = 150, 10, 8
DETECTORS = 15


def fleet() -> Web:
    """All of it, newly told."""
    web = Web()
    now_s = web.clock.now_s()
    votes = {f"detector_{number}": Vote(opinion="anomalous", score=0.9) for number in range(DETECTORS)}
    for number in range(JOBS):
        job = f"job-{number}"
        for node in range(NODES_PER_JOB):
            ranks = range(node * RANKS_PER_NODE, (node + 1) * RANKS_PER_NODE)
            web.tell_of(heartbeat(f"node-{number}-{node}", ranks, job=job))
            columns = {"steps": (1,), "end_s": (now_s,), "duration_s": (1.0,), "compute_s": (0.8,), "wait_s": (0.2,)}
            web.tell_of(
                *(IterationRecord(job=job, node=f"n{node}", rank=rank, incarnation="a", **columns) for rank in ranks)
            )
        suspects = tuple(Suspect(score=0.5, reason="r", rank=rank, node="n") for rank in range(20))
        web.tell_of(verdict(now_s, votes, job=job, iteration_s=1.0, model_versions={"pca": "1"}))
        web.tell_of(incident(f"{job}/hang/1", job=job, suspects=suspects))
    web.overview.tick(now_s)
    return web


class Plain:
    """What `JobsText` tells, by the library's own collector: the twin that it is held against, and timed beside."""

    def __init__(self, overview: Overview) -> None:
        self._overview = overview

    def collect(self) -> Iterable[Metric]:
        """Every family."""
        told = {}
        for family in families.OF_JOBS:
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            told[family.name] = kind(family.name, family.help, labels=family.labels)
        for family, values, value in samples(self._overview):
            told[family.name].add_metric(values, value)
        return told.values()
