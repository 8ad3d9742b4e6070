"""Neighbor profile: is the shape of the newest stretch of a metric one that normal data knows?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.models.rows import Arrays, Floats, config_arrays, read
from trainwarden.errors import DetectorError
from trainwarden.settings import Config

Floats32 = npt.NDArray[np.float32]

BLOCK_VALUES: Final = 1 << 20
"""Products held at once (4 MiB of float32), reduced while still in cache; 2 to 8 MiB measured alike."""


class NeighborProfileConfig(Config, frozen=True, kw_only=True):
    """`bags` x `bag_size` reference subsequences of `length` samples, the same places for every metric.

    `least_spread` (in prepared units) is the spread below which a subsequence counts as flat: it is divided by this
    instead of its own spread, so that flicker on a constant metric has no shape.
    """

    length: Annotated[int, msgspec.Meta(ge=4, le=512)] = 16
    bags: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 100
    bag_size: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 16
    neighbor: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 1
    least_spread: Annotated[float, msgspec.Meta(gt=0.0)] = 0.1


class NeighborProfile:
    """Distance of each metric's newest subsequence to its k-th neighbour in every bag, averaged over the bags.

    The score of a rank is the root mean square of that distance over its metrics, each in units of its normal one.

    References
    ----------
    He, Chu, Wang: Neighbor Profile: Bagging Nearest Neighbors for Unsupervised Time Series Mining, ICDE 2020, sections
    III and IV.

    Examples
    --------
    >>> wave = np.sin(np.arange(400) / 3.0)[:, None]
    >>> model = NeighborProfile.fit([wave], NeighborProfileConfig(), seed=0)
    >>> spike = wave[100:116].copy(); spike[8] = 4.0
    >>> normal, strange = model.score(np.stack([wave[100:116].T, spike.T]))
    >>> bool(strange > 2 * normal)
    True
    """

    Config = NeighborProfileConfig

    def __init__(self, config: NeighborProfileConfig, references: Floats32, normal: Floats) -> None:
        self.config = config
        # [metrics, bag_size * bags, length + 1]: the last column folds the reference's own length into the product.
        self._references = references
        self._normal = normal

    @classmethod
    def fit(cls, series: Sequence[npt.ArrayLike], config: NeighborProfileConfig, seed: int) -> Self:
        """Draw bags from normal `series`, each ``[t, d]`` of consecutive samples; stretches with gaps are not drawn.

        Raises
        ------
        DetectorError
            If a series has other metrics than the first, or no series is long enough.
        """
        if config.neighbor > config.bag_size:
            raise DetectorError(f"neighbour {config.neighbor} asked of bags of {config.bag_size}")
        windows = _windows(series, config.length)
        random = np.random.default_rng(seed)
        chosen = windows[random.integers(0, len(windows), config.bags * config.bag_size)].transpose(1, 0, 2)
        shapes = _normalised(chosen, config.least_spread)
        half = -0.5 * np.einsum("dsm,dsm->ds", shapes, shapes)
        model = cls(config, np.concatenate([shapes, half[:, :, None]], axis=2), np.ones(windows.shape[1]))
        sample = windows[random.integers(0, len(windows), min(len(windows), 512))]
        # A flat metric has distance 0 throughout; any shape on it then counts in hundredths of the largest.
        floor = 0.01 * np.sqrt(2.0 * config.length)
        model._normal = np.maximum(np.nanmean(model.distances(sample), axis=0), floor)
        return model

    def distances(self, windows: npt.ArrayLike) -> Floats:
        """Bagged distances ``[r, d]`` of the newest subsequences of ``windows [r, d, m]``; NaN where one has gaps.

        Raises
        ------
        DetectorError
            If the windows are too short or have other metrics than in training.
        """
        array = np.asarray(windows)
        metrics, count, _ = self._references.shape
        if array.ndim != 3 or array.shape[1] != metrics or array.shape[2] < self.config.length:
            raise DetectorError(f"windows {array.shape} need {metrics} metrics and {self.config.length} samples")
        out = np.empty(array.shape[:2])
        step = max(1, BLOCK_VALUES // count)
        for metric in range(metrics):
            for first in range(0, len(array), step):
                part = array[first : first + step, metric, -self.config.length :]
                out[first : first + step, metric] = self._bagged(part, self._references[metric])
        return out

    def _bagged(self, part: npt.NDArray[Any], references: Floats32) -> Floats32:
        """Mean over bags of the distance of each row of `part` ``[r, m]`` to its k-th nearest member."""
        # Rows run along memory in everything that follows, so that each step is one pass over many of them.
        shapes = _normalised(np.ascontiguousarray(part.T), self.config.least_spread, axis=0)
        ones = np.ones((1, shapes.shape[1]), dtype=np.float32)
        # Largest product a.b - |b|^2/2 is smallest distance: |a-b|^2 = |a|^2 - 2 (a.b - |b|^2/2).
        products = references @ np.concatenate([shapes, ones])
        bagged = products.reshape(self.config.bag_size, self.config.bags, shapes.shape[1])
        if self.config.neighbor == 1:
            best = bagged.max(axis=0)
        else:
            place = self.config.bag_size - self.config.neighbor
            best = np.partition(bagged, place, axis=0)[place]
        squares = np.einsum("mr,mr->r", shapes, shapes) - 2.0 * best
        # NaN (a gap) passes through: maximum keeps it.
        mean: Floats32 = np.sqrt(np.maximum(squares, 0.0)).mean(axis=0)
        return mean

    def score(self, windows: npt.ArrayLike) -> Floats:
        """Raw scores ``[r]``; NaN where every metric has gaps."""
        return _root_mean(self.blame(windows), ~np.isnan(np.asarray(windows)[:, :, -self.config.length :]).any(axis=2))

    def blame(self, windows: npt.ArrayLike) -> Floats:
        """Squared distance in normal units, ``[r, d]``, 0 where a metric has gaps."""
        squares: Floats = np.nan_to_num(self.distances(windows) / self._normal) ** 2
        return squares

    def to_arrays(self) -> Arrays:
        """State as arrays."""
        return {**config_arrays(self.config), "references": self._references, "normal": self._normal}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Model from `to_arrays`; raises DetectorError where the state is damaged."""
        config, (references, normal) = read(NeighborProfileConfig, arrays, "references", "normal")
        expected = (normal.size, config.bags * config.bag_size, config.length + 1)
        if references.shape != expected or not (normal > 0.0).all():
            raise DetectorError(f"state of neighbor_profile is damaged: references {references.shape}, not {expected}")
        return cls(config, references.astype(np.float32), normal)


