"""What commands that answer say where there is no incident: healthy, or not judged; all alike."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainwarden.cli.ask.test_jobs_on_bus import verdict
from tests.unit.trainwarden.cli.test_main import run
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.shared import kept_runs
from trainwarden.records import HeartbeatRecord, IncidentRecord, IterationRecord, Record
from trainwarden.settings import RunsSettings
from trainwarden.topics import topic_of


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has run nothing, in an empty folder."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("TRAINWARDEN_BUS", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def kept(job: str, *records: Record, detects: bool = False) -> kept_runs.OwnRun:
    """A run of `job` that is kept with `records`, and still runs."""
    own = kept_runs.begin(job, kept_runs.DETECT if detects else ("python",), RunsSettings())
    bus = EmbeddedBus(str(own.path / "bus.db"))
    for record in records:
        bus.publish(topic_of(record), job, record)
    bus.flush()
    bus.close()
    return own


def over(own: kept_runs.OwnRun) -> None:
    """Its command has ended well."""
    own.finished({"exit_code": 0, "steps": 10, "incidents": []})
    own.close()


def steps() -> IterationRecord:
    return IterationRecord(
        job="j", node="n", rank=0, incarnation="1-1", steps=tuple(range(10)), end_s=tuple(map(float, range(10))),
        duration_s=(0.5,) * 10,
    )  # fmt: skip


ASKING = ("status", "incidents", "explain", "report", "runs", "nodes", "actions", "silences")


@pytest.mark.parametrize("command", ASKING)
def test_where_nothing_has_run_nothing_was_judged(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = () if command == "report" else ("--json",)
    assert run(monkeypatch, command, *words) == 3
    said = capsys.readouterr()
    assert "NOT JUDGED: " in said.err
    assert "trainwarden watch -- COMMAND" in said.err
    if words:
        told = json.loads(said.out)
        assert told["answer"] == "not judged"
        assert "trainwarden watch" in told["not_judged"][0]["remedy"]
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("command", [*ASKING[:4], *ASKING[5:]])
def test_a_bus_that_was_named_and_is_not_there_is_wrong_use(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, command, "--bus", "embedded:none.db") == 2
    assert "there is no embedded bus at 'none.db'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [("actions", "stop"), ("silences", "add", "--kind", "hang", "--for", "1h"),
                                   ("set-healthy", "n"), ("cordon", "n", "--why", "w")])  # fmt: skip
def test_a_word_that_nobody_can_hear_is_wrong_use(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *words) == 2
    assert "name one with --bus or TRAINWARDEN_BUS" in capsys.readouterr().err


@pytest.mark.parametrize(("opinion", "code", "answer"), [("normal", 0, "healthy"), ("abstain", 3, "not judged")])
@pytest.mark.parametrize("command", ["status", "incidents", "explain"])
def test_no_incident_is_only_an_answer_of_detectors_that_had_input(
    command: str, opinion: str, code: int, answer: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    over(kept("j", steps(), verdict(time.time() - 5.0, opinion), verdict(time.time(), opinion)))
    assert run(monkeypatch, command, "--json") == code
    said = capsys.readouterr()
    assert json.loads(said.out)["answer"] == answer
    healthy = "10 steps of 1 rank, 0 metrics judged for 5 s by change_point"
    assert (healthy in said.err) is (answer == "healthy")
    assert ("j NOT JUDGED: " in said.err or "NOT JUDGED: j: " in said.err) is (answer != "healthy")


@pytest.mark.parametrize("command", ["status", "incidents", "explain"])
def test_a_run_whose_detector_was_lost_is_not_healthy_afterwards(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = {"reason": "the detector was killed by SIGKILL after 12 s", "remedy": "its log is l"}
    own = kept("j", steps(), verdict(time.time() - 5.0), verdict(time.time()))
    own.finished({"exit_code": 0, "steps": 10, "incidents": [], "answer": "not judged", "not_judged": [lost]})
    own.close()
    assert run(monkeypatch, command, "--json") == 3
    said = json.loads(capsys.readouterr().out)
    assert (said["answer"], said["not_judged"]) == ("not judged", [lost])


@pytest.mark.parametrize(("since", "code"), [("30m", 0), ("1d", 3)])
def test_a_run_that_was_over_by_then_is_not_asked_about(
    since: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    long_ago_s = time.time() - 7_200.0
    over(kept("blind", HeartbeatRecord(job="blind", node="n", time_s=long_ago_s)))
    over(kept("j", steps(), verdict(time.time())))
    assert run(monkeypatch, "incidents", "--since", since) == code
    assert ("NOT JUDGED: blind: " in capsys.readouterr().out) is (code == 3)


def test_standard_input_that_is_closed_is_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", None)  # as Python has it then
    assert run(monkeypatch, "detect", "-") == 2
    assert "standard input is closed" in capsys.readouterr().err


def incident(job: str) -> IncidentRecord:
    return IncidentRecord(id=f"i-{job}", job=job, kind="hang", severity="sev2", state="opened", revision=0,
                          opened_at_s=5.0, updated_at_s=5.0, reason="rank 1 stands still")  # fmt: skip


@pytest.mark.parametrize("other", ["running", "over"])
def test_status_tells_of_every_run_that_runs_now(
    other: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    older: Any = kept("older", incident("older"))
    older_path = older.path.rename(older.path.with_name("20200101T000000-older-00000000"))
    older.path = older_path
    if other == "over":
        over(older)
    over(kept("j", steps(), verdict(time.time())))
    assert run(monkeypatch, "status", "--json") == (1 if other == "running" else 0)
    jobs = [one["job"] for one in json.loads(capsys.readouterr().out)["jobs"]]
    assert jobs == (["j", "older"] if other == "running" else ["j"])


def test_beside_the_bus_of_this_folder_only_runs_that_run_are_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `up` leaves it in a folder; a run that is over says nothing of what its jobs do."""
    runs = kept("runs", steps(), verdict(time.time()))
    over(kept("over", incident("over")))
    bus = EmbeddedBus("trainwarden.db")
    bus.publish(topic_of(verdict(time.time())), "j", verdict(time.time()))
    bus.flush()
    bus.close()
    run(monkeypatch, "status", "--json")
    assert [one["job"] for one in json.loads(capsys.readouterr().out)["jobs"]] == ["j"] * 2
    runs.close()


