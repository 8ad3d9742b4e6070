"""The metric vote as a whole: views, abstention, blame, state, batches against single steps."""

from __future__ import annotations

import io

import msgspec
import numpy as np
import pytest

from trainwarden.detectors.metrics.bundle.calibration import squeeze, unsqueeze
from trainwarden.detectors.metrics.bundle.members import View, VoteConfig
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.models.pca import Pca
from trainwarden.errors import DetectorError
from trainwarden.settings import parse

NAMES = ["power", "power_again", "clock", "traffic", "constant"]


def entity(seed, samples=700):
    random = np.random.default_rng(seed)
    wave = np.sin(np.arange(samples) / 7.0)
    power = wave + random.normal(0.0, 0.1, samples)
    clock = random.normal(0.0, 0.2, samples) - wave
    return np.column_stack([power, 2 * power, clock, random.normal(size=samples), np.ones(samples)])


@pytest.fixture(scope="module")
def vote():
    return MetricVote.fit([entity(seed) for seed in range(6)], NAMES, VoteConfig(), seed=0, peers=True)


def live(vote, values):
    scaled, _ = vote.follow(values, vote.start(len(values)))
    return scaled


@pytest.fixture
def values():
    """Six ranks of one phase, 70 samples, ``[r, d, m]``."""
    return np.stack([entity(seed, 70).T for seed in range(10, 16)])


@pytest.mark.thorough
def test_every_member_speaks_and_the_sick_rank_is_first(vote, values):
    values[4, 2, -20:] += 4.0
    scores = vote.score(live(vote, values))
    assert set(scores.members) == set(VoteConfig().members)
    assert scores.ensemble.argmax() == 4
    assert scores.ensemble[4] > 0.5 > np.median(scores.ensemble)
    for part in (*scores.members.values(), scores.ensemble):
        assert ((part >= 0.0) & (part < 1.0)).all()


@pytest.mark.thorough
def test_ensemble_is_the_calibrated_weighted_mean(vote, values):
    scores = vote.score(live(vote, values))
    weights = {name: weight for name, weight in VoteConfig().members.items() if weight}
    mean = sum(weight * unsqueeze(scores.members[name]) for name, weight in weights.items()) / sum(weights.values())
    np.testing.assert_allclose(scores.ensemble, vote.calibrations["ensemble"].score(mean), rtol=1e-9)


@pytest.mark.thorough
def test_blame_names_the_metric_and_its_twin(vote, values):
    values[1, 0, -20:] += 5.0
    scaled = live(vote, values)
    assert vote.blamed(scaled, first=1)[1] == ["power", "power_again"]
    np.testing.assert_allclose(vote.blame(scaled).sum(axis=1), 1.0)


@pytest.mark.thorough
def test_series_and_windows_say_the_same(vote):
    series = entity(20, 200)
    whole, _ = vote.score_series(series)
    scaled = live(vote, series.T[None])
    for end in (120, 200):
        newest = vote.score(scaled[:, :, :end])
        for name, part in whole.members.items():
            np.testing.assert_allclose(newest.members[name][0], part[end - 1], rtol=1e-4)


def test_scores_of_the_past_do_not_depend_on_the_future(vote):
    series = entity(21, 200)
    changed = series.copy()
    changed[120:] += 50.0
    before, after = vote.score_series(series)[0], vote.score_series(changed)[0]
    for name, part in before.members.items():
        np.testing.assert_array_equal(after.members[name][:120], part[:120])
    np.testing.assert_array_equal(after.ensemble[:120], before.ensemble[:120])
    assert after.ensemble[120:].mean() > before.ensemble[120:].mean()


def test_needed_window_is_enough(vote, values):
    scaled = live(vote, values)
    cut = vote.score(scaled[:, :, -vote.window_samples :])
    np.testing.assert_allclose(cut.ensemble, vote.score(scaled).ensemble, rtol=1e-9)


def test_abstention_is_not_a_no(vote, values):
    values[2] = np.nan
    scaled = live(vote, values)
    scores = vote.score(scaled)
    assert np.isnan(scores.ensemble[2])
    assert np.isfinite(np.delete(scores.ensemble, 2)).all()
    alone = vote.score(scaled[:1])
    assert np.isnan(alone.members["dtw"][0])
    assert np.isfinite(alone.ensemble[0])
    short = vote.score(scaled[:, :, -8:])
    assert np.isnan(short.members["neighbor_profile"]).all()
    assert np.isnan(short.members["dtw"]).all()
    assert np.isfinite(np.delete(short.ensemble, 2)).all()


def test_state_goes_through_npz_and_back(vote, values):
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **vote.to_arrays())
    file.seek(0)
    with np.load(file, allow_pickle=False) as stored:
        restored = MetricVote.from_arrays(dict(stored))
    scaled = live(vote, values)
    np.testing.assert_array_equal(live(restored, values), scaled)
    np.testing.assert_array_equal(restored.score(scaled).ensemble, vote.score(scaled).ensemble)
    assert restored.config == vote.config


