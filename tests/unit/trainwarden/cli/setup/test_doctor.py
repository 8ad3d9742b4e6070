"""`doctor`: answers without side effects."""

from __future__ import annotations

import json
import os
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


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no tmpfs to be small")
def test_doctor_says_that_tmpfs_is_too_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainwarden.rundir.HOOK_ROOM_BYTES", 2**60)
    doctor(json="-")
    (row,) = [row for row in json.loads(capsys.readouterr().out)["checks"] if row["name"] == "tmpfs"]
    assert row["state"] == "note"
    assert row["what"].endswith("MiB free: hook files go to disk")
