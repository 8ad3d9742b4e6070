"""The micro-batch solver against brute force, against a slow plain twin, and its refusals."""

from __future__ import annotations

import itertools
import math
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden.actions.planners import microbatch_ties, microbatches
from trainwarden.actions.planners.microbatches import even, finish_s, solve
from trainwarden.actions.planners.questions.microbatches import Microbatches, MicrobatchesQuestion
from trainwarden.errors import DataError

# Round values meet often, so that ties are common; the others nearly never do.
SECONDS = st.one_of(st.sampled_from([0.05, 0.1, 0.15, 0.2, 0.5]), st.integers(1, 6).map(float), st.floats(0.01, 10.0))


def spread(times: list[float], counts: tuple[int, ...]) -> float:
    finish = [count * time_s for count, time_s in zip(counts, times, strict=True)]
    mean = math.fsum(finish) / len(finish)
    return math.fsum((value - mean) ** 2 for value in finish)


def brute_force(times: list[float], total: int) -> tuple[float, float]:
    """(least greatest product, least spread among those) over every split there is."""
    best = (math.inf, math.inf)
    for cuts in itertools.combinations(range(1, total), len(times) - 1):
        counts = tuple(b - a for a, b in itertools.pairwise((0, *cuts, total)))
        best = min(best, (finish_s(times, counts), spread(times, counts)))
    return best


def one_at_a_time(times: list[float], total: int) -> float:
    """The slow plain twin: give each unit to whoever would finish it first."""
    counts = [1] * len(times)
    for _ in range(total - len(times)):
        group = min(range(len(times)), key=lambda g: (counts[g] + 1) * times[g])
        counts[group] += 1
    return finish_s(times, counts)


@examples(400)
@given(st.lists(SECONDS, min_size=1, max_size=5), st.integers(0, 11))
@example([1.0, 1.0, 1.0, 9.0], 8)  # one group far too slow: the rest have room to spare
@example([3.0, 2.0, 1.0], 9)
def test_no_split_is_better(times: list[float], extra: int) -> None:
    total = len(times) + extra
    counts = solve(times, total)
    assert sum(counts) == total
    assert min(counts) >= 1
    greatest, least_spread = brute_force(times, total)
    assert finish_s(times, counts) == greatest
    assert spread(times, counts) <= least_spread * (1 + 1e-9) + 1e-12


@examples(100)
@given(st.lists(SECONDS, min_size=1, max_size=150), st.integers(0, 600))
def test_as_good_as_the_slow_twin_at_size(times: list[float], extra: int) -> None:
    total = len(times) + extra
    counts = solve(times, total)
    assert sum(counts) == total
    assert min(counts) >= 1
    assert finish_s(times, counts) == one_at_a_time(times, total)


@pytest.mark.thorough
@examples(100)
@given(st.lists(SECONDS, min_size=64, max_size=120), st.integers(0, 600), st.booleans(), st.floats(0.0, 1.0))
def test_ties_broken_by_arrays_are_broken_as_by_lists(
    times: list[float], extra: int, rising: bool, level: float
) -> None:
    total = len(times) + extra
    finish = one_at_a_time(times, total)
    caps = [microbatch_ties._most_within(time_s, finish, extra + 1) for time_s in times]
    plain = microbatch_ties._Splits(times, caps, total)
    arrays = microbatch_ties._ArraySplits(times, caps, total)
    for level_s in (0.0, level * finish, finish):
        distances = []
        for splits in (plain, arrays):
            counts = splits.nearest(level_s, rising=rising)
            assert sum(counts) == total
            assert all(1 <= count <= cap for count, cap in zip(counts, caps, strict=True))
            distances.append(math.fsum((m * t - level_s) ** 2 for m, t in zip(counts, times, strict=True)))
        assert distances[1] == pytest.approx(distances[0], rel=1e-9, abs=1e-12)


@examples(100)
@given(st.lists(SECONDS, min_size=1, max_size=150), st.integers(0, 600))
@example([0.1] * 100, 50)  # ties: half of the groups take one more
@example([1e-9] * 20 + [1e9] * 20, 5)  # what is left goes to few groups, several units each
def test_arrays_and_lists_end_equally_soon(times: list[float], extra: int) -> None:
    total = len(times) + extra
    counts = microbatches._solve_arrays(times, total)
    assert sum(counts) == total
    assert min(counts) >= 1
    assert finish_s(times, counts) == one_at_a_time(times, total)


@examples(100)
@given(st.lists(SECONDS, min_size=1, max_size=8), st.integers(0, 30), st.randoms())
def test_weighted_groups_average_to_the_loss_of_the_even_split(times: list[float], extra: int, random: Random) -> None:
    answer = Microbatches().answer(MicrobatchesQuestion(times, len(times) + extra))
    losses = [[random.random() for _ in range(count)] for count in answer.micro_batches]
    of_groups = [
        weight * math.fsum(group) / len(group) for weight, group in zip(answer.weights, losses, strict=True)
    ]  # fmt: skip
    all_losses = [loss for group in losses for loss in group]
    assert math.fsum(of_groups) / len(times) == pytest.approx(math.fsum(all_losses) / len(all_losses))
    assert math.fsum(answer.weights) / len(times) == pytest.approx(1.0)


@given(st.integers(1, 50), st.integers(0, 500))
def test_equal_groups_get_the_even_split_up_to_order(groups: int, extra: int) -> None:
    total = groups + extra
    assert sorted(solve([0.05] * groups, total), reverse=True) == list(even(groups, total))


@pytest.mark.thorough
@settings(deadline=None)
@given(st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=20), st.integers(0, 10**9))
def test_extreme_times_and_totals_still_add_up(times: list[float], extra: int) -> None:
    counts = solve(times, len(times) + extra)
    assert sum(counts) == len(times) + extra
    assert min(counts) >= 1


@pytest.mark.parametrize(
    ("times", "total"),
    [([], 4), ([1.0, 1.0], 1), ([1.0, 0.0], 4), ([1.0, -1.0], 4), ([math.nan], 4), ([1.0, math.inf], 4), ([1.0], 2.5)],
)
def test_impossible_input_is_refused_in_one_sentence(times: list[float], total: int) -> None:
    for way in (solve, microbatches._solve_arrays):
        with pytest.raises(DataError) as caught:
            way(times, total)
        assert "\n" not in str(caught.value)
