"""Length of the z-score vector: how far all metrics together are from their mean; the baseline to beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.models.rows import (
    Arrays,
    Floats,
    config_arrays,
    filled,
    read,
    scored_rows,
    training_rows,
)
from trainwarden.errors import DetectorError
from trainwarden.settings import Config


class ZLengthConfig(Config, frozen=True, kw_only=True):
    """`least_spread` keeps a (nearly) constant metric from counting every flicker, in the unit of the rows."""

    least_spread: Annotated[float, msgspec.Meta(gt=0.0)] = 1e-3


class ZLength:
    """Euclidean length of (row - mean) / spread.

    References
    ----------
    Shewhart: Economic Control of Quality of Manufactured Product, 1931 (z-scores), summed as in Hotelling's T squared
    with a diagonal covariance (Annals of Mathematical Statistics 2, 1931).

    Examples
    --------
    >>> model = ZLength.fit([[-1.0, 0.0], [1.0, 0.0]], ZLengthConfig(), seed=0)
    >>> model.score([[3.0, 0.0]]).round(2).tolist()
    [3.0]
    """

    Config = ZLengthConfig

    def __init__(self, config: ZLengthConfig, mean: Floats, spread: Floats) -> None:
        self.config = config
        self._mean = mean
        self._spread = spread

    @classmethod
    def fit(cls, rows: npt.ArrayLike, config: ZLengthConfig, seed: int) -> Self:
        """Learn from normal ``rows [n, d]``; `seed` is unused. Raises DetectorError if there are none."""
        del seed
        array = training_rows(rows, 1)
        return cls(config, array.mean(axis=0), array.std(axis=0) + config.least_spread)

    def score(self, rows: npt.ArrayLike) -> Floats:
        """Lengths ``[r]``."""
        array, empty = scored_rows(rows, self._mean.size)
        return np.where(empty, np.nan, np.sqrt(self.blame(array).sum(axis=1)))

    def blame(self, rows: npt.ArrayLike) -> Floats:
        """Squared z-score per metric ``[r, d]``."""
        array, _ = scored_rows(rows, self._mean.size)
        squares: Floats = ((filled(array, self._mean) - self._mean) / self._spread) ** 2
        return squares

    def to_arrays(self) -> Arrays:
        """State as arrays."""
        return {**config_arrays(self.config), "mean": self._mean, "spread": self._spread}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Model from `to_arrays`; raises DetectorError where the state is damaged."""
        config, (mean, spread) = read(ZLengthConfig, arrays, "mean", "spread")
        if mean.ndim != 1 or mean.shape != spread.shape or not (spread > 0.0).all():
            raise DetectorError("state of zlength is damaged: shapes or spreads are wrong")
        return cls(config, mean, spread)
