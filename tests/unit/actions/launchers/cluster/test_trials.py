"""Measurements between two attempts of a job on several nodes: ordered, bounded, concluded; without a process."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec
import pytest

from actions.launchers.cluster.control import answered
from actions.launchers.cluster.leading import Leading
from actions.launchers.cluster.words import Attempt, Order, Patience, Report, Shape
from actions.launchers.local.control import AskState, Submit
from actions.launchers.restart_check.trial import MOST_ACCUSED, Trial, TrialPart, TrialSaid
from actions.launchers.restart_check.words import Conclusion, Doubt, Outcome, Wanted
from tests.doubles import ManualClock
from tests.unit.actions.launchers.cluster.test_leading import LEASE, Leadership
from trainwarden.launching import Accused, Findings, Operation

SHAPE: Final = Shape(nodes=2, least_nodes=2, spares=1)
SLOW: Final = Findings(accused=(Accused(kind="slow_compute", text="b is slow", nodes=("b",)),), nodes=("a", "b", "c"))
DOUBT: Final = Doubt(incident="i1", action="i1/validate/1", why="slow", checks=("gemm",), nodes=("b",), ranks=(1,))


class Suspicious:
    """b is suspected, and confirmed by whatever is found."""

    def __init__(self) -> None:
        self.answer: Wanted | None = Wanted(checks=("gemm",), nodes=("b",), doubts=(DOUBT,))
        self.asked: list[tuple[str, ...]] = []
        self.concluded: list[tuple[Wanted, Outcome]] = []

    def wanted(self, nodes: Collection[str]) -> Wanted | None:
        self.asked.append(tuple(nodes))
        return self.answer

    def conclude(self, wanted: Wanted, outcome: Outcome) -> Conclusion:
        self.concluded.append((wanted, outcome))
        return Conclusion(confirmed=("b",) if outcome.findings else (), said=outcome.error or "confirmed")


class World:
    """Nodes that do as they are told, at once; `trials` are what those that measure would say."""

    def __init__(self, shape: Shape = SHAPE, nodes: str = "abc") -> None:
        self.shape, self.suspicious = shape, Suspicious()
        self.leadership, self.clock = Leadership(), ManualClock(100.0)
        self.reports = {node: self.first(node) for node in nodes}
        self.lead()
        self.turn(40)
        assert self.attempt is not None

    def lead(self) -> None:
        self.leading = Leading(
            "j", "l", self.leadership, self.clock, shape=self.shape, patience=Patience(), checkpoints=None,
            suspicions=self.suspicious,
        )  # fmt: skip

    def first(self, node: str) -> Report:
        return Report(job="j", life=node, node=node, shape=self.shape, host=node, port=7000)

    def turn(self, times: int = 1) -> Order:
        """Each node reports once, and follows; the newest order."""
        for _ in range(times):
            for node, said in self.reports.items():
                order = self.leading.answer(said)
                runs = order.run and order.attempt is not None and node in order.attempt.roster
                begun = order.attempt.id if runs and order.attempt is not None else None
                state = said.state if begun == said.ran else "running" if runs else "stopped"
                alive = int(runs and state == "running")
                self.reports[node] = msgspec.structs.replace(
                    said,
                    ledger=order.ledger or said.ledger,
                    newest=order.attempt or said.newest,
                    ran=begun or said.ran,
                    state=state,
                    alive=alive,
                )
            self.leading.advance()
            if (asking := self.leading._trials._asking) is not None:
                asking.wait(5.0)
            self.clock.sleep(0.25)
        self.order = order
        return order

    @property
    def attempt(self) -> Attempt | None:
        return self.order.attempt if self.order.run else None

    def fail(self, node: str = "a") -> None:
        self.say(node, state="failed", code=9, alive=0)
        self.turn(4)

    def say(self, node: str, **what: Any) -> None:
        self.reports[node] = msgspec.structs.replace(self.reports[node], **what)

    def found(self, findings: Findings | None = SLOW, error: str = "") -> None:
        assert self.order.trial is not None
        self.say("a", trial=TrialSaid(id=self.order.trial.id, findings=findings, error=error))
        self.turn(4)

    def ask(self, kind: Any) -> None:
        table = self.leading._table
        assert table is not None
        operation = Operation(id=kind, job="j", kind=kind, expected_generation=table.asked.generation)
        assert answered(Submit(operation), "j", table, self.clock.now_s()).report.state == "accepted"  # type: ignore[union-attr]


@pytest.fixture
def world() -> World:
    return World()


def roster(world: World) -> tuple[str, ...] | None:
    return None if world.attempt is None else world.attempt.roster


def test_a_suspect_is_measured_beside_all_who_are_there_and_not_started_on_where_it_is_confirmed(world: World) -> None:
    assert (roster(world), world.suspicious.asked) == (("a", "b"), []), "not before the first attempt"
    world.fail()
    trial = world.order.trial
    assert trial == Trial(
        id=(3, 1), roster=("a", "b", "c"), master="a", port=7000, checks=("gemm",), nodes=("b",)
    )  # fmt: skip
    assert (roster(world), world.suspicious.asked) == (None, [("a", "b", "c")])
    world.found()
    assert (roster(world), world.order.trial) == (("a", "c"), None)
    ((wanted, outcome),) = world.suspicious.concluded
    assert (wanted.doubts[0].ranks, outcome) == ((), Outcome(SLOW))


def test_nobody_waits_where_nobody_is_suspected(world: World) -> None:
    world.suspicious.answer = None
    world.fail()
    assert (roster(world), world.order.trial) == (("a", "b"), None)


def test_who_is_confirmed_takes_part_where_too_few_would_be_left() -> None:
    world = World(Shape(nodes=2, least_nodes=2), "ab")
    world.fail()
    world.found()
    assert roster(world) == ("a", "b")


def test_a_job_that_may_shrink_goes_on_without_it() -> None:
    world = World(Shape(nodes=2, least_nodes=1), "ab")
    world.fail()
    world.found()
    assert roster(world) is None
    world.turn(130)
    assert roster(world) == ("a",)


def test_one_that_says_nothing_of_its_end_is_waited_for_within_bounds(world: World) -> None:
    world.fail()
    world.turn(4 * 425)
    assert roster(world) is None
    world.turn(4 * 10)
    assert roster(world) == ("a", "b")
    assert "said nothing of its end" in (world.suspicious.concluded[0][1].error or "")


def test_a_job_with_enough_nodes_is_not_given_up_over_a_measurement(world: World) -> None:
    del world.reports["b"], world.reports["c"]
    world.turn(4 * 300)
    world.reports["b"], world.reports["c"] = world.first("b"), world.first("c")
    world.turn(4 * 350)
    assert (world.order.over, world.order.trial is not None) == (None, True)


def test_the_end_of_the_node_that_leads_it_is_the_end_of_it(world: World) -> None:
    world.fail()
    assert world.order.trial is not None
    del world.reports["a"]
    world.turn(4 * 60)
    assert roster(world) == ("b", "c")
    assert world.suspicious.concluded[0][1].error == "the node that led the measurement is gone"


def test_a_pause_or_a_stop_ends_it_and_the_job_goes_on_without_another(world: World) -> None:
    world.fail()
    world.ask("pause")
    world.turn(4)
    assert world.order.trial is None
    world.ask("resume")
    world.turn(4)
    assert (roster(world), world.suspicious.concluded) == (("a", "b"), [])
    world.fail("b")
    world.turn(4 * 5)  # a second failure waits for five seconds first
    assert world.order.trial is not None, "with the next attempt it is made up for"
    world.ask("stop")
    assert (world.turn(4).trial, world.order.over is not None) == (None, True)


def test_another_leader_asks_anew(world: World) -> None:
    world.fail()
    world.lead()
    world.leadership.lease = msgspec.structs.replace(LEASE, epoch=4)
    world.turn(4 * 30)
    assert world.order.trial is not None
    assert world.order.trial.id == (4, 1)
    world.found()
    assert roster(world) == ("a", "c")


def test_state_tells_that_the_job_is_about_to_start_again(world: World) -> None:
    world.fail()
    state = world.leading.control(AskState("j")).state
    assert state is not None
    assert state.phase == "restarting"


# --- a node's part ---------------------------------------------------------------------------------------------------


class FakeMeasurement:
    def __init__(self) -> None:
        self.pid, self.ended, self.ready, self.begun, self.killed = 4242, False, True, False, False
        self.end = Outcome(SLOW)

    def begin(self) -> None:
        self.begun = True

    def kill(self) -> None:
        self.killed = True

    def outcome(self) -> Outcome:
        return self.end


class Part:
    def __init__(self) -> None:
        self.clock, self.made = ManualClock(), list[FakeMeasurement]()
        self.part = TrialPart("b", self.measure, self.clock)

    def measure(self, trial: Trial) -> FakeMeasurement:
        self.made.append(FakeMeasurement())
        return self.made[-1]


TRIAL: Final = Trial(id=(3, 1), roster=("a", "b"), master="a", port=7000, checks=("gemm",))


def test_a_node_measures_each_trial_once_and_says_how_it_ended() -> None:
    node = Part()
    assert not node.part.follow(TRIAL, idle=True)
    assert node.made[0].begun
    node.made[0].ended = True
    assert node.part.follow(TRIAL, idle=True)
    assert node.part.said == TrialSaid(id=(3, 1), findings=SLOW)
    assert not node.part.follow(TRIAL, idle=True)
    assert len(node.made) == 1
    node.part.follow(msgspec.structs.replace(TRIAL, id=(3, 2)), idle=True)
    assert len(node.made) == 2


@pytest.mark.parametrize(
    ("then", "idle"), [(None, True), (TRIAL, False), (msgspec.structs.replace(TRIAL, roster=("a",)), True)]
)
def test_what_is_ordered_no_longer_is_killed_before_ranks_start(then: Trial | None, *, idle: bool) -> None:
    node = Part()
    node.part.follow(TRIAL, idle=True)
    node.part.follow(then, idle=idle)
    assert node.made[0].killed
    assert (node.part.said, len(node.made)) == (None, 1)


def test_a_measurement_that_hangs_is_killed_and_told() -> None:
    node = Part()
    node.part.follow(TRIAL, idle=True)
    node.clock.sleep(301.0)
    assert node.part.follow(TRIAL, idle=True)
    assert node.made[0].killed
    assert node.part.said == TrialSaid(id=(3, 1), error="the validation was not measured within 300 s")


def test_what_is_told_has_bounds() -> None:
    node = Part()
    node.part.follow(TRIAL, idle=True)
    node.made[0].ended = True
    node.made[0].end = Outcome(Findings(accused=SLOW.accused * 1000))
    node.part.follow(TRIAL, idle=True)
    assert node.part.said is not None
    assert node.part.said.findings is not None
    assert len(node.part.said.findings.accused) == MOST_ACCUSED
