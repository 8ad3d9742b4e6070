"""The scorer of one job: metrics by name, abstention, histories that survive a swap, comparison across entities."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.scores import NO_MODELS, MetricScorer
from trainwarden.errors import DetectorError
from trainwarden.settings import parse

NAMES = ("power", "clock", "load", "flow")
CONFIG = parse(VoteConfig, {"neighbor_profile": {"bags": 6, "bag_size": 6}, "dtw_samples": 16}, "models")


def metrics(seed: int, samples: int) -> Any:
    random = np.random.default_rng(seed)
    return np.sin(np.arange(samples)[:, None] / np.arange(3.0, 7.0)) + random.normal(0.0, 0.1, (samples, 4))


@cache
def trained(seed: int = 0) -> ModelBundle:
    normal = [(Entity("n", f"d{one}", one), np.arange(400.0), metrics(seed + one, 400)) for one in range(5)]
    return ModelBundle.fit({"gpu": normal}, {"gpu": NAMES}, CONFIG, seed=0)


@pytest.fixture(scope="module")
def bundle() -> ModelBundle:
    return trained()


def samples(values: Any, fresh: int, rows: Any = None, end_s: float = 0.0, names: Any = NAMES) -> FamilySamples:
    rows = np.arange(len(values)) if rows is None else np.asarray(rows)
    entities = tuple(Entity("n", f"d{row}", int(row)) for row in rows)
    times_s = np.tile(np.arange(fresh) - fresh + 1.0 + end_s, (len(values), 1))
    return FamilySamples("gpu", tuple(names), rows, entities, ("",) * len(rows), np.asarray(values, float), times_s)


@pytest.fixture
def values() -> Any:
    return np.stack([metrics(50 + one, 60).T for one in range(5)])


def test_without_models_every_family_abstains(values):
    scorer = MetricScorer(None)
    assert scorer.score((samples(values, 60),)) == ()
    assert scorer.abstained == {"gpu": NO_MODELS}


@pytest.mark.thorough
def test_a_family_without_models_abstains_and_the_others_do_not(bundle, values):
    scorer = MetricScorer(bundle)
    found = scorer.score((samples(values, 60), replace(samples(values, 60), family="nic")))
    assert [one.family for one in found] == ["gpu"]
    assert "nic" in scorer.abstained["nic"]
    assert set(scorer.abstained) == {"nic"}


@pytest.mark.thorough
def test_metrics_are_found_by_name_in_any_order(bundle, values):
    plain = MetricScorer(bundle).score((samples(values, 60),))[0]
    order = [3, 1, 0, 2]
    mixed = np.concatenate([values[:, order], np.full((5, 1, 60), 99.0)], axis=1)
    other = MetricScorer(bundle).score((samples(mixed, 60, names=[*(NAMES[one] for one in order), "extra"]),))[0]
    np.testing.assert_array_equal(other.ensemble, plain.ensemble)


@pytest.mark.thorough
def test_a_missing_metric_is_not_measured_and_too_few_make_the_family_abstain(bundle, values):
    gone = values.copy()
    gone[:, 3] = np.nan
    plain = MetricScorer(bundle).score((samples(gone, 60),))[0]
    fewer = MetricScorer(bundle).score((samples(values[:, :3], 60, names=NAMES[:3]),))[0]
    np.testing.assert_array_equal(fewer.ensemble, plain.ensemble)
    scorer = MetricScorer(bundle)
    assert scorer.score((samples(values[:, :1], 60, names=NAMES[:1]),)) == ()
    assert "3 of the 4 metrics" in scorer.abstained["gpu"]
    assert scorer.score((samples(values, 60),))
    assert scorer.abstained == {}


def test_samples_one_by_one_say_what_all_at_once_say(bundle, values):
    whole = MetricScorer(bundle).score((samples(values, 60),))[0]
    scorer = MetricScorer(bundle)
    single = [scorer.score((samples(values[:, :, : t + 1], 1, end_s=float(t)),))[0] for t in range(60)]
    for name, part in whole.scores.items():
        joined = np.concatenate([one.scores[name] for one in single], axis=1)
        np.testing.assert_allclose(joined, part, rtol=1e-4, atol=1e-6, err_msg=name)
    joined = np.concatenate([one.ensemble for one in single], axis=1)
    np.testing.assert_allclose(joined, whole.ensemble, rtol=1e-4, atol=1e-6)
    assert np.isfinite(whole.scores["dtw"][:, -1]).all()


def test_the_sick_one_is_scored_highest_and_blamed(bundle, values):
    values[2, 1, 40:] += 6.0
    (found,) = MetricScorer(bundle).score((samples(values, 60),))
    assert found.ensemble[:, 50].argmax() == 2
    assert found.blamed(2, 50)[0] == "clock"
    assert found.until(45, 60).blamed(2, 5) == found.blamed(2, 50)
    assert dict(found.versions) == dict(bundle.versions)


def test_ranks_without_a_new_sample_are_compared_with_all_the_same(bundle, values):
    """Nodes need not report at the same moment: a group of two has no median of its own."""
    scorer = MetricScorer(bundle)
    scorer.score((samples(values[:, :, :40], 40, end_s=39.0),))
    values[0, :, 40:] += 5.0
    for t in range(40, 60):
        for rows in ([0, 1], [2, 3, 4]):
            (found,) = scorer.score((samples(values[rows, :, : t + 1], 1, rows=rows, end_s=float(t)),))
            if rows == [0, 1]:
                dtw = found.scores["dtw"][:, 0]
    assert dtw[0] > 0.5 > dtw[1]


def test_what_comes_later_is_no_company_for_what_came_before(bundle, values):
    """Entities with other numbers of samples in one recording: none is compared with another's future."""
    dtw = []
    for later in (0.0, 9.0):
        values[4, :, 50:] += later
        scorer = MetricScorer(bundle)
        scorer.score((samples(values[:, :, :30], 30, end_s=29.0),))
        longer = samples(values[4:], 30, rows=[4], end_s=59.0)
        few = samples(values[:4, :, :50], 20, rows=[0, 1, 2, 3], end_s=49.0)
        dtw.append(scorer.score((longer, few))[1].scores["dtw"])
    np.testing.assert_array_equal(*dtw)


