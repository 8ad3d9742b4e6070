"""Changes of level of a whole series: where they are, and that nothing is made of noise or of hostile input."""

from __future__ import annotations

import numpy as np
import pytest

from trainwarden.trainer_offline.suggest.change_points import ChangeConfig, change_points

CONFIG = ChangeConfig()


def series(*levels: float, each: int = 100, noise: float = 0.02, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.repeat(levels, each) * np.exp(rng.normal(0.0, noise, each * len(levels)))


@pytest.mark.parametrize("seed", range(8))
def test_levels_are_found_where_they_change(seed: int) -> None:
    found = change_points(series(1.0, 1.3, 1.0, 0.8, seed=seed), CONFIG, relative=True)
    assert [one.at for one in found] == pytest.approx([100, 200, 300], abs=2)
    assert [one.end for one in found] == [*(one.at for one in found[1:]), 400]
    assert [round(one.after / one.before, 1) for one in found] == [1.3, 0.8, 0.8]
    assert min(one.sure for one in found) > 0.99


@pytest.mark.parametrize("seed", range(8))
def test_noise_that_is_alike_from_sample_to_sample_is_no_change(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values, level = np.empty(600), 0.0
    for place, drawn in enumerate(rng.normal(0.0, 0.02, 600)):
        values[place] = level = 0.8 * level + drawn
    assert change_points(np.exp(values), CONFIG, relative=True) == []


def test_single_slow_steps_are_no_level_and_hide_none() -> None:
    values = series(1.0, 1.3, each=200)
    values[20::25] *= 8.0  # a checkpoint each 25 steps
    assert [one.at for one in change_points(values, CONFIG, relative=True)] == pytest.approx([200], abs=2)
    values = series(1.0, each=400)
    values[20::25] *= 8.0
    assert change_points(values, CONFIG, relative=True) == []


def test_what_is_not_finite_is_not_there() -> None:
    values = series(1.0, 1.4)
    values[3::7], values[5::50], values[9::60] = np.nan, np.inf, -np.inf
    [found] = change_points(values, CONFIG, relative=True)
    assert found.at == pytest.approx(100, abs=2)
    assert found.end == 200


@pytest.mark.parametrize(
    "values",
    [
        [], [1.0], [np.nan] * 50, [np.inf] * 50, [7.0] * 500, [0.0] * 500, [-1.0] * 500, [1.0, 2.0] * 5,
        [1e-300] * 30 + [1e-301] * 5, [5e-324, 1e-310] * 50,
        [np.inf, 1e308, -1e308, 1.7e308] * 50,
    ],
)  # fmt: skip
@pytest.mark.parametrize("relative", [False, True])
def test_nothing_is_made_of_what_says_nothing(values: list[float], relative: bool) -> None:
    assert change_points(np.array(values), CONFIG, relative=relative) == []


@pytest.mark.parametrize("size", [1e-300, 1e-9, 1.0, 1e150, 1e300])
def test_the_unit_changes_nothing(size: float) -> None:
    rng = np.random.default_rng(0)
    values = (np.repeat([10.0, 20.0], 100) + rng.normal(0.0, 0.5, 200)) * size
    [found] = change_points(values, CONFIG)
    assert found.at == 100
    assert found.after / found.before == pytest.approx(2.0, abs=0.05)


def test_a_counter_that_stood_still_and_moved_once() -> None:
    [found] = change_points(np.repeat([0.0, 3.0], [500, 60]), CONFIG)
    assert (found.at, found.before, found.after, found.sure) == (500, 0.0, 3.0, 1.0)


def test_a_long_series_is_thinned_and_the_place_is_still_the_sample() -> None:
    config = ChangeConfig(max_points=200)
    values = series(1.0, 1.4, 1.0, each=3_017, noise=0.05)
    found = change_points(values, config, relative=True)
    assert [one.at for one in found] == pytest.approx([3_017, 6_034], abs=4)
