"""The ranking of the file of scores: what was strange stays so for a while, and nothing is less strange for that."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.unit.detectors import recordings
from tests.unit.detectors.recorded.test_replay import QUICK, strange_metrics
from trainwarden.detectors.metrics import baseline_freeze
from trainwarden.detectors.metrics.bundle.calibration import squeeze, unsqueeze
from trainwarden.detectors.recorded.metrics import HALF_LIFE_SAMPLES, LASTING_NATS, lasting, score_recorded

SCORES = st.lists(st.floats(0.0, 0.95) | st.just(math.nan), min_size=1, max_size=60)


def plain(scores: list[float]) -> list[float]:
    """One entity, sample by sample."""
    keep = 0.5 ** (1.0 / HALF_LIFE_SAMPLES)
    total = weight = 0.0
    out = []
    for score in scores:
        if math.isnan(score):
            out.append(score)
            continue
        nats = float(unsqueeze(score))
        total, weight = keep * total + min(nats, LASTING_NATS), keep * weight + 1.0
        out.append(max(score, float(squeeze(total / weight))))
    return out


@examples(100)
@given(st.lists(SCORES, min_size=1, max_size=3))
def test_it_is_what_a_plain_loop_makes(entities: list[list[float]]) -> None:
    samples = min(map(len, entities))
    scores = np.array([one[:samples] for one in entities])
    np.testing.assert_allclose(lasting(scores), [plain(one) for one in scores.tolist()], atol=1e-9)


@examples(60)
@given(SCORES)
def test_no_score_becomes_less_and_gaps_stay(entity: list[float]) -> None:
    scores = np.array([entity])
    found = lasting(scores)
    assert (np.isnan(found) == np.isnan(scores)).all()
    assert not (found < scores).any()


def test_one_wild_value_is_over_within_an_hour_of_minutes() -> None:
    scores = np.full((1, 120), 0.1)
    scores[0, 30] = 0.98
    found = lasting(scores)
    assert found[0, 30] == 0.98
    assert (found[0, 90:] < 0.41).all()  # what no vote calls strange


@pytest.mark.thorough
def test_the_file_has_the_mean_and_what_lasts_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline_freeze, "STRANGE", 2.0)  # nobody's scale stands still
    scores = score_recorded(strange_metrics(), None, recordings.START_S + 6_000.0, QUICK)
    assert scores is not None
    columns = scores.columns(["metric_mean", "kmeans"])
    assert list(columns)[-2:] == ["metric_mean", "ensemble"]
    mean, ensemble = columns["metric_mean"], columns["ensemble"]
    there = ~np.isnan(mean)
    assert (ensemble[there] >= mean[there]).all()
    assert (ensemble[there] > mean[there]).any()
    assert max(part.scored.ensemble.max() for part in scores.scored) == np.nanmax(
        mean
    )  # what opens incidents is the mean
    assert "metric_mean" not in scores.columns(["kmeans"])


@pytest.mark.thorough
def test_a_scale_that_stands_still_for_incidents_follows_in_the_ranking() -> None:
    """A level that stays ranks ever lower, though its incident stays open."""
    job = recordings.job(
        metrics=recordings.metrics(strange=lambda entity, row: 12.0 if entity == 2 and row >= 700 else 0.0)
    )
    scores = score_recorded(job, None, recordings.START_S + 6_000.0, QUICK)
    assert scores is not None
    mine = scores.table.entity == 2
    rows = np.flatnonzero(mine)
    first, last = rows[705:715], rows[-20:]
    assert scores.mean[first].min() > 0.5
    assert scores.mean[last].min() > 0.5
    assert scores.ensemble[last].max() < scores.ensemble[first].min()
    assert scores.ensemble[last].max() < scores.mean[last].min()  # as it lasts, the same mean is never less
