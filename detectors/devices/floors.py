"""The least of each of many equal spans of time, for many series and several lengths of span at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
SCALES_S: Final = (4.0, 30.0, 300.0)  # spans: what leaks fast is seen after a minute and a half
BINS: Final = 14  # spans that are kept: the one that is going on, and those that are judged
LEAST_BYTES: Final = np.array([256e6, 128e6, 128e6])  # by which floors must have risen, by scale
LEAST_SHARE: Final = np.array([0.15, 0.1, 0.1])  # of the first floor, by which they must have risen
LAGGING: Final = 2  # spans in which a floor may not have risen: garbage is collected when it likes to
FADING: Final = 0.6  # what the later half rises by is at least this share of the earlier half: a warm-up fades
DIP: Final = 0.05  # of the whole rise, by which a floor may fall: a sawtooth falls by more
OLDER: Final = 8  # spans before those that are judged: what rises must be above all that was seen in them
JUMP: Final = 0.35  # of the whole rise, that one span may bring: a cache that is filled is no leak
OVER: Final = 0.25  # of its rate: below that, over the newest three spans, a leak has ended


class Floors:
    """Floors of series [rows, scales, spans], and which of them rise steadily.

    Attributes
    ----------
    rate, grown, since_s : float [rows, scales]
        Of those that rise: bytes a second, bytes in all judged spans, and since when; a rate of 0 = it does not rise.

    Examples
    --------
    >>> floors, one = Floors(), np.array([0])
    >>> for second in range(150):
    ...     floors.observe(one, np.array([float(second)]), np.array([1e9 + 10e6 * second + 2e8 * (second % 4 == 0)]))
    >>> floors.judge()
    >>> round(float(floors.rate[0, 0]) / 1e6, 1)
    10.0
    """

    def __init__(self) -> None:
        self._floors = np.full((0, len(SCALES_S), BINS), np.nan)
        self._tops = np.full((0, len(SCALES_S), BINS), np.nan)
        self._spans = np.full((0, len(SCALES_S), BINS), -1, dtype=np.int64)
        self._highest = np.full((0, len(SCALES_S)), -np.inf)  # of spans that are kept no more
        self._older = np.zeros((0, len(SCALES_S)), dtype=np.int64)  # how many these are
        self.rate = np.zeros((0, len(SCALES_S)))
        self.grown = np.zeros((0, len(SCALES_S)))
        self.since_s = np.zeros((0, len(SCALES_S)))

    def observe(self, rows: Ints, times_s: Floats, values: Floats) -> None:
        """Note one sample of each of `rows`; NaN: not measured."""
        known = np.isfinite(times_s) & np.isfinite(values)
        rows, times_s, values = rows[known], times_s[known], values[known]
        if not rows.size:
            return
        self._widen(int(rows.max()) + 1)
        for scale, span_s in enumerate(SCALES_S):
            span = (times_s // span_s).astype(np.int64)
            place = span % BINS
            fresh = self._spans[rows, scale, place] != span
            gone = fresh & (self._spans[rows, scale, place] >= 0)
            low, high = self._floors[rows, scale, place], self._tops[rows, scale, place]
            self._highest[rows[gone], scale] = np.maximum(self._highest[rows[gone], scale], high[gone])
            self._older[rows[gone], scale] += 1
            self._spans[rows, scale, place] = span
            self._floors[rows, scale, place] = np.minimum(np.where(fresh, np.inf, low), values)
            self._tops[rows, scale, place] = np.maximum(np.where(fresh, -np.inf, high), values)

    def judge(self) -> None:
        """See which series rise steadily; one that was found to rise is let go when it has stopped."""
        if not len(self._floors):
            return
        newest = self._spans.max(axis=2)
        wanted = newest[:, :, None] - np.arange(BINS - 1, 0, -1)  # complete spans, oldest first
        place = wanted % BINS
        there = (np.take_along_axis(self._spans, place, axis=2) == wanted).all(axis=2)
        floors = np.where(there[:, :, None], np.take_along_axis(self._floors, place, axis=2), np.nan)
        rises = np.diff(floors, axis=2)
        grown, half = floors[:, :, -1] - floors[:, :, 0], rises.shape[2] // 2
        with np.errstate(invalid="ignore"):
            steady = (rises > 0.0).sum(axis=2) >= rises.shape[2] - LAGGING
            steady &= rises[:, :, half:].sum(axis=2) >= FADING * rises[:, :, :half].sum(axis=2)
            steady &= (rises.max(axis=2) <= JUMP * grown) & (rises.min(axis=2) >= -DIP * grown)
            # A sawtooth may fall within the first span, whose top is then that of the tooth before.
            first = np.take_along_axis(self._tops, place[:, :, :1], axis=2)[:, :, 0]
            steady &= (self._older >= OLDER) & (floors[:, :, -1] > np.maximum(self._highest, first))
            steady &= (grown >= LEAST_BYTES) & (grown >= LEAST_SHARE * floors[:, :, 0])
            lately = floors[:, :, -1] - floors[:, :, -4]
            on = (self.rate > 0.0) & (lately >= OVER * self.rate * 3.0 * np.array(SCALES_S))
        rate = grown / (rises.shape[2] * np.array(SCALES_S))
        begun = steady & ~on
        self.since_s = np.where(begun, wanted[:, :, 0] * np.array(SCALES_S), self.since_s)
        self.rate = np.where(steady, rate, np.where(on, self.rate, 0.0))
        self.grown = np.where(steady, grown, np.where(on, self.grown, 0.0))

    def _widen(self, rows: int) -> None:
        have = len(self._floors)
        if rows <= have:
            return
        more = max(rows, have + have // 2) - have
        cube, table = ((0, more), (0, 0), (0, 0)), ((0, more), (0, 0))
        self._floors = np.pad(self._floors, cube, constant_values=np.nan)
        self._tops = np.pad(self._tops, cube, constant_values=np.nan)
        self._spans = np.pad(self._spans, cube, constant_values=-1)
        self._highest = np.pad(self._highest, table, constant_values=-np.inf)
        self._older = np.pad(self._older, table)
        self.rate, self.grown = np.pad(self.rate, table), np.pad(self.grown, table)
        self.since_s = np.pad(self.since_s, table)
