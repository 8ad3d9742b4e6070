"""Daly's estimate costs what the best of all intervals would, found by trying them."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trainwarden.actions.planners.questions.interval import (
    Interval,
    IntervalQuestion,
    best_interval_s,
    lost_share,
)

FAILURES = st.floats(60.0, 1e7)


def tried_best(stall_s: float, failure_s: float) -> float:
    """The least share that any of many intervals loses."""
    intervals = failure_s * np.logspace(-7, 1, 4_000)
    return min(lost_share(float(one), stall_s, failure_s) for one in intervals)


@given(failure_s=FAILURES, ratio=st.floats(1e-8, 0.5))
def test_no_interval_loses_noticeably_less(failure_s: float, ratio: float) -> None:
    stall_s = ratio * failure_s
    best = lost_share(best_interval_s(stall_s, failure_s), stall_s, failure_s)
    assert best <= 1.005 * tried_best(stall_s, failure_s)


@given(failure_s=FAILURES, ratio=st.floats(0.0, 1e3), step_s=st.floats(1e-3, 1e3))
def test_the_answer_is_whole_steps_and_a_share(failure_s: float, ratio: float, step_s: float) -> None:
    answer = Interval().answer(IntervalQuestion(min(3.2e9, ratio * failure_s), failure_s, step_s))
    assert answer.steps is not None
    assert answer.steps >= 1
    assert math.isclose(answer.interval_s, answer.steps * step_s)
    assert 0.0 <= answer.lost_share <= 1.0


def test_where_a_save_costs_nothing_each_step_is_saved() -> None:
    answer = Interval().answer(IntervalQuestion(0.0, 3600.0, 2.0))
    assert (answer.steps, round(answer.lost_share, 6)) == (1, round(1.0 - 2.0 / (3600.0 * math.expm1(2.0 / 3600.0)), 6))
    assert Interval().answer(IntervalQuestion(0.0, 3600.0)).lost_share == 0.0
