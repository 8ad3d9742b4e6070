"""What `status`, `incidents`, `actions` and `report` say of what is on the bus."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.ask.actions import actions
from trainwarden.cli.ask.incidents import incidents
from trainwarden.cli.ask.report import report
from trainwarden.cli.ask.status import status
from trainwarden.cli.shared import kept_runs
from trainwarden.errors import ConfigError
from trainwarden.records import ActionRecord, CommandRecord, IncidentRecord, IterationRecord, Record, Suspect
from trainwarden.settings import RunsSettings
from trainwarden.topics import COMMANDS, topic_of


@pytest.fixture
def address(tmp_path: Path) -> str:
    """An embedded bus with one job that has an open incident and an action that waits for a word."""
    steps = tuple(range(10))
    suspect = Suspect(score=0.8, reason="computes longest", rank=1, node="n")
    records: list[Record] = [
        IterationRecord(
            job="j", node="n", rank=rank, incarnation="1-1", steps=steps, end_s=tuple(float(s) for s in steps),
            duration_s=tuple(0.5 for _ in steps),
        )
        for rank in range(2)
    ]  # fmt: skip
    for revision, state in enumerate(("opened", "updated")):
        records.append(
            IncidentRecord(
                id="i1", job="j", kind="slow_compute", severity="sev3", state=state, revision=revision, opened_at_s=5.0,
                updated_at_s=5.0 + revision, reason="rank 1 is slow", suspects=(suspect,),
            )  # type: ignore[arg-type]
        )  # fmt: skip
    records.append(
        ActionRecord(id="a1", incident="i1", job="j", kind="rebalance", outcome="proposed", at_s=6.0, why="w")
    )
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    for record in records:
        bus.publish(topic_of(record), "j", record)
    bus.flush()
    bus.close()
    return f"embedded:{tmp_path / 'bus.db'}"


def json_of(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_status_tells_pace_and_open_incidents(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(bus=address, json="-") == 1
    (job,) = json_of(capsys)["jobs"]
    assert (job["job"], job["ranks"], job["steps"], job["iteration_s"]["median"]) == ("j", 2, 10, 0.5)
    assert [incident["id"] for incident in job["open_incidents"]] == ["i1"]


def test_an_incident_is_listed_once_whatever_its_revisions(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert incidents(bus=address, json="-") == 1
    assert [incident["id"] for incident in json_of(capsys)["incidents"]] == ["i1"]
    assert incidents(bus=address, job="other", json="-") == 0


def test_a_word_reaches_the_bus_and_a_wrong_one_is_refused(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="no action 'nope' waits for a word; waiting: a1"):
        actions("approve", "nope", bus=address)
    assert actions("approve", "a1", bus=address) == 0
    assert actions("stop", bus=address) == 0
    capsys.readouterr()
    bus = EmbeddedBus(address.partition(":")[2])
    words = [message.record for message in bus.read(COMMANDS) if isinstance(message.record, CommandRecord)]
    bus.close()
    assert sorted((word.kind, word.action) for word in words) == [("approve", "a1"), ("stop", None)]


def test_report_wants_one_job(address: str, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert report(bus=address, out=out) == 0
    assert "rank 1 is slow" in out.read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match="name one job"):
        report(bus=address, job="other", out=out)


def test_a_bus_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no embedded bus"):
        status(bus=f"embedded:{tmp_path / 'none.db'}")
    assert not (tmp_path / "none.db").exists()


def test_a_run_is_known_after_its_command_has_ended(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a bus named, the questions are about the newest kept run, or that of the job asked for."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no embedded bus"):
        status()
    run = kept_runs.begin("j", ["python"], RunsSettings())
    for part in ("", "-wal", "-shm"):
        source = Path(f"{address.partition(':')[2]}{part}")
        if source.exists():
            shutil.copy(source, run.path)
    run.finished({"exit_code": 3, "steps": 10, "incidents": [{}]})
    run.close()
    assert status() == 1
    said = capsys.readouterr().out
    assert "j: running, 2 ranks, step 9" in said
    assert f"j: exit code 3, 10 steps, 1 incident(s); {run.path}" in said
    assert incidents(job="j") == 1
    assert report(out=tmp_path / "r.html") == 0
