"""Which metrics are kept and why, and the scale that follows a job."""

from __future__ import annotations

import numpy as np
import pytest

from trainwarden.detectors.metrics.bundle.preparation import Preparation, PreparationConfig
from trainwarden.detectors.metrics.bundle.trailing import trailing_mean, trailing_median
from trainwarden.errors import DetectorError

NAMES = ["load", "load_too", "power", "constant", "absent", "traffic"]


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    walk = random.normal(size=(2, 500)).cumsum(axis=1)
    absent = np.full(500, np.nan)
    absent[:20] = 1.0
    load_too = 3.0 - 2.0 * walk[0] + random.normal(0.0, 0.01, 500)
    return np.column_stack([walk[0], load_too, walk[1], np.full(500, 0.1), absent, random.normal(size=500)])


@pytest.fixture
def preparation(rows):
    return Preparation.fit([rows], NAMES, PreparationConfig())


def test_drops_with_reasons_and_keeps_the_first_twin(preparation):
    assert preparation.names == ["load", "power", "traffic"]
    reasons = {one.name: (one.why, one.twin) for one in preparation.dropped}
    assert reasons["load_too"] == ("near-duplicate of load (correlation 1.000)", "load")
    assert reasons["constant"] == ("constant", None)
    assert reasons["absent"] == ("measured in only 4% of the rows", None)
    assert preparation.with_twins("load") == ["load", "load_too"]


def test_fast_switching_is_told_from_slow(preparation):
    assert preparation.switching.tolist() == [False, False, True]
    scaled = np.zeros((3, 7))
    scaled[:, 3] = 9.0
    steady = preparation.steadied(scaled)
    assert (steady[2].max(), steady[:2, 3].tolist()) == (0.0, [9.0, 9.0])
    for metric, one in enumerate(preparation.steadied_each(scaled[None])):
        np.testing.assert_array_equal(one[0], steady[metric])


def test_training_rows_have_mean_0_and_spread_1(preparation, rows):
    scaled = preparation.scale.apply(preparation.values(rows.T))
    np.testing.assert_allclose(scaled.mean(axis=1), 0.0, atol=1e-9)
    np.testing.assert_allclose(scaled.std(axis=1), 1.0, atol=0.01)


def plain_follow(history, values, floor):
    """z-score of each value by mean and spread of all before it and itself."""
    out, seen = [], list(history)
    for value in values:
        if not np.isnan(value):
            seen.append(value)
        out.append((value - np.mean(seen)) / (np.std(seen) + floor))
    return np.array(out)


def test_following_equals_plain(preparation, rows):
    values = np.random.default_rng(2).normal(2.0, 3.0, (40, 6))
    values[7, 0] = np.nan
    scaled, _ = preparation.scale.follow(preparation.values(values.T), 1e9)
    for place, column in enumerate((0, 2, 5)):
        expected = plain_follow(rows[:, column], values[:, column], preparation.scale.floor[place])
        np.testing.assert_allclose(scaled[place], expected, rtol=1e-9)


def test_following_forgets_beyond_its_memory(preparation):
    values = np.zeros((6, 400))
    _, short = preparation.scale.follow(preparation.values(values), 50.0)
    _, long = preparation.scale.follow(preparation.values(values), 1e9)
    assert (short.count <= 51.0).all()
    assert (np.abs(short.mean) < 0.1 * np.abs(long.mean) + 1e-6).all()


def test_infinite_is_missing(preparation):
    values = np.zeros((6, 3))
    values[0, 1] = np.inf
    assert np.isnan(preparation.values(values)[0]).tolist() == [False, True, False]


def test_trailing_mean_and_median_equal_plain():
    values = np.random.default_rng(0).normal(size=(2, 50))
    values[0, 5:9] = np.nan
    for rows in (1, 3, 5, 80):
        for fast, plain in ((trailing_mean, np.nanmean), (trailing_median, np.nanmedian)):
            result = fast(values, rows)
            for t in range(50):
                window = values[:, max(0, t - rows + 1) : t + 1]
                known = ~np.isnan(values[:, t]) if fast is trailing_median else ~np.isnan(window).all(axis=1)
                assert (np.isnan(result[:, t]) == ~known).all()
                np.testing.assert_allclose(result[known, t], plain(window[known], axis=1), rtol=1e-12)


def test_state(preparation, rows):
    restored = Preparation.from_arrays(preparation.to_arrays())
    assert (restored.names, restored.dropped, restored.config) == (
        preparation.names,
        preparation.dropped,
        preparation.config,
    )
    values = preparation.values(rows.T)
    np.testing.assert_array_equal(restored.scale.apply(values), preparation.scale.apply(values))
    for damage in ({"columns": np.array([0, 1, 99])}, {"mean": np.zeros(2)}, {"text": np.zeros(3, np.uint8)}):
        with pytest.raises(DetectorError):
            Preparation.from_arrays({**preparation.to_arrays(), **damage})


def test_refusals(preparation):
    with pytest.raises(DetectorError, match="worth keeping"):
        Preparation.fit([np.ones((50, 2))], ["a", "b"], PreparationConfig())
    with pytest.raises(DetectorError):
        Preparation.fit([np.ones((50, 2))], ["a"], PreparationConfig())
    with pytest.raises(DetectorError):
        preparation.values(np.zeros((5, 10)))


def test_an_error_more_is_no_more_than_one_however_rare_errors_were() -> None:
    """Two errors in 400 samples make a spread of 0.07 of one; to be one more is no 14 spreads away."""
    errors = np.zeros((400, 1))
    errors[[100, 300]] = 1.0
    rare = Preparation.fit([errors], ["e"], PreparationConfig())
    counted = Preparation.fit([errors], ["e"], PreparationConfig(), None, np.array([1.0]))
    assert rare.scale.apply(np.ones((1, 1)))[0, 0] > 10.0
    assert counted.scale.apply(np.ones((1, 1)))[0, 0] < 1.0
    assert counted.scale.apply(np.full((1, 1), 64.0))[0, 0] > 50.0
