"""`annotate` on the command line: one JSON object, one sentence per wrong use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainwarden.cli.learn.annotate import annotate
from trainwarden.errors import ConfigError, DataError


def note(word: Any, tmp_path: Path, **named: Any) -> dict[str, Any]:
    target = tmp_path / "note.json"
    assert annotate(word, folder=tmp_path, json=str(target), **named) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    return found


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
