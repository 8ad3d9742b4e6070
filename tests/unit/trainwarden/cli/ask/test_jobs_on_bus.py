"""What `status`, `incidents`, `actions` and `report` say of what is on the bus."""

from __future__ import annotations

import json
import os
import shutil
import time
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
from trainwarden.parallelism.claim import Claim, event_fields
from trainwarden.records import (
    ActionRecord,
    CommandRecord,
    EventRecord,
    HeartbeatRecord,
    IncidentRecord,
    IterationRecord,
    Record,
    Suspect,
    VerdictRecord,
    Vote,
)
from trainwarden.settings import DEFAULT_BUS, RunsSettings
from trainwarden.topics import COMMANDS, INCIDENTS, topic_of

NOW_S = 1_800_000_000.0


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
        ActionRecord(
            id="a1", incident="i1", job="j", kind="rebalance", outcome="proposed", at_s=6.0, why="w", plan_digest="d1"
        )
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


def job(tmp_path: Path, *records: Record) -> str:
    """The address of a bus with what two ranks have done in ten steps, and `records`."""
    steps = tuple(range(10))
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    for record in (
        *(IterationRecord(job="j", node="n", rank=rank, incarnation="1-1", steps=steps, duration_s=(0.5,) * 10,
                          end_s=tuple(map(float, steps))) for rank in range(2)),
        *records,
    ):  # fmt: skip
        bus.publish(topic_of(record), "j", record)
    bus.flush()
    bus.close()
    return f"embedded:{tmp_path / 'bus.db'}"