@pytest.mark.parametrize("damage", ["model/pca/mean", "calibration/ensemble/raw", "preparation/mean", "config"])
def test_damaged_state_is_refused(vote, damage):
    state = vote.to_arrays()
    del state[damage]
    with pytest.raises(DetectorError):
        MetricVote.from_arrays(state)
    with pytest.raises(DetectorError):
        MetricVote.from_arrays({**vote.to_arrays(), "model/oracle/mean": np.zeros(1)})


def test_fit_is_seeded():
    config = VoteConfig(members={"kmeans": 1.0, "neighbor_profile": 1.0})
    one, other = (MetricVote.fit([entity(0)], NAMES, config, seed=5).to_arrays() for _ in range(2))
    for key, value in one.items():
        np.testing.assert_array_equal(other[key], value)


def test_weights_and_views_are_configuration():
    config = parse(VoteConfig, {"members": {"pca": 2.0}, "views": {"pca": {"mean_rows": 3}}}, "ensemble")
    assert config.views == {"pca": View(mean_rows=3)}
    for wrong in ({"members": {"oracle": 1.0}}, {"members": {"pca": -1.0}}, {"views": {"pca": {"mean_rows": 0}}}):
        with pytest.raises(Exception, match="ensemble"):
            parse(VoteConfig, wrong, "ensemble")
    assert msgspec.json.decode(msgspec.json.encode(config), type=VoteConfig) == config


def test_nothing_that_counts_is_refused():
    with pytest.raises(DetectorError, match="weight"):
        MetricVote.fit([entity(0)], NAMES, VoteConfig(members={"pca": 0.0}), seed=0)


def test_calibrated_on_held_out_rows_one_normal_row_in_a_hundred_is_rare(vote):
    scores = np.concatenate([vote.score_series(entity(seed))[0].ensemble for seed in range(30, 36)])
    share = (scores > squeeze(-np.log(0.01))).mean()
    assert 0.001 < share < 0.05


@pytest.mark.thorough
def test_of_long_training_only_a_part_is_judged_and_the_calibration_is_nearly_the_same():
    series = [entity(seed, 700) for seed in range(4)]
    config = {"neighbor_profile": {"bags": 10, "bag_size": 8}, "dtw_samples": 20}
    full, thin = (
        MetricVote.fit(series, NAMES, parse(VoteConfig, {**config, "calibration_rows": rows}, "models"), 0, peers=True)
        for rows in (20_000, 300)
    )
    assert set(thin.models) == set(full.models)
    for name in ("pca", "nearest", "neighbor_profile", "ensemble"):
        raw = np.quantile(full.calibrations[name]._raw, [0.5, 0.9])
        np.testing.assert_allclose(thin.calibrations[name].nats(raw), full.calibrations[name].nats(raw), atol=0.5)


@pytest.mark.thorough
def test_many_short_stretches_are_judged_at_the_same_places_by_all_members():
    # A sampled job comes as stretches of 128 samples; only some of them are peers of each other.
    series = [entity(seed, 128) for seed in range(11)]
    table = {"neighbor_profile": {"bags": 10, "bag_size": 8}, "calibration_rows": 100}  # one sample in three is judged
    vote = MetricVote.fit(series, NAMES, parse(VoteConfig, table, "models"), 0, peers=[0, 1, 2, 3])
    assert set(vote.models) == set(VoteConfig().members)
    assert all(calibration.nats([1e9])[0] > 10.0 for calibration in vote.calibrations.values())


@pytest.mark.thorough
def test_a_member_that_no_stretch_lets_judge_is_left_out():
    # One sample in sixty is judged, and in a fold of ten samples none of them ends a subsequence of ten.
    series = [entity(seed, 32) for seed in range(750)]
    members = {"pca": 1.0, "neighbor_profile": 1.0}
    table = {"members": members, "neighbor_profile": {"bags": 4, "length": 10}, "calibration_rows": 100}
    vote = MetricVote.fit(series, NAMES, parse(VoteConfig, table, "models"), 0)
    assert "neighbor_profile" not in vote.models
    assert "pca" in vote.models


def test_a_member_that_scores_unlike_scikit_learn_is_left_out_with_a_sentence(monkeypatch) -> None:
    score = Pca.score
    monkeypatch.setattr(Pca, "score", lambda self, rows: 2.0 * score(self, rows))
    rows = np.random.default_rng(0).normal(size=(200, 3))
    vote = MetricVote.fit([rows], ["a", "b", "c"], VoteConfig(members={"kmeans": 1.0, "pca": 1.0}), seed=0)
    assert set(vote.models) == {"kmeans"}
    (why,) = vote.left_out
    assert why.startswith("pca is refused: it scores 64 of 64 rows unlike scikit-learn (")


def test_a_member_for_which_there_is_too_little_is_left_out() -> None:
    rows = np.random.default_rng(0).normal(size=(42, 3))
    config = VoteConfig(members={"kmeans": 1.0, "pca": 1.0, "neighbor_profile": 1.0})
    vote = MetricVote.fit([rows], ["a", "b", "c"], config, seed=0)
    assert set(vote.models) == {"kmeans", "pca"}
    with pytest.raises(DetectorError, match="consecutive samples"):
        MetricVote.fit([rows], ["a", "b", "c"], VoteConfig(members={"neighbor_profile": 1.0}), seed=0)
