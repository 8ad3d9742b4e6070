"""`doctor`: answers without side effects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwarden.cli.setup.doctor import doctor


def test_doctor_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor(json="-") == 0
    names = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)["checks"]}
    assert names["bus"] == "note"
    assert names["collector host"] == "fine"
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_what_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWARDEN_BUS", f"embedded:{tmp_path}/none/bus.db")
    assert doctor() == 1
