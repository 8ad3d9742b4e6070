"""Metrics of a recording, scored at once, and the same samples through a live job's memory: the same verdicts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.detectors import recordings
from trainwarden.detectors.configured_detectors import chosen, rule
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.recorded.learning import bundle_of
from trainwarden.detectors.recorded.metrics import score_recorded
from trainwarden.detectors.recorded.replay import replay
from trainwarden.recorded.job import MetricTable, RecordedJob
from trainwarden.records import IncidentRecord, MetricsRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings, parse

# Entities that differ in level, so that each follows a scale of its own: where a fault could teach most.
OWN = parse(
    VoteConfig,
    {
        "members": {"metric_change": 2.0, "kmeans": 1.0, "nearest": 1.0, "pca": 1.0},
        "preparation": {"warm_up_rows": 40, "prior_rows": 40, "own_scale": "always"},
    },
    "models",
)
NAMES = [name for name, one in chosen(DetectionSettings()).items() if one.role.reads == "scores"]


def live(table: MetricTable, bundle: ModelBundle) -> list[IncidentRecord]:
    """Incidents of the samples of `table` sent as agents do, one window for each time."""
    settings = DetectionSettings()
    newest: dict[str, IncidentRecord] = {}
    detectors = {name: one.made() for name, one in chosen(settings, NAMES).items()}
    watch = JobMonitor("job", detectors, rule(settings), SelfMetrics("detector"), bundle)
    for time_s in np.unique(table.times_s).tolist():
        for row in np.flatnonzero(table.times_s == time_s).tolist():
            values = tuple((float(value),) for value in table.values[row])
            node = table.nodes[table.entity[row]] or ""
            watch.state.feed(
                MetricsRecord(job="job", node=node, time_s=time_s, devices=("",), names=table.names, values=values)
            )
        newest |= {one.id: one for one in watch.score(time_s) if isinstance(one, IncidentRecord)}
    return sorted(newest.values(), key=lambda one: one.opened_at_s)


def recorded(job: RecordedJob, bundle: ModelBundle) -> list[IncidentRecord]:
    return replay(job, DetectionSettings(), names=NAMES, scores=score_recorded(job, bundle)).incidents


@pytest.mark.thorough
def test_a_long_fault_gives_the_same_incidents_live_and_recorded() -> None:
    """It lasts for five times what the entity had shown before; both are told of it until its end, and once."""
    bundle = bundle_of(recordings.job(metrics=recordings.metrics(rows=600, seed=1, every_s=60.0)), OWN)
    table = recordings.metrics(
        rows=700, every_s=60.0, strange=lambda entity, row: 12.0 if entity == 2 and 100 <= row < 600 else 0.0
    )
    at_once, in_turn = recorded(recordings.job(metrics=table), bundle), live(table, bundle)
    assert [(one.kind, one.suspects[0].node) for one in at_once] == [("metric_anomaly", "node2")]
    for one, other in zip(at_once, in_turn, strict=True):
        assert (one.kind, one.suspects, one.reason) == (other.kind, other.suspects, other.reason)
        assert (one.onset_s, one.opened_at_s, one.closed_at_s) == (other.onset_s, other.opened_at_s, other.closed_at_s)
    opened_s, closed_s = at_once[0].opened_at_s, at_once[0].closed_at_s
    assert closed_s is not None
    assert opened_s - (recordings.START_S + 6_000.0) <= 300.0
    assert 0.0 <= closed_s - (recordings.START_S + 36_000.0) <= 2_400.0
