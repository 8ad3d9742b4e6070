"""Entities that are unlike: decided at fit time, each on its own scale after a warm-up, the same live and at once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainwarden.detectors.job.samples import Entity, FamilySamples, ScoredSamples
from trainwarden.detectors.metrics.bundle.bundle import MANIFEST, ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.bundle.preparation import Preparation, PreparationConfig
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.settings import parse

NAMES = ("power", "clock", "load")
WARM_UP = 40
CONFIG = parse(
    VoteConfig,
    {"members": {"pca": 1.0, "kmeans": 1.0}, "preparation": {"warm_up_rows": WARM_UP, "prior_rows": 40}},
    "models",
)


def series(seed: int, level: float, samples: int = 500) -> Any:
    random = np.random.default_rng(seed)
    return level + np.sin(np.arange(samples)[:, None] / np.arange(3.0, 6.0)) + random.normal(0.0, 0.1, (samples, 3))


def bundle_of(*levels: float, config: VoteConfig = CONFIG) -> ModelBundle:
    normal = [(Entity(f"n{one}"), np.arange(500.0), series(one, level)) for one, level in enumerate(levels)]
    return ModelBundle.fit({"": normal}, {"": NAMES}, config, seed=0)


@pytest.fixture(scope="module")
def unlike() -> ModelBundle:
    return bundle_of(0.0, 30.0, -20.0, 60.0)


def new(values: Any, start: int = 0, end: int | None = None) -> FamilySamples:
    part = values[:, :, start:end]
    rows = np.arange(len(values))
    entities = tuple(Entity(f"m{row}") for row in rows)
    times_s = np.tile(start + np.arange(float(part.shape[2])), (len(values), 1))
    return FamilySamples("", NAMES, rows, entities, ("",) * len(values), part, times_s)


def scored(bundle: ModelBundle, values: Any) -> ScoredSamples:
    (found,) = MetricScorer(bundle).score((new(values),))
    return found


def test_what_is_alike_is_pooled_and_judged_at_once() -> None:
    bundle = bundle_of(0.0, 0.1, -0.1, 0.05)
    preparation = bundle.votes[""].preparation
    assert (preparation.why, preparation.warm_up) == ("", 0)
    assert np.isfinite(scored(bundle, series(9, 0.0, 30).T[None]).ensemble[0, -1])


def test_what_is_unlike_has_its_own_scale_and_the_reason_says_so(unlike: ModelBundle) -> None:
    preparation = unlike.votes[""].preparation
    assert preparation.warm_up == WARM_UP
    assert preparation.why.startswith("own scale for every entity: levels of 3 of 3 metrics differ between the 4")


def test_a_level_never_seen_in_training_is_no_anomaly_and_a_step_there_is(unlike: ModelBundle) -> None:
    values = series(9, 500.0, 300).T[None].copy()
    values[0, 1, 250:] += 4.0
    own = scored(unlike, values).ensemble[0]
    assert np.nanmax(own[100:250]) < 0.5 < own[265]
    plain = {"members": {"pca": 1.0, "kmeans": 1.0}, "preparation": {"own_scale": "never"}}
    pooled_config = parse(VoteConfig, plain, "models")
    pooled = scored(bundle_of(0.0, 30.0, -20.0, 60.0, config=pooled_config), values).ensemble[0]
    assert np.nanmin(pooled[30:250]) > 0.5, "the pooled scale takes another machine for a broken one"


def test_it_abstains_until_the_warm_up_is_over_and_says_why(unlike: ModelBundle) -> None:
    values = series(9, 7.0, 100).T[None]
    scorer = MetricScorer(unlike)
    (first,) = scorer.score((new(values, 0, WARM_UP - 1),))
    assert np.isnan(first.ensemble).all()
    assert scorer.abstained[""].startswith("warm-up: entities differ in level, so each needs 40 samples")
    (second,) = scorer.score((new(values, WARM_UP - 1, 60),))
    assert np.isfinite(second.ensemble[0, -1])
    assert scorer.abstained == {}


def test_at_once_in_parts_and_restored_in_between_are_the_same(unlike: ModelBundle) -> None:
    values = np.stack([series(seed, 10.0 * seed, 120).T for seed in (9, 10)])
    whole = scored(unlike, values).ensemble
    scorer, parts = MetricScorer(unlike), []
    for start in range(0, 120, 24):
        (found,) = scorer.score((new(values, start, start + 24),))
        parts.append(found.ensemble)
        other = MetricScorer(unlike)
        other.restore(scorer.state())
        scorer = other
    np.testing.assert_allclose(np.concatenate(parts, axis=1), whole, rtol=1e-9)
    np.testing.assert_array_equal(scored(unlike, values[::-1]).ensemble, whole[::-1])


def test_other_models_of_the_same_kind_go_on_with_an_entitys_scale(unlike: ModelBundle) -> None:
    values = series(9, 7.0, 120).T[None]
    scorer = MetricScorer(unlike)
    scorer.score((new(values, 0, 80),))
    scorer.swap(bundle_of(5.0, 50.0, -5.0))
    (found,) = scorer.score((FamilySamples("", NAMES, np.array([0]), (Entity("m0"),), ("",), values[:, :, 50:81],
                                            np.array([[80.0]])),))  # fmt: skip
    assert np.isfinite(found.ensemble).all(), "no second warm-up"


def test_series_of_one_entity_share_its_scale_and_the_warm_up_comes_once() -> None:
    parts = [series(seed, 40.0 * (seed // 2), 300) for seed in range(4)]
    preparation = Preparation.fit(parts, NAMES, CONFIG.preparation, owners=(0, 0, 1, 1))
    assert preparation.warm_up == WARM_UP
    missing = [int(np.isnan(one[0]).sum()) for one in preparation.scaled(parts, owners=(0, 0, 1, 1))]
    assert missing == [WARM_UP - 1, 0, WARM_UP - 1, 0]


@pytest.mark.parametrize(("word", "warm_up"), [("never", 0), ("always", 240), ("auto", 0)])
def test_settings_decide_before_the_data_do(word: Any, warm_up: int) -> None:
    config = PreparationConfig(own_scale=word)
    assert Preparation.fit([series(0, 0.0), series(1, 0.0)], NAMES, config).warm_up == warm_up


def test_a_single_entity_is_not_unlike_anybody() -> None:
    assert bundle_of(500.0).votes[""].preparation.warm_up == 0


def test_own_scales_go_through_a_file_and_models_of_before_still_load(unlike: ModelBundle, tmp_path: Path) -> None:
    unlike.save(tmp_path)
    loaded = ModelBundle.load(tmp_path)
    values = series(9, 7.0, 100).T[None]
    np.testing.assert_array_equal(scored(loaded, values).ensemble, scored(unlike, values).ensemble)
    assert loaded.votes[""].preparation.why == unlike.votes[""].preparation.why

    pooled = bundle_of(0.0, 0.1, -0.1)
    arrays = pooled.votes[""].to_arrays()
    for part in ("weight", "prior", "least"):
        del arrays[f"preparation/{part}"]
    text = json.loads(arrays["preparation/text"].tobytes())
    arrays["preparation/text"] = np.frombuffer(json.dumps(text[:2]).encode(), dtype=np.uint8)
    before = MetricVote.from_arrays(arrays)
    assert before.preparation.warm_up == 0
    np.testing.assert_array_equal(before.preparation.scale.count, pooled.votes[""].preparation.scale.count)
    pooled.save(tmp_path / "pooled")
    manifest = tmp_path / "pooled" / MANIFEST
    assert '"format":2' in manifest.read_text().replace(" ", "")
    manifest.write_text(manifest.read_text().replace(" ", "").replace('"format":2', '"format":1'))
    assert ModelBundle.load(tmp_path / "pooled").versions == pooled.versions


def faulty(first: int, last: int, samples: int) -> Any:
    """One entity whose clock is six deviations off from sample `first` to before `last`."""
    values = series(9, 500.0, samples).T[None].copy()
    values[0, 1, first:last] += 6.0
    return values


def test_a_fault_does_not_become_what_is_normal_however_long_it_lasts(unlike: ModelBundle) -> None:
    """It lasts ten times as long as all that the entity had shown before, and is strange to its end."""
    own = scored(unlike, faulty(100, 1200, 1400)).ensemble[0]
    assert np.nanmax(own[60:100]) < 0.5
    assert np.nanmin(own[120:1200]) > 0.5
    assert np.nanmax(own[1230:]) < 0.5


def test_what_has_been_strange_for_a_day_teaches_again(unlike: ModelBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unlike.votes[""], "pace", None)  # samples an hour apart are not what it was trained on
    values, hour_s = faulty(100, 1400, 1400), 3_600.0
    part = new(values)
    (found,) = MetricScorer(unlike).score((replace(part, times_s=part.times_s * hour_s),))
    own = found.ensemble[0]
    assert np.nanmin(own[110:124]) > 0.5
    assert np.nanmax(own[1000:]) < 0.5


@pytest.mark.thorough
@pytest.mark.parametrize("step", [1, 7, 97])
def test_a_fault_in_parts_is_what_it_is_at_once(unlike: ModelBundle, step: int) -> None:
    values = np.concatenate([faulty(100, 260, 420), faulty(130, 150, 420), faulty(420, 420, 420)])
    whole = scored(unlike, values)
    scorer, parts = MetricScorer(unlike), []
    for start in range(0, 420, step):
        (found,) = scorer.score((new(values, start, min(start + step, 420)),))
        parts.append(found)
        if start % 5 == 0:
            other = MetricScorer(unlike)
            other.restore(scorer.state())
            scorer = other
    np.testing.assert_allclose(np.concatenate([one.ensemble for one in parts], axis=1), whole.ensemble, rtol=1e-9)
    assert whole.blamed(0, 200) == parts[200 // step].blamed(0, 200 % step)
