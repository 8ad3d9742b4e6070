"""The period of the collective calls."""

from __future__ import annotations

import random
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from tests.hook_doubles import HandClock, steps_of, wait
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
