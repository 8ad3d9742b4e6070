"""What is around a training command does not take it down when something of ours breaks."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainwarden import rundir
from trainwarden.cli.ask import runs
from trainwarden.cli.run import job_run
from trainwarden.cli.run.job_run import JobRun, settings_for
from trainwarden.cli.run.outcome.last_look import last_look
from trainwarden.cli.shared import kept_runs
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError, NotJudged
from trainwarden.records import EventRecord, IncidentKind, IncidentRecord
from trainwarden.settings import Settings
from trainwarden.topics import INCIDENTS


def test_a_follower_that_breaks_is_said_once_and_asked_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    with JobRun(Settings(job="j", run_dir=str(tmp_path / "run")), own_services=()) as run:

        def broken(_timeout_s: float) -> None:
            raise KeyError("a record nobody thought of")

        monkeypatch.setattr(run.follower, "poll", broken)
        monkeypatch.setattr("time.sleep", lambda _seconds: None)
        for _ in range(3):
            run.look(Voice(stream=said))
    assert said.getvalue().count("watching has ended (KeyError") == 1


@pytest.mark.parametrize("looked", [0, 1])
def test_a_follower_that_breaks_does_not_take_the_exit_code_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looked: int
) -> None:
    said = io.StringIO()
    with JobRun(Settings(job="j", run_dir=str(tmp_path / "run")), own_services=()) as run:

        def broken(_timeout_s: float) -> None:
            raise KeyError("a record nobody thought of")

        monkeypatch.setattr(run.follower, "poll", broken)
        monkeypatch.setattr("time.sleep", lambda _seconds: None)
        for _ in range(looked):
            run.look(Voice(stream=said))
        run.drain(Voice(stream=said))
        assert run.result(3)["exit_code"] == 3
    assert said.getvalue().count("watching has ended (KeyError") == 1


def test_records_that_cannot_be_kept_are_said(tmp_path: Path) -> None:
    said = io.StringIO()
    (tmp_path / "file").touch()
    with JobRun(Settings(job="j", run_dir=str(tmp_path / "run")), own_services=()) as run:
        run.keep(tmp_path / "file", Voice(stream=said))
        run.keep(None, Voice(stream=said))
    assert said.getvalue().count("no recorded folder could be written") == 1


def test_embedded_without_a_path_is_the_runs_own_bus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with JobRun(Settings(job="j", bus="embedded"), own_services=()) as run:
        assert run.bus_address == f"embedded:{rundir.bus_file(run.run_dir)}"


def test_steps_that_nobody_has_followed_are_not_none_but_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with JobRun(Settings(job="j", bus="embedded"), own_services=()) as run:
        assert run.result(0)["steps"] is None
        (kept,) = kept_runs.kept()
        assert "exit code 0, steps not counted, not judged" in runs.run_line(kept)
        run.look(Voice(stream=io.StringIO()))
        assert run.result(0)["steps"] == 0


class Ended:
    """A run of a command that prints `output` and ends, without any service of ours beside it."""

    def __init__(self, folder: Path, services: tuple[str, ...] = ()) -> None:
        self.run = JobRun(Settings(job="j", run_dir=str(folder / "run")), own_services=services)
        self.said = io.StringIO()

    def result(self, code: int, output: str = "") -> dict[str, Any]:
        (self.run.run_dir / rundir.LOGS / "job.log").write_text(output)
        self.run.look(Voice(stream=self.said))
        self.run.end(code)
        made = self.run.result(code)
        self.said.write("\n".join(self.run.summary(made)))
        return made

    def incidents_on_bus(self) -> list[IncidentRecord]:
        return [one.record for one in self.run.bus.read(INCIDENTS) if isinstance(one.record, IncidentRecord)]


TRACEBACK = """Traceback (most recent call last):
  File "/job/train.py", line 3, in <module>
    import dta