def _windows(series: Sequence[npt.ArrayLike], length: int) -> Floats:
    """All subsequences ``[n, d, length]`` without gaps, as a copy only of those kept."""
    found: list[Floats] = []
    for one in series:
        array = np.asarray(one, dtype=np.float64)
        if array.ndim != 2 or (found and array.shape[1] != found[0].shape[1]):
            raise DetectorError("every series must be [samples, metrics] with the same metrics")
        if len(array) >= length:
            views = np.lib.stride_tricks.sliding_window_view(array, length, axis=0)
            gaps = np.lib.stride_tricks.sliding_window_view(np.isnan(array).any(axis=1), length).any(axis=1)
            found.append(views[~gaps] if gaps.any() else views)
    if not found or not sum(len(part) for part in found):
        raise DetectorError(f"no {length} consecutive samples without gaps to learn from")
    return found[0] if len(found) == 1 else np.concatenate(found)


def _normalised(subsequences: npt.NDArray[Any], least_spread: float, axis: int = -1) -> Floats32:
    """Mean 0 and spread 1 along `axis`, flat ones near 0."""
    centred = subsequences - subsequences.mean(axis=axis, keepdims=True)
    spread = np.sqrt(np.mean(centred * centred, axis=axis, keepdims=True))
    return np.asarray(centred / np.maximum(spread, least_spread), dtype=np.float32)


def _root_mean(squares: Floats, measured: npt.NDArray[np.bool_]) -> Floats:
    """Root of the mean of `squares` over the measured metrics, NaN where there is none."""
    counts = measured.sum(axis=1)
    return np.where(counts > 0, np.sqrt((squares * measured).sum(axis=1) / np.maximum(counts, 1)), np.nan)