def test_what_detect_has_found_hides_no_job(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watched = kept("j", steps(), verdict(time.time()))
    watched.path = watched.path.rename(watched.path.with_name("20200101T000000-j-00000000"))
    over(watched)
    over(kept("recording", incident("recording"), detects=True))
    assert run(monkeypatch, "status") == 0
    assert "recording  " not in capsys.readouterr().out.partition("\nrun ")[0]
    assert run(monkeypatch, "explain") == 0
    assert "of job recording" in capsys.readouterr().out


@pytest.mark.parametrize(("command", "code"), [("status", 3), ("incidents", 3), ("explain", 3), ("report", 3)])
def test_a_run_that_left_no_record_says_itself_why_it_was_not_judged(
    command: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `watch -- true`, whose agent had not begun to send."""
    own = kept("quick")
    blind = {"reason": "no training step was seen", "remedy": "train"}
    own.finished({"exit_code": 0, "steps": 0, "incidents": [], "answer": "not judged", "not_judged": [blind]})
    own.close()
    assert run(monkeypatch, command) == code
    said = capsys.readouterr()
    assert command == "report" or "NOT JUDGED: quick: no training step was seen; train" in said.out
    assert command != "report" or "NOT JUDGED: no job has left a record" in said.err


def test_status_lists_the_last_runs_and_says_where_all_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        over(kept(f"j{number}", steps()))
    run(monkeypatch, "status")
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("run ") for line in lines) == 4
    assert lines[-1] == "2 earlier runs: trainwarden runs"


@pytest.mark.parametrize("command", ["status", "incidents", "explain"])
def test_a_job_whose_watcher_was_killed_is_not_called_healthy(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept("j", steps(), verdict(time.time())).close()
    assert run(monkeypatch, command) == 3
    assert "the command that watched it was killed, so how it ended is not known" in capsys.readouterr().out