ModuleNotFoundError: No module named 'dta'
"""


def test_a_failed_command_has_an_incident_without_any_detector(tmp_path: Path) -> None:
    ended = Ended(tmp_path)
    made = ended.result(1, TRACEBACK)
    (incident,) = made["incidents"]
    assert made["answer"] == "incident"
    assert (incident["kind"], incident["suspects"][0]["rank"]) == ("user_error", 0)
    assert "No module named 'dta' at train.py:3" in incident["reason"]
    assert incident["output"][-1] == "ModuleNotFoundError: No module named 'dta'"
    assert [one.id for one in ended.incidents_on_bus()] == [incident["id"]]
    last = ended.said.getvalue().splitlines()[-1]
    assert last.startswith("incident: user_error sev2: rank 0 on ")
    assert last.endswith(f"next: trainwarden explain {incident['id'][:8]}")


def test_a_failed_command_has_an_incident_even_where_nothing_can_look_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[IncidentRecord]:
        raise ImportError("No module named 'numpy'")

    monkeypatch.setattr(job_run, "last_look", broken)
    (incident,) = Ended(tmp_path).result(9)["incidents"]
    assert (incident["kind"], incident["reason"]) == ("crash", "the command ended with exit code 9")


def test_what_the_detector_finds_while_the_end_is_looked_at_is_not_told_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended(tmp_path)
    late = IncidentRecord(id="late", job="j", kind="user_error", severity="sev2", state="opened", revision=1,
                          opened_at_s=1.0, updated_at_s=1.0, reason="r")  # fmt: skip

    def slow(*looked: Any) -> list[IncidentRecord]:
        ended.run.bus.publish(INCIDENTS, "j", late)
        ended.run.bus.flush()
        return last_look(*looked)

    monkeypatch.setattr(job_run, "last_look", slow)
    assert [one["id"] for one in ended.result(1, TRACEBACK)["incidents"]] == ["late"]
    assert {one.id for one in ended.incidents_on_bus()} == {"late"}


def test_what_a_late_detector_tells_until_it_is_stopped_is_told_once_and_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended(tmp_path, services=("detector",))
    late = IncidentRecord(id="late", job="j", kind="user_error", severity="sev2", state="opened", revision=1,
                          opened_at_s=1.0, updated_at_s=1.0, reason="r")  # fmt: skip

    def stop(*_services: str) -> None:
        ended.run.bus.publish(INCIDENTS, "j", late)
        ended.run.bus.flush()

    monkeypatch.setattr(ended.run.stack, "stop", stop)
    monkeypatch.setattr(ended.run.stack, "returncode", lambda _name: None)
    assert [one["id"] for one in ended.result(1, TRACEBACK)["incidents"]] == ["late"]
    assert [(one.id, one.state) for one in ended.incidents_on_bus()] == [("late", "opened"), ("late", "closed")]


@pytest.mark.parametrize("code", [130, 143, 129])
def test_a_stopped_command_is_interrupted_and_no_failure(tmp_path: Path, code: int) -> None:
    made = Ended(tmp_path).result(code, TRACEBACK)
    assert made["incidents"] == []
    assert made["interrupted"] in {"SIGINT", "SIGTERM", "SIGHUP"}


def test_a_signal_to_us_makes_whatever_exit_code_an_interruption(tmp_path: Path) -> None:
    ended = Ended(tmp_path)
    ended.run.stopped_by(15)
    made = ended.result(1, TRACEBACK)
    assert (made["incidents"], made["interrupted"]) == ([], "SIGTERM")
    assert "was interrupted (SIGTERM)" in ended.said.getvalue()


def test_without_a_detector_nothing_is_said_to_be_healthy(tmp_path: Path) -> None:
    ended = Ended(tmp_path)
    made = ended.result(0)
    assert made["answer"] == "not judged"
    assert "no incident" not in ended.said.getvalue()
    assert "NOT JUDGED: no detector has answered on embedded:" in ended.said.getvalue()


def test_a_service_that_has_ended_is_said_at_once_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended(tmp_path, services=("detector",))
    monkeypatch.setattr(ended.run.stack, "returncode", lambda _name: 1)
    ended.run.stack.log_path("detector").write_text("Traceback\nModuleNotFoundError: No module named 'numpy'\n")
    made = ended.result(0)
    first, *_, last = ended.said.getvalue().splitlines()
    assert first.startswith("trainwarden: NOT JUDGED from now on: the detector ended with exit code 1")
    assert "pip install numpy" in last
    assert made["answer"] == "not judged"
    assert ended.said.getvalue().count("from now on") == 1


def test_a_service_that_was_killed_is_said_by_its_signal_and_not_by_what_it_had_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = Ended(tmp_path, services=("agent",))
    monkeypatch.setattr(ended.run.stack, "returncode", lambda _name: -9)
    log = ended.run.stack.log_path("agent")
    log.write_text("2026-11-28 15:15:01 info trainwarden.agent all is well\n")
    (why,) = ended.result(0)["not_judged"]
    assert why["reason"].startswith("the agent was killed by SIGKILL after ")
    assert "all is well" not in why["reason"]
    assert why["remedy"] == f"its log is {log}"


@pytest.mark.parametrize("kind", ["pipeline", "slow_compute", "host_contention"])
def test_a_failed_command_has_an_incident_beside_one_that_ends_no_job(
    kind: IncidentKind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the agent was killed: the detector misses it, and nobody tells it of the command's end."""
    ended = Ended(tmp_path, services=("agent", "detector"))
    monkeypatch.setattr(ended.run.stack, "returncode", lambda name: -9 if name == "agent" else None)
    missed = IncidentRecord(id="i", job="j", kind=kind, severity="sev3", state="opened", revision=1, opened_at_s=1.0,
                            updated_at_s=1.0, reason="r")  # fmt: skip
    ended.run.bus.publish(INCIDENTS, "j", missed)
    ended.run.bus.flush()
    made = ended.result(1, TRACEBACK)
    assert {one["kind"] for one in made["incidents"]} == {kind, "user_error"}
    assert ended.said.getvalue().splitlines()[-1].startswith("incident: user_error sev2: ")