@pytest.mark.thorough
def test_a_swap_keeps_the_history(bundle, values):
    other = trained(seed=100)
    scorer = MetricScorer(bundle)
    scorer.score((samples(values[:, :, :59], 59, end_s=58.0),))
    scorer.swap(other)
    (found,) = scorer.score((samples(values, 1, end_s=59.0),))
    (fresh,) = MetricScorer(other).score((samples(values, 60, end_s=59.0),))
    for name in set(other.versions) - {"dtw"}:
        np.testing.assert_allclose(found.scores[name][:, 0], fresh.scores[name][:, -1], rtol=1e-4, err_msg=name)
    assert dict(found.versions) == dict(other.versions)
    assert np.isfinite(found.scores["dtw"]).all()


def test_a_spike_hardly_moves_the_scale(bundle, values):
    calm, shaken = MetricScorer(bundle), MetricScorer(bundle)
    calm.score((samples(values, 60),))
    values[0, 0, 20] += 50.0
    shaken.score((samples(values, 60),))
    after = metrics(90, 40).T[None]
    left = calm.score((samples(after, 40, end_s=99.0),))[0].ensemble
    right = shaken.score((samples(after, 40, end_s=99.0),))[0].ensemble
    # Its own stretch of history has left after 32 samples; what remains is what the scale has learnt.
    assert np.abs(left - right)[0, 35:].max() < 0.15


@pytest.mark.thorough
def test_state_of_other_models_starts_afresh(bundle, values):
    scorer = MetricScorer(bundle)
    scorer.score((samples(values[:, :, :59], 59, end_s=58.0),))
    other = MetricScorer(trained(seed=100))
    other.restore(scorer.state())
    (found,) = other.score((samples(values, 1, end_s=59.0),))
    assert np.isfinite(found.ensemble).all()


@pytest.mark.parametrize("state", [b"", b"garbage", MetricScorer(None).state()[:-4]])
def test_foreign_state_is_refused(bundle, state):
    with pytest.raises(DetectorError):
        MetricScorer(bundle).restore(state)
