"""When samples become an alarm: what is usual for an entity, how long faults stay told, and the mean's own voice."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from trainwarden.detectors.job.samples import Entity, Floats, ScoredSamples
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.metrics.hysteresis import ModelVoteConfig, rarity
from trainwarden.detectors.metrics.votes import MetricChangeVote, MetricMeanVote
from trainwarden.detectors.verdict.ensemble import Ensemble
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.trainer_offline.fit.judge import segments

DAY = 1440


def bursts(score: float, days: int = 4, every: int = 40, length: int = 4) -> Floats:
    """One entity that scores `score` for a few minutes every forty, all day long."""
    scores = np.full((1, days * DAY), 0.1)
    scores[0, np.arange(days * DAY) % every < length] = score
    return scores


def opened(scores: Floats, config: ModelVoteConfig | None = None) -> Floats:
    config = config or ModelVoteConfig()
    return np.asarray(config.opened(scores, np.full(scores.shape[1], config.threshold)))


def test_what_is_usual_for_an_entity_is_soon_not_reported() -> None:
    found = segments(opened(bursts(0.46))[0])
    assert 1 <= len(found) <= 10
    assert found[-1, 0] < DAY / 2, "the rest of the days is quiet"
    without = segments(opened(bursts(0.46), ModelVoteConfig(usual_share=0.0))[0])
    assert len(without) == 4 * DAY // 40


def test_what_is_worse_than_anything_may_be_usual_is_always_reported() -> None:
    assert len(segments(opened(bursts(0.52))[0])) == 4 * DAY // 40


def test_a_long_fault_stays_open_while_it_lasts() -> None:
    scores = np.full((1, 3 * DAY), 0.1)
    scores[0, DAY : 2 * DAY] = 0.55
    ((first, last),) = segments(opened(scores)[0]).tolist()
    config = ModelVoteConfig()
    assert (first, last) == (DAY + config.open_samples - 1, 2 * DAY + config.close_samples - 2)


def test_a_mild_fault_stays_told_for_a_day_and_teaches_nothing_until_then() -> None:
    """Milder than what is told for ever: it is told until its relief, and what lasts for a day is the machine's way."""
    scores = np.full((1, 4 * DAY), 0.1)
    scores[0, DAY : DAY + DAY // 2] = 0.46
    ((first, last),) = segments(opened(scores)[0]).tolist()
    assert (first, last) == (DAY + 2, DAY + DAY // 2 + 13)
    scores[0, DAY:] = 0.46
    ((first, last),) = segments(opened(scores)[0]).tolist()
    assert first == DAY + 2
    assert 2 * DAY <= last <= 2 * DAY + 120


def test_an_entity_is_not_deaf_for_long_after_a_fault() -> None:
    scores = np.full((1, 5 * DAY), 0.1)
    scores[0, DAY : DAY + 60] = 0.46
    scores[0, 4 * DAY : 4 * DAY + 10] = 0.46
    assert len(segments(opened(scores)[0])) == 2


def test_only_the_entity_itself_decides_what_is_usual_for_it() -> None:
    scores = np.concatenate([bursts(0.46), np.full((1, 4 * DAY), 0.1)])
    scores[1, 3 * DAY : 3 * DAY + 10] = 0.46
    found = opened(scores)
    np.testing.assert_array_equal(found, opened(scores[::-1])[::-1])
    assert found[1, 3 * DAY : 3 * DAY + 10].any()


def test_the_usual_rests_where_its_share_lies_above() -> None:
    random = np.random.default_rng(0)
    config, usual = ModelVoteConfig(usual_share=0.05, usual_step=0.05, usual_most=0.9), np.zeros(200)
    for _ in range(4000):
        usual = config.usual(usual, random.exponential(size=200))
    assert np.exp(-usual).mean() == pytest.approx(0.05, rel=0.2)


def test_a_score_of_one_is_rare_beyond_counting_and_still_a_number() -> None:
    assert np.isfinite(rarity(np.array([1.0])))[0]


def test_the_mean_of_all_models_may_open_alone_and_a_single_model_may_not() -> None:
    scores = np.full((1, 6), 0.45)
    scored = ScoredSamples(
        family="gpu",
        rows=np.arange(1),
        entities=(Entity("n0", "GPU-0", 0),),
        times_s=60.0 * np.arange(6.0)[None],
        scores={"pca": np.full((1, 6), 0.2)},
        ensemble=scores,
        blamed=lambda row, sample: ("power",),
    )
    window = replace(JobState("job").window(0.0), scored=(scored,), unscored={}, model_versions={"pca": "1"})
    detector = MetricMeanVote(MetricMeanVote.Config())
    detector.update(window)
    vote = detector.score(window)
    assert vote.opinion == "anomalous"
    ensemble = Ensemble(EnsembleConfig(), {"metric_mean": MetricMeanVote.role, "metric_change": MetricChangeVote.role})
    (found,) = ensemble.candidates(window, {"metric_mean": vote})
    assert (found.kind, found.suspects[0].rank, found.metrics) == ("metric_anomaly", 0, ("power",))
    assert ensemble.candidates(window, {"metric_change": vote}) == []
