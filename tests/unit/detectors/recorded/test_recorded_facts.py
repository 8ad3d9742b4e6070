"""Events and heartbeats beside a recording, as they are and packed."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.errors import DataError
from trainwarden.recorded.job import RecordedJob
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS

FACT = EventRecord(id="a", job="j", node="n", time_s=1.0, kind="job_start")


@pytest.mark.parametrize("name", ["events.jsonl", "events.jsonl.gz"])
def test_facts_are_read_packed_or_not(tmp_path: Path, name: str) -> None:
    line = EVENTS.encode(FACT) + b"\n"
    (tmp_path / name).write_bytes(gzip.compress(line) if name.endswith(".gz") else line)
    assert read_facts(RecordedJob("j", tmp_path)) == [FACT]


@pytest.mark.parametrize("damage", [b"no gzip", gzip.compress(bytes(range(256)) * 40)[:60]], ids=["no gzip", "cut"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "heartbeats.jsonl.gz").write_bytes(damage)
    with pytest.raises(DataError, match=r"heartbeats\.jsonl"):
        read_facts(RecordedJob("j", tmp_path))
