"""A recorded folder holds each fact once, in the columns of the contract."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path

from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.recorded.writing import write_recording
from trainwarden.records import EventRecord, IterationRecord, LogRecord, MetricsRecord, Record
from trainwarden.topics import topic_of


def test_a_recording_drops_duplicates_and_other_jobs(tmp_path: Path) -> None:
    metrics = MetricsRecord(
        job="j", node="n", time_s=1.5, devices=("gpu0", "gpu1"), names=("a", "b"), values=((1.0, None), (2.0, 3.0))
    )
    steps = IterationRecord(
        job="j", node="n", rank=0, incarnation="7-7", steps=(1, 2), end_s=(1.0, 2.0), duration_s=(0.5, 0.6),
        compute_s=(0.4, None), basis="device_step",
    )  # fmt: skip
    lines = LogRecord(job="j", node="n", source="f", ends=(4, 9), lines=("abc", "defg"), times_s=(1.0, 1.0), rank=0)
    again = LogRecord(job="j", node="n", source="f", ends=(9, 12), lines=("defg", "hi"), times_s=(1.0, 2.0), rank=0)
    plan = EventRecord(id="p", job="j", node="n", time_s=2.0, kind="microbatch_plan", fields={"step": 2, "number": 1})
    other = EventRecord(id="x", job="other", node="n", time_s=2.0, kind="job_start")
    records: list[Record] = [metrics, metrics, steps, steps, lines, again, plan, other]
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    for record in records:
        bus.publish(topic_of(record), "j", record)
    bus.flush()
    folder = tmp_path / "kept"
    write_recording(bus, "j", folder)
    bus.close()

    rows = list(csv.DictReader((folder / "metrics.csv").read_text().splitlines()))
    assert [(row["time_s"], row["node"], row["device"], row["a"], row["b"]) for row in rows] == [
        ("1.5", "n", "gpu0", "1.0", "2.0"),
        ("1.5", "n", "gpu1", "", "3.0"),
    ]
    iterations = list(csv.DictReader((folder / "iterations.csv").read_text().splitlines()))
    assert [(row["step"], row["rank"], row["duration_s"], row["compute_s"], row["basis"]) for row in iterations] == [
        ("1", "0", "0.5", "0.4", "device_step"),
        ("2", "0", "0.6", "", "device_step"),
    ]
    logged = [json.loads(line) for line in (folder / "logs.jsonl").read_text().splitlines()]
    assert [row["line"] for row in logged] == ["abc", "defg", "hi"]
    job = tomllib.loads((folder / "job.toml").read_text())
    assert job == {"name": "j", "planned_change": [{"step": 2, "what": "micro-batch plan 1"}]}
    assert len((folder / "events.jsonl").read_text().splitlines()) == 1


def test_a_device_of_one_rank_is_that_ranks_in_every_row_and_one_of_several_nobodys(tmp_path: Path) -> None:
    """Or the ranks' own metrics would accuse a device that no other vote knows."""
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    for time_s, ranks in ((1.0, (0, None, 2)), (2.0, (0, 1, 3)), (3.0, ())):
        record = MetricsRecord(
            job="j", node="n", time_s=time_s, devices=("rank-0", "gpu0", "gpu1"), names=("a",),
            values=((1.0, 2.0, 3.0),), ranks=ranks,
        )  # fmt: skip
        bus.publish(topic_of(record), "j", record)
    bus.flush()
    write_recording(bus, "j", tmp_path / "kept")
    bus.close()
    rows = list(csv.DictReader((tmp_path / "kept" / "metrics.csv").read_text().splitlines()))
    assert [(row["device"], row["rank"]) for row in rows] == [("rank-0", "0"), ("gpu0", "1"), ("gpu1", "")] * 3
