"""Which ranks move unlike their group: distance to the median series, time warping among the outlying few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.metrics.models.rows import KNOWN_SHARE, Arrays, Floats, config_arrays, read
from trainwarden.errors import DetectorError
from trainwarden.settings import Config

Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
LEAST_MEASURED: Final = 3


class DtwConfig(Config, frozen=True, kw_only=True):
    """`band_samples` is the Sakoe-Chiba radius; `outlying` bounds the ranks of a group that are ever warped.

    A rank is outlying where its plain distance is `limit` robust deviations above the group's median distance. Outlying
    ranks that resemble at least `cluster_share` of the group form a second way of behaving and count as near: two slow
    ranks of eight, as in a pipeline of four stages whose last is too long, are not so many.
    """

    band_samples: Annotated[int, msgspec.Meta(ge=0, le=256)] = 5
    outlying: Annotated[int, msgspec.Meta(ge=1, le=256)] = 32
    limit: Annotated[float, msgspec.Meta(gt=0.0)] = 3.0
    cluster_share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.3
    least_ranks: Annotated[int, msgspec.Meta(ge=3)] = 4
    least_spread: Annotated[float, msgspec.Meta(gt=0.0)] = 0.05


@dataclass(frozen=True, slots=True)
class _Group:
    """One role group measured: distance of each member and squared offsets per metric."""

    distances: Floats
    offsets: Floats


class Dtw:
    """Distance of each rank's window to its group under banded dynamic time warping.

    References
    ----------
    Sakoe, Chiba: Dynamic Programming Algorithm Optimization for Spoken Word Recognition, IEEE Trans. ASSP 26 (1978),
    section II (symmetric form without weights, as in tslearn); across ranks: TRANSOM (2023), section IV-B.

    Examples
    --------
    >>> windows = np.random.default_rng(0).normal(0.0, 0.05, (16, 1, 60)); windows[5, 0, 20:] += 3.0
    >>> scores = Dtw(DtwConfig(), np.ones(1)).score(windows)
    >>> int(scores.argmax())
    5
    """

    Config = DtwConfig

    def __init__(self, config: DtwConfig, spread: Floats) -> None:
        self.config = config
        self._spread = spread  # [d], normal spread of a rank about its group's median

    @classmethod
    def fit(cls, windows: Sequence[npt.ArrayLike], config: DtwConfig, seed: int) -> Self:
        """Learn how far healthy ranks stray, from `windows`, each ``[r, d, m]`` of one role group; `seed` is unused.

        Raises
        ------
        DetectorError
            If no window has enough ranks.
        """
        del seed
        arrays = [np.asarray(window, dtype=np.float64) for window in windows]
        arrays = [array for array in arrays if array.ndim == 3 and len(array) >= config.least_ranks]
        if not arrays:
            raise DetectorError(f"dtw needs windows [ranks, metrics, samples] of at least {config.least_ranks} ranks")
        squares = np.stack([_offsets(array, np.ones(array.shape[1]))[1] for array in arrays])
        spread = np.sqrt(squares.mean(axis=(0, 1)))
        return cls(config, np.maximum(spread, config.least_spread))

    def score(self, windows: npt.ArrayLike, groups: npt.ArrayLike | None = None, slack: int = 0) -> Floats:
        """Distances ``[r]`` of ``windows [r, d, m]``, in normal spreads per sample; `groups` ``[r]`` labels the roles.

        NaN where a group has too few ranks or a rank too few of the metrics. With `slack` each sample is measured
        from all that the median was within so many samples before and after (the envelope of Keogh, VLDB 2002), so
        that ranks may be sampled so far apart; the first and last so many samples are not judged.

        Raises
        ------
        DetectorError
            If the metrics are not those of training.
        """
        return self._measured(windows, groups, slack).distances

    def blame(self, windows: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Floats:
        """Mean squared offset from the group's median series per metric, ``[r, d]``."""
        return self._measured(windows, groups).offsets

    def _measured(self, windows: npt.ArrayLike, groups: npt.ArrayLike | None, slack: int = 0) -> _Group:
        array = np.asarray(windows, dtype=np.float64)
        if array.ndim != 3 or array.shape[1] != self._spread.size or not array.shape[2]:
            raise DetectorError(f"windows {array.shape} do not have the {self._spread.size} metrics of training")
        distances, offsets = np.full(len(array), np.nan), np.zeros(array.shape[:2])
        labels = np.zeros(len(array), dtype=np.intp) if groups is None else np.asarray(groups)
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            if len(members) >= self.config.least_ranks:
                part = array if len(members) == len(array) else array[members]
                measured = self._group(part, slack)
                distances[members], offsets[members] = measured.distances, measured.offsets
        there = (~np.isnan(array)).any(axis=2).sum(axis=1)
        distances[there < KNOWN_SHARE * array.shape[1]] = np.nan
        return _Group(distances, offsets)

    def _group(self, array: Floats, slack: int) -> _Group:
        median, offsets, missing = _offsets(array, self._spread, slack)
        distances = np.sqrt(offsets.mean(axis=1))
        middle = np.median(distances)
        spread = 1.4826 * np.median(np.abs(distances - middle))  # normal-consistent MAD
        order = np.argsort(-distances, kind="stable")[: self.config.outlying]
        few = order[distances[order] > middle + self.config.limit * spread]
        if few.size:
            inner = slice(slack, array.shape[2] - slack)
            scaled = np.where(missing[few], median, array[few])[:, :, inner] / self._spread[:, None]
            warped = self._warped(scaled, median[:, inner] / self._spread[:, None], len(array))
            distances[few] = np.minimum(warped, distances[few]) if slack else warped
        return _Group(distances, offsets)

    def _warped(self, few: Floats, median: Floats, ranks: int) -> Floats:
        """Warped distance of the outlying ``[f, d, m]`` to the median series, or to their own kind if common."""
        count, band = len(few), self.config.band_samples
        samples = np.sqrt(median.size)
        near = banded_dtw(few, np.broadcast_to(median, few.shape), band)
        like = max(1, int(np.ceil(self.config.cluster_share * ranks))) - 1
        if 1 <= like < count:
            first, second = np.triu_indices(count, 1)
            pairs = np.full((count, count), 0.0)
            pairs[first, second] = banded_dtw(few[first], few[second], band)
            pairs += pairs.T
            # Column 0 of the sorted row is the rank itself.
            near = np.minimum(near, np.sort(pairs, axis=1)[:, like])
        distances: Floats = near / samples
        return distances

    def to_arrays(self) -> Arrays:
        """State as arrays."""
        return {**config_arrays(self.config), "spread": self._spread}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Model from `to_arrays`; raises DetectorError where the state is damaged."""
        config, (spread,) = read(DtwConfig, arrays, "spread")
        if spread.ndim != 1 or not (spread > 0.0).all():
            raise DetectorError("state of dtw is damaged: spreads must be positive")
        return cls(config, spread)


def banded_dtw(left: Floats, right: Floats, band_samples: int) -> Floats:
    """Dynamic time warping distances ``[p]`` of pairs of series ``[p, d, m]``, all pairs at once, by antidiagonals.

    Examples
    --------
    >>> banded_dtw(np.array([[[0.0, 0.0, 1.0, 0.0]]]), np.array([[[0.0, 1.0, 0.0, 0.0]]]), 1).tolist()
    [0.0]
    """
    count, _, length = left.shape
    # The time axis comes first in memory, so that each antidiagonal reads contiguous pairs.
    a, b = (np.ascontiguousarray(part.transpose(2, 1, 0)) for part in (left, right))
    before = np.full((length + 1, count), np.inf)
    before[0] = 0.0
    last = np.full((length + 1, count), np.inf)
    for diagonal in range(2 * length - 1):
        low = max(0, diagonal - length + 1, -(-(diagonal - band_samples) // 2))
        high = min(length - 1, diagonal, (diagonal + band_samples) // 2)
        now = np.full((length + 1, count), np.inf)
        if low <= high:
            steps = np.arange(low, high + 1)
            cost = ((a[steps] - b[diagonal - steps]) ** 2).sum(axis=1)
            # Row i + 1 of these tables is sample i of `a`; the sample of `b` follows from the antidiagonal.
            reached = np.minimum(np.minimum(last[steps + 1], last[steps]), before[steps])
            now[steps + 1] = cost + reached
        before, last = last, now
        before[0] = np.inf
    distances: Floats = np.sqrt(last[length])
    return distances


def _offsets(array: Floats, spread: Floats, slack: int = 0) -> tuple[Floats, Floats, Flags]:
    """Median series ``[d, m]`` over ranks, each rank's mean squared offset per metric ``[r, d]``, and what is left out
    of it ``[r, d, m]``: gaps, and samples without enough others.
    """
    missing = np.isnan(array)
    if not missing.any() and not slack:
        median = np.median(array, axis=0)
        difference = array - median
        return (
            median,
            np.asarray(np.einsum("rdm,rdm->rd", difference, difference) / array.shape[2] / spread**2),
            missing,
        )
    inner = slice(slack, array.shape[2] - slack)
    samples = (~missing[:, :, inner]).any(axis=1).sum(axis=1)[:, None]
    # Of two that have a metric, as one that comes late, nobody can say which is the odd one.
    measured = (~missing).sum(axis=0) >= LEAST_MEASURED
    median = np.zeros(array.shape[1:])
    whole = ~missing.any(axis=0)
    some = measured & ~whole
    # Gaps are dear to look around: what all have, as where all began at the same time, is not asked for them.
    median[whole] = np.median(array[:, whole], axis=0)
    median[some] = np.nanmedian(array[:, some], axis=0)
    low, high, judged = _envelope(median, measured, slack) if slack else (median, median, measured)
    missing |= ~judged
    difference = np.where(missing, 0.0, array - np.clip(array, low, high))
    # A mean over fewer samples than a rank's other metrics have strays farther: half of those count at least.
    counts = np.maximum((~missing).sum(axis=2), np.maximum(KNOWN_SHARE * samples, 1.0))
    return median, np.asarray(np.einsum("rdm,rdm->rd", difference, difference) / counts / spread**2), missing


def _envelope(median: Floats, measured: Flags, slack: int) -> tuple[Floats, Floats, Flags]:
    """Lowest and highest of a series ``[d, m]`` within `slack` samples, and where all of those are `measured`."""
    there = np.pad(np.where(measured, median, np.nan), ((0, 0), (slack, slack)), constant_values=np.nan)
    near = np.lib.stride_tricks.sliding_window_view(there, 2 * slack + 1, axis=1)
    low, high = near.min(axis=2), near.max(axis=2)
    return np.nan_to_num(low), np.nan_to_num(high), ~np.isnan(low)
