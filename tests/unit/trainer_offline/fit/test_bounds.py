"""Bounds of shares and counts against scipy's own, against the distributions that they turn round, and by drawing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import binomtest, poisson

from trainwarden.trainer_offline.fit.bounds import CONFIDENCE, count_bounds, most_by_chance, share_bounds


@given(st.integers(1, 100_000).flatmap(lambda of: st.tuples(st.integers(0, of), st.just(of))))
def test_bounds_of_a_share_are_scipys(case: tuple[int, int]) -> None:
    """Two-sided at 90 % is one-sided at 95 % on both sides."""
    found = binomtest(*case).proportion_ci(confidence_level=2 * CONFIDENCE - 1, method="wilson")
    assert share_bounds(*case) == pytest.approx((found.low, found.high), abs=1e-9)


@given(st.integers(0, 100_000))
def test_a_count_at_its_bounds_is_as_rare_as_was_asked_for(seen: int) -> None:
    low, high = count_bounds(seen)
    assert poisson.cdf(seen, high) == pytest.approx(1 - CONFIDENCE, rel=1e-6)
    assert poisson.sf(seen - 1, low) == pytest.approx(1 - CONFIDENCE if seen else 1.0, rel=1e-6)
    assert low <= seen <= high


@example(0.9999999999999999, 820802.625, 1.0)  # rounding alone led beyond 1
@given(st.floats(0.0, 1.0), st.floats(0.01, 1e6), st.floats(1.0, 100.0))
def test_more_of_the_same_narrows_a_share(share: float, of: float, times: float) -> None:
    low, high = share_bounds(share * of, of)
    nearer_low, nearer_high = share_bounds(share * of * times, of * times)
    assert 0.0 <= low <= nearer_low + 1e-9
    assert nearer_high - 1e-9 <= high <= 1.0
    assert low - 1e-9 <= share <= high + 1e-9


def test_without_a_trial_nothing_is_known() -> None:
    assert share_bounds(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("expected", [0.5, 3.0, 30.0])
def test_of_many_counts_the_truth_is_beyond_a_bound_in_one_of_twenty_at_most(expected: float) -> None:
    drawn = np.random.default_rng(0).poisson(expected, 20_000)
    bounds = {seen: count_bounds(seen) for seen in np.unique(drawn).tolist()}
    above, below = (np.mean([expected < bounds[one][0] for one in drawn.tolist()]),
                    np.mean([expected > bounds[one][1] for one in drawn.tolist()]))  # fmt: skip
    assert max(above, below) <= 1 - CONFIDENCE + 0.003, "a fifth of a percent: 20,000 draws"


@pytest.mark.thorough
def test_what_chance_gives_is_scipys_quantile_of_the_poisson_distribution() -> None:
    grid = np.concatenate([np.linspace(1e-9, 30.0, 4_001), np.geomspace(30.0, 1e9, 500)])
    # Where the distribution itself is just as high as asked for, rounding decides.
    edges = [float(one) for one in poisson.isf(1.0 - CONFIDENCE, np.linspace(0.05, 20.0, 200))]
    for expected in (*grid.tolist(), *edges, 0.05129329438755058):
        assert most_by_chance(expected) == (int(poisson.ppf(CONFIDENCE, expected)) if expected else 0), expected
    assert most_by_chance(0.0) == most_by_chance(-1.0) == 0
