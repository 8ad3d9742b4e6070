"""The plan of a cluster against brute force and against the plain dynamic programme; its table against plans anew."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden.actions.planners import allocation
from trainwarden.actions.planners.allocation import best
from trainwarden.actions.planners.questions.cluster import Cluster, ClusterQuestion, Task

NUMBERS = st.one_of(st.integers(0, 5).map(float), st.floats(0.0, 10.0))  # small whole ones make ties


@st.composite
def questions(draw: st.DrawFn, most_gpus: int = 7, most_tasks: int = 4, step: int = 1) -> ClusterQuestion:
    gpus = draw(st.integers(0, most_gpus)) * step
    tasks = []
    for place in range(draw(st.integers(1, most_tasks))):
        curve = draw(st.lists(st.one_of(NUMBERS, st.none()), min_size=1, max_size=gpus + 2 * step))
        known = [gpus for gpus, value in enumerate(curve) if value is not None]
        tasks.append(
            Task(
                f"t{place}",
                curve,
                weight=draw(st.sampled_from([0.0, 0.5, 1.0, 2.0])),
                minimum=draw(st.integers(0, 3 * step)),
                now=draw(st.sampled_from([0, *known])),
                faulted=draw(st.booleans()),
            )
        )
    seconds = st.one_of(st.just(0.0), st.floats(0.0, 100.0))
    running = draw(st.one_of(seconds, st.lists(seconds, min_size=1, max_size=9)))
    return ClusterQuestion(gpus, running, draw(seconds), tasks, step=8 if step == 8 else 1)


def objective(question: ClusterQuestion, given: dict[str, int], gpus: int | None = None) -> float:
    """Equation 3 of Unicron, written out."""
    available = question.gpus if gpus is None else gpus
    running = question.running_s
    running_s = running if isinstance(running, float) else running[min(available, len(running) - 1)]

    def waf(task: Task, x: int) -> float:
        if x < task.minimum or x >= len(task.throughput):
            return 0.0
        return task.weight * (task.throughput[x] or 0.0)

    value = 0.0
    for task in question.tasks:
        x = given[task.name]
        value += waf(task, x) * running_s
        if x != task.now or task.faulted:
            value -= waf(task, task.now) * question.transition_s
    return value


def brute_force(question: ClusterQuestion) -> float:
    counts = range(0, question.gpus + 1, question.step)
    names = [task.name for task in question.tasks]
    return max(
        objective(question, dict(zip(names, xs, strict=True)))
        for xs in itertools.product(counts, repeat=len(names))
        if sum(xs) <= question.gpus
    )


def plain_programme(worth: np.ndarray) -> float:
    """Equation 5 as it stands."""
    sums = worth[0]
    for row in worth[1:]:
        sums = np.array([max(sums[j - k] + row[k] for k in range(j + 1)) for j in range(len(sums))])
    return float(sums.max())


def near(value: float) -> object:
    return pytest.approx(value, rel=1e-9, abs=1e-6)


@pytest.mark.thorough
@examples(400)
@given(questions())
def test_no_assignment_is_better(question: ClusterQuestion) -> None:
    answer = Cluster().answer(question)
    assert sum(answer.assignment.values()) <= question.gpus
    assert answer.value == near(objective(question, answer.assignment))
    assert answer.value == near(brute_force(question))


@examples(40)
@given(questions(most_gpus=3, most_tasks=3, step=8))
def test_no_assignment_by_whole_nodes_is_better(question: ClusterQuestion) -> None:
    answer = Cluster().answer(question)
    assert all(x % 8 == 0 for x in answer.assignment.values())
    assert answer.value == near(brute_force(question))


@examples(150)
@given(questions(most_tasks=3), st.sampled_from([1, 8]))
def test_the_table_is_what_would_be_planned_after_the_event(question: ClusterQuestion, step: int) -> None:
    question = ClusterQuestion(question.gpus * step, question.running_s, question.transition_s, question.tasks, step)
    answer = Cluster().answer(question)
    after = [Task(t.name, t.throughput, t.weight, t.minimum, answer.assignment[t.name]) for t in question.tasks]

    def plan(gpus: int, tasks: list[Task]) -> float:
        return Cluster().answer(ClusterQuestion(gpus, question.running_s, question.transition_s, tasks, step)).value

    expected = {"joined": plan(question.gpus + step, after)}
    for place, task in enumerate(after):
        hit = [*after]
        hit[place] = Task(task.name, task.throughput, task.weight, task.minimum, task.now, faulted=True)
        if question.gpus >= step:
            expected[f"lost:{task.name}"] = plan(question.gpus - step, hit)
        rest = after[:place] + after[place + 1 :]
        expected[f"finished:{task.name}"] = plan(question.gpus, rest) if rest else 0.0
    assert {event: choice.value for event, choice in answer.table.items()} == {e: near(v) for e, v in expected.items()}


@examples(150)
@given(st.integers(1, 7), st.integers(1, 60), st.integers(0, 2**32 - 1), st.sampled_from([1, 4, 32]))
def test_as_good_as_the_plain_programme_at_size(tasks: int, units: int, seed: int, first: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (tasks, units + 1)
    kinds = (
        rng.normal(size=shape),
        np.cumsum(rng.random(shape), axis=1),
        np.cumsum(rng.integers(-1, 3, shape), axis=1).astype(float),
        1e18 / (1.0 + np.exp(rng.uniform(0, units, (tasks, 1)) - np.arange(units + 1))),  # nothing, then all at once
    )
    worth = kinds[rng.integers(len(kinds))]
    worth[:, 1:][rng.random((tasks, units)) < 0.2] = -np.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(allocation, "FIRST_OPTIONS", first)
        given_units, value = best(worth)
    assert given_units.sum() <= units
    assert value == pytest.approx(plain_programme(worth), rel=1e-9, abs=1e-9)
