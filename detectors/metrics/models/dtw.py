"""Which ranks move unlike their group: distance to the median series, time warping among the outlying few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.models.rows import KNOWN_SHARE, Arrays, Floats, config_arrays, read
from trainwarden.errors import DetectorError
from trainwarden.settings import Config

Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.intp]
LEAST_MEASURED: Final = 3
TURNED: Final = 512
"""Ranks laid side by side at once; 64 to 1,024 measured alike, all of 16,384 a third as fast."""
SPARE: Final = 8
"""Numbers between two samples: a power of two of ranks would have all samples of one wait for the same cache lines."""


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


@dataclass(frozen=True, slots=True)
class _Apart:
    """What a group's median series is ``[d, m]``, where it is judged by it ``[d, m]``, how far each rank's metrics are
    from it ``[r, d]`` (mean squares), and how many of them it has ``[r]``.
    """

    median: Floats
    judged: Flags
    offsets: Floats
    metrics: Floats


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
        squares = np.stack([_offsets(cls._series(array), np.ones(array.shape[1])).offsets for array in arrays])
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
        return self.score_each(self._series(windows), groups, slack)

    def score_each(self, series: Sequence[Floats], groups: npt.ArrayLike | None = None, slack: int = 0) -> Floats:
        """`score` of one array ``[r, m]`` for each metric, wherever they lie: all of them together are large."""
        return self._measured(series, groups, slack).distances

    def blame(self, windows: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Floats:
        """Mean squared offset from the group's median series per metric, ``[r, d]``."""
        return self._measured(self._series(windows), groups).offsets

    @staticmethod
    def _series(windows: npt.ArrayLike) -> Sequence[Floats]:
        array = np.asarray(windows, dtype=np.float64)
        if array.ndim != 3:
            raise DetectorError(f"windows {array.shape} are not [ranks, metrics, samples]")
        return list(array.swapaxes(0, 1))

    def _measured(self, series: Sequence[Floats], groups: npt.ArrayLike | None, slack: int = 0) -> _Group:
        if len(series) != self._spread.size or not series[0].shape[1]:
            raise DetectorError(f"windows of {len(series)} metrics are not of the {self._spread.size} of training")
        ranks = len(series[0])
        distances, offsets = np.full(ranks, np.nan), np.zeros((ranks, len(series)))
        labels = np.zeros(ranks, dtype=np.intp) if groups is None else np.asarray(groups)
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            if len(members) >= self.config.least_ranks:
                part = series if len(members) == ranks else [one[members] for one in series]
                measured = self._group(part, slack)
                distances[members], offsets[members] = measured.distances, measured.offsets
        return _Group(distances, offsets)

    def _group(self, series: Sequence[Floats], slack: int) -> _Group:
        apart = _offsets(series, self._spread, slack)
        distances = np.sqrt(apart.offsets.mean(axis=1))
        middle = np.median(distances)
        spread = 1.4826 * np.median(np.abs(distances - middle))  # normal-consistent MAD
        order = np.argsort(-distances, kind="stable")[: self.config.outlying]
        few = order[distances[order] > middle + self.config.limit * spread]
        if few.size:
            inner = slice(slack, series[0].shape[1] - slack)
            found = np.stack([one[few] for one in series], axis=1)
            found = np.where(np.isnan(found) | ~apart.judged, apart.median, found)[:, :, inner]
            median = apart.median[:, inner] / self._spread[:, None]
            warped = self._warped(found / self._spread[:, None], median, len(distances))
            distances[few] = np.minimum(warped, distances[few]) if slack else warped
        distances[apart.metrics < KNOWN_SHARE * len(series)] = np.nan
        return _Group(distances, apart.offsets)

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


def _offsets(series: Sequence[Floats], spread: Floats, slack: int = 0) -> _Apart:
    """How far each of ``series [r, m]``, one a metric, is from the ranks' median series."""
    ranks, samples = series[0].shape
    inner = slice(slack, samples - slack)
    median, judged = np.zeros((len(series), samples)), np.ones((len(series), samples), dtype=np.bool_)
    squares, counts, metrics = np.empty((ranks, len(series))), np.empty((ranks, len(series))), np.zeros(ranks)
    seen = np.zeros((samples, ranks), dtype=np.bool_)
    # One metric at a time, and side by side by rank: what is worked on stays in cache, and medians run along memory.
    room = np.empty((2, samples, ranks + SPARE))[:, :, :ranks]
    for metric, one in enumerate(series):
        values, room_of_median = room
        for first in range(0, ranks, TURNED):
            values[:, first : first + TURNED] = one[first : first + TURNED].T
        missing = np.isnan(values)
        gaps = bool(missing.any())
        known = (~missing).sum(axis=1) if gaps else np.full(samples, ranks)
        # Of two that have a metric, as one that comes late, nobody can say which is the odd one.
        judged[metric] = known >= LEAST_MEASURED
        np.copyto(room_of_median, values)
        median[metric] = _medians(room_of_median, np.where(judged[metric], known, 0))
        seen |= ~missing
        metrics += (~missing).any(axis=0) if gaps else 1.0
        low = high = median[metric]
        if slack:
            low, high, judged[metric] = _envelope(median[metric], judged[metric], slack)
            values -= np.clip(values, low[:, None], high[:, None])
        else:
            values -= low[:, None]
        if gaps or not judged[metric].all():
            missing |= ~judged[metric][:, None]
            values[missing] = 0.0
        squares[:, metric] = np.einsum("mr,mr->r", values, values)
        counts[:, metric] = (~missing).sum(axis=0) if gaps else np.count_nonzero(judged[metric])
    # A mean over fewer samples than a rank's other metrics have strays farther: half of those count at least.
    least = np.maximum(KNOWN_SHARE * seen[inner].sum(axis=0), 1.0)
    return _Apart(median, judged, squares / np.maximum(counts, least[:, None]) / spread**2, metrics)


def _medians(values: Floats, known: Indices) -> Floats:
    """Medians ``[m]`` of the first `known` ``[m]`` in order of ``values [m, r]``, which are put in another order; NaN
    comes last.
    """
    found = np.zeros(len(values))
    for count in np.unique(known[known > 0]).tolist():
        same = np.flatnonzero(known == count)
        part = values if same.size == len(values) else values[same]
        # One place, not two: numpy partitions by two seven times as slowly.
        part.partition(count // 2, axis=1)
        upper = part[:, count // 2]
        found[same] = upper if count % 2 else (part[:, : count // 2].max(axis=1) + upper) / 2.0
    return found


def _envelope(median: Floats, measured: Flags, slack: int) -> tuple[Floats, Floats, Flags]:
    """Lowest and highest of a series ``[m]`` within `slack` samples, and where all of those are `measured`."""
    there = np.pad(np.where(measured, median, np.nan), slack, constant_values=np.nan)
    near = np.lib.stride_tricks.sliding_window_view(there, 2 * slack + 1)
    low, high = near.min(axis=1), near.max(axis=1)
    return np.nan_to_num(low), np.nan_to_num(high), ~np.isnan(low)
