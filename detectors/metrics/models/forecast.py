"""Forecast: are the newest means what a linear model expects after the ones before?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.models.rows import (
    FILLED_SHARE,
    KNOWN_SHARE,
    Arrays,
    Floats,
    config_arrays,
    filled,
    read,
    training_rows,
    whole,
)
from trainwarden.errors import DetectorError
from trainwarden.settings import Config

Flags = npt.NDArray[np.bool_]
LEAST_SPREAD: Final = 0.05
"""Of a prepared unit, a normal spread: errors of a metric that is forecast exactly do not count by their rounding."""


class ForecastConfig(Config, frozen=True, kw_only=True):
    """The mean of the newest `mean_samples` is forecast from the `lags` means of as many samples before it.

    Both were chosen on SMD machines 1-2, 1-4, 1-6, the odd ASD servers and every other NAB series.
    `ridge` is the penalty on the coefficients, in variances of a metric.
    """

    mean_samples: Annotated[int, msgspec.Meta(ge=1, le=64)] = 10
    lags: Annotated[int, msgspec.Meta(ge=1, le=16)] = 3
    ridge: Annotated[float, msgspec.Meta(gt=0.0)] = 1e-2

    @property
    def length(self) -> int:
        """Samples that decide the newest score."""
        return self.mean_samples * (self.lags + 1)


class Forecast:
    """Length of the error of a vector autoregression, each metric's in units of its normal one.

    The coefficients are those of ridge regression (Hoerl, Kennard, Technometrics 12, 1970), so that metrics that move
    together and few training samples do no harm. A metric that is missing may have been anywhere in its normal
    range: what that adds to the errors' variance is normal too, and they are measured in it (Mahalanobis, 1936).

    References
    ----------
    Luetkepohl: New Introduction to Multiple Time Series Analysis, 2005, section 2.2 (one-step forecasts).

    Examples
    --------
    >>> wave = np.sin(np.arange(600) / 20.0)[:, None]
    >>> model = Forecast.fit([wave], ForecastConfig(), seed=0)
    >>> expected, turned = wave[100:140].T, wave[100:140].T.copy()
    >>> turned[:, -10:] += 0.5
    >>> normal, strange = model.score(np.stack([expected, turned]))
    >>> bool(strange > 5 * normal)
    True
    """

    Config = ForecastConfig

    def __init__(self, config: ForecastConfig, mean: Floats, coefficients: Floats, spread: Floats) -> None:
        self.config = config
        self._mean = mean  # [d * (lags + 1)], oldest mean first
        self._coefficients = coefficients  # [d * lags, d]
        self._spread = spread  # [d]

    @classmethod
    def fit(cls, series: Sequence[npt.ArrayLike], config: ForecastConfig, seed: int) -> Self:
        """Learn from normal `series`, each ``[t, d]`` of consecutive samples; `seed` is unused.

        Raises
        ------
        DetectorError
            If a series has other metrics than the first, or fewer than 2 windows are there.
        """
        del seed
        arrays = [np.asarray(one, dtype=np.float64) for one in series]
        if any(one.ndim != 2 or one.shape[1] != arrays[0].shape[1] for one in arrays):
            raise DetectorError("every series must be [samples, metrics] with the same metrics")
        parts = [_series_rows(one, config) for one in arrays if len(one) >= config.length]
        if not parts:
            raise DetectorError(f"no {config.length} consecutive samples to learn forecasts from")
        rows = training_rows(np.concatenate(parts), 2)
        mean = rows.mean(axis=0)
        before, newest = np.split(rows - mean, [rows.shape[1] - arrays[0].shape[1]], axis=1)
        penalty = config.ridge * len(rows) * np.eye(before.shape[1])
        coefficients = np.linalg.solve(before.T @ before + penalty, before.T @ newest)
        spread = (newest - before @ coefficients).std(axis=0) + LEAST_SPREAD
        return cls(config, mean, coefficients, spread)

    def score(self, windows: npt.ArrayLike) -> Floats:
        """Raw scores ``[r]`` of the newest of ``windows [r, d, m]``; NaN where too little of one of the means is there.

        Too little are fewer samples than `FILLED_SHARE`, or fewer metrics than `KNOWN_SHARE`.

        Raises
        ------
        DetectorError
            If the windows are too short or have other metrics than in training.
        """
        parts = self._parts(windows)
        errors = self._errors(parts)
        lengths: Floats = np.sqrt(np.einsum("rd,rd->r", errors, errors))
        missing = np.isnan(parts)
        if not missing.any():
            return lengths
        counts = (~missing).any(axis=1).sum(axis=2)
        there = (counts >= FILLED_SHARE * self.config.mean_samples).all(axis=1)
        there &= whole(parts).all(axis=2).sum(axis=1) >= KNOWN_SHARE * self._spread.size
        return np.where(there, lengths, np.nan)

    def blame(self, windows: npt.ArrayLike) -> Floats:
        """Squared error in normal units ``[r, d]``, 0 where a metric is missing."""
        squares: Floats = self._errors(self._parts(windows)) ** 2
        return squares

    def _parts(self, windows: npt.ArrayLike) -> Floats:
        """The newest samples by the means that they make ``[r, d, lags + 1, mean_samples]``, oldest first."""
        array = np.asarray(windows, dtype=np.float64)
        metrics, length = self._spread.size, self.config.length
        if array.ndim != 3 or array.shape[1] != metrics or array.shape[2] < length:
            raise DetectorError(f"windows {array.shape} need {metrics} metrics and {length} samples")
        return array[:, :, -length:].reshape(len(array), metrics, -1, self.config.mean_samples)

    def _errors(self, parts: Floats) -> Floats:
        """Errors of the newest means ``[r, d]``, 0 for a metric of which one of the means is missing."""
        means = _means(parts)
        if np.isnan(parts).any():
            means = np.where(whole(parts), means, np.nan)
        rows = means.transpose(0, 2, 1).reshape(len(means), -1)
        offset = filled(rows, self._mean) - self._mean
        metrics = self._spread.size
        errors = (offset[:, -metrics:] - offset[:, :-metrics] @ self._coefficients) / self._spread
        errors = np.where(np.isnan(means).any(axis=2), 0.0, errors)
        missing = np.isnan(rows[:, :-metrics])
        if not missing.any():
            return errors
        gaps = np.flatnonzero(missing.any(axis=1))
        for gone in np.unique(missing[gaps], axis=0):
            alike = gaps[(missing[gaps] == gone).all(axis=1)]
            errors[alike] = self._judged(errors[alike], gone)
        return errors

    def _judged(self, errors: Floats, gone: Flags) -> Floats:
        """Errors ``[r, d]`` in units of what is normal while the means ``gone [d * lags]`` are not known."""
        metrics = self._spread.size
        seen = ~gone.reshape(-1, metrics).any(axis=0)
        # The scale's own unit is a metric's normal spread, so what is not known has a variance of 1.
        unknown = self._coefficients[gone][:, seen] / self._spread[seen]
        values, vectors = np.linalg.eigh(np.eye(int(seen.sum())) + unknown.T @ unknown)
        judged = np.zeros_like(errors)
        judged[:, seen] = errors[:, seen] @ (vectors / np.sqrt(values)) @ vectors.T
        return judged

    def to_arrays(self) -> Arrays:
        """State as arrays."""
        parts = {"mean": self._mean, "coefficients": self._coefficients, "spread": self._spread}
        return {**config_arrays(self.config), **parts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Model from `to_arrays`; raises DetectorError where the state is damaged."""
        config, (mean, coefficients, spread) = read(ForecastConfig, arrays, "mean", "coefficients", "spread")
        expected = (spread.size * config.lags, spread.size)
        fits = spread.ndim == 1 and coefficients.shape == expected and mean.shape == (sum(expected),)
        if not fits or not (spread > 0.0).all():
            raise DetectorError("state of forecast is damaged: shapes or spreads are wrong")
        return cls(config, mean, coefficients, spread)


def _means(values: Floats) -> Floats:
    """Means along the last axis of what is there, NaN where nothing is."""
    missing = np.isnan(values)
    if not missing.any():
        return np.asarray(values.mean(axis=-1), dtype=np.float64)
    counts = (~missing).sum(axis=-1)
    sums = np.where(missing, 0.0, values).sum(axis=-1)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _series_rows(series: Floats, config: ForecastConfig) -> Floats:
    """What is forecast from and what is forecast, side by side ``[n, d * (lags + 1)]``, oldest first; not over gaps."""
    views = np.lib.stride_tricks.sliding_window_view(series, config.mean_samples, axis=0)
    means = _means(views)  # [t - mean_samples + 1, d]
    count = len(series) - config.length + 1
    starts = [lag * config.mean_samples for lag in range(config.lags + 1)]
    parts = [means[first : first + count] for first in starts]
    whole = ~np.any([np.isnan(part).all(axis=1) for part in parts], axis=0)
    return np.asarray(np.concatenate(parts, axis=1)[whole], dtype=np.float64)
