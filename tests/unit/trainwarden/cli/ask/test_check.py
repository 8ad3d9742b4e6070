"""What `check` tells a monitoring system of the Nagios family: exit code, first line, performance data."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import ManualClock
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli import main as command_line
from trainwarden.cli.ask.check_rules import MAX_LINES, Answer, State, limit_of, look, look_at_node, plain
from trainwarden.errors import BusUnavailable, ConfigError
from trainwarden.records import (
    EventRecord,
    HeartbeatRecord,
    IncidentRecord,
    MetricsRecord,
    Record,
    Suspect,
    VerdictRecord,
)
from trainwarden.topics import topic_of

NOW_S = 1_800_000_000.0
LIMITS = (60.0, 180.0)
FIRST_LINE = re.compile(r"(OK|WARNING|CRITICAL|UNKNOWN): [^|\n]+( \| \S+=\S+( \S+=\S+)*)?")


class Told:
    """An embedded bus on which records are said so long ago."""

    def __init__(self, path: Path) -> None:
        self._clock = ManualClock(NOW_S)
        self._path = path
        self._said: list[tuple[float, Record]] = []

    @property
    def address(self) -> str:
        """The bus's address; what was said is written in the order of its times, which never fall on this bus."""
        for ago_s, record in sorted(self._said, key=lambda one: -one[0]):
            self._clock.set_s(NOW_S - ago_s)
            bus = EmbeddedBus(str(self._path), clock=self._clock)
            bus.publish(topic_of(record), record.job, record)  # type: ignore[attr-defined]
            bus.flush()
            bus.close()
        self._said.clear()
        return f"embedded:{self._path}"

    def say(self, record: Record, ago_s: float) -> None:
        self._said.append((ago_s, record))

    def heard(self, *ago_s: float, job: str = "j") -> None:
        for one in sorted(ago_s, reverse=True):
            self.say(HeartbeatRecord(job=job, node="n", time_s=NOW_S - one), one)

    def measured(self, ago_s: float) -> None:
        time_s = NOW_S - ago_s
        self.say(
            MetricsRecord(job="j", node="n", time_s=time_s, devices=("host",), names=("a",), values=((1.0,),)), ago_s
        )

    def judged(self, ago_s: float, job: str = "j") -> None:
        fields = {"id": "v", "time_s": NOW_S - ago_s, "window_s": 60.0, "anomalous": False, "reason": ""}
        self.say(VerdictRecord(job=job, **fields), ago_s)  # type: ignore[arg-type]

    def event(self, kind: str, ago_s: float, job: str = "j") -> None:
        self.say(EventRecord(id=f"{kind}{ago_s}", job=job, node="n", time_s=NOW_S - ago_s, kind=kind), ago_s)

    def incident(self, name: str = "i", severity: str = "sev3", state: str = "opened", **fields: object) -> None:
        known = {
            "kind": "slow_compute",
            "revision": 0,
            "opened_at_s": 1.0,
            "updated_at_s": 1.0,
            "reason": "rank 1 is slow",
        }
        record = {"id": name, "job": "j", "severity": severity, "state": state, **known, **fields}
        self.say(IncidentRecord(**record), 5.0)  # type: ignore[arg-type]

    def answer(self, job: str | None = None) -> Answer:
        bus = EmbeddedBus(self.address.removeprefix("embedded:"), clock=ManualClock(NOW_S))
        try:
            answer = look(bus, job, LIMITS, NOW_S)
        finally:
            bus.close()
        assert FIRST_LINE.fullmatch(answer.text().splitlines()[0]), answer.text()
        return answer


@pytest.fixture
def told(tmp_path: Path) -> Told:
    return Told(tmp_path / "bus.db")


def test_a_job_that_is_heard_of_and_judged_is_ok(told: Told) -> None:
    told.heard(100.0, 2.0)
    told.judged(3.0)
    answer = told.answer()
    assert answer.text() == (
        "OK: 1 job heard of, no incident | jobs=1;;;0 incidents=0;;;0 unheard=2.0s;60;180;0 unjudged=3.0s;60;180;0"
    )


