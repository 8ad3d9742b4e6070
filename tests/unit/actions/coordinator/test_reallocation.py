"""Which nodes go where: minimum and maximum hold, giving follows taking, and nothing that is barred is given."""

from __future__ import annotations

from trainwarden.actions.coordinator.reallocation import Member, Step, available, member_of, next_steps, plan
from trainwarden.actions.coordinator.throughput import Curve
from trainwarden.launching import COORDINATOR_MARK, LauncherState, NodeState
from trainwarden.records import TaskRecord


def member(
    job: str,
    holds: str = "",
    waiting: str = "",
    *,
    least: int = 1,
    most: int = 4,
    weight: float = 1.0,
    curve: tuple[float, ...] | None = None,
    **more: object,
) -> Member:
    task = TaskRecord(id=job, job=job, at_s=0.0, weight=weight, minimum=least, maximum=most)
    values = curve or tuple(float(nodes) for nodes in range(most + 1))
    return Member(
        task=task, curve=Curve(values, ()), holds=tuple(holds.split()), waiting=tuple(waiting.split()), **more
    )  # type: ignore[arg-type]


def test_the_heavier_job_gets_what_the_lighter_can_spare() -> None:
    members = [member("a", "n1 n2 n3", "n4"), member("b", "n4", "n1 n2 n3", weight=3.0)]
    answer = plan(members, running_s=1000.0, transition_s=10.0)
    assert answer.assignment == {"a": 1, "b": 3}
    assert next_steps(members, answer.assignment) == [Step("a", "evict", "n3"), Step("a", "evict", "n2")]


def test_nothing_moves_for_less_than_a_transition_costs() -> None:
    members = [member("a", "n1 n2", "n3"), member("b", "n3", "n1 n2", weight=1.1)]
    assert plan(members, running_s=10.0, transition_s=10.0).assignment == {"a": 2, "b": 1}


def test_what_a_job_has_given_goes_to_the_other_only_once_it_is_free() -> None:
    goal = {"a": 1, "b": 2}
    leaving = [member("a", "n1", leaving=("n2",)), member("b", "n3", "n2")]
    assert next_steps(leaving, goal) == []
    free = [member("a", "n1", "n2"), member("b", "n3", "n2")]
    assert next_steps(free, goal) == [Step("b", "uncordon", "n2")]


def test_a_new_job_gets_its_minimum_or_nothing() -> None:
    short = [member("a", "n1 n2", "n3", least=2), member("b", "", "n1 n2 n3", least=2, weight=9.0)]
    answer = plan(short, 1000.0, 10.0)
    assert answer.assignment == {"a": 3, "b": 0}  # never below its own minimum for a heavier one
    enough = [member("a", "n1 n2", "n3 n4", least=2), member("b", "", "n1 n2 n3 n4", least=2, weight=9.0)]
    assert plan(enough, 1000.0, 10.0).assignment == {"a": 2, "b": 2}


def test_a_job_that_fell_below_its_minimum_is_filled_up() -> None:
    members = [member("a", "n1", "n3 n4", least=2, faulted=True), member("b", "n3 n4", "n1", weight=0.5)]
    answer = plan(members, 1000.0, 10.0)
    assert answer.assignment == {"a": 2, "b": 1}
    assert next_steps(members, answer.assignment) == [Step("b", "evict", "n4")]


def test_a_curve_that_falls_gives_no_more_than_its_best() -> None:
    members = [member("a", "n1", "n2 n3 n4", curve=(0.0, 2.0, 3.0, 2.5, 2.0))]
    assert plan(members, 1000.0, 10.0).assignment == {"a": 2}


def test_the_table_answers_each_event_that_may_come_next() -> None:
    members = [member("a", "n1 n2", "n3"), member("b", "n3", "n1 n2")]
    table = plan(members, 1000.0, 10.0).table
    assert set(table) == {"lost:a", "lost:b", "finished:a", "finished:b", "joined"}
    assert table["finished:b"] == {"a": 3}


def test_a_node_that_a_person_or_the_engine_cordoned_is_nobodys() -> None:
    nodes = (
        NodeState(node="n1", ranks=(0,)),
        NodeState(node="n2", state="cordoned", why="gpu_lost", waits=True),
        NodeState(node="n3", state="cordoned", why=f"{COORDINATOR_MARK}given away", waits=True),
        NodeState(node="n4", state="cordoned", why=f"{COORDINATOR_MARK}given away"),  # its torchrun has ended
        NodeState(node="n5", state="lost", ranks=(1,)),
        NodeState(node="n6", state="cordoned", why=f"{COORDINATOR_MARK}given away", ranks=(2,)),
    )
    state = LauncherState(job="a", phase="running", generation=1, nodes=nodes)
    one = member_of(TaskRecord(id="a", job="a", at_s=0.0, maximum=4), Curve((0.0, 1.0, 2.0, 3.0, 4.0), ()), state)
    assert (one.holds, one.waiting, one.leaving, one.lost) == (("n1",), ("n3",), ("n6",), ("n5",))
    assert available([one, member("b", "", "n2 n3")]) == ["n1", "n3", "n6"]
    assert next_steps([one, member("b", "", "n2")], {"a": 2, "b": 1}) == []


def test_a_job_that_is_over_holds_nothing() -> None:
    state = LauncherState(job="a", phase="ended", generation=1, nodes=(NodeState(node="n1"),))
    assert member_of(TaskRecord(id="a", job="a", at_s=0.0, maximum=1), Curve((0.0, 1.0), ()), state).holds == ()
