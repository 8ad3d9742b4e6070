"""What the ladder pays against somebody who knew how long the trouble would last."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden.actions.planners.ladder import Ladder, Strategy
from trainwarden.actions.planners.questions.ladder import LadderPlan, LadderQuestion, Remedy, Step
from trainwarden.records import ActionKind

KINDS: tuple[ActionKind, ...] = ("ignore", "rebalance", "move_topology", "restart_job")


@st.composite
def incidents(draw: st.DrawFn) -> tuple[list[float], float, int, int | None]:
    """Overheads (each at least twice the one before), loss per iteration, length if ignored, which remedy cures."""
    overheads = [draw(st.floats(0.1, 10.0))]
    for _ in range(draw(st.integers(0, 3))):
        overheads.append(overheads[-1] * draw(st.floats(2.0, 20.0)))
    loss_s = draw(st.floats(0.001, 1.0)) * overheads[0]
    length = draw(st.integers(1, 5000))
    return overheads, loss_s, length, draw(st.one_of(st.none(), st.integers(0, len(overheads) - 1)))


def pay(overheads: list[float], loss_s: float, length: int, cure: int | None) -> float:
    """What following the ladder costs in all."""
    ladder = Ladder(Strategy(kind, overhead) for kind, overhead in zip(KINDS, overheads, strict=False))
    applied: set[ActionKind] = set()
    paid = 0.0
    for iteration in range(1, length + 1):
        paid += loss_s
        ladder.accumulate(iteration, 1.0 + loss_s, 1.0)
        strategy = ladder.due(applied)
        if strategy is not None:
            applied.add(strategy.kind)
            paid += strategy.overhead_s
            if cure is not None and strategy.kind == KINDS[cure]:
                break
    return paid


@given(incidents())
def test_the_ladder_costs_at_most_three_times_the_optimum_and_one_iteration(
    incident: tuple[list[float], float, int, int | None],
) -> None:
    overheads, loss_s, length, cure = incident
    ignoring = length * loss_s
    optimum = ignoring if cure is None else min(ignoring, overheads[cure])
    # Impact is seen only at the end of an iteration, so up to one more is lost; rungs reached together take one each.
    slack = loss_s * (1 + len(overheads))
    assert pay(*incident) <= 3.0 * optimum + slack + 1e-6 * optimum


def test_the_bound_is_nearly_reached_so_it_could_fail() -> None:
    overheads = [1.0, 2.0, 4.0, 8.0]
    assert pay(overheads, 0.001, 10**5, 3) > 2.8 * 8.0


@given(incidents(), st.lists(st.floats(0.0, 3.0), max_size=60))
def test_the_planner_applies_what_the_engine_would(
    incident: tuple[list[float], float, int, int | None], slow_s: list[float]
) -> None:
    overheads = incident[0]
    ladder = Ladder(Strategy(kind, overhead) for kind, overhead in zip(KINDS, overheads, strict=False))
    applied: set[ActionKind] = set()
    steps = []
    for iteration, seconds in enumerate(slow_s, start=1):
        ladder.accumulate(iteration, seconds, 1.0)
        strategy = ladder.due(applied)
        if strategy is not None and seconds > 1.0:
            applied.add(strategy.kind)
            steps.append(Step(iteration, strategy.kind))
    remedies = [Remedy(kind, overhead) for kind, overhead in zip(KINDS, overheads, strict=False)]
    answer = LadderPlan().answer(LadderQuestion(1.0, slow_s, remedies[::-1]))
    assert list(answer.steps) == steps


REMEDIES = st.lists(st.one_of(st.just(1.0), st.floats(0.0, 10.0)), max_size=5)


@examples(300)
@given(REMEDIES, st.lists(st.floats(0.0, 5.0), max_size=80), st.booleans())
def test_a_planned_ladder_costs_at_most_its_ratio_times_the_optimum(
    overheads: list[float], slow_s: list[float], doubled: bool
) -> None:
    if doubled:  # each at least twice the one before
        overheads = [overhead * 3**place for place, overhead in enumerate(sorted(overheads), start=1)]
    remedies = [Remedy(f"r{place}", overhead) for place, overhead in enumerate(overheads)]
    answer = LadderPlan().answer(LadderQuestion(1.0, slow_s, remedies))
    losses = [max(0.0, seconds - 1.0) for seconds in slow_s]
    assert answer.optimum_s == pytest.approx(min([sum(losses), *([max(overheads)] if overheads else [])]))
    ratio = 3.0 if doubled else len(overheads) + 1.0
    # Impact is seen only at the end of an iteration, and one strategy is applied after each.
    slack = sum(sorted(losses)[-len(overheads) :]) if overheads else 0.0
    assert answer.cost_s <= ratio * answer.optimum_s + slack + 1e-6
    assert [step.iteration for step in answer.steps] == sorted({step.iteration for step in answer.steps})