@pytest.mark.parametrize(("severity", "state"), [("sev3", State.WARNING), ("sev2", State.CRITICAL), ("sev1", 2)])
def test_an_open_incident_counts_by_its_severity(told: Told, severity: str, state: State) -> None:
    told.heard(1.0)
    told.judged(1.0)
    told.incident(severity=severity)
    assert told.answer().state == state
    assert told.answer("other").findings == ("job other has not been heard of for more than 180 s",)
    told.incident(severity=severity, state="closed", revision=1, closed_at_s=NOW_S)
    assert told.answer().state is State.OK


def test_the_worst_comes_first_and_the_others_have_lines_of_their_own(told: Told) -> None:
    told.heard(1.0)
    told.judged(1.0)
    told.incident("a", "sev3")
    told.incident("b", "sev1", kind="crash", reason="rank 2 | died\nhard")
    first, second = told.answer().text().splitlines()
    assert first.startswith("CRITICAL: j: crash sev1: rank 2 / died hard (b); 1 more | jobs=1;;;0 incidents=2;;;0 ")
    assert second == "j: slow_compute sev3: rank 1 is slow (a)"


@pytest.mark.parametrize(("ago_s", "state"), [(60.0, State.OK), (61.0, State.WARNING), (181.0, State.CRITICAL)])
def test_silence_is_told_by_the_thresholds(told: Told, ago_s: float, state: State) -> None:
    told.heard(ago_s)
    told.judged(1.0)
    assert told.answer().state is state


@pytest.mark.parametrize(("ago_s", "state"), [(61.0, State.WARNING), (181.0, State.CRITICAL), (None, State.CRITICAL)])
def test_so_is_a_job_that_nobody_judges(told: Told, ago_s: float | None, state: State) -> None:
    told.heard(*range(0, 300, 10))
    if ago_s is not None:
        told.judged(ago_s)
    answer = told.answer()
    assert answer.state is state
    assert "nobody has judged job j for" in answer.findings[0]


def test_a_job_that_has_just_begun_need_not_have_been_judged(told: Told) -> None:
    told.heard(5.0, 1.0)
    assert told.answer().state is State.OK


def test_agents_of_a_job_without_ranks_are_heard_by_what_they_measure(told: Told) -> None:
    told.judged(1.0)
    told.measured(70.0)
    assert told.answer().findings == ("job j has not been heard of for more than 180 s",)
    told.measured(30.0)
    assert told.answer().text().endswith("no incident | jobs=1;;;0 incidents=0;;;0 unjudged=1.0s;60;180;0")
    told.heard(100.0)  # its ranks have ended, its agents go on
    assert told.answer("j").state is State.OK
    assert told.answer("other").state is State.CRITICAL


def test_agents_that_nobody_judges_are_a_warning(told: Told) -> None:
    told.measured(5.0)
    answer = told.answer("j")
    assert (answer.state, len(answer.findings)) == (State.WARNING, 1)
    assert answer.findings[0].startswith("nobody has judged job j for the last hour")


def test_a_job_that_was_judged_within_the_hour_is_missed_unless_it_is_over(told: Told) -> None:
    told.judged(1000.0)
    assert told.answer().findings == ("job j has not been heard of for more than 180 s",)
    told.event("job_end", 900.0)
    assert told.answer().state is State.OK
    assert told.answer("j").findings == ("job j is over",)
    told.event("job_start", 800.0)
    assert told.answer().state is State.CRITICAL


