"""Calibrated scores: rarity read right, rising for ever, restored whole."""

from __future__ import annotations

import numpy as np
import pytest

from trainwarden.detectors.metrics.bundle.calibration import Calibration, squeeze, unsqueeze
from trainwarden.errors import DetectorError


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
def test_same_rarity_is_the_same_score_whatever_the_job(scale):
    random = np.random.default_rng(0)
    one = Calibration.fit(random.exponential(size=20_000))
    other = Calibration.fit(scale * random.exponential(size=20_000))
    np.testing.assert_allclose(other.score(scale * np.arange(0.1, 20.0)), one.score(np.arange(0.1, 20.0)), rtol=0.1)


def test_nats_are_minus_log_of_the_share_above():
    normal = np.random.default_rng(0).gamma(3.0, size=10_000)
    calibration = Calibration.fit(normal)
    for share in (0.5, 0.1, 0.02):
        assert calibration.nats(np.quantile(normal, 1 - share)) == pytest.approx(-np.log(share), rel=0.05)


def test_strictly_rising_far_beyond_the_training_maximum():
    normal = np.random.default_rng(0).normal(size=5_000) ** 2
    scores = Calibration.fit(normal).score(normal.max() * np.geomspace(1.0, 1e300 / normal.max(), 5_000))
    assert (np.diff(scores) > 0.0).all()
    assert scores[-1] < 1.0


@pytest.mark.parametrize("normal", [np.zeros(100), np.full(100, 3.0), np.array([1.0]), np.arange(5.0)])
def test_hardly_any_normal_scores_still_rise(normal):
    calibration = Calibration.fit(normal)
    beyond = calibration.score(normal.max() + np.array([0.0, 0.1, 1.0, 100.0]))
    assert (np.diff(beyond) > 0.0).all()
    assert (beyond >= 0.0).all()
    assert beyond[-1] < 1.0


def test_unknown_stays_unknown():
    assert np.isnan(Calibration.fit(np.append(np.arange(100.0), np.nan)).score([np.nan])[0])
    for bad in ([], [np.nan], [np.inf, 1.0]):
        with pytest.raises(DetectorError):
            Calibration.fit(bad)


def test_squeeze_has_an_inverse_and_its_middle():
    nats = np.geomspace(1e-6, 1e6, 50)
    np.testing.assert_allclose(unsqueeze(squeeze(nats)), nats, rtol=1e-6)
    assert squeeze(-np.log(1e-4)) == pytest.approx(0.5)


def test_state():
    calibration = Calibration.fit(np.random.default_rng(0).normal(size=500))
    values = np.linspace(-5, 50, 200)
    np.testing.assert_array_equal(
        Calibration.from_arrays(calibration.to_arrays()).score(values), calibration.score(values)
    )
    for damage in ({"slope": np.array([0.0])}, {"raw": np.array([2.0, 1.0]), "nats": np.array([0.0, 1.0])}):
        with pytest.raises(DetectorError):
            Calibration.from_arrays({**calibration.to_arrays(), **damage})
    with pytest.raises(DetectorError):
        Calibration.from_arrays({})
