"""A recording of which little is known to be normal: models learn on from what was calm, and from nothing later."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import average_precision_score

from trainwarden.detectors.job.samples import Entity, ScoredSamples
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.hysteresis import EXPIRE_S
from trainwarden.detectors.recorded import learning
from trainwarden.detectors.recorded.grids import MetricGrid
from trainwarden.detectors.recorded.learning import AROUND, LearningOn, calm
from trainwarden.detectors.recorded.metrics import MetricScores, score_recorded
from trainwarden.recorded.job import MetricTable, RecordedJob

CONFIG = VoteConfig(members={"kmeans": 1.0, "nearest": 1.0, "metric_change": 1.0})
EVERY_S = 60.0
KNOWN = 60  # normal rows


def job(rows: int, faults: tuple[tuple[int, int], ...] = (), metrics: int = 3) -> RecordedJob:
    """One machine that drifts between two loads, told to be normal for its first rows."""
    random = np.random.default_rng(0)
    load = 0.3 * np.sin(np.arange(rows) / 40.0)[:, None]
    values = load + 0.3 * random.normal(size=(rows, metrics))
    for first, end in faults:
        values[first:end] += 9.0
    table = MetricTable(
        times_s=EVERY_S * np.arange(rows), entity=np.zeros(rows, dtype=np.int64), nodes=("n0",), ranks=(None,),
        devices=(None,), names=tuple(f"m{number}" for number in range(metrics)), values=values,
    )  # fmt: skip
    return RecordedJob("j", Path("j"), metrics=table, normal_until_s=KNOWN * EVERY_S)


def scored(one: RecordedJob, config: VoteConfig = CONFIG) -> MetricScores:
    found = score_recorded(one, config=config)
    assert found is not None
    return found


def begins(scores: MetricScores) -> list[int]:
    """The samples from which on other models scored."""
    return [round(part.column_s[0] / EVERY_S) for part in scores.scored]


@pytest.mark.thorough
def test_models_learn_anew_whenever_twice_as_much_was_seen_until_there_is_enough() -> None:
    assert LearningOn(CONFIG, 0).enough_rows(metrics=3) == 900
    scores = scored(job(rows=2_400))
    assert begins(scores) == [60, 120, 240, 480, 960]
    versions = [part.scored.versions["kmeans"] for part in scores.scored]
    assert len(set(versions)) == len(versions)
    assert begins(scored(job(rows=200, metrics=1))) == [60, 120]
    assert begins(scored(replace(job(rows=1_000, metrics=1), normal_until_s=300 * EVERY_S))) == [300]


@pytest.mark.thorough
def test_no_score_depends_on_what_comes_later() -> None:
    rows = 500
    whole, part = scored(job(rows=900, faults=((600, 620),))), scored(job(rows))
    for column, shorter in ((whole.mean, part.mean), (whole.ensemble, part.ensemble)):
        np.testing.assert_allclose(shorter, column[:rows], rtol=1e-6)


@pytest.mark.thorough
def test_faults_stand_out_more_once_more_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve metrics move together by three causes; in a fault one of them does not any more."""
    random, one = np.random.default_rng(1), job(rows=1_400, metrics=12)
    assert one.metrics is not None
    causes = np.stack([np.sin(np.arange(1_400) / period) for period in (7.0, 23.0, 61.0)], axis=1)
    one.metrics.values[:] = causes @ random.normal(size=(3, 12)) + 0.2 * random.normal(size=(1_400, 12))
    strange = np.zeros(1_400, dtype=np.bool_)
    for number, first in enumerate(range(980, 1_380, 40)):
        one.metrics.values[first : first + 10, number] += 1.0
        strange[first : first + 10] = True
    config = VoteConfig(members={"forecast": 1.0, "pca": 1.0, "nearest": 1.0})
    anew = scored(one, config).mean[960:]
    monkeypatch.setattr(learning, "OBSERVATIONS", 0)
    once = scored(one, config)
    assert begins(once) == [60]
    found, before = (average_precision_score(strange[960:], by) for by in (anew, once.mean[960:]))
    assert found > before + 0.1


@pytest.mark.thorough
def test_a_fault_teaches_nothing_and_is_found_again() -> None:
    faults = ((150, 170), (700, 720), (1_100, 1_120))
    mean = scored(job(rows=1_400, faults=faults)).mean
    assert all(mean[first + 5 : end].min() > 0.5 for first, end in faults)


def test_what_has_been_strange_for_a_day_teaches_again() -> None:
    day = round(EXPIRE_S / EVERY_S)
    samples = day + 200
    times_s = EVERY_S * np.arange(samples)
    grid = MetricGrid(
        "", ("m",), (Entity(),), np.ones((1, 1, samples)), times_s[None], times_s, np.arange(samples)[None], ("",)
    )
    scores = np.full((1, samples), 0.9)
    scores[:, :100] = 0.1
    missing = np.flatnonzero(np.isnan(calm(grid, scores, known=10).values[0, 0]))
    begins = 102 - AROUND  # the third strange sample opens
    assert (missing[0], missing[-1], missing.size) == (begins, begins + day, day + 1)


@pytest.mark.parametrize("sample", [0, 2, 3, 4])
def test_joined_stretches_are_as_one(sample: int) -> None:
    def stretch(**scores: Any) -> ScoredSamples:
        size = len(scores["pca"])
        return ScoredSamples(
            family="", rows=np.arange(1), entities=(Entity(),), times_s=np.arange(size, dtype=float)[None],
            scores={name: np.array([values]) for name, values in scores.items()}, ensemble=np.array([scores["pca"]]),
            blamed=lambda row, at: (f"{size}/{row}/{at}",), versions={"pca": str(size)},
        )  # fmt: skip

    whole = ScoredSamples.joined([stretch(pca=[0.1, 0.2, 0.3]), stretch(pca=[0.4, 0.5], kmeans=[0.6, 0.7])])
    assert whole.scores["pca"][0, sample] == pytest.approx(0.1 * (sample + 1))
    np.testing.assert_equal(whole.scores["kmeans"][0], [np.nan, np.nan, np.nan, 0.6, 0.7])
    assert whole.blamed(0, sample) == (f"3/0/{sample}" if sample < 3 else f"2/0/{sample - 3}",)
    assert whole.versions == {"pca": "2"}
