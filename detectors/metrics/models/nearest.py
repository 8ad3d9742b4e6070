"""Distance to the nearest normal row: the plainest memory of what normal looks like."""

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


class NearestConfig(Config, frozen=True, kw_only=True):
    """`reference_rows` bounds memory and time."""

    reference_rows: Annotated[int, msgspec.Meta(ge=2, le=100_000)] = 4_000


class Nearest:
    """1-NN distance to normal rows; meant for means over a few samples (the view is `vote`'s).

    References
    ----------
    Ramaswamy, Rastogi, Shim: Efficient Algorithms for Mining Outliers from Large Data Sets, SIGMOD 2000, section 2.

    Examples
    --------
    >>> model = Nearest.fit([[0.0, 0.0], [4.0, 0.0]], NearestConfig(), seed=0)
    >>> model.score([[4.0, 3.0]]).tolist(), model.blame([[4.0, 3.0]]).tolist()
    ([3.0], [[0.0, 9.0]])
    """

    Config = NearestConfig

    def __init__(self, config: NearestConfig, references: Floats) -> None:
        self.config = config
        self._search = NeighborSearch(references)
        self._center = center(references)

    @classmethod
    def fit(cls, rows: npt.ArrayLike, config: NearestConfig, seed: int) -> Self:
        """Learn from normal ``rows [n, d]``.

        Raises
        ------
        DetectorError
            If there are none, or scikit-learn scores otherwise.
        """
        from sklearn.neighbors import NearestNeighbors

        references = sample_rows(training_rows(rows, 1), config.reference_rows, seed)
        fitted = NearestNeighbors(n_neighbors=1, algorithm="kd_tree").fit(references)
        model = cls(config, references)
        compared = compared_rows(references)
        refuse_unlike("nearest", compared, model.score(compared), fitted.kneighbors(compared)[0][:, 0])
        return model

    def score(self, rows: npt.ArrayLike) -> Floats:
        """Distances ``[r]``."""
        array, empty = scored_rows(rows, self._center.size)
        distances, _ = self._search.nearest(array, 1)
        return np.where(empty, np.nan, distances[:, 0])

    def blame(self, rows: npt.ArrayLike) -> Floats:
        """Squared distance per metric ``[r, d]``."""
        array, _ = scored_rows(rows, self._center.size)
        _, indices = self._search.nearest(array, 1)
        offset: Floats = np.nan_to_num(array - self._search.references[indices[:, 0]]) ** 2
        return offset

    def to_arrays(self) -> Arrays:
        """State as arrays."""
        return {**config_arrays(self.config), "references": self._search.references}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Model from `to_arrays`; raises DetectorError where the state is damaged."""
        config, (references,) = read(NearestConfig, arrays, "references")
        if references.ndim != 2 or not references.size:
            raise DetectorError("state of nearest is damaged: no references")
        return cls(config, references)
