"""Recorded jobs judged in one pass: what is found, when it is known, and that it is what the live service says."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.unit.detectors import recordings
from tests.unit.detectors.detection_streams import Run
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.recorded.findings import job_object
from trainwarden.detectors.recorded.grids import held, metric_grids
from trainwarden.detectors.recorded.metrics import MetricScores, score_recorded
from trainwarden.detectors.recorded.replay import ReplayResult, replay
from trainwarden.detectors.recorded.stream import ReplayStream
from trainwarden.recorded.job import MetricTable, PlannedChange, RecordedJob
from trainwarden.records import IncidentRecord
from trainwarden.settings import DetectionSettings

QUICK = VoteConfig(members={"metric_change": 2.0, "kmeans": 1.0, "nearest": 1.0, "pca": 1.0, "neighbor_profile": 1.0})


def judged(job: RecordedJob, scores: MetricScores | None = None) -> ReplayResult:
    return replay(job, DetectionSettings(), scores=scores)


def slowed(first: int, last: int, ratio: float = 1.5) -> RecordedJob:
    table = recordings.iterations(slow=lambda rank, step: ratio if first <= step < last else 1.0)
    return recordings.job(iterations=table)


def test_a_healthy_job_has_nothing() -> None:
    answer = job_object(judged(recordings.job(iterations=recordings.iterations())))
    assert (answer["incidents"], answer["change_points"], answer["stragglers"]) == ([], [], [])
    assert answer["input"]["iterations"] == 300
    assert "no metrics" in answer["abstained"]["pca"]


def test_a_slowdown_is_a_change_point_and_an_incident_that_closes_on_relief() -> None:
    answer = job_object(judged(slowed(150, 220)))
    slower, faster = answer["change_points"]
    assert (slower["direction"], faster["direction"]) == ("slower", "faster")
    assert abs(slower["step"] - 150) <= 3
    assert slower["reported_step"] - 150 <= 12
    assert slower["ratio"] == pytest.approx(1.4, rel=0.05)
    assert slower["rank"] is None
    (incident,) = answer["incidents"]
    assert incident["kind"] == "slow_job"
    assert 150 <= incident["opened_step"] <= 170
    assert incident["closed_at_s"] is not None


def test_a_planned_change_is_reported_and_no_incident() -> None:
    job = slowed(150, 300)
    planned = recordings.job(iterations=job.iterations, planned=(PlannedChange(150, "longer sequences"),))
    answer = job_object(judged(planned))
    assert [(point["planned"], point["direction"]) for point in answer["change_points"]] == [(True, "slower")]
    assert answer["incidents"] == []


@pytest.mark.thorough
def test_a_slow_rank_is_an_episode_with_an_end() -> None:
    table = recordings.iterations(ranks=8, slow=lambda rank, step: 1.6 if rank == 5 and 120 <= step < 200 else 1.0)
    answer = job_object(judged(recordings.job(iterations=table)))
    assert [episode["rank"] for episode in answer["stragglers"]] == [5]
    (episode,) = answer["stragglers"]
    assert abs(episode["from_step"] - 120) <= 3
    assert 195 <= episode["to_step"] <= 215
    assert (episode["basis"], episode["evidence"], episode["node"]) == ("self", "compute", "node1")
    (incident,) = answer["incidents"]
    assert (incident["kind"], incident["suspects"][0]["rank"], incident["suspects"][0]["node"]) == (
        "slow_compute", 5, "node1",
    )  # fmt: skip


def test_log_findings_say_where() -> None:
    lines = [f"step {number} done" for number in range(50)]
    lines[30] = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
    answer = job_object(judged(recordings.job(logs=(recordings.logs(lines, file="logs-kern.txt"),))))
    (finding,) = answer["log_findings"]
    assert (finding["file"], finding["line_number"], finding["line_numbers"]) == ("logs-kern.txt", 31, [31])
    assert (finding["class"], finding["kind"], finding["role"]) == ("H", "gpu_lost", "root")
    assert [incident["kind"] for incident in answer["incidents"]] == ["gpu_lost"]


@pytest.mark.parametrize("goes_on", [False, True])
def test_an_applications_error_is_an_incident_if_nothing_went_on_after_it(goes_on: bool) -> None:
    table = recordings.iterations(steps=60)
    at_s = float(table.end_s[30 if goes_on else -1]) + 0.1
    error = recordings.logs(
        ["torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."], np.array([at_s])
    )
    answer = job_object(judged(recordings.job(iterations=table, logs=(error,))))
    assert [finding["kind"] for finding in answer["log_findings"]] == ["cuda_out_of_memory"]
    assert [one["kind"] for one in answer["incidents"]] == ([] if goes_on else ["cuda_out_of_memory"])


def strange_metrics() -> RecordedJob:
    table = recordings.metrics(strange=lambda entity, row: 12.0 if entity == 2 and 700 <= row < 740 else 0.0)
    return recordings.job(metrics=table)


@pytest.mark.thorough
def test_strange_metrics_name_node_and_metric_at_their_time() -> None:
    job = strange_metrics()
    scores = score_recorded(job, None, recordings.START_S + 6_000.0, QUICK)
    answer = job_object(judged(job, scores))
    (incident,) = answer["incidents"]
    assert (incident["kind"], incident["suspects"][0]["node"], incident["metrics"][0]) == (
        "metric_anomaly", "node2", "power",
    )  # fmt: skip
    assert 0.0 <= incident["opened_at_s"] - (recordings.START_S + 7_000.0) <= 100.0
    assert 300.0 <= incident["closed_at_s"] - incident["opened_at_s"] <= 1_000.0
    assert set(incident["model_versions"]) >= {"pca", "kmeans"}


def test_normal_rows_that_teach_nothing_keep_nobody_else_from_judging() -> None:
    table = recordings.metrics()
    still = dataclasses.replace(table, values=np.full_like(table.values, 7.0))
    job = recordings.job(metrics=still, iterations=slowed(150, 220).iterations)
    answer = job_object(judged(job, score_recorded(job, None, recordings.START_S + 6_000.0, QUICK)))
    assert [incident["kind"] for incident in answer["incidents"]] == ["slow_job"]
    assert "all are constant" in answer["abstained"]["metric_mean"]


@pytest.mark.thorough
def test_a_score_depends_on_nothing_later() -> None:
    job = strange_metrics()
    whole = score_recorded(job, None, recordings.START_S + 6_000.0, QUICK)
    table = job.metrics
    assert whole is not None
    assert table is not None
    early = table.times_s < recordings.START_S + 7_050.0
    cut = recordings.metrics(rows=int(early.sum()) // 4, strange=lambda entity, row: 0.0)
    shorter = recordings.job(
        metrics=type(table)(
            table.times_s[early], table.entity[early], table.nodes, table.ranks, table.devices,
            table.names, table.values[early],
        )
    )  # fmt: skip
    assert cut.times_s.size == int(early.sum())
    part = score_recorded(shorter, None, recordings.START_S + 6_000.0, QUICK)
    assert part is not None
    np.testing.assert_allclose(
        part.ensemble, whole.ensemble[early], rtol=1e-4
    )  # a matrix product's last bits depend on its size


def lived(job: RecordedJob) -> list[IncidentRecord]:
    """The same records on a bus, through the live service, which looks ten times a second."""
    records = [(now_s, record) for now_s, batch in ReplayStream(job).windows() for record in batch]
    return Run(DetectionSettings()).play(records, records[-1][0] + 1.0).incidents


@pytest.mark.thorough
@pytest.mark.parametrize(
    "job",
    [
        slowed(150, 220),
        recordings.job(
            iterations=recordings.iterations(ranks=4, slow=lambda rank, step: 1.8 if rank == 2 and step >= 150 else 1.0)
        ),
        recordings.job(iterations=recordings.iterations()),
    ],
    ids=["everyone", "one rank", "healthy"],
)
def test_a_recording_on_the_bus_gives_the_same_incidents(job: RecordedJob) -> None:
    assert [_facts(one) for one in lived(job)] == [_facts(one) for one in judged(job).incidents]


def _facts(record: IncidentRecord) -> tuple[object, ...]:
    return record.kind, record.onset_step, [suspect.rank for suspect in record.suspects]


def test_entities_with_clocks_of_their_own_are_compared_on_one_grid() -> None:
    rng = np.random.default_rng(0)
    parts = [
        (entity, recordings.START_S + 2.0 * entity + np.cumsum(rng.normal(2.005, 0.03, 500))) for entity in range(6)
    ]
    times_s = np.concatenate([times for _, times in parts])
    order = np.argsort(times_s, kind="stable")
    table = MetricTable(
        times_s=times_s[order],
        entity=np.repeat([entity for entity, _ in parts], 500)[order],
        nodes=tuple(f"node{entity}" for entity in range(6)),
        ranks=(None,) * 6,
        devices=(None,) * 6,
        names=("power",),
        values=rng.normal(size=(3_000, 1)),
    )
    (grid,) = metric_grids(table)
    assert grid.values.shape[:2] == (6, 1)
    assert 500 <= grid.values.shape[2] <= 515
    assert sorted(grid.place[grid.place >= 0].tolist()) == list(range(3_000))
    spread_s = np.nanmax(grid.times_s[:, 20:-20], axis=0) - np.nanmin(grid.times_s[:, 20:-20], axis=0)
    assert float(np.nanmax(spread_s)) < 6.0
    assert (np.diff(grid.column_s) >= 0).all()


def test_one_missing_sample_is_held_and_a_longer_gap_stays_a_gap() -> None:
    there = np.array([[True, False, True, False, False, True]])
    values = np.where(there, np.arange(6.0), np.nan)[..., None]
    np.testing.assert_array_equal(held(values, there)[0, :, 0], [0.0, 0.0, 2.0, 2.0, np.nan, 5.0])


@pytest.mark.thorough
def test_durations_of_hosts_before_a_device_accuse_nobody() -> None:
    """Where the file says that times are the host's and who waited is not in it, a device did the work."""
    table = recordings.iterations(180, ranks=6, noise=0.01)
    nothing = np.full_like(table.compute_s, np.nan)
    seen = np.where((table.rank == 2) & (table.step >= 100), 1.8, 1.0) * table.duration_s
    alone = dataclasses.replace(table, duration_s=seen, compute_s=nothing, wait_s=nothing)
    found = {}
    for basis in ("", "host", "device_step"):
        told = dataclasses.replace(alone, basis=(basis,) * len(table.step) if basis else ())
        found[basis] = job_object(judged(recordings.job(iterations=told)))
    assert [one["rank"] for one in found[""]["stragglers"]] == [2]
    for basis in ("host", "device_step"):
        assert (found[basis]["stragglers"], found[basis]["incidents"]) == ([], [])
        assert "only durations are known" in found[basis]["abstained"]["peer_deviation"]
    split = dataclasses.replace(table, basis=("host",) * len(table.step))
    assert "peer_deviation" not in job_object(judged(recordings.job(iterations=split)))["abstained"]
