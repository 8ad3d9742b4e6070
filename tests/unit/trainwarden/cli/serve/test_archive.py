"""`archive` on the command line: one JSON object, one sentence per wrong use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.archive_doubles import Log, Service, event_record, lines_record
from trainwarden.cli.serve.archive import archive
from trainwarden.clock import SystemClock
from trainwarden.errors import ConfigError, DataError


def run(word: Any, tmp_path: Path, job: str | None = None, **named: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"folder": tmp_path / "archive"}
    target = tmp_path / "out.json"
    assert archive(word, job, json=str(target), **{**chosen, **named}) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def test_list_compact_and_export(tmp_path: Path) -> None:
    log, now_s = Log(), SystemClock().now_s()  # retention goes by the time at which the bus got a record
    service = Service(log, tmp_path / "archive")
    for index in range(3):
        log.put(lines_record(index), time_s=now_s + index)
        service.rounds(1)
        service.handler.finish()
    assert run("list", tmp_path)["jobs"][0]["topics"]["logs"]["files"] == 3
    assert run("compact", tmp_path) == {"joined": 1, "removed": 0}
    exported = run("export", tmp_path, "j", to=tmp_path / "kept")
    assert exported["rows"] == {"logs.jsonl.gz": 3}
    with pytest.raises(ConfigError, match="give the job and --to"):
        run("export", tmp_path)
    with pytest.raises(DataError, match=r"'.*/none' does not exist"):
        run("compact", tmp_path, folder=tmp_path / "none")
    assert not (tmp_path / "none").exists()
    with pytest.raises(DataError, match="nothing of a job 'x'"):
        run("export", tmp_path, "x", to=tmp_path / "kept")


def test_an_export_holds_one_job_and_days_that_are_there(tmp_path: Path) -> None:
    log, now_s = Log(), SystemClock().now_s()
    service = Service(log, tmp_path / "archive")
    log.put(lines_record(0), time_s=now_s)
    log.put(event_record(0, job="quiet"), time_s=now_s)
    service.rounds(2)
    service.handler.finish()
    run("export", tmp_path, "j", to=tmp_path / "kept")
    assert run("export", tmp_path, "quiet", to=tmp_path / "kept")["rows"] == {"events.jsonl": 1}
    assert not (tmp_path / "kept" / "logs.jsonl.gz").exists(), "the lines of another job"
    assert run("export", tmp_path, "j", to=tmp_path / "day", day=["2024-10-04", "1999-01-01"])["rows"]
    with pytest.raises(DataError, match="has nothing of job 'j' on 1999-01-01"):
        run("export", tmp_path, "j", to=tmp_path / "none", day=["1999-01-01"])
    for wrong in ("2024-13-01", "yesterday", "20241004"):
        with pytest.raises(ConfigError, match=f"--day '{wrong}' is no day YYYY-MM-DD"):
            run("export", tmp_path, "j", to=tmp_path / "none", day=[wrong])
    assert not (tmp_path / "none").exists()
