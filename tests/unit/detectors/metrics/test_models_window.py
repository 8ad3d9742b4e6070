"""Neighbor profile and DTW against slow plain twins."""

from __future__ import annotations

import numpy as np
import pytest
from tslearn.metrics import dtw as tslearn_dtw

from trainwarden.detectors.metrics.bundle.on_columns import OnColumns
from trainwarden.detectors.metrics.models.dtw import Dtw, DtwConfig, banded_dtw
from trainwarden.detectors.metrics.models.neighbor_profile import NeighborProfile, NeighborProfileConfig
from trainwarden.errors import DetectorError


def plain_dtw(a, b, band):
    """Sakoe and Chiba's recurrence, cell by cell; ``a, b [d, m]``."""
    length = a.shape[1]
    table = np.full((length + 1, length + 1), np.inf)
    table[0, 0] = 0.0
    for i in range(length):
        for j in range(max(0, i - band), min(length, i + band + 1)):
            cost = ((a[:, i] - b[:, j]) ** 2).sum()
            table[i + 1, j + 1] = cost + min(table[i, j + 1], table[i + 1, j], table[i, j])
    return np.sqrt(table[length, length])


def shape(values, least_spread):
    return (values - values.mean()) / max(values.std(), least_spread)


def plain_profile(references, window, config):
    """Mean over bags of the distance to the k-th nearest member; member i of bag b is reference i * bags + b."""
    mine, total = shape(window, config.least_spread), 0.0
    for bag in range(config.bags):
        members = references[bag :: config.bags]
        total += np.sort([np.linalg.norm(mine - one) for one in members])[config.neighbor - 1]
    return total / config.bags


@pytest.fixture
def series():
    times = np.arange(400)[:, None]
    noise = np.random.default_rng(0).normal(0.0, 0.2, (400, 3))
    return np.sin(times / np.array([3.0, 5.0, 9.0])) + noise


@pytest.mark.parametrize("neighbor", [1, 3])
def test_neighbor_profile_equals_plain(series, neighbor):
    config = NeighborProfileConfig(length=8, bags=7, bag_size=5, neighbor=neighbor)
    model = NeighborProfile.fit([series], config, seed=0)
    references = model.to_arrays()["references"][:, :, :8]
    windows = np.stack([series[start : start + 12].T for start in (0, 50, 200)])
    expected = [[plain_profile(references[d], window[d, -8:], config) for d in range(3)] for window in windows]
    np.testing.assert_allclose(model.distances(windows), expected, atol=5e-3)  # float32 products


def test_neighbor_profile_does_not_depend_on_the_batch(series):
    model = NeighborProfile.fit([series], NeighborProfileConfig(), seed=0)
    windows = np.stack([series[start : start + 16].T for start in range(380)])
    together = model.score(windows)
    np.testing.assert_allclose(together[:3], model.score(windows[:3]), rtol=1e-4)


def test_flat_metrics_are_quiet_and_a_single_spike_on_one_is_not(series):
    flat = np.column_stack([series[:, :1], np.full(400, 5.0)])
    model = NeighborProfile.fit([flat], NeighborProfileConfig(), seed=0)
    window = flat[100:116].T[None]
    flicker, spike = window.copy(), window.copy()
    flicker[0, 1] += np.random.default_rng(1).normal(0.0, 1e-6, 16)
    spike[0, 1, 7] += 10.0
    quiet, flickering, spiking = model.score(np.concatenate([window, flicker, spike]))
    assert flickering == pytest.approx(quiet, rel=1e-3)
    assert spiking > 3 * quiet


def test_neighbor_profile_ignores_level_and_size(series):
    model = NeighborProfile.fit([series], NeighborProfileConfig(), seed=0)
    window = series[100:116].T[None]
    np.testing.assert_allclose(model.score(window * 7.0 + 100.0), model.score(window), rtol=1e-3)


