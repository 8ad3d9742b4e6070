"""What must hold of scores however samples are batched, cut, permuted or missing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.examples import examples
from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.metrics.bundle import metric_vote as module
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.bundle.peers import PeerContext
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.settings import parse

MODEST = examples(20)
NAMES = ("a", "b", "c")
SMALL = {"neighbor_profile": {"bags": 4, "bag_size": 4, "length": 8}, "dtw_samples": 12, "kmeans": {"clusters": 8}}
CONFIG = parse(VoteConfig, SMALL, "models")
finite = st.floats(-8.0, 8.0, width=32)
blocks = arrays.arrays(np.float64, (5, 3, 26), elements=finite)
holes = arrays.arrays(np.bool_, (5, 3, 26), elements=st.sampled_from([False] * 9 + [True]))


def waves(seed: int, samples: int = 200) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.sin(np.arange(samples)[:, None] / np.array([2.0, 3.0, 5.0])) + random.normal(0.0, 0.2, (samples, 3))


NORMAL = [waves(seed) for seed in range(5)]
VOTE = MetricVote.fit(NORMAL, NAMES, CONFIG, seed=0, peers=True)
BUNDLE = ModelBundle.fit(
    {"gpu": [(Entity("n", f"d{one}", one), np.arange(200.0), series) for one, series in enumerate(NORMAL)]},
    {"gpu": NAMES},
    CONFIG,
    seed=0,
)


def same(found, expected, **more):
    for name, part in expected.items():
        np.testing.assert_allclose(found[name], part, rtol=1e-4, atol=1e-5, err_msg=name, **more)


def new(values, fresh: int, rows=None) -> FamilySamples:
    rows = np.arange(len(values)) if rows is None else np.asarray(rows)
    entities = tuple(Entity("n", f"d{row}", int(row)) for row in rows)
    end_s = np.arange(values.shape[2] - fresh, values.shape[2], dtype=float)
    return FamilySamples("gpu", NAMES, rows, entities, ("",) * len(rows), values, np.tile(end_s, (len(rows), 1)))


@MODEST
@given(scaled=blocks, gaps=holes, newest=st.integers(1, 26))
def test_a_block_is_its_samples_one_by_one(scaled, gaps, newest):
    scaled = np.where(gaps, np.nan, scaled)
    block = VOTE.score_block(scaled, newest)
    held = None
    for place in range(newest):
        end = scaled.shape[2] - newest + place + 1
        one = VOTE.score_block(scaled[:, :, :end], 1, PeerContext(held=held))
        held = one.held
        same(
            {name: part[:, 0] for name, part in one.members.items()}, {n: p[:, place] for n, p in block.members.items()}
        )
        np.testing.assert_allclose(one.ensemble[:, 0], block.ensemble[:, place], rtol=1e-4, atol=1e-5)


@MODEST
@given(scaled=blocks, gaps=holes, tile=st.integers(1, 40), newest=st.integers(1, 26))
def test_how_a_block_is_tiled_changes_nothing(scaled, gaps, tile, newest):
    scaled = np.where(gaps, np.nan, scaled)
    whole = VOTE.score_block(scaled, newest)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TILE_ROWS", tile)
        same(VOTE.score_block(scaled, newest).members, whole.members)


@pytest.mark.thorough
@MODEST
@given(values=blocks, gaps=holes, seed=st.integers(0, 99))
def test_permuting_entities_permutes_scores(values, gaps, seed):
    values = np.where(gaps, np.nan, values)
    order = np.random.default_rng(seed).permutation(5)
    (plain,) = MetricScorer(BUNDLE).score((new(values, 26),))
    (mixed,) = MetricScorer(BUNDLE).score((new(values[order], 26),))
    same(mixed.scores, {name: part[order] for name, part in plain.scores.items()})
    np.testing.assert_allclose(mixed.ensemble, plain.ensemble[order], rtol=1e-4, atol=1e-5)


@pytest.mark.thorough
@MODEST
@given(values=blocks, level=st.floats(-1e6, 1e6))
def test_a_constant_metric_changes_nothing(values, level):
    wider = MetricVote.fit(
        [np.column_stack([one, np.full(len(one), level)]) for one in NORMAL], (*NAMES, "const"), CONFIG, 0, peers=True
    )
    more = np.concatenate([values, np.full((5, 1, 26), level)], axis=1)
    left, _ = VOTE.follow(values, VOTE.start(5))
    right, _ = wider.follow(more, wider.start(5))
    same(wider.score_block(right, 26).members, VOTE.score_block(left, 26).members)


@MODEST
@given(values=blocks, gaps=holes)
def test_missing_values_never_make_a_score_infinite_or_one(values, gaps):
    (found,) = MetricScorer(BUNDLE).score((new(np.where(gaps, np.nan, values), 26),))
    for part in (*found.scores.values(), found.ensemble):
        known = part[~np.isnan(part)]
        assert ((known >= 0.0) & (known < 1.0)).all()


def sparse(seed: int) -> dict[str, Any]:
    """A block of which six of ten values are missing: samples are so far apart that some entities are not judged."""
    random = np.random.default_rng(seed)
    values = random.uniform(-8.0, 8.0, (5, 3, 26))
    return {"values": values, "gaps": random.random(values.shape) < 0.6, "cut": int(random.integers(1, 26))}


@pytest.mark.thorough
@MODEST
@given(values=blocks, gaps=holes, cut=st.integers(1, 25))
@example(**sparse(1))
@example(**sparse(4))
@example(**sparse(9))
@example(**sparse(44))
def test_cut_anywhere_and_restored_equals_uncut(values, gaps, cut):
    equals_cut(np.where(gaps, np.nan, values), cut)


def test_who_is_not_judged_any_more_is_compared_as_long_however_the_others_are_cut():
    values = np.random.default_rng(0).uniform(-8.0, 8.0, (5, 3, 26))
    values[0, :, 1::2] = np.nan  # sampled half as often as in training
    equals_cut(values, 9)


def equals_cut(values, cut):
    """Scores of all samples at once are those of what comes before the cut and, in another scorer, what comes after."""
    (whole,) = MetricScorer(BUNDLE).score((new(values, 26),))
    first = MetricScorer(BUNDLE)
    (before,) = first.score((new(values[:, :, :cut], cut),))
    second = MetricScorer(BUNDLE)
    second.restore(first.state())
    (after,) = second.score((new(values, 26 - cut),))
    joined = {name: np.concatenate([part, after.scores[name]], axis=1) for name, part in before.scores.items()}
    same(joined, whole.scores)
    np.testing.assert_allclose(np.concatenate([before.ensemble, after.ensemble], axis=1), whole.ensemble, rtol=1e-4)
    named = [before.blamed(row, cut - 1) for row in range(5)]
    assert named == [whole.blamed(row, cut - 1) for row in range(5)]


@pytest.mark.thorough
@MODEST
@given(values=blocks, cut=st.integers(1, 25))
def test_scores_do_not_depend_on_the_future(values, cut):
    changed = values.copy()
    changed[:, :, cut:] += 30.0
    (left,), (right,) = (MetricScorer(BUNDLE).score((new(one, 26),)) for one in (values, changed))
    same({name: part[:, :cut] for name, part in right.scores.items()}, {n: p[:, :cut] for n, p in left.scores.items()})