def test_a_service_that_cannot_be_started_is_said_and_the_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text("")  # without the right to run it, as another user's interpreter
    monkeypatch.setattr(sys, "executable", str(program))
    ended = Ended(tmp_path, services=("agent", "detector"))
    with ended.run as run:
        made = ended.result(0)
        with pytest.raises(NotJudged, match="agent could not be started"):
            run.stack.check(("agent",))
    lines = ended.said.getvalue().splitlines()
    refused = f"cannot be started: Permission denied: {program}"
    assert lines[0].startswith(f"trainwarden: NOT JUDGED from now on: the agent {refused}")
    assert lines[1].startswith(f"trainwarden: NOT JUDGED from now on: the detector {refused}")
    assert made["answer"] == "not judged"


def test_incidents_of_a_run_that_is_over_are_closed_with_the_reason(tmp_path: Path) -> None:
    ended = Ended(tmp_path, services=("detector",))
    ended.run.stack.returncode = lambda _name: None  # type: ignore[method-assign]
    incident = IncidentRecord(id="i", job="j", kind="hang", severity="sev2", state="opened", revision=1,
                              opened_at_s=1.0, updated_at_s=1.0, reason="r")  # fmt: skip
    ended.run.bus.publish(INCIDENTS, "j", incident)
    ended.run.bus.flush()
    (found,) = ended.result(143)["incidents"]
    assert found["closed_why"] == "the job was stopped by SIGTERM"
    assert [one.state for one in ended.incidents_on_bus()] == ["opened", "closed"]


def test_what_a_lost_detector_has_found_to_have_ended_all_ranks_is_told_once(tmp_path: Path) -> None:
    ended = Ended(tmp_path, services=("detector",))
    ended.run.stack.returncode = lambda _name: 1  # type: ignore[method-assign]
    down = IncidentRecord(id="i", job="j", kind="crash", severity="sev2", state="closed", revision=2, opened_at_s=1.0,
                          updated_at_s=1.0, closed_at_s=1.0, reason="r", unresolved=True)  # fmt: skip
    ended.run.bus.publish(INCIDENTS, "j", down)
    ended.run.bus.flush()
    (found,) = ended.result(3)["incidents"]
    assert (found["id"], found["unresolved"]) == ("i", False)