def test_neighbor_profile_with_gaps(series):
    model = NeighborProfile.fit([series], NeighborProfileConfig(), seed=0)
    window = series[100:116].T[None].copy()
    window[0, 1, 3] = np.nan
    assert np.isfinite(model.score(window)[0])
    assert model.blame(window)[0, 1] == 0.0
    assert np.isnan(model.score(np.full((1, 3, 16), np.nan))[0])
    with pytest.raises(DetectorError, match="without gaps"):
        NeighborProfile.fit([np.full((100, 2), np.nan)], NeighborProfileConfig(), seed=0)


def test_neighbor_profile_state(series):
    model = NeighborProfile.fit([series], NeighborProfileConfig(), seed=0)
    window = series[10:26].T[None]
    np.testing.assert_array_equal(NeighborProfile.from_arrays(model.to_arrays()).score(window), model.score(window))
    with pytest.raises(DetectorError):
        NeighborProfile.from_arrays({**model.to_arrays(), "references": np.zeros((3, 2, 2))})
    with pytest.raises(DetectorError):
        model.score(np.zeros((1, 2, 16)))
    with pytest.raises(DetectorError):
        NeighborProfile.fit([series], NeighborProfileConfig(neighbor=17), seed=0)


@pytest.mark.parametrize("band", [0, 1, 3, 20])
@pytest.mark.parametrize("metrics", [1, 2])
def test_banded_dtw_equals_plain_and_tslearn(band, metrics):
    random = np.random.default_rng(band)
    a, b = random.normal(size=(2, 6, metrics, 15))
    fast = banded_dtw(a, b, band)
    np.testing.assert_allclose(fast, [plain_dtw(x, y, band) for x, y in zip(a, b, strict=True)], rtol=1e-12)
    peer = [
        tslearn_dtw(x.T, y.T, global_constraint="sakoe_chiba", sakoe_chiba_radius=band)
        for x, y in zip(a, b, strict=True)
    ]
    np.testing.assert_allclose(fast, peer, rtol=1e-9)


def ranks(count=40, metrics=2, samples=60, seed=0):
    random = np.random.default_rng(seed)
    wave = np.sin(np.arange(samples) / 4.0)
    return wave + random.normal(0.0, 0.1, (count, metrics, samples))


def plain_offsets(windows, slack):
    """Mean squared offset of each rank's metrics from the median series, sample by sample ``[r, d]``."""
    ranks, metrics, samples = windows.shape
    inner = range(slack, samples - slack)
    out = np.zeros((ranks, metrics))
    for rank in range(ranks):
        there = sum(bool((~np.isnan(windows[rank, :, at])).any()) for at in inner)
        for metric in range(metrics):
            squares = []
            for at in inner:
                near = windows[:, metric, at - slack : at + slack + 1]
                if np.isnan(windows[rank, metric, at]) or ((~np.isnan(near)).sum(axis=0) < 3).any():
                    continue
                medians = [np.median(one[~np.isnan(one)]) for one in near.T]
                value = windows[rank, metric, at]
                squares.append((value - min(max(value, min(medians)), max(medians))) ** 2)
            out[rank, metric] = sum(squares) / max(len(squares), 0.5 * there, 1.0)
    return out


@pytest.mark.parametrize("slack", [0, 1, 2])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.8])
@pytest.mark.parametrize("count", [6, 7])
def test_dtw_of_ranks_that_are_not_warped_equals_plain(slack, share, count):
    random = np.random.default_rng(int(100 * share) + slack)
    windows = ranks(count, metrics=3, samples=14, seed=count)
    windows[random.random(windows.shape) < share] = np.nan
    windows[1, :, :9] = np.nan if share else 0.0  # of one that came late
    model = Dtw(DtwConfig(limit=1e9), np.array([0.1, 0.2, 0.3]))
    expected = plain_offsets(windows, slack) / np.array([0.1, 0.2, 0.3]) ** 2
    known = (~np.isnan(windows)).any(axis=2).sum(axis=1) >= 1.5
    np.testing.assert_allclose(model.score(windows, None, slack)[known], np.sqrt(expected.mean(axis=1))[known])
    if not slack:
        np.testing.assert_allclose(model.blame(windows), expected)


