"""A real archive process on a real embedded bus, killed at random moments: pandas and DuckDB find every record once."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from tests.archive_doubles import MAKERS
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.recorded.writing import write_recording
from trainwarden.records import MetricsRecord
from trainwarden.topics import METRICS, topic_of
from trainwarden.trainer_offline.archive.export import export

pytestmark = pytest.mark.system

SERVICE = """
import signal, sys
from trainwarden.trainer_offline.archive.service import serve
from trainwarden.settings import ArchiveSettings, Settings
from trainwarden.self_metrics import log_to_stderr
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
log_to_stderr()
archive = ArchiveSettings(folder=sys.argv[2], flush_bytes=4096, flush_s=0.02, compact_files=4, maintain_every_s=0.05)
serve(Settings(bus=f"embedded:{sys.argv[1]}", archive=archive), lambda: bool(asked))
"""
SEEDS = 10
DEADLINE_S = 90.0


def start(tmp_path: Path) -> subprocess.Popen[bytes]:
    with (tmp_path / "archive.log").open("ab") as log:
        command = [sys.executable, "-c", SERVICE, str(tmp_path / "bus.db"), str(tmp_path / "archive")]
        return subprocess.Popen(command, stdout=log, stderr=log)


def committed(bus: EmbeddedBus) -> dict[int, int]:
    rows = bus._store.db.execute("SELECT stream, next FROM offsets WHERE grp='archive'")
    return {int(stream): int(offset) for stream, offset in rows}


def all_committed(bus: EmbeddedBus) -> bool:
    done = committed(bus)
    topics = {topic for topic in MAKERS}
    return all(done.get(one.id, 0) >= one.next for one in bus._store.streams() if one.topic in topics)


def test_every_record_is_there_once_after_kills_at_random_moments(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    number = 0
    for seed in range(SEEDS):
        chance = random.Random(seed)
        process = start(tmp_path)
        # From before the imports are done to in the middle of files, compactions and commits.
        end_s = time.monotonic() + chance.uniform(0.5, 2.5)
        while time.monotonic() < end_s:
            for make in MAKERS.values():
                record = make(number, job=f"job{number % 3}", time_s=time.time())
                bus.publish(topic_of(record), f"job{number % 3}", record)
            number += 1
            bus.flush()
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    process = start(tmp_path)
    end_s = time.monotonic() + DEADLINE_S
    while not all_committed(bus) and time.monotonic() < end_s:
        time.sleep(0.1)
    process.terminate()
    assert process.wait(30) == 0, (tmp_path / "archive.log").read_text()[-3000:]
    assert all_committed(bus), (tmp_path / "archive.log").read_text()[-3000:]
    assert number > 100

    archive = tmp_path / "archive"
    for topic, rows in (("metrics", 3), ("iterations", 2), ("logs", 1), ("events", 1)):
        frame = pd.read_parquet(archive / topic)
        counted = Counter(zip(frame.bus_partition, frame.bus_offset, strict=True))
        assert len(counted) == number, topic
        assert set(counted.values()) == {rows}, topic
        query = f"SELECT count(*), count(DISTINCT (bus_partition, bus_offset)) FROM '{archive}/{topic}/**/*.parquet'"
        assert duckdb.sql(query).fetchall() == [(rows * number, number)]
    steps = pd.read_parquet(archive / "iterations")
    assert sorted(steps.step) == list(range(2 * number))
    exported_as_recorded(bus, archive, tmp_path)
    bus.close()


def exported_as_recorded(bus: EmbeddedBus, archive: Path, tmp_path: Path) -> None:
    """The export of a job holds what a recording straight from the bus holds."""
    write_recording(bus, "job1", tmp_path / "recorded")
    export(archive, "job1", tmp_path / "exported")
    by = ["time_s", "node", "device"]
    recorded = pd.read_csv(tmp_path / "recorded" / "metrics.csv").sort_values(by, ignore_index=True)
    exported = pd.read_parquet(tmp_path / "exported" / "metrics.parquet").sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(exported[list(recorded)], recorded, check_dtype=False)
    by = ["rank", "incarnation", "step"]
    recorded = pd.read_csv(tmp_path / "recorded" / "iterations.csv").sort_values(by, ignore_index=True)
    exported = pd.read_parquet(tmp_path / "exported" / "iterations.parquet").sort_values(by, ignore_index=True)
    columns = ["time_s", "step", "duration_s", "compute_s"]
    pd.testing.assert_frame_equal(exported[columns], recorded[columns], check_dtype=False)
    recorded = pd.read_json(tmp_path / "recorded" / "logs.jsonl", lines=True)
    exported = pd.read_json(tmp_path / "exported" / "logs.jsonl.gz", lines=True)
    assert exported.line.tolist() == recorded.line.tolist()
    lines = (tmp_path / "exported" / "events.jsonl").read_text().splitlines()
    assert lines == (tmp_path / "recorded" / "events.jsonl").read_text().splitlines()
    assert (tmp_path / "exported" / "job.toml").read_text() == (tmp_path / "recorded" / "job.toml").read_text()
    assert all(json.loads(line)["job"] == "job1" for line in lines)
    assert any(isinstance(message.record, MetricsRecord) for message in bus.read(METRICS))
