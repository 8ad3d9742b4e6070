"""The period of the collective calls."""

from __future__ import annotations

import random
import statistics
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hook_doubles import HandClock, steps_of, wait
from trainwarden.hook import Hook
from trainwarden.hook.period import CallPeriod, smallest_period


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


def calls_of_a_step(source: random.Random) -> list[tuple[str, int]]:
    """The collective calls of one step of DDP, tensor parallel, FSDP or pipeline parallel training."""
    layers, parts = source.randint(1, 24), source.randint(2, 8)
    tail = [("all_reduce", 1 << 25)] * source.randint(1, 4)
    return source.choice([
        [("all_reduce", source.choice([1 << 20, 1 << 22, 25 << 20])) for _ in range(layers)] + [("all_reduce", 1)],
        [("all_reduce", 1 << 22)] * 4 * layers + [("reduce_scatter", 1 << 26), ("all_gather", 1 << 26)],
        [("all_gather", 1 << 20)] + [("all_gather", 1 << 24)] * layers
        + [("all_gather", 1 << 24), ("reduce_scatter", 1 << 24)] * layers,
        [("recv", 1 << 20), ("send", 1 << 20)] * parts + [("recv", 1 << 21), ("send", 1 << 21)] * parts + tail,
    ])  # fmt: skip


@pytest.mark.thorough
def test_the_period_of_a_hundred_simulated_jobs_is_within_half_a_percent() -> None:
    """With jitter of 3 %, equal calls of layers within a step, and evaluations; after the first thirty steps."""
    for seed in range(1_000, 1_100):
        source, period, at_ns, ends = random.Random(seed), CallPeriod(), 0, list[int]()
        calls, step_s, true = calls_of_a_step(source), source.uniform(0.05, 5.0), list[int]()
        for step in range(200):
            took_ns = 1e9 * step_s * source.lognormvariate(0.0, 0.03)
            at_ns += int(0.7 * took_ns)
            for symbol in calls:
                began_ns, at_ns = at_ns, at_ns + int(0.3 * took_ns / len(calls) * source.uniform(0.8, 1.2))
                ends += [mark[0] for mark in period.add(symbol, began_ns, (at_ns, 0, 0, 0))]
            true.append(at_ns)
            for _ in range(source.randint(2, 9) if step % 50 == 49 else 0):
                began_ns, at_ns = at_ns, at_ns + 20_000_000
                ends += [mark[0] for mark in period.add(("all_reduce", 7), began_ns, (at_ns, 0, 0, 0))]
        late = [end for end in ends if end > true[30]]
        ratios = [
            (end - before) / (true[place] - true[place - 1])
            for before, end in pairwise(late)
            if (place := bisect_left(true, end)) < len(true)
        ]
        assert len(ratios) > 120, (seed, len(ratios), calls[:3], len(calls))
        assert abs(statistics.median(ratios) - 1.0) <= 0.005, (seed, statistics.median(ratios))
