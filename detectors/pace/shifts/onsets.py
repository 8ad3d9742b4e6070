"""The naming of onsets: which row is told as the beginning of a change, and which changes are told at all.

A step begins where the series splits best in two. Slow rises begin at their first stair, else at the knee of the slope,
and are named late rather than early; what only goes on with a change that has been told is not told again.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.pace.shifts.levels import Levels
from trainwarden.detectors.pace.shifts.shift import Shift, Thresholds
from trainwarden.settings import Config

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
NEVER: Final = -1_000_000_000
MEDIAN_ERROR: Final = 1.25  # the standard error of a median is so many times that of a mean (sqrt(pi / 2))


class OnsetConfig(Config, frozen=True, kw_only=True):
    """Where changes begin."""

    # values on the near side of the split, as many as verification takes
    before: Annotated[int, msgspec.Meta(ge=10, le=100)] = 30
    # values around the proposed place that the best split is looked for in
    reach: Annotated[int, msgspec.Meta(ge=0, le=30)] = 6
    # values of which a median makes one point of a slope
    block: Annotated[int, msgspec.Meta(ge=2, le=40)] = 8
    # standard errors of a point: nearer ones are on the base
    stair_noises: Annotated[float, msgspec.Meta(gt=0.0)] = 1.5
    # log: no point is known better than this
    least_noise: Annotated[float, msgspec.Meta(gt=0.0, le=0.1)] = 0.004
    # of 10 %, in logs: what the points behind a stair must have risen by; stairs of 4 % are what is looked for
    stair: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.3
    # further points among which the stair is looked for: a wobble of two before it is not its beginning
    wobble: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2
    # of the stair: a wobble below half of it is not its beginning
    stair_share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.5
    # residual variances: an onset is named late enough to be right by three standard errors
    doubt: Annotated[float, msgspec.Meta(ge=0.0)] = 9.0
    # of the way from the knee to the first point off the base, for stairs that the noise hides
    late_share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.3
    # newest points that a knee is looked for in: bounds the cost
    knee_points: Annotated[int, msgspec.Meta(ge=8, le=1000)] = 96
    # points that the base counts as: those before the knee know the same thing
    base_weight: Annotated[float, msgspec.Meta(ge=0.0)] = 4.0
    # within which a further small change belongs to the one that is told
    same_rows: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 100


class Onsets:
    """Names the rows in which changes began.

    Parameters
    ----------
    thresholds : Thresholds
    config : OnsetConfig
    """

    def __init__(self, thresholds: Thresholds, config: OnsetConfig) -> None:
        self._thresholds, self._config = thresholds, config
        self._refines, self._stairs = thresholds.keeps("refine"), thresholds.keeps("staircase")
        self._late = thresholds.keeps("late_onset")

    def of_step(self, values: Floats, first: int, proposed: int) -> int:
        """The place in `values` [rows] where a step begins that was proposed at place `proposed`."""
        return refine(values, first, proposed, self._config) if self._refines else proposed

    def of_rise(self, series: int, rows: int, levels: Levels) -> int:
        """The row in which a slow rise above the level accepted last began, `rows` ago at the latest."""
        config, base = self._config, float(levels.level[series])
        seqs, _ = levels.rows.of(series)
        places, points = self._points(series, levels)
        noise = max(float(levels.scale[series]) * MEDIAN_ERROR / np.sqrt(float(config.block)), config.least_noise)
        width, least = config.stair_noises * noise, np.log(self._thresholds.minimum_ratio)
        stair = began(points, base, width)
        rise = risen(points - base, stair, noise, config)
        if self._stairs and rise > config.stair * least:
            stair = began(points, base, max(width, config.stair_share * rise))  # a wobble before it is no stair
            return min(int(places[stair]), int(seqs[-rows]))
        bend = knee(places, points, base, config, config.doubt if self._late else 0.0)
        # Stairs that the noise hides meet the base before they begin:
        # somewhere between the knee and the first level that is certainly off the base.
        late = max(self._thresholds.small_steps // 2, int(config.late_share * (places[stair] - places[bend])))
        return min(int(places[bend]) + (late if self._late else 0), int(seqs[-rows]))

    def of_relief(self, series: int, levels: Levels) -> int:
        """The row in which a series began to be nearer to its baseline than to its raised level."""
        seqs, values = levels.rows.of(series)
        between = 0.5 * (levels.level[series] + levels.baseline[series])
        return int(seqs[began(-values, -between, 0.0)])

    def _points(self, series: int, levels: Levels) -> tuple[Ints, Floats]:
        """Rows and levels of a series since its present segment began: of old the marks, of late medians of blocks."""
        seqs, values = levels.rows.of(series)
        first = int(np.searchsorted(seqs, levels.segment[series]))
        seqs, values = seqs[first:], values[first:]
        marks, past = levels.marks.of(series)
        old, block = (marks >= levels.segment[series]) & (marks < seqs[0]), self._config.block
        blocks = np.array_split(values, max(1, len(values) // block))
        middles = seqs[block // 2 - 1 :: block][: len(blocks)]
        places = np.concatenate([marks[old] - self._thresholds.small_steps, middles])
        points = np.concatenate([past[old], [np.median(block) for block in blocks]])
        return places, points[: len(places)]


class LastReported:
    """The change that was told last of each series.

    Parameters
    ----------
    thresholds : Thresholds
    config : OnsetConfig

    Examples
    --------
    >>> told = LastReported(Thresholds(), OnsetConfig())
    >>> told.resize(1)
    >>> first, further = Shift(0, 50, 60, 1.0, 1.12, "segment"), Shift(0, 90, 100, 1.12, 1.25, "segment")
    >>> told.goes_on(first), told.note(first), told.goes_on(further)
    (False, None, True)
    """

    def __init__(self, thresholds: Thresholds, config: OnsetConfig) -> None:
        self._thresholds, self._config = thresholds, config
        self._kept = thresholds.keeps("continuation")
        self._told: Ints = np.zeros((3, 0), dtype=np.int64)  # onset, reported, direction

    def resize(self, more: int) -> None:
        """Add `more` series."""
        self._told = np.hstack([self._told, np.full((3, more), NEVER, dtype=np.int64)])

    def forget(self, which: Flags) -> None:
        """Begin afresh with the series `which` [series]."""
        self._told[:, which] = NEVER

    def goes_on(self, shift: Shift) -> bool:
        """True if `shift` only goes on with the change that was told last: a further stair, the rest of a drift."""
        onset, reported, direction = self._told[:, shift.series]
        size = abs(float(np.log(shift.after)) - np.log(shift.before))
        small = size < np.log(self._thresholds.clear_ratio)
        rise = shift.basis == "baseline" and shift.slower
        within = self._thresholds.drift_steps if rise else self._config.same_rows
        again = shift.onset - onset < self._thresholds.small_steps
        again |= (small or rise) and shift.onset - reported < within
        return bool(self._kept and again and direction == (1 if shift.slower else -1))

    def note(self, shift: Shift) -> None:
        """`shift` is the last one now."""
        self._told[:, shift.series] = shift.onset, shift.reported, 1 if shift.slower else -1


def refine(values: Floats, first: int, onset: int, config: OnsetConfig) -> int:
    """The split near `onset` with the least absolute deviation from the medians before and after it.

    Examples
    --------
    >>> refine(np.r_[np.zeros(30), np.ones(10)], 0, 32, OnsetConfig())
    30
    """
    reach = config.reach
    low, high = max(first + reach, onset - reach), min(onset + reach, len(values) - 3)
    if high < low:
        return onset
    start = max(first, low - config.before)
    # The medians keep away from the doubtful middle as far as there is anything beyond it.
    left = np.median(values[start : max(onset - 3, start + 3)])
    right = np.median(values[min(onset + 2, len(values) - 3) :])
    near = values[low:]
    as_before = np.concatenate([[0.0], np.cumsum(np.abs(near - left))])
    as_after = np.concatenate([[0.0], np.cumsum(np.abs(near - right))])
    cost = as_before + as_after[-1] - as_after
    return low + int(np.argmin(cost[: high - low + 1]))


def began(levels: Floats, base: float, width: float) -> int:
    """Index behind the last of `levels` that is still within `width` of `base`.

    Examples
    --------
    >>> began(np.array([0.0, 0.0, 0.1, 0.2]), 0.0, 0.05)
    2
    """
    still = np.flatnonzero(levels <= base + width)
    return min(int(still[-1]) + 1, len(levels) - 1) if still.size else 0


def risen(points: Floats, first: int, noise: float, config: OnsetConfig) -> float:
    """How high the three of `points` above the base behind a stair are, if `first` is the first of them off the base.

    The stair may come a wobble further on: where as much of that height comes at once as a stair has of it, and more
    than the `noise` of two points explains. Where there is none such (a slope), it is `first`.

    Examples
    --------
    >>> round(risen(np.array([0.0, 0.01, 0.01, 0.05, 0.05, 0.05]), 1, 0.005, OnsetConfig()), 3)
    0.05
    >>> round(risen(np.array([0.0, 0.01, 0.02, 0.03, 0.04, 0.05]), 1, 0.005, OnsetConfig()), 3)
    0.03
    """
    heights, surely = [], noise * float(np.sqrt(2.0 * config.doubt))
    for place in range(first, min(first + 1 + config.wobble, len(points) - 1)):
        heights.append(float(points[place + 1 : place + 4].mean()))
        if points[place + 1] - points[place] >= max(config.stair_share * heights[-1], surely):
            return heights[-1]
    return heights[0] if heights else 0.0


def knee(places: Ints, levels: Floats, base: float, config: OnsetConfig, doubt: float = 0.0) -> int:
    """Index where a line that rises from `base` through the later `levels` starts, by least squares.

    With `doubt`, the latest start whose squared error is not worse by more than `doubt` residual variances: the upper
    end of its profile-likelihood interval.

    Examples
    --------
    >>> places = np.arange(10)
    >>> knee(places, np.maximum(0.0, 0.1 * (places - 4)), 0.0, OnsetConfig())
    4
    """
    weight = config.base_weight  # `base` counts as much as so many of the levels before the knee, which know the same
    costs = np.full(len(levels), np.inf)
    for start in range(max(0, len(levels) - config.knee_points), len(levels) - 1):
        low = (weight * base + float(levels[:start].sum())) / (weight + start)
        past, run = levels[:start] - low, (places[start:] - places[start]).astype(np.float64)
        risen = levels[start:] - low
        slope = max(0.0, float(run @ risen) / max(float(run @ run), 1e-12))
        costs[start] = float(past @ past) + float(((risen - slope * run) ** 2).sum()) + weight * (low - base) ** 2
    best = int(np.argmin(costs))
    if not np.isfinite(costs[best]):
        return 0
    variance = costs[best] / max(1, len(levels) - 3)  # base, place and slope were chosen
    return int(np.flatnonzero(costs <= costs[best] + doubt * variance + 1e-15)[-1])
