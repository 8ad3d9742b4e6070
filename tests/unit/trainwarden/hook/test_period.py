"""The period of the collective calls."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.call_traces import LATEST, Call, found_in, recorded, simulated
from tests.hook_doubles import HandClock, steps_of, wait
from tests.places import shared_data
from trainwarden.hook import Hook
from trainwarden.hook.period import smallest_period


def test_without_backward_the_period_of_the_calls_ends_steps(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(30):
        clock.pass_ms(20)
        for call in (8, 9, 8, 10):
            wait(target, clock, 1, call)
    rows = steps_of(target)
    assert len(rows) == 30
    assert {round(row.duration_s, 6) for row in rows[1:]} == {0.024}
    assert {row.source for row in rows} == {"calls"}


def test_equal_calls_in_bursts_are_told_apart_by_the_gaps(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    noise = random.Random(0)
    for _ in range(30):
        clock.pass_ms(20 + noise.random() * 5)
        for _ in range(5):
            wait(target, clock, 1)
    rows = steps_of(target)
    assert len(rows) in (29, 30)
    assert all(0.024 <= row.duration_s <= 0.031 for row in rows[1:])


@given(
    pattern=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    repeats=st.integers(3, 8),
    junk=st.integers(0, 3),
)
def test_the_smallest_period_is_found(pattern: list[int], repeats: int, junk: int) -> None:
    symbols = pattern * max(repeats, -(-24 // len(pattern)))
    period = smallest_period(symbols)
    assert 0 < period <= len(pattern)
    assert sum(a != b for a, b in zip(symbols, symbols[period:], strict=False)) <= len(symbols) // 20
    assert smallest_period([object() for _ in range(10 + junk)]) == 0


@pytest.mark.thorough
@pytest.mark.parametrize("computes_between", [False, True])
def test_the_period_of_a_hundred_simulated_jobs_is_within_half_a_percent(computes_between: bool) -> None:
    """With jitter of 3 %, equal calls of layers within a step, and evaluations; after the first thirty steps."""
    wrong = {}
    for seed in range(1_000, 1_100):
        steps = simulated(seed, computes_between=computes_between)
        found = found_in(steps, LATEST)
        if not found.right(len(steps)):
            wrong[seed] = found
    assert wrong == {}


@pytest.mark.thorough
def test_the_period_of_recorded_traces_is_within_half_a_percent() -> None:
    data = shared_data()
    if data is None:
        pytest.skip("no shared data")
    found = {name: (found_in(steps), len(steps)) for name, steps in recorded(data)}
    assert len(found) == 72
    assert [name for name, (one, steps) in found.items() if not one.right(steps)] == []


def test_long_gaps_within_a_step_do_not_begin_it_anew() -> None:
    """A pipeline's first stage computes before every send: the same call comes behind as long a gap again and again."""
    step = [("send", 400), ("recv", 30), ("send", 380), ("recv", 30), ("send", 420), ("recv", 30), ("reduce", 30)]
    at_ns, steps = 0, list[list[Call]]()
    for _ in range(40):
        calls = list[Call]()
        for kind, gap_ms in step:
            began_ns, at_ns = at_ns + gap_ms * 1_000_000, at_ns + (gap_ms + 10) * 1_000_000
            calls.append((kind, began_ns, at_ns))
        steps.append(calls)
    assert found_in(steps).right(len(steps))


def test_gaps_about_as_long_as_what_counts_as_long_do_not_double_the_period() -> None:
    """Seed 1022: the gap before one call is by turns shorter and longer than a third of the longest."""
    steps = simulated(1_022, computes_between=True)
    assert found_in(steps, LATEST).right(len(steps))


def test_a_pattern_that_fits_badly_gives_way() -> None:
    """Seed 2014: 44 equal calls and gaps between them look like a step of four at first, then half come out of turn."""
    steps = simulated(2_014, computes_between=True)
    assert found_in(steps, LATEST).right(len(steps))


def test_of_too_few_iterations_nothing_is_said() -> None:
    """As of a flight recorder's last calls: what has not come three times is no period."""
    step = [("call", number, number * 10_000_000) for number in range(1, 20)]
    steps = [[(number, at * 10**9 + ns, at * 10**9 + ns + 1_000) for _, number, ns in step] for at in range(12)]
    assert found_in(steps[:2]).error is None
    assert found_in(steps).error == pytest.approx(0.0)
