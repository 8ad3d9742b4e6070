"""Who is to be measured before ranks start again, by the bus, and what came of it, told there."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec
import pytest

from tests.doubles import ManualClock, MemoryBus
from trainwarden.actions.launchers.restart_check.messages import Outcome
from trainwarden.actions.remedies import table
from trainwarden.actions.suspicions.on_bus import SuspicionsOnBus
from trainwarden.commands.builders import EVERY_JOB
from trainwarden.errors import BusUnavailable
from trainwarden.launching import CHECKS, Accused, Findings
from trainwarden.records import ActionRecord, CommandRecord, IncidentRecord, Suspect
from trainwarden.settings import LaunchSettings, Settings
from trainwarden.topics import ACTIONS, COMMANDS, INCIDENTS

NOW_S: Final = 10_000.0
SLOW: Final = Accused(kind="slow_compute", text="rank 1 on n1 is slow", ranks=(1,), nodes=("n1",))
JUDGED: Final = ("gemm", "links")


class World:
    def __init__(self, *, always: bool = False) -> None:
        self.clock, self.bus, self.away = ManualClock(NOW_S), MemoryBus(), False
        self.suspicions = SuspicionsOnBus("j", table.load(None), self.open, self.clock, always=always)

    def open(self) -> MemoryBus:
        if self.away:
            raise BusUnavailable("away by the test")
        return self.bus

    def incident(self, **what: Any) -> None:
        said = {
            "id": "i1", "job": "j", "kind": "metric_anomaly", "severity": "sev3", "state": "opened", "revision": 0,
            "opened_at_s": NOW_S, "updated_at_s": NOW_S, "reason": "unlike others",
            "suspects": (Suspect(score=0.9, reason="", node="n1"),),
        }  # fmt: skip
        self.bus.publish(INCIDENTS, "j", IncidentRecord(**{**said, **what}))
        self.bus.flush()

    def action(self, **what: Any) -> None:
        said = {
            "id": "i1/validate/1", "incident": "i1", "job": "j", "kind": "validate", "outcome": "done", "why": "",
            "at_s": NOW_S - 3600.0, "finished_at_s": NOW_S - 3600.0,
        }  # fmt: skip
        self.bus.publish(ACTIONS, "j", ActionRecord(**{**said, **what}))
        self.bus.flush()

    def told(self) -> list[ActionRecord]:
        """What is on the bus, once a thread has put it there."""
        until_s = time.monotonic() + 10.0
        while not (found := self.bus.records(ActionRecord)) and time.monotonic() < until_s:
            time.sleep(0.001)
        return found


@pytest.fixture
def world() -> World:
    return World()


def test_suspects_of_an_open_incident_whose_row_has_a_validation_are_wanted(world: World) -> None:
    world.incident()
    wanted = world.suspicions.wanted(("n0", "n1"))
    assert wanted is not None
    assert (wanted.nodes, wanted.checks) == (("n1",), ("gemm", "links"))
    assert (wanted.doubts[0].incident, wanted.doubts[0].action) == ("i1", "i1/validate/1")


@pytest.mark.parametrize(
    "what",
    [
        {"state": "closed", "closed_at_s": NOW_S},
        {"job": "other"},
        {"kind": "crash"},
        {"suspects": ()},
        {"suspects": (Suspect(score=0.9, reason="", node="n7"),)},
    ],
)
def test_nobody_else_is(world: World, what: dict[str, Any]) -> None:
    world.incident(**what)
    assert world.suspicions.wanted(("n0", "n1")) is None


@pytest.mark.parametrize("verdict", ["confirmed", "cleared"])
def test_who_was_confirmed_or_cleared_is_not_asked_about_again(world: World, verdict: str) -> None:
    world.incident()
    world.action(plan={"verdict": verdict})
    assert world.suspicions.wanted(("n1",)) is None


def test_what_is_undecided_is_asked_again_once_the_job_has_rested(world: World) -> None:
    world.incident()
    world.action(plan={"verdict": "undecided"})
    wanted = world.suspicions.wanted(("n1",))
    assert wanted is not None
    assert wanted.doubts[0].action == "i1/validate/2"
    world.action(id="i2/validate/1", incident="i2", outcome="failed", at_s=NOW_S - 60.0, finished_at_s=NOW_S - 60.0)
    assert world.suspicions.wanted(("n1",)) is None


def test_a_validation_that_was_only_held_counts_for_nothing(world: World) -> None:
    world.incident()
    world.action(outcome="skipped", plan={"held": "pause"}, at_s=NOW_S, finished_at_s=NOW_S)
    wanted = world.suspicions.wanted(("n1",))
    assert wanted is not None
    assert wanted.doubts[0].action == "i1/validate/1"


def word(kind: str, **what: Any) -> CommandRecord:
    return msgspec.convert({"type": "command", "id": kind, "job": "j", "at_s": 1.0, "kind": kind, "by": "ann", **what},
                           CommandRecord)  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [
        word("stop"),
        word("stop", job=EVERY_JOB),
        word("silence", node="n1", until_s=NOW_S + 60.0, job=EVERY_JOB),
        word("set_healthy", node="n1", job=EVERY_JOB),
    ],
)
def test_peoples_words_hold_it_back(said: CommandRecord) -> None:
    for world in (World(), World(always=True)):
        world.incident()
        world.bus.publish(COMMANDS, said.job, said)
        world.bus.flush()
        wanted = world.suspicions.wanted(("n1",))
        assert wanted is None or (wanted.doubts == () and said.kind != "stop")
    assert (wanted is None) == (said.kind == "stop")


def test_a_bus_that_is_away_knows_of_no_suspect(world: World) -> None:
    world.incident()
    world.away = True
    assert world.suspicions.wanted(("n1",)) is None
    always = World(always=True)
    always.away = True
    wanted = always.suspicions.wanted(("n1",))
    assert wanted is not None
    assert (wanted.checks, wanted.nodes, wanted.doubts) == (CHECKS, (), ())


def test_what_was_found_is_told_as_an_engines_validation_is(world: World) -> None:
    world.incident()
    wanted = world.suspicions.wanted(("n0", "n1"))
    assert wanted is not None
    found = Findings(accused=(SLOW,), judged=JUDGED, nodes=("n0", "n1"))
    conclusion = world.suspicions.conclude(wanted, Outcome(found))
    assert conclusion.confirmed == ("n1",)
    assert conclusion.said == "confirmed: rank 1 on n1 is slow"
    (told,) = world.told()
    assert (told.id, told.incident, told.kind, told.outcome) == ("i1/validate/1", "i1", "validate", "done")
    assert (told.plan["verdict"], told.plan["confirmed"], told.plan["nodes"]) == ("confirmed", ["n1"], ["n1"])
    assert told.why.endswith("measured by its launcher before its ranks start again: confirmed: rank 1 on n1 is slow")
    assert world.suspicions.wanted(("n0", "n1")) is None


def test_one_without_a_result_has_failed_and_confirms_nobody(world: World) -> None:
    world.incident()
    wanted = world.suspicions.wanted(("n1",))
    assert wanted is not None
    conclusion = world.suspicions.conclude(wanted, Outcome(None, "it was not measured"))
    assert (conclusion.confirmed, conclusion.said) == ((), "it was not measured")
    assert world.told()[0].outcome == "failed"
    assert world.suspicions.wanted(("n1",)) is None, "not with each restart"


def test_whoever_is_at_fault_is_named_where_all_is_measured() -> None:
    world = World(always=True)
    wanted = world.suspicions.wanted(("n0", "n1"))
    assert wanted is not None
    gone = Accused(kind="crash", text="rank 0 on n0 ended", ranks=(0,), nodes=("n0",))
    conclusion = world.suspicions.conclude(wanted, Outcome(Findings(accused=(gone, SLOW), nodes=("n0", "n1"))))
    assert conclusion.confirmed == ("n1",)
    assert conclusion.said == "rank 0 on n0 ended; rank 1 on n1 is slow"
    assert world.bus.records(ActionRecord) == []


@pytest.mark.parametrize(
    ("rule", "bus", "asks"),
    [("off", "embedded:x", False), ("suspects", None, False), ("suspects", "embedded:x", True), ("always", None, True)],
)
def test_nothing_is_asked_where_nobody_could_answer(rule: Any, bus: str | None, asks: bool) -> None:
    settings = Settings(job="j", launch=LaunchSettings(validate_restarts=rule))
    assert (SuspicionsOnBus.of(settings, ManualClock(), bus) is not None) == asks
