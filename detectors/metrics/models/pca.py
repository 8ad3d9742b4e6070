"""PCA reconstruction: what the usual joint movements of the metrics cannot explain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.models.agreement import compared_rows, refuse_unlike
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

ROUNDING: Final = 1e-9
"""Of a unit vector's square: what is less of a missing metric outside the components is rounding."""


class PcaConfig(Config, frozen=True, kw_only=True):
    """`variance` is the share of normal variance that the kept components explain at least."""

    variance: Annotated[float, msgspec.Meta(gt=0.0, lt=1.0)] = 0.9


class Pca:
    """Length of the part of a row outside the space of its principal components.

    References
    ----------
    Shyu, Chen, Sarinnapakorn, Chang: A Novel Anomaly Detection Scheme Based on Principal Component Classifier,
    ICDM 2003; the residual is Jackson and Mudholkar's Q statistic, Technometrics 21 (1979), section 2. Missing metrics
    have the values that leave least unexplained: Nelson, Taylor, MacGregor, Chemometrics and Intelligent Laboratory
    Systems 35 (1996).

    Examples
    --------
    >>> model = Pca.fit([[-1.0, -1.0], [0.0, 0.0], [1.0, 1.0]], PcaConfig(), seed=0)
    >>> model.score([[3.0, 3.0], [1.0, -1.0]]).round(3).tolist()
    [0.0, 1.414]
    """

    Config = PcaConfig

    def __init__(self, config: PcaConfig, mean: Floats, components: Floats) -> None:
        self.config = config
        self._mean = mean
        self._components = components  # [kept, d], orthonormal

    @classmethod
    def fit(cls, rows: npt.ArrayLike, config: PcaConfig, seed: int) -> Self:
        """Learn from normal ``rows [n, d]``; `seed` is unused.

        Raises
        ------
        DetectorError
            If there are fewer than 2 rows, or scikit-learn scores otherwise.
        """
        del seed
        from sklearn.decomposition import PCA

        array = training_rows(rows, 2)
        # Never as many components as there are metrics that vary: nothing would be left to explain.
        most = max(int((np.ptp(array, axis=0) > 0.0).sum()) - 1, 0)
        with np.errstate(invalid="ignore"):  # shares of a variance of 0
            fitted = PCA(config.variance if most else 0, svd_solver="covariance_eigh").fit(array)
            if fitted.n_components_ > most:
                fitted = PCA(most, svd_solver="covariance_eigh").fit(array)
        model = cls(config, fitted.mean_, np.ascontiguousarray(fitted.components_))
        compared = compared_rows(array)
        # scikit-learn keeps no component at will, but transforms nothing by none.
        explained = fitted.inverse_transform(fitted.transform(compared)) if most else fitted.mean_
        residual = compared - explained
        refuse_unlike("pca", compared, model.score(compared), np.sqrt(np.einsum("rd,rd->r", residual, residual)))
        return model

    def score(self, rows: npt.ArrayLike) -> Floats:
        """Residual lengths ``[r]``; NaN also where what is missing could explain all of it."""
        array, empty = scored_rows(rows, self._mean.size)
        residual = self._residual(array)
        return np.where(empty, np.nan, np.sqrt(np.einsum("rd,rd->r", residual, residual)))

    def blame(self, rows: npt.ArrayLike) -> Floats:
        """Squared residual per metric ``[r, d]``."""
        array, _ = scored_rows(rows, self._mean.size)
        return np.where(np.isnan(array), 0.0, np.nan_to_num(self._residual(array)) ** 2)

    def _residual(self, array: Floats) -> Floats:
        """What is not explained ``[r, d]``; NaN in rows of which the missing metrics leave nothing to tell."""
        offset = filled(array, self._mean) - self._mean
        residual: Floats = offset - (offset @ self._components.T) @ self._components
        missing = np.isnan(array)
        if not missing.any():
            return residual
        gaps = np.flatnonzero(missing.any(axis=1))
        for gone in np.unique(missing[gaps], axis=0):
            rows = gaps[(missing[gaps] == gone).all(axis=1)]
            free = np.eye(self._mean.size)[:, gone] - self._components.T @ self._components[:, gone]
            values, vectors = np.linalg.eigh(free[gone])
            told = values > ROUNDING
            if len(self._components) + told.sum() >= self._mean.size:
                residual[rows] = np.nan
                continue
            inverse = (vectors[:, told] / values[told]) @ vectors[:, told].T
            residual[rows] -= residual[rows][:, gone] @ inverse @ free.T
        return residual

    def to_arrays(self) -> Arrays:
        """State as arrays."""
        return {**config_arrays(self.config), "mean": self._mean, "components": self._components}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Model from `to_arrays`; raises DetectorError where the state is damaged."""
        config, (mean, components) = read(PcaConfig, arrays, "mean", "components")
        if mean.ndim != 1 or components.ndim != 2 or components.shape[1] != mean.size:
            raise DetectorError("state of pca is damaged: shapes differ")
        return cls(config, mean, components)
