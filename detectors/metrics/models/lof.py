"""Local outlier factor in its novelty form: is a row in a sparser place than its normal neighbours are?

scikit-learn fits it, on neighbours that `NeighborSearch` finds: in more than 15 metrics scikit-learn would take equal
rows for 1e-8 apart, and one that equals a hundred references for hundreds of times as strange as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

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

Indices = npt.NDArray[np.intp]

TINY_DISTANCE: Final = 1e-10
"""Keeps the density of duplicates finite; scikit-learn adds the same."""
TIED: Final = 1e-9
"""Of a distance: which of two references that are as equally near is the last neighbour nobody can say."""


class LofConfig(Config, frozen=True, kw_only=True):
    """`neighbors` as in the paper's advice of 10 to 20; `reference_rows` bounds memory and time."""

    neighbors: Annotated[int, msgspec.Meta(ge=1, le=200)] = 20
    reference_rows: Annotated[int, msgspec.Meta(ge=16, le=100_000)] = 10_000


class Lof:
    """Local outlier factor against normal rows.

    References
    ----------
    Breunig, Kriegel, Ng, Sander: LOF: Identifying Density-Based Local Outliers, SIGMOD 2000, definitions 3 to 7.

    Examples
    --------
    >>> rows = np.random.default_rng(0).normal(size=(500, 3))
    >>> scores = Lof.fit(rows, LofConfig(), seed=0).score(np.array([[0.0, 0.0, 0.0], [9.0, 0.0, 0.0]]))
    >>> bool(scores[0] < 1.5 < 3.0 < scores[1])
    True
    """

    Config = LofConfig

    def __init__(self, config: LofConfig, references: Floats, reach: Floats, density: Floats) -> None:
        self.config = config
        self._search = NeighborSearch(references)
        self._reach = reach  # distance of each reference to its own k-th neighbour
        self._density = density
        self._center = center(references)

    @classmethod
    def fit(cls, rows: npt.ArrayLike, config: LofConfig, seed: int) -> Self:
        """Learn from normal ``rows [n, d]``.

        Raises
        ------
        DetectorError
            If there are too few rows, or scikit-learn scores otherwise.
        """
        from sklearn.neighbors import LocalOutlierFactor

        references = sample_rows(training_rows(rows, config.neighbors + 1), config.reference_rows, seed)
        distances, indices = NeighborSearch(references).nearest(
            references, config.neighbors, skip=np.arange(len(references))
        )
        own = np.arange(len(references))[:, None]
        graph = _graph(np.hstack([np.zeros(own.shape), distances]), np.hstack([own, indices]), len(references))
        fitted = LocalOutlierFactor(config.neighbors, metric="precomputed", novelty=True).fit(graph)
        model = cls(config, references, fitted._distances_fit_X_[:, -1].copy(), fitted._lrd.copy())
        model._compare(fitted)
        return model

    def _compare(self, fitted: Any) -> None:
        """Raise DetectorError if scikit-learn's neighbours and factors of a few rows are others than ours."""
        from sklearn.neighbors import NearestNeighbors

        references, k = self._search.references, self.config.neighbors
        rows = compared_rows(references)
        # A tree measures differences; no rounding as in a product of matrices.
        distances, indices = NearestNeighbors(n_neighbors=k + 1, algorithm="kd_tree").fit(references).kneighbors(rows)
        apart = distances[:, k] - distances[:, k - 1] > TIED * distances[:, k]
        if apart.any():
            graph = _graph(distances[apart, :k], indices[apart, :k], len(references))
            refuse_unlike("lof", np.zeros((int(apart.sum()), 1)), self.score(rows[apart]), -fitted.score_samples(graph))

    def score(self, rows: npt.ArrayLike) -> Floats:
        """Factors ``[r]``: about 1 inside, larger outside."""
        array, empty = scored_rows(rows, self._center.size)
        distances, indices = self._search.nearest(array, self.config.neighbors)
        reach = _mean_reach(distances, self._reach.take(indices))
        factor: Floats = self._density.take(indices).sum(axis=1) * reach / self.config.neighbors
        factor[empty] = np.nan
        return factor

    def blame(self, rows: npt.ArrayLike) -> Floats:
        """Squared distance per metric ``[r, d]`` to the mean of the neighbours."""
        array, _ = scored_rows(rows, self._center.size)
        _, indices = self._search.nearest(array, self.config.neighbors)
        offset: Floats = np.nan_to_num(array - self._search.references[indices].mean(axis=1)) ** 2
        return offset

    def to_arrays(self) -> Arrays:
        """State as arrays."""
        state = {"references": self._search.references, "reach": self._reach, "density": self._density}
        return {**config_arrays(self.config), **state}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Model from `to_arrays`; raises DetectorError where the state is damaged."""
        config, (references, reach, density) = read(LofConfig, arrays, "references", "reach", "density")
        if references.ndim != 2 or not reach.shape == density.shape == references.shape[:1]:
            raise DetectorError("state of lof is damaged: shapes differ")
        return cls(config, references, reach, density)


def _graph(distances: Floats, indices: Indices, references: int) -> Any:
    """Neighbours ``[r, k]``, nearest first, as the sparse ``[r, references]`` that scikit-learn takes them in."""
    from scipy.sparse import csr_array

    starts = np.arange(0, distances.size + 1, distances.shape[1])
    return csr_array((distances.ravel(), indices.ravel(), starts), shape=(len(distances), references))


def _mean_reach(distances: Floats, reach: Floats) -> Floats:
    """Mean reachability distance ``[r]`` (definition 5); one over it is the local density (definition 6)."""
    mean: Floats = np.maximum(distances, reach).sum(axis=1) / reach.shape[1] + TINY_DISTANCE
    return mean
