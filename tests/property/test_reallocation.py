"""Whatever jobs and nodes there are: orders of a plan keep to what is there, and to each job's minimum and maximum."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from trainwarden.actions.coordinator.reallocation import Member, Step, available, next_steps, plan
from trainwarden.actions.coordinator.throughput import Curve
from trainwarden.records import TaskRecord

NODES = [f"n{number}" for number in range(7)]


@st.composite
def clusters(draw: st.DrawFn) -> list[Member]:
    """Up to four jobs on up to seven nodes; each node is held by one job, or free, and most jobs may get it."""
    count = draw(st.integers(1, 4))
    owner = {node: draw(st.integers(-1, count - 1)) for node in NODES}
    barred = draw(st.sets(st.sampled_from(NODES), max_size=2))
    members = []
    for number in range(count):
        least = draw(st.integers(1, 3))
        most = draw(st.integers(least, 7))
        values = draw(st.lists(st.floats(0.0, 9.0), min_size=most, max_size=most))
        task = TaskRecord(
            id=f"j{number}", job=f"j{number}", at_s=0.0, minimum=least, maximum=most,
            weight=draw(st.floats(0.0, 3.0)),
        )  # fmt: skip
        others = [node for node in NODES if owner[node] != number and draw(st.integers(0, 3))]
        mine = [node for node in NODES if owner[node] == number]
        members.append(
            Member(
                task=task, curve=Curve((0.0, *values), ()), faulted=draw(st.booleans()),
                holds=tuple(node for node in mine if node not in barred),
                barred=tuple(node for node in mine if node in barred),
                waiting=tuple(node for node in others if node not in barred),
            )
        )  # fmt: skip
    return members


def after(members: list[Member], steps: list[Step]) -> list[Member]:
    """The cluster once `steps` are done."""
    changed = {one.task.job: one for one in members}
    for step in steps:
        one = changed[step.job]
        if step.verb == "evict":
            assert step.node in one.holds
            holds = tuple(node for node in one.holds if node != step.node)
            changed[step.job] = msgspec.structs.replace(one, holds=holds, waiting=(*one.waiting, step.node))
        else:
            assert step.node in one.waiting
            waiting = tuple(node for node in one.waiting if node != step.node)
            changed[step.job] = msgspec.structs.replace(one, holds=(*one.holds, step.node), waiting=waiting)
    return list(changed.values())


@given(clusters(), st.floats(0.0, 1e5), st.floats(0.0, 1e3))
def test_a_plan_and_its_orders_keep_to_what_is_there(
    members: list[Member], running_s: float, transition_s: float
) -> None:
    answer = plan(members, running_s, transition_s)
    usable = available(members)
    assert sum(answer.assignment.values()) <= len(usable)
    for one in members:
        target, now = answer.assignment[one.task.job], len(one.holds)
        assert target >= min(now, one.task.minimum)
        assert target <= max(one.task.maximum, now)
        assert target == 0 or target >= one.task.minimum or target == now
    ordered: set[Step] = set()
    for number in itertools.count():
        steps = next_steps(members, answer.assignment)
        if not steps:
            break
        assert number < 2, "one round of taking, one of giving"
        assert len({step.verb for step in steps}) == 1, "nothing is given while something is to be taken"
        assert not ordered.intersection(steps)
        ordered.update(steps)
        before = {one.task.job: len(one.holds) for one in members}
        members = after(members, steps)
        held = [node for one in members for node in one.holds]
        assert len(held) == len(set(held)), "no node has two jobs"
        for one in members:
            now = len(one.holds)
            assert now >= min(before[one.task.job], one.task.minimum)
            assert now <= max(before[one.task.job], one.task.maximum)
            assert not now or now >= one.task.minimum or now == before[one.task.job]
    assert all(step.node in usable for step in ordered)
