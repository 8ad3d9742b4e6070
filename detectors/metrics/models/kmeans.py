"""Distance to the nearest of a few typical states (k-means): training has phases, each is one centre."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.models.agreement import compared_rows, refuse_unlike
from trainwarden.detectors.metrics.models.knn import NeighborSearch, sample_rows
from trainwarden.detectors.metrics.models.rows import (
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
    Sculley: Web-Scale K-Means Clustering, WWW 2010; seeding: Arthur, Vassilvitskii: k-means++, SODA 2007, section 2.2.

    Examples
    --------
    >>> model = KMeans.fit([[0.0], [0.2], [10.0], [10.2]], KMeansConfig(clusters=2), seed=0)
    >>> model.score([[0.1], [5.1]]).round(1).tolist()
    [0.0, 5.0]
    """

    Config = KMeansConfig

    def __init__(self, config: KMeansConfig, centers: Floats, normal: Floats) -> None:
        self.config = config
        self._search = NeighborSearch(centers)
        self._normal = normal

    @classmethod
    def fit(cls, rows: npt.ArrayLike, config: KMeansConfig, seed: int) -> Self:
        """Learn centres from normal ``rows [n, d]``.

        Raises
        ------
        DetectorError
            If there are none, or scikit-learn scores otherwise.
        """
        from sklearn.cluster import MiniBatchKMeans

        array = sample_rows(training_rows(rows, 1), config.fit_rows, seed)
        clusters = min(config.clusters, len(np.unique(array, axis=0)))
        fitted = MiniBatchKMeans(clusters, max_iter=config.rounds, n_init=1, random_state=seed).fit(array)
        model = cls(config, np.asarray(fitted.cluster_centers_, dtype=np.float64), center(array))
        compared = compared_rows(array)
        refuse_unlike("kmeans", compared, model.score(compared), fitted.transform(compared).min(axis=1))
        return model

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
