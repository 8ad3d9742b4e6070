"""The linear forecast against a slow plain twin and scikit-learn's ridge regression, and what breaks it."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from sklearn.linear_model import Ridge

from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.models.forecast import LEAST_SPREAD, Forecast, ForecastConfig
from trainwarden.errors import DetectorError
from trainwarden.trainer_offline.registry.parts import join

SMALL = ForecastConfig(mean_samples=2, lags=3)


@pytest.fixture
def series():
    random = np.random.default_rng(0)
    walk = np.zeros((500, 3))
    for t in range(1, 500):
        walk[t] = 0.9 * walk[t - 1] + random.normal(size=3)
    walk[:, 2] = 0.5 * walk[:, 0] + random.normal(0.0, 0.1, 500)
    return walk


def plain_rows(series, config):
    """Means of consecutive samples before the newest mean, oldest first, and it."""
    rows = []
    for end in range(config.length, len(series) + 1):
        part = series[end - config.length : end]
        rows.append(np.concatenate([part[first : first + config.mean_samples].mean(axis=0)
                                    for first in range(0, config.length, config.mean_samples)]))  # fmt: skip
    return np.array(rows)


def test_scores_equal_those_of_ridge_regression(series):
    other = series[::-1]
    model = Forecast.fit([series, other], SMALL, seed=0)
    rows = np.concatenate([plain_rows(series, SMALL), plain_rows(other, SMALL)])
    before, newest = rows[:, :-3], rows[:, -3:]
    twin = Ridge(alpha=SMALL.ridge * len(rows)).fit(before, newest)
    spread = (newest - twin.predict(before)).std(axis=0) + LEAST_SPREAD
    expected = np.linalg.norm((newest - twin.predict(before)) / spread, axis=1)[: len(series) - SMALL.length + 1]
    windows = np.stack([series[end - 11 : end].T for end in range(11, len(series) + 1)])  # older ones do not count
    np.testing.assert_allclose(model.score(windows), expected[11 - SMALL.length :], rtol=1e-9)
    np.testing.assert_allclose(model.score(windows[3:5]), expected[14 - SMALL.length : 16 - SMALL.length], rtol=1e-9)


def test_who_leaves_the_usual_course_is_strange_though_its_level_is_usual():
    noise = np.random.default_rng(0).normal(0.0, 0.05, (600, 3))
    waves = np.sin(np.arange(600)[:, None] / np.array([20.0, 30.0, 20.0])) + noise
    model = Forecast.fit([waves], ForecastConfig(), seed=0)
    window = waves[100:140].T.copy()
    turned = window.copy()
    turned[2, -10:] *= -1.0
    normal, strange = model.score(np.stack([window, turned]))
    assert strange > 5 * normal
    assert model.blame(turned[None])[0].argmax() == 2


def test_what_is_missing_is_taken_for_normal_and_blamed_for_nothing(series):
    model = Forecast.fit([series], ForecastConfig(), seed=0)
    window = series[100:140].T.copy()
    window[1] = np.nan
    assert np.isfinite(model.score(window[None])[0])
    assert model.blame(window[None])[0, 1] == 0.0
    window[:, -2:] = np.nan
    assert np.isfinite(model.score(window[None])[0]), "eight of ten samples are enough"
    window[:, -3] = np.nan
    assert np.isnan(model.score(window[None])[0])


def test_nothing_is_forecast_from_what_was_not_seen(series):
    """An entity that has just come: without its past any level but the mean would be a surprise."""
    model = Forecast.fit([series], ForecastConfig(), seed=0)
    window = series[100:140].T.copy()
    window[:, :3] = np.nan
    assert np.isnan(model.score(window[None])[0])
    window = series[100:140].T.copy()
    window[1, 10:20] = np.nan
    assert model.blame(window[None])[0, 1] == 0.0


def test_learning_takes_gaps_constants_and_what_is_too_short(series):
    gaps = series.copy()
    gaps[:, 1] = 7.0
    gaps[50:80] = np.nan
    model = Forecast.fit([gaps, series[:3]], ForecastConfig(), seed=0)
    scores = model.score(np.lib.stride_tricks.sliding_window_view(gaps, 40, axis=0))
    assert np.isfinite(scores[~np.isnan(scores)]).all()
    assert np.isnan(scores).any()
    few = Forecast.fit([series[:42]], ForecastConfig(), seed=0)  # fewer rows than coefficients
    assert np.isfinite(few.score(series[None, 10:50].transpose(0, 2, 1)))[0]
    with pytest.raises(DetectorError, match="consecutive samples"):
        Forecast.fit([series[:10]], ForecastConfig(), seed=0)
    with pytest.raises(DetectorError, match="training rows"):
        Forecast.fit([np.full((100, 2), np.nan)], ForecastConfig(), seed=0)
    with pytest.raises(DetectorError, match="same metrics"):
        Forecast.fit([series, series[:, :2]], ForecastConfig(), seed=0)


def test_state(series):
    model = Forecast.fit([series], SMALL, seed=0)
    window = series[10:26].T[None]
    np.testing.assert_array_equal(Forecast.from_arrays(model.to_arrays()).score(window), model.score(window))
    for part, wrong in (("mean", np.zeros(3)), ("coefficients", np.zeros((3, 3))), ("spread", np.zeros(3))):
        with pytest.raises(DetectorError, match="damaged"):
            Forecast.from_arrays({**model.to_arrays(), part: wrong})
    with pytest.raises(DetectorError, match="need 3 metrics"):
        model.score(np.zeros((1, 3, SMALL.length - 1)))
    with pytest.raises(DetectorError, match="need 3 metrics"):
        model.score(np.zeros((1, 2, 16)))


def bundle(series, **members):
    votes = {"": MetricVote.fit([series], ["a", "b", "c"], VoteConfig(members=members), seed=0)}
    return ModelBundle(votes, dict.fromkeys([*members, "ensemble"], "1"))


def test_beside_a_mean_of_before_it_has_a_vote_of_its_own_and_no_part_in_the_mean(series):
    """The ensemble's champion was trained before there was this member, which passed the gate since."""
    before, since = bundle(series, pca=1.0), bundle(series, pca=1.0, forecast=1.0)
    own = {"pca": before, "forecast": since}
    joined = join(before, own, {"pca": "1", "forecast": "2", "ensemble": "1"}).votes[""]
    windows = series[None, :60].transpose(0, 2, 1)
    scores = joined.score(joined.follow(windows, joined.start(1))[0])
    alone = before.votes[""]
    expected = alone.score(alone.follow(windows, alone.start(1))[0])
    assert np.isfinite(scores.members["forecast"]).all()
    np.testing.assert_allclose(scores.ensemble, expected.ensemble)
    assert joined.blamed(joined.follow(windows, joined.start(1))[0]) == alone.blamed(
        alone.follow(windows, alone.start(1))[0]
    )


def test_models_of_before_know_no_forecast_and_still_load(series):
    vote = bundle(series, pca=1.0, kmeans=2.0).votes[""]
    arrays = vote.to_arrays()
    config = msgspec.json.decode(arrays["config"].tobytes())
    del config["forecast"]
    arrays["config"] = np.frombuffer(msgspec.json.encode(config), dtype=np.uint8)
    loaded = MetricVote.from_arrays(arrays)
    scaled = vote.follow(series[None, :60].transpose(0, 2, 1), vote.start(1))[0]
    np.testing.assert_array_equal(loaded.score(scaled).ensemble, vote.score(scaled).ensemble)
    assert loaded.window_samples == vote.window_samples
