"""The votes of the models: whole series at once come to what the live service comes to sample by sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.examples import examples
from trainwarden.detectors.job.samples import Entity, ScoredSamples
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.metrics.vote import ModelVoteConfig
from trainwarden.detectors.metrics.votes import PcaVote

SCORES = st.sampled_from([0.1, 0.1, 0.3, 0.51, 0.55, 0.6, 0.9, float("nan")])


@pytest.mark.thorough
@examples(60)  # sample by sample through a whole vote; machines are shared
@given(
    scores=arrays.arrays(np.float64, st.tuples(st.integers(1, 3), st.integers(1, 60)), elements=SCORES),
    open_samples=st.integers(1, 4),
    calm=st.integers(0, 4),
    every_s=st.sampled_from([1.0, 60.0, 300.0]),
    usual_step=st.sampled_from([0.2, 5.0]),
)
def test_a_series_at_once_equals_sample_by_sample(
    scores: np.ndarray, open_samples: int, calm: int, every_s: float, usual_step: float
) -> None:
    config = ModelVoteConfig(
        threshold=0.5, open_samples=open_samples, close_samples=2 * open_samples - 1 + calm, usual_step=usual_step,
        usual_most=0.7, common_share=1.0,
    )  # fmt: skip
    count, samples = scores.shape
    scored = ScoredSamples(
        family="gpu",
        rows=np.arange(count),
        entities=tuple(Entity(f"n{one}", f"GPU-{one}", one) for one in range(count)),
        times_s=np.tile(every_s * np.arange(samples), (count, 1)),
        scores={"pca": scores},
        ensemble=scores,
        blamed=lambda row, sample: ("metric",),
    )
    detector, opinions = PcaVote(config), []
    empty = JobState("job").window(0.0)
    for sample in range(samples):
        window = replace(empty, scored=(scored.until(sample, sample + 1),), unscored={}, model_versions={"pca": "1"})
        detector.update(window)
        vote = detector.score(window)
        opinions.append({suspect.rank for suspect in vote.suspects} if vote.opinion == "anomalous" else set())
    thresholds = np.full(samples, config.threshold_of(count, every_s))
    at_once = config.opened(scores, thresholds)
    # The first sample is judged before its interval is known, as one of a minute; later ones are alike.
    if every_s >= 60.0:
        assert [set(np.flatnonzero(at_once[:, sample]).tolist()) for sample in range(samples)] == opinions
    changes = [sample for sample in range(samples) if opinions[sample] != (opinions[sample - 1] if sample else set())]
    assert PcaVote(config).turns(scored).tolist() == changes
