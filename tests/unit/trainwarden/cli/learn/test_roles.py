"""`annotate roles`: proposed, written where detection reads them, one sentence where that cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.archive_doubles import archived, steps_record
from tests.unit.trainer_offline.suggest.test_roles import computing, job
from trainwarden.cli.learn.annotate import annotate
from trainwarden.errors import DataError
from trainwarden.recorded.folder import read_folder


def roles(data: Path, **named: Any) -> dict[str, Any]:
    target = data.parent / "roles.json"
    assert annotate("roles", data=data, json=str(target), **named) == 0
    found: dict[str, Any] = json.loads(target.read_text())
    return found


@pytest.mark.thorough
def test_roles_are_proposed_and_written_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = job(tmp_path / "j", computing({0: 1.0, 3: 1.4}, 6))
    [found] = roles(data)["jobs"]
    assert (found["count"], [role["role"] for role in found["roles"]]) == (2, ["role0", "role1"])
    assert found["roles"][1]["entities"] == ["rank 3", "rank 4", "rank 5"]
    assert found["roles"][1]["levels"]["compute_s"] == pytest.approx(1.4, abs=0.05)
    assert "j: 2 roles of 6, distinguished throughout by compute_s" in capsys.readouterr().out
    assert not (data / "job.toml").exists()
    roles(data, write=True)
    assert (data / "job.toml").read_text() == '[roles]\nrole0 = "0-2"\nrole1 = "3-5"\n'
    with pytest.raises(DataError, match="no job could be read"):
        roles(data, write=True)
    assert "has roles already" in capsys.readouterr().out
    assert read_folder(data).roles[5] == "role1"


def test_one_role_writes_nothing_and_an_archive_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = job(tmp_path / "j", computing({0: 1.0}, 6))
    assert roles(data, write=True)["jobs"][0]["count"] == 1
    assert not (data / "job.toml").exists()
    archived([steps_record(number, job="one") for number in range(4)], tmp_path / "archive")
    with pytest.raises(DataError, match="no job could be read"):
        roles(tmp_path / "archive")
    assert "one is left out: nothing is known of several ranks or devices" in capsys.readouterr().out