@pytest.mark.parametrize(("unresolved", "names"), [(True, ["i1"]), (False, [])])
def test_an_incident_whose_job_is_down_by_it_is_open(
    unresolved: bool, names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = IncidentRecord(
        id="i1", job="j", kind="crash", severity="sev2", state="closed", revision=2, opened_at_s=5.0, updated_at_s=7.0,
        closed_at_s=7.0, reason="rank 1 died", unresolved=unresolved, evidence={"closed": "all ranks have ended"},
    )  # fmt: skip
    address = job(tmp_path, verdict(NOW_S), closed)
    assert incidents(bus=address, open_only=True, json="-") == int(unresolved)
    assert [one["id"] for one in json_of(capsys)["incidents"]] == names
    status(bus=address, json="-")
    assert [one["id"] for one in json_of(capsys)["jobs"][0]["open_incidents"]] == names


def verdict(time_s: float, opinion: Any = "normal") -> VerdictRecord:
    votes = {"change_point": Vote(opinion=opinion, score=0.1)}
    return VerdictRecord(id="v", job="j", time_s=time_s, window_s=1.0, anomalous=False, reason="calm", votes=votes)


def event(kind: Any, time_s: float, rank: int | None = None, **fields: Any) -> EventRecord:
    name = f"{kind}/{rank}/{time_s}"
    return EventRecord(id=name, job="j", node="n", time_s=time_s, kind=kind, rank=rank, fields=fields)


GONE: Any = IncidentRecord(
    id="i1", job="j", kind="crash", severity="sev2", state="closed", revision=2, opened_at_s=5.0, updated_at_s=7.0,
    closed_at_s=7.0, reason="rank 1 died", evidence={"closed": "all ranks have ended"},
)  # fmt: skip


@pytest.mark.parametrize(
    ("records", "code", "answer", "ended"),
    [
        ((verdict(NOW_S),), 0, "healthy", False),
        ((), 3, "not judged", False),
        ((verdict(NOW_S, "abstain"),), 3, "not judged", False),
        ((verdict(NOW_S - 25.0),), 3, "not judged", False),  # its detector is gone
        ((verdict(NOW_S - 15.0),), 0, "healthy", False),
        ((verdict(NOW_S - 110.0), verdict(NOW_S - 50.0)), 0, "healthy", False),  # set to one a minute
        ((verdict(NOW_S - 310.0), verdict(NOW_S - 250.0)), 3, "not judged", False),
        ((verdict(NOW_S - 300.0), event("job_end", NOW_S - 299.0, exit_code=0)), 0, "healthy", True),
        ((verdict(NOW_S), event("job_end", NOW_S, exit_code=3)), 1, "incident", True),
        ((verdict(NOW_S), event("job_end", NOW_S, exit_code=143, interrupted="SIGTERM")), 0, "healthy", True),
        ((verdict(NOW_S), *(event("process_exit", NOW_S - 9.0, one) for one in range(2))), 0, "healthy", True),
        ((verdict(NOW_S), event("process_exit", NOW_S - 9.0, 0)), 0, "healthy", False),
        ((verdict(NOW_S), GONE), 1, "incident", False),
        ((verdict(NOW_S), GONE, event("process_start", 6.0, 0)), 1, "incident", False),
        ((verdict(NOW_S), GONE, event("process_start", 8.0, 0)), 0, "healthy", False),  # it trains again
    ],
)
def test_status_gives_one_of_three_answers(
    records: tuple[Record, ...], code: int, answer: str, ended: bool, tmp_path: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("time.time", lambda: NOW_S)
    assert status(bus=job(tmp_path, *records), json="-") == code
    found = json_of(capsys)
    assert (found["answer"], found["jobs"][0]["answer"], found["jobs"][0]["ended"]) == (answer, answer, ended)


def test_an_empty_bus_is_no_healthy_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    EmbeddedBus(str(tmp_path / "bus.db")).close()
    assert status(bus=f"embedded:{tmp_path / 'bus.db'}") == 3
    assert capsys.readouterr().out.startswith("NOT JUDGED: no job on this bus yet")
    assert incidents(bus=f"embedded:{tmp_path / 'bus.db'}") == 3


def test_services_that_wait_for_their_job_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after `up`, before a rank has joined: an agent's heartbeat, and a verdict on the node."""
    monkeypatch.setattr("time.time", lambda: NOW_S)
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    beat = HeartbeatRecord(job="j", node="n", time_s=NOW_S)
    for record in (beat, verdict(NOW_S)):
        bus.publish(topic_of(record), "j", record)
    bus.flush()
    bus.close()
    assert status(bus=f"embedded:{tmp_path / 'bus.db'}") == 3
    said = capsys.readouterr().out
    assert "j    no ranks yet  not judged  0" in said
    assert "j NOT JUDGED: no rank was seen" in said


def test_status_says_where_times_come_from(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    status(bus=address, json="-")
    (job,) = json_of(capsys)["jobs"]
    assert (job["basis"], job["accelerator"]) == ("host", None)
    bus = EmbeddedBus(address.partition(":")[2])
    for rank in range(2):
        record = IterationRecord(
            job="j", node="n", rank=rank, incarnation="1-1", steps=(10,), end_s=(11.0,), duration_s=(0.5,),
            accelerator="cuda",
        )  # fmt: skip
        bus.publish(topic_of(record), "j", record)
    bus.flush()
    bus.close()
    status(bus=address)
    assert "on cuda it does not wait, so who computes and who waits is not known" in capsys.readouterr().out


def test_status_names_models_that_are_provisional(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    status(bus=address)
    assert "provisional" not in capsys.readouterr().out
    bus = EmbeddedBus(address.partition(":")[2])
    votes = {"lof": Vote(opinion="normal", score=0.2, provisional=True), "pca": Vote(opinion="normal", score=0.2)}
    record = VerdictRecord(id="v", job="j", time_s=8.0, window_s=1.0, anomalous=False, reason="calm", votes=votes)
    bus.publish(topic_of(record), "j", record)
    bus.flush()
    bus.close()
    status(bus=address)
    assert (
        "provisional models, which weigh less until there is enough to judge them by: lof\n" in capsys.readouterr().out
    )
    status(bus=address, json="-")
    assert json_of(capsys)["jobs"][0]["provisional_models"] == ["lof"]


def test_an_incident_is_listed_once_whatever_its_revisions(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert incidents(bus=address, json="-") == 1
    assert [incident["id"] for incident in json_of(capsys)["incidents"]] == ["i1"]
    assert incidents(bus=address, job="other", json="-") == 3
    assert json_of(capsys)["answer"] == "not judged"


@pytest.mark.parametrize(("limit", "ids", "earlier"), [(None, 45, 5), (3, 3, 42), (100, 45, 0)])
def test_a_screen_shows_the_newest_incidents_and_json_all_unless_limited(
    limit: int | None, ids: int, earlier: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = (
        IncidentRecord(
            id=f"i{number}", job="j", kind="crash", severity="sev2", state="opened", revision=0, opened_at_s=number,
            updated_at_s=number, reason="rank 1 died",
        )
        for number in range(45)
    )  # fmt: skip
    address = job(tmp_path, *found)
    incidents(bus=address, limit=limit, json="-")
    assert [one["id"] for one in json_of(capsys)["incidents"]] == [f"i{number}" for number in range(45)][-ids:]
    incidents(bus=address, limit=limit)
    said = capsys.readouterr().out.splitlines()
    assert sum("crash" in line for line in said) == 45 - earlier
    assert [line.split()[0] for line in said if "not shown" in line] == ([str(earlier)] if earlier else [])


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


def test_an_approval_names_the_plan_that_stands(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert actions("list", bus=address, json="-") == 0
    assert json_of(capsys)["actions"][0]["plan_digest"] == "d1"
    assert actions("approve", "a1", bus=address, json="-") == 0
    assert json_of(capsys)["command"]["plan_digest"] == "d1"


def test_a_stop_is_said_before_anything_is_read_and_by_whoever_has_no_name(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise AssertionError("a stop read the bus")

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 4242")

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddedBus, "read", nothing)
        patch.setattr("getpass.getuser", nameless)
        assert actions("stop", bus=address) == 0
    bus = EmbeddedBus(address.removeprefix("embedded:"))
    (word,) = [message.record for message in bus.read(COMMANDS)]
    assert isinstance(word, CommandRecord)
    assert (word.kind, word.job, word.by) == ("stop", "*", f"uid {os.getuid()}")
    bus.close()


def test_incidents_that_last_or_lasted_lately(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    now_s = time.time()
    for name, opened_s, closed_s in (("old", 9_000.0, 8_000.0), ("late", 7_000.0, 60.0), ("lasting", 9_500.0, None)):
        bus.publish(INCIDENTS, "j", IncidentRecord(
            id=name, job="j", kind="hang", severity="sev2", revision=1,
            state="opened" if closed_s is None else "closed",
            opened_at_s=now_s - opened_s, updated_at_s=now_s - opened_s, reason="r",
            closed_at_s=None if closed_s is None else now_s - closed_s,
        ))  # fmt: skip
    bus.flush()
    bus.close()
    address = f"embedded:{tmp_path / 'bus.db'}"

    def listed(**asked: Any) -> list[str]:
        incidents(bus=address, json="-", **asked)
        return [incident["id"] for incident in json_of(capsys)["incidents"]]

    assert listed() == ["lasting", "old", "late"]
    assert listed(open_only=True) == ["lasting"]
    assert listed(since="30m") == ["lasting", "late"]
    assert incidents(bus=address, since="30m") == 1
    assert capsys.readouterr().out.startswith("20")  # a date
    with pytest.raises(ConfigError, match="neither a time ago"):
        incidents(bus=address, since="yesterday")


def test_a_run_is_known_after_its_command_has_ended(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a bus named, the questions are about the newest kept run, or that of the job asked for."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    assert status() == 3
    run = kept_runs.begin("j", ["python"], RunsSettings())
    for part in ("", "-wal", "-shm"):
        source = Path(f"{address.partition(':')[2]}{part}")
        if source.exists():
            shutil.copy(source, run.path)
    run.finished({"exit_code": 3, "steps": 10, "incidents": [{}]})
    run.close()
    assert status() == 1
    said = capsys.readouterr().out.partition("\n")[2]
    assert "j    running  incident  2      9     0.500        1\n" in said
    assert f"j: exit code 3, 10 steps, 1 incident(s); {run.path}" in said
    assert incidents(job="j") == 1
    assert report(out=tmp_path / "r.html") == 0
    EmbeddedBus(DEFAULT_BUS.partition(":")[2]).close()  # as `up` leaves it in a folder
    assert incidents(job="j") == 1
    assert report(job="j", out=tmp_path / "r2.html") == 0


def test_status_shows_the_layout(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    status(bus=address, json="-")
    assert json_of(capsys)["jobs"][0]["layout"] is None
    claim = Claim(source="arguments", framework="Megatron", world_size=512, started_s=1.0, tp=8, cp=1, pp=4, ep=8)
    bus = EmbeddedBus(address.partition(":")[2])
    for _ in range(2):
        event = EventRecord(
            id="e", job="j", node="n", time_s=1.0, kind="parallel_layout", rank=0, fields=event_fields(claim)
        )
        bus.publish(topic_of(event), "j", event)
    bus.flush()
    bus.close()
    status(bus=address)
    assert "  tp 8 x pp 4 x dp 16; expert 8; from Megatron arguments\n" in capsys.readouterr().out
    status(bus=address, json="-")
    layout = json_of(capsys)["jobs"][0]["layout"]
    assert layout["sizes"] == {"tp": 8, "cp": 1, "pp": 4, "ep": 8, "dp": 16}
    assert (layout["whole"], layout["contradictions"]) == (True, [])
