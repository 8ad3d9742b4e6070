"""Metrics that are missing make nobody strange: of what moves together, the mean of one is odd."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import ROW_MODELS, View, VoteConfig
from trainwarden.detectors.metrics.bundle.preparation import Preparation, PreparationConfig
from trainwarden.detectors.metrics.bundle.scale import FARTHEST, Scale
from trainwarden.detectors.metrics.hysteresis import ModelVoteConfig
from trainwarden.detectors.metrics.models.dtw import Dtw, DtwConfig
from trainwarden.detectors.metrics.models.forecast import Forecast, ForecastConfig
from trainwarden.detectors.metrics.models.knn import NeighborSearch
from trainwarden.detectors.metrics.models.pca import Pca, PcaConfig
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.settings import parse

NAMES = ("power", "clock", "load", "heat", "flow", "memory")
GPUS = 6
SMALL = {"neighbor_profile": {"bags": 8, "bag_size": 8}, "nearest": {"reference_rows": 1000}}


def together(seed: int, samples: int) -> Any:
    """All GPUs do the same at the same time, every metric in its own way ``[gpus, 6, samples]``."""
    phase = (np.arange(samples) % 90 < 60).astype(float)
    shape = np.array([3.0, 2.0, 3.0, 2.0, -3.0, 1.0])[:, None] * phase
    return shape + np.random.default_rng(seed).normal(0.0, 0.3, (GPUS, 6, samples))


@cache
def trained() -> ModelBundle:
    normal = [(Entity("n", f"GPU-{one}", one), np.arange(700.0), row.T) for one, row in enumerate(together(0, 700))]
    return ModelBundle.fit({"gpu": normal}, {"gpu": NAMES}, parse(VoteConfig, SMALL, "models"), seed=0)


def opened(values: Any) -> dict[str, int]:
    """Whoever opens, by member: how many GPUs."""
    rows, times_s = np.arange(GPUS), np.tile(np.arange(float(values.shape[2])), (GPUS, 1))
    entities = tuple(Entity("n", f"GPU-{one}", one) for one in rows)
    new = FamilySamples("gpu", NAMES, rows, entities, ("",) * GPUS, values, times_s)
    (scored,) = MetricScorer(trained()).score((new,))
    config = ModelVoteConfig()
    threshold = np.full(values.shape[2], config.threshold_of(GPUS, 1.0))
    found = {
        name: config.opened(part, threshold).any(axis=1)
        for name, part in (scored.scores | {"": scored.ensemble}).items()
    }
    return {name: int(part.sum()) for name, part in found.items() if part.any()}


def without(metrics: Any, gpus: Any, times: Any) -> Any:
    values = together(1, 300)
    values[gpus, metrics, times] = np.nan
    return values


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("metrics", "gpus", "times"),
    [
        (0, 2, slice(None)), (4, 2, slice(None)), (slice(0, 3), 2, slice(None)), (0, slice(None), slice(0, 155)),
        (4, slice(None), slice(0, 155)), (0, 2, slice(150, None)), (0, 2, slice(None, None, 2)),
        (0, 2, slice(145, 155)),
    ],
    ids=["one", "another", "half of them", "late", "another late", "lost", "every other", "away for a while"],
)  # fmt: skip
def test_nobody_is_strange_for_what_is_missing(metrics: Any, gpus: Any, times: Any) -> None:
    assert opened(together(1, 300)) == {}
    assert opened(without(metrics, gpus, times)) == {}


@pytest.mark.thorough
def test_a_fault_is_seen_in_what_is_there() -> None:
    values = without(0, 2, slice(None))
    values[2, 1, 200:] -= 4.0
    assert {"", "kmeans", "nearest", "pca"} <= set(opened(values))


@pytest.mark.thorough
def test_whoever_lacks_most_metrics_has_no_score() -> None:
    values = without(slice(0, 4), 2, slice(None))
    rows, times_s = np.arange(GPUS), np.tile(np.arange(300.0), (GPUS, 1))
    new = FamilySamples("gpu", NAMES, rows, (Entity(),) * GPUS, ("",) * GPUS, values, times_s)
    (scored,) = MetricScorer(trained()).score((new,))
    told = {name for name, part in scored.scores.items() if not np.isnan(part[2]).all()}
    assert told <= {"neighbor_profile"}  # looks at each metric for itself
    assert not np.isnan(scored.ensemble[1, -1])


def gapped(rows: Any, seed: int) -> Any:
    return np.where(np.random.default_rng(seed).random(rows.shape) < 0.3, np.nan, rows)


@pytest.fixture(scope="module")
def alike() -> Any:
    """Rows ``[n, 8]`` of metrics that move together."""
    random = np.random.default_rng(3)
    return random.normal(size=(600, 2)) @ random.normal(size=(2, 8)) + random.normal(0.0, 0.1, (600, 8))


@pytest.mark.parametrize("name", sorted(set(ROW_MODELS) - {"lof"}))
def test_a_row_is_no_stranger_for_what_is_missing(name: str, alike: Any) -> None:
    model = ROW_MODELS[name].fit(alike[:400], ROW_MODELS[name].Config(), 0)
    whole, holes = model.score(alike[400:]), model.score(gapped(alike[400:], 1))
    known = ~np.isnan(holes)
    assert known.sum() > 150
    assert (holes[known] <= whole[known] + 1e-9).all()


def test_distances_around_gaps_equal_plain(alike: Any) -> None:
    rows = gapped(alike[400:], 2)
    rows[::3] = alike[400::3]
    distances, indices = NeighborSearch(alike[:400]).nearest(rows, 3)
    plain = np.sqrt(np.nansum((rows[:, None] - alike[None, :400]) ** 2, axis=2))
    np.testing.assert_allclose(distances, np.sort(plain, axis=1)[:, :3], rtol=1e-9)
    np.testing.assert_allclose(np.take_along_axis(plain, indices, axis=1), distances, rtol=1e-9)


def test_what_is_missing_of_a_row_explains_as_much_as_it_can(alike: Any) -> None:
    model = Pca.fit(alike[:400], PcaConfig(), 0)
    rows = gapped(alike[400:440], 4)
    state = model.to_arrays()
    outside = np.eye(8) - state["components"].T @ state["components"]
    for row, score in zip(rows, model.score(rows), strict=True):
        gone = np.isnan(row)
        known = np.nan_to_num(row - state["mean"]) @ outside
        best = np.linalg.lstsq(outside[:, gone], -known, rcond=None)[0]
        if not np.isnan(score):
            np.testing.assert_allclose(score, np.linalg.norm(known + outside[:, gone] @ best), atol=1e-9)


def test_nothing_is_told_where_what_is_missing_explains_all() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 1)) * np.array([1.0, 2.0])
    model = Pca.fit(rows + np.random.default_rng(1).normal(0.0, 0.1, rows.shape), PcaConfig(), 0)
    assert np.isnan(model.score([[3.0, np.nan]])).all()
    assert model.blame([[3.0, np.nan]]).tolist() == [[0.0, 0.0]]


def test_a_forecast_waits_for_nothing_from_what_it_does_not_know(alike: Any) -> None:
    """The second metric follows the first by one mean."""
    drive = np.repeat(np.random.default_rng(0).normal(size=300), 4)
    series = np.stack([drive, np.roll(drive, 4), np.random.default_rng(1).normal(0.0, 1.0, 1200)], axis=1)
    model = Forecast.fit([series[:1000]], ForecastConfig(mean_samples=4, lags=2), 0)
    windows = np.stack([series[end - 12 : end].T for end in range(1012, 1200, 4)])
    holes = windows.copy()
    holes[:, 0] = np.nan
    assert np.quantile(model.score(holes), 0.9) < 2.5 < np.quantile(np.abs(windows[:, 1, -1]) / 0.1, 0.5)
    windows[:, 1, -4:] += 6.0
    assert (model.score(windows) > 5.0).all()


def test_ranks_are_not_judged_by_the_first_samples_of_a_metric_that_comes_late() -> None:
    windows = np.random.default_rng(0).normal(0.0, 0.1, (6, 2, 60))
    model = Dtw.fit([windows], DtwConfig(), 0)
    windows[:, 1, :57] = np.nan
    windows[3, 1, 57] += 1.0
    assert model.score(windows)[3] < 2.0
    windows[:4, 1] = np.nan
    windows[4, 1] = 9.0  # of two nobody can say which is the odd one
    assert (model.score(windows) < 2.0).all()


def test_a_mean_speaks_for_all_of_its_samples_or_not_at_all() -> None:
    values = np.ones((1, 1, 12))
    values[0, 0, :7] = np.nan
    seen = View(mean_rows=5).complete_rows(values, 6)
    assert np.isnan(seen[0, 0]).tolist() == [True, True, True, True, False, False]
    values[0, 0, 7::2] = np.nan
    assert not np.isnan(View(mean_rows=5).complete_rows(values, 1)).any()


@pytest.mark.thorough
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("gpus", [2, slice(None)])
def test_a_value_that_no_float_can_square_is_none(gpus: Any) -> None:
    values, gone = together(1, 300), together(1, 300)
    values[gpus, 0, 150::7], gone[gpus, 0, 150::7] = 1e300, np.nan
    assert opened(values) == opened(gone) == {}
    values[2, 1, 200:] -= 4.0
    assert "" in opened(values)


@pytest.mark.filterwarnings("error")
def test_what_no_float_can_square_is_not_learnt_from() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2))
    wild = rows.copy()
    wild[100, 0] = -1e300
    plain = Preparation.fit([np.where(np.abs(wild) > 1e38, np.nan, wild)], ["a", "b"], PreparationConfig())
    found = Preparation.fit([wild], ["a", "b"], PreparationConfig())
    np.testing.assert_array_equal(found.scale.mean, plain.scale.mean)


def test_what_is_farther_away_than_can_be_told_is_as_far_as_can_be_told() -> None:
    scale = Scale.shared(np.array([1e6]), np.zeros(1), np.array([1e-294]), np.array([1e-300]))
    assert scale.apply(np.array([[1e37, -1e37]])).tolist() == [[FARTHEST, -FARTHEST]]