@pytest.mark.parametrize("name", ["a/b", "", "-x", "a b", "x" * 129, "../x"])
def test_a_name_that_no_job_can_have_is_wrong_use_in_one_sentence(name: str) -> None:
    with pytest.raises(ConfigError, match=r"--job '.*': a job's name has up to 128 letters"):
        settings_for(None, name, "watch")
    assert settings_for(None, "llama-3.1_70B", "watch").job == "llama-3.1_70B"


@pytest.mark.parametrize(
    ("output", "hook", "code", "waited_s"),
    [
        (None, None, 0, job_run.LOOK_S),  # as of `true`: nothing can come any more
        ("a line\n", None, 0, job_run.DRAIN_S),  # that a detector may have something to say about
        (None, "rank-0-4711.hook", 0, job_run.DRAIN_S + job_run.LAST_WORDS_S),
        (None, None, 3, job_run.DRAIN_S + job_run.LAST_WORDS_S),
    ],
)
def test_only_what_may_still_tell_something_is_waited_for(
    output: str | None, hook: str | None, code: int, waited_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, now = Ended(tmp_path), [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time, sleep=time.sleep)
    monkeypatch.setattr(job_run, "time", clock)
    monkeypatch.setattr(ended.run, "look", lambda _voice: now.__setitem__(0, now[0] + job_run.LOOK_S))
    if output is not None:
        (ended.run.run_dir / rundir.LOGS / "job.log").write_text(output)
    if hook is not None:
        (ended.run.run_dir / rundir.HOOK / hook).touch()
    ended.run.end(code)
    ended.run.drain(Voice(stream=ended.said))
    assert now[0] == pytest.approx(waited_s, abs=4.0 * job_run.LOOK_S)


def test_a_command_that_was_no_training_is_told_so(tmp_path: Path) -> None:
    ended = Ended(tmp_path, services=("detector",))
    ended.run.stack.returncode = lambda _name: None  # type: ignore[method-assign]
    made = ended.result(0)
    assert [one["reason"] for one in made["not_judged"]] == [
        "no training step was seen, so neither speed nor hangs could be judged"
    ]


def test_a_program_that_ended_badly_and_is_not_accused_is_named(tmp_path: Path) -> None:
    ended = Ended(tmp_path, services=("detector",))
    ended.run.stack.returncode = lambda _name: None  # type: ignore[method-assign]
    message, fields = "probe.py ended before it trained: exit code 3", {"pid": 7, "incarnation": "7-t1"}
    for facts in ({"untrained": True, "excused": "it gave no reason"}, {}):  # the second is of a process that trained
        event = EventRecord(
            id=f"e{len(facts)}", job="j", node="n", time_s=1.0, kind="process_exit", message=message,
            fields=fields | facts,
        )  # fmt: skip
        ended.run.follower.view.feed(event)
    (why,) = ended.result(0)["not_judged"]
    assert why["reason"].endswith(f"neither speed nor hangs could be judged; {message}")


@pytest.mark.thorough
def test_what_runs_for_a_minute_and_does_not_train_is_said_once_while_it_runs(tmp_path: Path) -> None:
    ended = Ended(tmp_path)
    for lived_s in (10.0, 60.0):
        event = EventRecord(
            id=f"begun/{lived_s}", job="j", node="n", time_s=lived_s, kind="process_begun", rank=1,
            message=f"rank 1 (train.py) has run for {lived_s:.0f} s and not trained yet",
            fields={"untrained": True, "incarnation": "7-t1", "pid": 7, "for_s": lived_s},
        )  # fmt: skip
        ended.run.follower.view.feed(event)
        for _ in range(2):
            ended.run.look(Voice(stream=ended.said))
    (said,) = ended.said.getvalue().splitlines()
    assert said == "trainwarden: NOT JUDGED so far: rank 1 (train.py) has run for 60 s and not trained yet"
