"""A simulated job: what its records have in common, and that detection finds each fault where it was put."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from trainwarden.bus.address import connect
from trainwarden.cli.main import app
from trainwarden.errors import ConfigError
from trainwarden.records import HeartbeatRecord, IterationRecord, MetricsRecord
from trainwarden.simulation import FAULTS, Fleet, recording
from trainwarden.topics import HEARTBEATS, ITERATIONS, LOGS, METRICS, topic_of

FOUND = {  # the kinds that are right for a fault, and whether the rank is known
    "none": (set(), False),
    "slow-rank": ({"slow_compute"}, True),
    "hang": ({"hang"}, True),
    "crash": ({"crash"}, True),
    "exception": ({"exception"}, True),
    "log-storm": ({"log_storm"}, True),
    "gpu-throttle": ({"slow_compute", "gpu_throttle"}, True),
    "gpu-lost": ({"gpu_lost"}, True),
    "nic-down": ({"nic_down"}, True),
    "node-lost": ({"node_lost"}, False),
}


def test_every_fault_has_an_expected_answer() -> None:
    assert FOUND.keys() == FAULTS.keys()


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_detection_finds_each_fault_where_it_was_put(fault: str, tmp_path: Path) -> None:
    words = [
        "simulate",
        "--ranks",
        "24",
        "--fault",
        fault,
        "--rank",
        "9",
        "--at",
        "25",
        "--seconds",
        "60",
        "--seed",
        "3",
    ]
    assert CliRunner().invoke(app, [*words, "--to", str(tmp_path / "job")]).exit_code == 0
    kinds, has_rank = FOUND[fault]
    asked = ["detect", str(tmp_path / "job"), "--json", str(tmp_path / "found.json")]
    code = CliRunner().invoke(app, asked).exit_code
    (job,) = json.loads((tmp_path / "found.json").read_text())["jobs"]
    assert (code, job["answer"]) == ((1, "incident") if kinds else (0, "healthy"))
    assert len(job["incidents"]) == bool(kinds)
    for incident in job["incidents"]:
        assert incident["kind"] in kinds
        assert [one["node"] for one in incident["suspects"]] == ["node-1"]
        assert [one["rank"] for one in incident["suspects"]] == [9 if has_rank else None]
        assert 18.0 <= incident["opened_at_s"] <= 36.0


def test_the_same_seed_gives_the_same_records_and_another_one_others() -> None:
    first, again, other = (list(Fleet(ranks=9, seconds=10.0, seed=seed).sent()) for seed in (1, 1, 2))
    assert first == again != other
    times_s = [at_s for at_s, _ in first]
    assert times_s == sorted(times_s)
    assert all(topic_of(record).decode(topic_of(record).encode(record)) == record for _, record in first)


def test_a_node_sends_what_the_recorded_one_sent() -> None:
    played, seconds = recording(), 120.0
    kinds = Counter(type(record).__name__ for _, record in Fleet(ranks=16, seconds=seconds).sent())
    each = {name: number / 2 / seconds for name, number in kinds.items()}
    assert each["MetricsRecord"] == pytest.approx(len(played.metrics) / played.seconds, rel=0.05)
    assert each["HeartbeatRecord"] == pytest.approx(1 / played.beat_s, rel=0.05)
    assert each["IterationRecord"] == pytest.approx(8 / played.batch_s, rel=0.25)  # no steps at first
    sizes = [len(record.ranks) for _, record in Fleet(ranks=11, seconds=10.0).of(HEARTBEATS)]
    assert Counter(sizes).keys() == {8, 3}


def test_all_wait_for_the_slowest_and_a_step_is_what_its_parts_are() -> None:
    steps: dict[int, set[float]] = {}
    for _, record in Fleet(ranks=16, seconds=40.0, fault="slow-rank", at_s=20.0, rank=3, slowdown=3.0).of(ITERATIONS):
        assert isinstance(record, IterationRecord)
        parts = np.array(record.compute_s) + np.array(record.wait_s)
        assert np.allclose(parts, record.duration_s)
        assert min(record.wait_s) > 0.0  # type: ignore[type-var]
        for step, end_s, compute_s in zip(record.steps, record.end_s, record.compute_s, strict=True):
            steps.setdefault(step, set()).add(end_s)
            assert compute_s is not None
            assert (compute_s > 2.0) == (record.rank == 3 and end_s > 21.0)
    assert all(len(ends_s) == 1 for ends_s in steps.values())


def test_counters_run_on_when_the_recording_begins_again() -> None:
    energy: dict[str, list[float]] = {}
    for _, record in Fleet(ranks=8, seconds=2.5 * recording().seconds).of(METRICS):
        assert isinstance(record, MetricsRecord)
        if "gpu_energy_joules" in record.names:
            row = record.values[record.names.index("gpu_energy_joules")]
            for device, value in zip(record.devices, row, strict=True):
                energy.setdefault(device, []).append(value or 0.0)
    assert len(energy) == 8
    assert all(np.all(np.diff(values) > 0.0) for values in energy.values())


def test_a_stopped_rank_does_not_wait_and_a_lost_node_is_silent() -> None:
    late = [
        record for at_s, record in Fleet(ranks=16, seconds=40.0, fault="hang", at_s=20.0, rank=9).of(HEARTBEATS)
        if at_s > 30.0
    ]  # fmt: skip
    phases = {rank: phase for one in late if isinstance(one, HeartbeatRecord) for rank, phase in zip(one.ranks, one.phases, strict=True)}  # fmt: skip  # noqa: E501
    assert {rank for rank, phase in phases.items() if phase != "wait"} == {9}
    lost = Fleet(ranks=16, seconds=40.0, fault="node-lost", at_s=20.0, rank=9)
    for topic in (METRICS, HEARTBEATS, ITERATIONS, LOGS):
        assert {record.node for at_s, record in lost.of(topic) if at_s > 21.0} <= {"node-0"}


@pytest.mark.thorough
def test_a_job_that_never_finished_a_step_is_not_judged(tmp_path: Path) -> None:
    words = [
        "simulate",
        "--ranks",
        "2",
        "--fault",
        "hang",
        "--at",
        "5",
        "--seconds",
        "20",
        "--to",
        str(tmp_path / "job"),
    ]
    assert CliRunner().invoke(app, words).exit_code == 0
    done = CliRunner().invoke(app, ["detect", str(tmp_path / "job")])
    assert done.exit_code == 3, done.output
    assert "NOT JUDGED: ranks were seen, but no training step of them" in done.output


def test_no_recording_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("another's\n")
    done = CliRunner().invoke(app, ["simulate", "--ranks", "8", "--seconds", "10", "--to", str(tmp_path)])
    assert isinstance(done.exception, ConfigError)
    assert (tmp_path / "metrics.csv").read_text() == "another's\n"


@pytest.mark.thorough
def test_a_bus_gets_the_records_in_their_time(tmp_path: Path) -> None:
    address = f"embedded:{tmp_path}/bus.db"
    asked = ["simulate", "--ranks", "8", "--seconds", "7", "--job", "played", "--to", address]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    bus = connect(address)
    try:
        found = list(bus.read(HEARTBEATS))
    finally:
        bus.close()
    assert len(found) > 20
    assert {one.key for one in found} == {"played"}
    assert all(abs(one.time_s - one.record.time_s) < 5.0 for one in found)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"ranks": 0}, "0 ranks cannot be simulated"),
        ({"ranks": 4, "fault": "flood"}, "no fault 'flood' .there are: none, slow-rank"),
        ({"ranks": 4, "rank": 4}, "rank 4 is none of 4"),
        ({"ranks": 4, "seconds": 3.0}, "3 s: a job runs for 5 s"),
        ({"ranks": 4, "seconds": float("inf")}, "inf s: a job runs for 5 s"),
        ({"ranks": 4, "fault": "hang", "at_s": 0.0}, "after 0 s is not between 5 and 120 s"),
        ({"ranks": 4, "fault": "hang", "at_s": 130.0}, "after 130 s is not between 5 and 120 s"),
    ],
)
def test_what_is_impossible_is_refused(words: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Fleet(**words)  # type: ignore[arg-type]
