"""`archive` and `annotate` on the command line: one JSON object, one sentence per wrong use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.archive_doubles import Log, Service, event_record, lines_record
from trainwarden.cli.archive import annotate, archive
from trainwarden.clock import SystemClock
from trainwarden.errors import ConfigError, DataError


def run(word: Any, tmp_path: Path, job: str | None = None, **named: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {"folder": tmp_path / "archive", "to": None, "days": (), "config": None}
    target = tmp_path / "out.json"
    assert archive(word, job, json=str(target), **{**chosen, **named}) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    return found


def note(word: Any, tmp_path: Path, **named: Any) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "number": None, "job": None, "from_time": "", "to_time": "", "label": None, "kind": None, "suspects": "",
        "note": "", "config": None,
    }  # fmt: skip
    target = tmp_path / "note.json"
    assert annotate(word, folder=tmp_path, json=str(target), **{**chosen, **named}) == 0
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
    assert run("export", tmp_path, "j", to=tmp_path / "day", days=("2024-10-04", "1999-01-01"))["rows"]
    with pytest.raises(DataError, match="has nothing of job 'j' on 1999-01-01"):
        run("export", tmp_path, "j", to=tmp_path / "none", days=("1999-01-01",))
    for wrong in ("2024-13-01", "yesterday", "20241004"):
        with pytest.raises(ConfigError, match=f"--day '{wrong}' is no day YYYY-MM-DD"):
            run("export", tmp_path, "j", to=tmp_path / "none", days=(wrong,))
    assert not (tmp_path / "none").exists()


def test_a_job_that_the_archive_does_not_know_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "logs" / "job=known").mkdir(parents=True)
    note("add", tmp_path, job="known", label="normal")
    assert "holds nothing of job" not in "".join(capsys.readouterr())
    note("add", tmp_path, job="knwon", label="normal")
    assert "holds nothing of job 'knwon'" in "".join(capsys.readouterr())
    with pytest.raises(ConfigError, match="'soon' is neither seconds nor an ISO 8601 time"):
        note("add", tmp_path, job="known", label="normal", from_time="soon")


def test_annotations_are_added_listed_and_removed(tmp_path: Path) -> None:
    fault = {"job": "j", "label": "fault", "kind": "hang", "suspects": "rank=3", "from_time": "1", "to_time": "2"}
    assert note("add", tmp_path, **fault)["number"] == 1
    assert note("list", tmp_path)["annotations"][0]["suspects"] == [{"rank": 3}]
    assert note("list", tmp_path, job="k")["annotations"] == []
    assert note("remove", tmp_path, number=1)["annotation"]["kind"] == "hang"
    for wrong in ({"label": "normal"}, {"job": "j", "label": "normal", "from_time": "soon"}):
        with pytest.raises(ConfigError, match="annotate add: "):
            note("add", tmp_path, **wrong)
    with pytest.raises(DataError, match="none of normal"):
        note("add", tmp_path, job="j", label="odd")
