"""What must hold of every model whatever the data."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.benchmarks.detection.measures import event_quality, vus_pr
from tests.examples import examples
from trainwarden.detectors.metrics.bundle.calibration import Calibration
from trainwarden.detectors.metrics.bundle.members import ROW_MODELS, VoteConfig
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.bundle.preparation import Preparation, PreparationConfig
from trainwarden.detectors.metrics.bundle.trailing import trailing_mean
from trainwarden.detectors.metrics.models.dtw import Dtw, DtwConfig, banded_dtw
from trainwarden.detectors.metrics.models.knn import NeighborSearch
from trainwarden.detectors.metrics.models.neighbor_profile import NeighborProfile, NeighborProfileConfig
from trainwarden.detectors.metrics.models.rows import KNOWN_SHARE

MODEST = examples(25)
finite = st.floats(-100.0, 100.0, width=32)
rows_of_4 = arrays.arrays(np.float64, st.tuples(st.integers(1, 12), st.just(4)), elements=finite)
# One common movement and a little of each metric's own, as metrics of a training rank have.
NORMAL = np.random.default_rng(0).normal(size=(300, 1)) + np.random.default_rng(2).normal(0.0, 0.3, size=(300, 4))
MODELS = {name: kind.fit(NORMAL, kind.Config(), 0) for name, kind in ROW_MODELS.items()}
WAVES = np.sin(np.arange(300)[:, None] / np.array([3.0, 5.0])) + np.random.default_rng(1).normal(0.0, 0.1, (300, 2))
PROFILE = NeighborProfile.fit([WAVES], NeighborProfileConfig(length=8, bags=10, bag_size=8), seed=0)
VOTE = MetricVote.fit([np.column_stack([WAVES, np.full(300, 2.0)])], ["a", "b", "constant"], VoteConfig(), seed=0)
CALIBRATION = Calibration.fit(np.random.default_rng(0).exponential(size=1000))


@pytest.mark.parametrize("name", sorted(MODELS))
@MODEST
@given(rows=rows_of_4, seed=st.integers(0, 99))
def test_permuting_ranks_permutes_scores(name, rows, seed):
    order = np.random.default_rng(seed).permutation(len(rows))
    np.testing.assert_allclose(MODELS[name].score(rows[order]), MODELS[name].score(rows)[order], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", sorted(MODELS))
@MODEST
@given(rows=rows_of_4)
def test_a_rank_scores_the_same_alone_as_among_others(name, rows):
    alone = np.concatenate([MODELS[name].score(rows[one : one + 1]) for one in range(len(rows))])
    np.testing.assert_allclose(alone, MODELS[name].score(rows), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", sorted(MODELS))
@MODEST
@given(rows=rows_of_4, level=st.floats(-1e3, 1e3))
def test_a_constant_metric_changes_nothing(name, rows, level):
    kind = ROW_MODELS[name]
    wider = kind.fit(np.column_stack([NORMAL, np.full(len(NORMAL), level)]), kind.Config(), 0)
    found = wider.score(np.column_stack([rows, np.full(len(rows), level)]))
    np.testing.assert_allclose(found, MODELS[name].score(rows), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", sorted(MODELS))
@MODEST
@given(rows=rows_of_4, gaps=arrays.arrays(np.bool_, (12, 4)))
def test_missing_values_never_make_a_score_infinite_or_blamed(name, rows, gaps):
    holes = np.where(gaps[: len(rows)], np.nan, rows)
    scores, blame = MODELS[name].score(holes), MODELS[name].blame(holes)
    too_few = (~np.isnan(holes)).sum(axis=1) < KNOWN_SHARE * holes.shape[1]
    # What is missing may explain all that principal components do not.
    assert np.isnan(scores)[too_few].all()
    assert name == "pca" or not np.isnan(scores)[~too_few].any()
    assert not np.isinf(scores).any()
    assert (blame[np.isnan(holes)] == 0.0).all()
    assert (blame >= 0.0).all()


@pytest.mark.parametrize("name", sorted(MODELS))
@MODEST
@given(metric=st.integers(0, 3), height=st.floats(20.0, 1e6))
def test_a_single_spike_is_seen_and_blamed(name, metric, height):
    row = np.zeros((1, 4))
    row[0, metric] = height
    assert MODELS[name].score(row)[0] > MODELS[name].score(np.zeros((1, 4)))[0]
    assert MODELS[name].blame(row)[0].argmax() == metric


@MODEST
@given(
    references=arrays.arrays(np.float64, st.tuples(st.integers(3, 80), st.just(2)), elements=finite),
    rows=arrays.arrays(np.float64, st.tuples(st.integers(1, 5), st.just(2)), elements=finite),
    k=st.integers(1, 3),
)
def test_neighbour_distances_equal_plain(references, rows, k):
    distances, indices = NeighborSearch(references).nearest(rows, k)
    exact = np.linalg.norm(rows[:, None] - references, axis=2)
    np.testing.assert_allclose(distances, np.sort(exact, axis=1)[:, :k], rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(np.take_along_axis(exact, indices, axis=1), distances, rtol=1e-9, atol=1e-12)


@MODEST
@given(
    shape=st.tuples(st.integers(200, 900), st.integers(1, 24)),
    k=st.integers(1, 6),
    seed=st.integers(0, 999),
    tight=st.floats(1e-3, 1.0),
    apart=st.floats(0.0, 1e6),
    step=st.sampled_from([0.0, 0.5, 1e-3]),
)
def test_screening_loses_no_neighbour(shape, k, seed, tight, apart, step):
    random = np.random.default_rng(seed)
    references = random.normal(size=(3, shape[1]))[random.integers(0, 3, shape[0])] * 3.0
    references += random.normal(0.0, tight, size=shape)
    references[0] *= 1.0 + apart
    rows = np.concatenate([references[:7] + random.normal(0.0, tight, (7, shape[1])), references[:3] * (1.0 + apart)])
    if step:  # duplicates and ties
        references, rows = np.round(references / step) * step, np.round(rows / step) * step
    search = NeighborSearch(references)
    exact = np.linalg.norm(rows[:, None] - references, axis=2)
    for distances, indices in (
        search.nearest(rows, k),
        [np.concatenate(found) for found in zip(*(search.nearest(row[None], k) for row in rows), strict=True)],
    ):
        np.testing.assert_allclose(distances, np.sort(exact, axis=1)[:, :k], rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(np.take_along_axis(exact, indices, axis=1), distances, rtol=1e-9, atol=1e-12)
        assert all(len(set(row)) == k for row in indices.tolist())


@MODEST
@given(
    values=arrays.arrays(np.float64, (3, 2, 8), elements=finite),
    factor=st.floats(0.5, 50.0),
    level=st.floats(-100.0, 100.0),
)
def test_shape_ignores_level_and_size_above_the_floor(values, factor, level):
    values = values + np.sin(np.arange(8.0)) * 300.0  # never flat
    found = PROFILE.distances(values * factor + level)
    np.testing.assert_allclose(found, PROFILE.distances(values), atol=0.02)


@MODEST
@given(values=arrays.arrays(np.float64, (4, 2, 8), elements=finite), seed=st.integers(0, 99))
def test_profile_bounded_and_permutes(values, seed):
    distances = PROFILE.distances(values)
    # Two sequences of spread 1 are at most 2 sqrt(m) apart.
    assert ((distances >= 0.0) & (distances <= 2.0 * np.sqrt(8.0) + 0.01)).all()
    order = np.random.default_rng(seed).permutation(4)
    np.testing.assert_allclose(PROFILE.distances(values[order]), distances[order], atol=0.01)


@MODEST
@given(pairs=arrays.arrays(np.float64, (2, 3, 2, 10), elements=finite), band=st.integers(0, 9))
def test_dtw_is_symmetric_zero_on_itself_and_at_most_euclidean(pairs, band):
    left, right = pairs
    distances = banded_dtw(left, right, band)
    np.testing.assert_allclose(distances, banded_dtw(right, left, band), rtol=1e-9, atol=1e-9)
    assert (banded_dtw(left, left, band) == 0.0).all()
    assert (distances <= np.linalg.norm((left - right).reshape(3, -1), axis=1) * (1 + 1e-9)).all()
    assert (banded_dtw(left, right, band + 1) <= distances * (1 + 1e-9)).all()


@MODEST
@given(seed=st.integers(0, 99), sick=st.integers(0, 19))
def test_dtw_permutes_with_the_ranks(seed, sick):
    random = np.random.default_rng(seed)
    windows = random.normal(0.0, 0.1, (20, 2, 30))
    windows[sick] += 3.0
    model = Dtw(DtwConfig(), np.full(2, 0.1))
    order = random.permutation(20)
    scores = model.score(windows)
    np.testing.assert_allclose(model.score(windows[order]), scores[order], rtol=1e-9)
    assert scores.argmax() == sick


@MODEST
@given(raw=st.lists(st.floats(0.0, 1e12), min_size=2, max_size=20))
def test_calibration_rises(raw):
    ordered = np.sort(raw)
    scores = CALIBRATION.score(ordered)
    assert (np.diff(scores) >= 0.0).all()
    apart = (np.diff(ordered) > 1e-6 * ordered[1:]) & (ordered[:-1] > 7.0)
    assert (np.diff(scores)[apart] > 0.0).all()
    assert (scores < 1.0).all()


@MODEST
@given(values=arrays.arrays(np.float64, (2, 3, 20), elements=finite), cut=st.integers(1, 19), gap=st.integers(0, 19))
def test_cut_and_restore_anywhere_changes_nothing(values, cut, gap):
    values[0, 1, gap] = np.nan
    whole, end = VOTE.follow(values, VOTE.start(2))
    first, middle = VOTE.follow(values[:, :, :cut], VOTE.start(2))
    restored = MetricVote.from_arrays(VOTE.to_arrays())
    second, last = restored.follow(values[:, :, cut:], middle)
    joined = np.concatenate([first, second], axis=2)
    np.testing.assert_array_equal(joined, whole)
    np.testing.assert_array_equal(last.mean, end.mean)
    np.testing.assert_array_equal(restored.score(joined).ensemble, VOTE.score(whole).ensemble)


@MODEST
@given(values=arrays.arrays(np.float64, (2, 30), elements=finite), rows=st.integers(1, 40), cut=st.integers(1, 29))
def test_trailing_mean_is_causal_and_between_the_extremes(values, rows, cut):
    means = trailing_mean(values, rows)
    np.testing.assert_array_equal(trailing_mean(values[:, :cut], rows), means[:, :cut])
    assert (means <= values.max() + 1e-9).all()
    assert (means >= values.min() - 1e-9).all()


@MODEST
@given(order=st.permutations(range(4)))
def test_preparation_keeps_the_same_metrics_in_any_order(order):
    rows = np.column_stack([NORMAL[:, 0], NORMAL[:, 1], np.full(300, 7.0), NORMAL[:, 2]])
    names = ["a", "b", "seven", "c"]
    preparation = Preparation.fit([rows[:, order]], [names[one] for one in order], PreparationConfig())
    assert sorted(preparation.names) == ["a", "b", "c"]
    assert [one.name for one in preparation.dropped] == ["seven"]


@MODEST
@given(
    labels=arrays.arrays(np.bool_, 80).filter(lambda flags: flags.any()),
    scores=arrays.arrays(np.float64, 80, elements=finite),
)
def test_measures_stay_in_their_range_and_a_perfect_score_is_best(labels, scores):
    assert 0.0 <= vus_pr(labels, scores, 10) <= 1.0 + 1e-9
    quality = event_quality(labels, scores > 0.0, 1440.0)
    assert quality.false_episodes <= quality.episodes
    assert quality.found <= quality.events
    assert event_quality(labels, labels, 1440.0).false_episodes == 0
