"""Distance to the nearest of a few typical states (k-means): training has phases, each is one centre."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.metrics.models.knn import NeighborSearch, sample_rows
from detectors.metrics.models.rows import (
    Arrays,
    Floats,
    center,
    config_arrays,
    read,
    scored_rows,
    training_rows,
)
from trainwarden.errors import DetectorError
from trainwarden.settings import Config


class KMeansConfig(Config, frozen=True, kw_only=True):
    """`clusters` is an upper bound: fewer distinct rows give fewer centres."""

    clusters: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50
    fit_rows: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 8_000
    rounds: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 100


class KMeans:
    """Distance to the nearest centre.

    References
    ----------
    Lloyd: Least squares quantization in PCM, IEEE Trans. Inf. Theory 28 (1982); seeding: Arthur, Vassilvitskii:
    k-means++, SODA 2007, section 2.2.

    Examples
    --------
    >>> model = KMeans.fit([[0.0], [0.2], [10.0], [10.2]], KMeansConfig(clusters=2), seed=0)
    >>> model.score([[0.1], [5.1]]).round(6).tolist()
    [0.0, 5.0]
    """

    Config = KMeansConfig

    def __init__(self, config: KMeansConfig, centers: Floats, normal: Floats) -> None:
        self.config = config
        self._search = NeighborSearch(centers)
        self._normal = normal

    @classmethod
    def fit(cls, rows: npt.ArrayLike, config: KMeansConfig, seed: int) -> Self:
        """Learn centres from normal ``rows [n, d]``; raises DetectorError if there are none."""
        array = sample_rows(training_rows(rows, 1), config.fit_rows, seed)
        centers = _seeded(array, config.clusters, np.random.default_rng(seed))
        for _ in range(config.rounds):
            _, nearest = NeighborSearch(centers).nearest(array, 1)
            moved = _means(array, nearest[:, 0], centers)
            settled = bool(np.allclose(moved, centers, rtol=1e-6, atol=1e-9))
            centers = moved
            if settled:
                break
        return cls(config, centers, center(array))

    def score(self, rows: npt.ArrayLike) -> Floats:
        """Distances ``[r]``."""
        array, empty = scored_rows(rows, self._normal.size)
        distances, _ = self._search.nearest(array, 1)
        return np.where(empty, np.nan, distances[:, 0])

    def blame(self, rows: npt.ArrayLike) -> Floats:
        """Squared distance per metric ``[r, d]`` to the nearest centre."""
        array, _ = scored_rows(rows, self._normal.size)
        _, indices = self._search.nearest(array, 1)
        offset: Floats = np.nan_to_num(array - self._search.references[indices[:, 0]]) ** 2
        return offset

    def to_arrays(self) -> Arrays:
        """State as arrays."""
        return {**config_arrays(self.config), "centers": self._search.references, "normal": self._normal}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Model from `to_arrays`; raises DetectorError where the state is damaged."""
        config, (centers, normal) = read(KMeansConfig, arrays, "centers", "normal")
        if centers.ndim != 2 or not centers.size or normal.shape != centers.shape[1:]:
            raise DetectorError("state of kmeans is damaged: shapes differ")
        return cls(config, centers, normal)


def _seeded(rows: Floats, clusters: int, random: np.random.Generator) -> Floats:
    """First centres, each drawn with probability proportional to its squared distance from those before it."""
    centers = [rows[random.integers(len(rows))]]
    squares = ((rows - centers[0]) ** 2).sum(axis=1)
    while len(centers) < clusters and squares.max() > 0.0:
        centers.append(rows[random.choice(len(rows), p=squares / squares.sum())])
        squares = np.minimum(squares, ((rows - centers[-1]) ** 2).sum(axis=1))
    return np.array(centers)


def _means(rows: Floats, nearest: npt.NDArray[np.intp], centers: Floats) -> Floats:
    """Mean of the rows of each centre; a centre without rows stays."""
    counts = np.bincount(nearest, minlength=len(centers))
    sums = np.zeros_like(centers)
    np.add.at(sums, nearest, rows)
    return np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], centers)
