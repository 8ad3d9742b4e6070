"""What anyone would try first on server metrics, by plain scikit-learn: score ``[t]`` and blame ``[t, d]`` per row.

Rows are standardised by the mean and spread of training. Each score is calibrated as the product's members are, on
blocks of training that the scoring model has not seen, so that one threshold serves every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

from trainwarden.detectors.metrics.bundle.calibration import Calibration, squeeze
from trainwarden.detectors.recorded.metrics import lasting

Floats = npt.NDArray[np.float64]
Judge = Callable[[Floats], tuple[Floats, Floats | None]]
"""Rows ``[t, d]`` to scores ``[t]`` and, where it can say, blame ``[t, d]``."""

FOLDS: Final = 3
REFERENCE_ROWS: Final = 4_000
CLUSTERS: Final = 50
NEIGHBORS: Final = 20
PAST_SAMPLES: Final = 60
LEAST_SPREAD: Final = 1e-2
"""Least spread of a metric as a share of its largest value; of 1e-3, 1e-2 and none the best on the choosing half."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """Calibrated scores of the test rows, and blame where the method can say."""

    scores: Floats
    blame: Floats | None


def pca_error(rows: Floats) -> Judge:
    """Reconstruction error of the components that explain 90 % of the variance."""
    width = rows.shape[1]
    model = PCA(0.9 if width > 1 else 1, svd_solver="full").fit(rows)
    kept = min(model.n_components_, max(width - 1, 0))

    def judge(part: Floats) -> tuple[Floats, Floats | None]:
        offset = part - model.mean_
        squares = (offset - (offset @ model.components_[:kept].T) @ model.components_[:kept]) ** 2
        return np.sqrt(squares.sum(axis=1)), squares

    return judge


def zscore_length(rows: Floats) -> Judge:
    """Length of the vector of z-scores."""
    del rows  # already standardised
    return lambda part: (np.sqrt((part**2).sum(axis=1)), part**2)


def kmeans(rows: Floats) -> Judge:
    """Distance to the nearest of 50 centres."""
    few = _thinned(rows, 2 * REFERENCE_ROWS)
    clusters = min(CLUSTERS, len(np.unique(few, axis=0)))
    return _to_nearest(KMeans(clusters, n_init=1, random_state=0).fit(few).cluster_centers_)


def one_nn(rows: Floats) -> Judge:
    """Distance to the nearest training row."""
    return _to_nearest(_thinned(rows, REFERENCE_ROWS))


def lof(rows: Floats) -> Judge:
    """Local outlier factor as novelty."""
    few = _thinned(rows, REFERENCE_ROWS)
    model = LocalOutlierFactor(min(NEIGHBORS, len(few) - 1), novelty=True).fit(few)
    # Of many equal training rows the factor is a quotient of rounding errors; finite is all that can be asked of it.
    return lambda part: (np.nan_to_num(-model.score_samples(part), posinf=1e12), None)


FITTED: Final[dict[str, Callable[[Floats], Judge]]] = {
    "pca_error": pca_error,
    "zscore_length": zscore_length,
    "kmeans_sklearn": kmeans,
    "one_nn_distance": one_nn,
    "lof_sklearn": lof,
}
SIMPLE_MEAN: Final = ("zscore_length", "kmeans_sklearn", "one_nn_distance")
BASELINES: Final = (*FITTED, "simple_mean", "simple_mean_lasting", "sliding_z", "always_off")


def baselines(train: Floats, test: Floats) -> dict[str, Baseline]:
    """Every baseline, trained once and applied to each test row on its own (`sliding_z`: to its past)."""
    mean, spread = train.mean(axis=0), train.std(axis=0) + LEAST_SPREAD * np.maximum(np.abs(train).max(axis=0), 1e-9)
    rows, seen = (test - mean) / spread, (train - mean) / spread
    out, nats = {}, {}
    for name, fit in FITTED.items():
        calibration = _calibrated(fit, seen)
        raw, blame = fit(seen)(rows)
        nats[name] = calibration.nats(raw)
        out[name] = Baseline(squeeze(nats[name]), blame)
    shares = [_shares(out[name].blame, rows.shape) for name in SIMPLE_MEAN]
    mean_nats = np.mean([nats[name] for name in SIMPLE_MEAN], axis=0)
    out["simple_mean"] = Baseline(squeeze(mean_nats), np.mean(shares, axis=0))
    # What our own ranking gains by lasting, the simplest mean may gain too.
    out["simple_mean_lasting"] = Baseline(lasting(out["simple_mean"].scores[None])[0], out["simple_mean"].blame)
    out["sliding_z"] = _sliding_z(seen, rows)
    out["always_off"] = Baseline(np.zeros(len(test)), None)
    return out


def _calibrated(fit: Callable[[Floats], Judge], seen: Floats) -> Calibration:
    block = np.arange(len(seen)) * FOLDS // len(seen)
    return Calibration.fit(np.concatenate([fit(seen[block != fold])(seen[block == fold])[0] for fold in range(FOLDS)]))


def _sliding_z(seen: Floats, rows: Floats) -> Baseline:
    """Length of z-scores against the hour (60 rows) before, in spreads of that hour, a tenth of training's at least."""
    together = np.concatenate([seen, rows])
    sums, squares = (np.cumsum(np.pad(part, ((1, 0), (0, 0))), axis=0) for part in (together, together**2))
    ends = np.arange(len(together))
    first = np.maximum(ends - PAST_SAMPLES, 0)
    count = np.maximum(ends - first, 1)[:, None]
    mean = (sums[ends] - sums[first]) / count
    spread = np.sqrt(np.maximum((squares[ends] - squares[first]) / count - mean**2, 0.0))
    blame = ((together - mean) / np.maximum(spread, 0.1)) ** 2
    blame[:2] = 0.0
    raw = np.sqrt(blame.sum(axis=1))
    return Baseline(Calibration.fit(raw[: len(seen)]).score(raw[len(seen) :]), blame[len(seen) :])


def _to_nearest(references: Floats) -> Judge:
    search = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(references)

    def judge(part: Floats) -> tuple[Floats, Floats | None]:
        distances, places = search.kneighbors(part)
        return distances[:, 0], (part - references[places[:, 0]]) ** 2

    return judge


def _shares(blame: Floats | None, shape: tuple[int, ...]) -> Floats:
    if blame is None:
        return np.zeros(shape)
    sums = blame.sum(axis=1, keepdims=True)
    shares: Floats = np.divide(blame, sums, out=np.zeros(shape), where=sums > 0.0)
    return shares


def _thinned(rows: Floats, most: int) -> Floats:
    """At most so many rows, evenly spaced."""
    return rows[:: max(1, -(-len(rows) // most))]