def test_a_job_of_earlier_is_missed_only_where_it_is_named(told: Told) -> None:
    told.judged(7200.0)
    assert told.answer().text() == "OK: no job is heard of: nothing to judge | jobs=0;;;0 incidents=0;;;0"
    assert told.answer("j").state is State.CRITICAL
    told.event("job_end", 7100.0)
    assert told.answer("j").state is State.OK


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"kind": "gpu_lost", "severity": "sev1"}, State.CRITICAL),
        ({"kind": "gpu_memory_error", "severity": "sev3"}, State.WARNING),
        ({"kind": "gpu_lost", "severity": "sev1", "state": "closed", "closed_at_s": NOW_S}, State.OK),
        ({"kind": "hang", "severity": "sev1"}, State.OK),  # the job's, whoever is suspected
        ({"kind": "gpu_lost", "severity": "sev1", "scores": (0.5, 0.9)}, State.OK),  # another is suspected more
        ({"kind": "gpu_lost", "severity": "sev1", "scores": ()}, State.OK),
    ],
)
def test_of_a_node_its_own_faults_count_and_no_silence(told: Told, fields: dict[str, Any], state: State) -> None:
    scores = fields.pop("scores", (0.9, 0.5))
    suspects = [Suspect(score=score, reason="r", node=node) for score, node in zip(scores, ("n", "m"), strict=False)]
    told.judged(1000.0)  # a silent job
    told.incident(suspects=tuple(suspects), **fields)
    bus = EmbeddedBus(told.address.partition(":")[2])
    answer, other = look_at_node(bus, "n", None), look_at_node(bus, "unheard-of", None)
    bus.close()
    assert (answer.state, other.state) == (state, State.OK)
    assert all(FIRST_LINE.fullmatch(one.text().splitlines()[0]) for one in (answer, other))
    assert f"node n{':' if state else ''}" in answer.text()


def test_only_so_many_lines_and_characters() -> None:
    answer = Answer(State.CRITICAL, tuple("x" * 10_000 for _ in range(100)))
    lines = answer.text().splitlines()
    assert len(lines) == MAX_LINES + 1
    assert lines[-1] == "and 80 more"
    assert max(map(len, lines)) < 350


@pytest.mark.parametrize("text", ["", "abc", "-1", "0", "10:20", "@10", "1e3", "nan", "90000", "9" * 400])
def test_a_threshold_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is no number of seconds"):
        limit_of("--warning", text)


def test_nothing_unprintable_is_said() -> None:
    assert plain("a\x1b[31m\u2028|b\x00") == "a [31m /b "


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nonsense"], "No such option: --nonsense"),
        (["word"], "Got unexpected extra argument"),
        (["-w", "often"], "--warning: 'often' is no number of seconds"),
        (["--bus", "embedded:/nowhere/bus.db"], "bus: there is no embedded bus at '/nowhere/bus.db'"),
        (["--config", "/nowhere.toml"], "/nowhere.toml: cannot be read"),
        (["--bus", "carrier-pigeon:x"], "bus"),
    ],
)
def test_wrong_use_is_unknown(
    words: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = run(monkeypatch, capsys, *words)
    assert (code, out.startswith("UNKNOWN: ")) == (3, True)
    assert says in out
    assert FIRST_LINE.fullmatch(out.splitlines()[0])


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (BusUnavailable("no broker answers"), 2, "CRITICAL: the bus is away: no broker answers\n"),
        (ZeroDivisionError("a | b"), 3, "UNKNOWN: the check itself failed: ZeroDivisionError: a / b\n"),
    ],
)
def test_a_bus_that_is_away_is_critical_and_a_defect_unknown(
    error: Exception,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    told: Told,
) -> None:
    told.heard(1.0)

    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(EmbeddedBus, "read", broken)
    assert run(monkeypatch, capsys, "--bus", told.address) == (code, says)
    code, out = run(monkeypatch, capsys, "--bus", told.address, "--node", "n")
    assert (code, out.partition(":")[0]) == (3, "UNKNOWN")  # of the node nothing is known: it is not to be drained


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """The console script; its exit code and standard output."""
    monkeypatch.setattr(sys, "argv", ["trainwarden", "check", *words])
    with pytest.raises(SystemExit) as ended:
        command_line.run()
    return int(ended.value.code or 0), capsys.readouterr().out