def test_dtw_of_more_ranks_than_are_laid_side_by_side_at_once():
    windows = ranks(1_300)
    offsets = ((windows - np.median(windows, axis=0)) ** 2).mean(axis=2) / 0.01
    np.testing.assert_allclose(Dtw(DtwConfig(), np.full(2, 0.1)).blame(windows), offsets)


def test_dtw_of_metrics_that_lie_apart_or_are_some_of_them_is_the_same():
    windows = ranks()
    windows[4, 0, 10:20], windows[9] = np.nan, windows[9] + 1.0
    model, groups = Dtw(DtwConfig(), np.full(2, 0.1)), np.repeat([0, 1], 20)
    whole = model.score(windows, groups)
    np.testing.assert_array_equal(model.score_each(list(windows.swapaxes(0, 1)), groups), whole)
    wider = [windows[:, 0], np.zeros((40, 60)), windows[:, 1]]
    np.testing.assert_array_equal(OnColumns(model, np.array([0, 2]), 3).score_each(wider, groups), whole)


def test_dtw_names_the_odd_ranks_and_the_metric():
    model = Dtw.fit([ranks(seed=1)], DtwConfig(), 0)
    windows = ranks()
    windows[7, 1] += 2.0
    windows[21, 0, 30:] -= 2.0
    scores = model.score(windows)
    assert set(np.argsort(-scores)[:2]) == {7, 21}
    assert model.blame(windows)[[7, 21]].argmax(axis=1).tolist() == [1, 0]


def test_dtw_forgives_what_is_only_late():
    model = Dtw(DtwConfig(band_samples=5), np.full(2, 0.1))
    windows = ranks()
    windows[3] = np.roll(windows[3], 3, axis=-1)
    windows[3, :, :3] = windows[3, :, 3:4]
    late = model.score(windows)[3]
    assert late < 0.5 * np.sqrt(model.blame(windows)[3].mean())


def test_dtw_second_way_of_behaving_is_no_outlier_but_few_are():
    config = DtwConfig(outlying=32)
    model = Dtw(config, np.full(2, 0.1))
    common, rare = ranks(40), ranks(40)
    common[:14] += 3.0
    rare[:3] += 3.0
    assert np.median(model.score(common)[:14]) < 5.0 < np.median(model.score(rare)[:3])


def test_dtw_works_within_groups_and_abstains_in_small_ones():
    model = Dtw(DtwConfig(), np.full(2, 0.1))
    windows = ranks(23)
    windows[:10] += 5.0
    groups = np.array([0] * 10 + [1] * 10 + [2] * 3)
    scores = model.score(windows, groups)
    assert np.nanmax(scores[:20]) < 3.0
    assert np.isnan(scores[20:]).all()


def test_dtw_with_gaps():
    model = Dtw(DtwConfig(), np.full(2, 0.1))
    windows = ranks()
    whole = model.score(windows)
    windows[4, 0, 10:20] = np.nan
    windows[5] = np.nan
    windows[:, 1, 3] = np.nan
    scores = model.score(windows)
    assert np.isnan(scores[5])
    np.testing.assert_allclose(np.delete(scores, 5), np.delete(whole, 5), atol=0.5)


def test_dtw_state():
    model = Dtw.fit([ranks()], DtwConfig(), 0)
    np.testing.assert_array_equal(Dtw.from_arrays(model.to_arrays()).score(ranks()), model.score(ranks()))
    with pytest.raises(DetectorError):
        Dtw.from_arrays({**model.to_arrays(), "spread": np.array([0.0])})
    with pytest.raises(DetectorError):
        Dtw.fit([ranks(2)], DtwConfig(), 0)
    with pytest.raises(DetectorError):
        model.score(np.zeros((9, 3, 60)))
