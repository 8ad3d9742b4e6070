"""What level shifts are verified with: robust levels, noise, the likeliest place, and a long memory of levels."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from detectors.job.common_mode import noise, quiet_median

Floats = npt.NDArray[np.float64]
BEFORE: Final = 30  # values before the change that its mean is taken over
MARKS: Final = 256  # levels remembered over the whole run, thinned out as it grows
PAUSE: Final = 3.0  # a step so many times as long as those after it was a hang or a restart (Unicron 2024, 4.1)
RESUMED: Final = 2.0  # a drop after even such a step is more often warm caches than a faster program
TRIM: Final = 2  # most extreme values left out of each mean: single slow steps are checkpoints, not changes


class LevelMarks:
    """The level of every series now and then over the whole run, in bounded memory.

    Examples
    --------
    >>> marks = LevelMarks(stride=1)
    >>> marks.widen(1)
    >>> for seq in range(10):
    ...     marks.due() and marks.add(seq, np.array([seq / 10]))
    >>> marks.at(np.array([5]), np.array([0]), np.array([0.0])).tolist()
    [0.5]
    """

    def __init__(self, stride: int = 16) -> None:
        self._marks: Floats = np.full((MARKS, 0), np.nan)
        self._seqs = np.zeros(MARKS, dtype=np.int64)
        self._count, self._stride, self._fed = 0, stride, 0

    def widen(self, more: int) -> None:
        """Add `more` series."""
        self._marks = np.hstack([self._marks, np.full((MARKS, more), np.nan)])

    def forget(self, which: npt.NDArray[np.bool_]) -> None:
        """Begin afresh with the series `which` [series]."""
        self._marks[:, which] = np.nan

    def due(self) -> bool:
        """Count one step; True if the level should be added now."""
        self._fed += 1
        return self._fed % self._stride == 0

    def add(self, seq: int, level: Floats) -> None:
        """Remember `level` [series] at `seq`; when there is no room left, every other one goes."""
        if self._count == MARKS:
            self._marks[: MARKS // 2] = self._marks[1::2].copy()
            self._seqs[: MARKS // 2] = self._seqs[1::2].copy()
            self._count, self._stride = MARKS // 2, 2 * self._stride
        self._marks[self._count], self._seqs[self._count] = level, seq
        self._count += 1

    def move(self, series: npt.NDArray[np.int64], by: Floats) -> None:
        """Shift all levels of `series` [n] by `by` [n]."""
        self._marks[:, series] += by

    def at(self, seqs: npt.NDArray[np.int64], series: npt.NDArray[np.intp], unknown: Floats) -> Floats:
        """The newest level of each of `series` [n] at or before `seqs` [n], else `unknown` [n]."""
        place = np.searchsorted(self._seqs[: self._count], seqs, side="right") - 1
        level = self._marks[np.maximum(place, 0), series]
        return np.where((place >= 0) & np.isfinite(level), level, unknown)

    def of(self, series: int) -> tuple[npt.NDArray[np.int64], Floats]:
        """Sequence numbers and levels of one series, oldest first."""
        known = np.isfinite(self._marks[: self._count, series])
        return self._seqs[: self._count][known], self._marks[: self._count, series][known]

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state; `load` takes it back."""
        places = np.array([self._count, self._stride, self._fed])
        return {"marks": self._marks, "marks_seqs": self._seqs, "marks_places": places}

    def load(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `arrays`."""
        self._marks, self._seqs = arrays["marks"].copy(), arrays["marks_seqs"].copy()
        self._count, self._stride, self._fed = (int(place) for place in arrays["marks_places"])


def jitter(past: Floats, floor: float) -> Floats:
    """Noise of series [rows, ...] from their differences (a slow trend does not count), never below `floor`."""
    spread = np.nan_to_num(noise(np.diff(past, axis=0))) / np.sqrt(2.0)
    return np.asarray(np.maximum(np.maximum(floor, 0.5 * np.nan_to_num(noise(past))), spread))


def lasting_jitter(past: Floats, floor: float) -> float:
    """Noise of a series [rows] as far as it does not cancel in pairs: two paces in turn are no noise of the level."""
    pairs = 0.5 * (past[1:] + past[:-1])
    return max(
        floor, min(float(jitter(past, floor)), float(noise(pairs[2:] - pairs[:-2])) if len(past) > 8 else np.inf)
    )


def levels(values: Floats) -> Floats:
    """Mean of the middle two thirds of the known values along the rows; NaN where there are none.

    Smoother than the median where a series keeps to two paces, and as deaf to single slow steps.

    Examples
    --------
    >>> levels(np.array([[1.0], [2.0], [3.0], [4.0], [5.0], [90.0]])).tolist()
    [3.5]
    """
    ordered = np.sort(values, axis=0)  # NaN last
    count = np.isfinite(values).sum(axis=0)
    cut = count // 6
    place = np.arange(len(values)).reshape((-1,) + (1,) * (values.ndim - 1))
    inside = (place >= cut) & (place < count - cut)
    kept = np.maximum(inside.sum(axis=0), 1)
    mean = np.where(inside, ordered, 0.0).sum(axis=0) / kept
    return np.asarray(np.where(count > 0, mean, np.nan))


def middle(values: Floats) -> float:
    """Median of known values."""
    return float(quiet_median(values))


def trimmed(values: Floats, *, slower: bool) -> float:
    """Mean without the `TRIM` largest (for a drop: smallest) values, but with at least one.

    A single slow step must not hide a drop either: of many values the largest do not count there.
    """
    ordered = np.sort(values) if slower else np.sort(values)[::-1]
    other = 0 if slower else min(TRIM, len(ordered) // 8)
    return float(ordered[other : max(1, len(ordered) - TRIM)].mean())


def agree(before: Floats, after: Floats, floor: float) -> bool:
    """True if the few values `after` a change differ among themselves no more than those before it usually do.

    Three slow steps and an unrelated fourth one do not.

    Examples
    --------
    >>> calm = np.tile([0.0, 0.01], 10)
    >>> agree(calm, np.array([0.5, 0.51, 0.5, 0.51]), 0.01), agree(calm, np.array([0.5, 0.51, 0.5, 0.9]), 0.01)
    (True, False)
    """
    low, high = np.percentile(before, (5.0, 95.0))
    return bool(np.ptp(after) <= max(1.5 * float(high - low), 6.0 * floor))


def restart_rows(values: Floats, onset: int, pause: float) -> int:
    """How many values from `onset` on end with a step as long as `pause` usual ones; 0 if there is none near it.

    Examples
    --------
    >>> restart_rows(np.log([1.0, 1.0, 1.0, 9.0, 1.5, 1.5, 1.5, 1.5]), 3, 3.0)
    1
    """
    first = max(0, onset - 2)
    near = values[first : onset + 3]
    longest = int(near.argmax())
    usual = max(float(np.median(values[max(0, onset - BEFORE) : onset])), float(np.median(values[onset:])))
    return max(1, first + longest + 1 - onset) if near[longest] > usual + np.log(pause) else 0


def refine(values: Floats, first: int, onset: int) -> int:
    """The split near `onset` with the least absolute deviation from the medians before and after it."""
    low, high = max(first + 6, onset - 6), min(onset + 6, len(values) - 3)
    if high < low:
        return onset
    start = max(first, low - BEFORE)
    # The medians keep away from the doubtful middle as far as there is anything beyond it.
    left = np.median(values[start : max(onset - 3, start + 3)])
    right = np.median(values[min(onset + 2, len(values) - 3) :])
    near = values[low:]
    as_before = np.concatenate([[0.0], np.cumsum(np.abs(near - left))])
    as_after = np.concatenate([[0.0], np.cumsum(np.abs(near - right))])
    cost = as_before + as_after[-1] - as_after
    return low + int(np.argmin(cost[: high - low + 1]))


def began(levels: Floats, base: float, width: float) -> int:
    """Index behind the last of `levels` that is still within `width` of `base`."""
    still = np.flatnonzero(levels <= base + width)
    return min(int(still[-1]) + 1, len(levels) - 1) if still.size else 0


def knee(places: npt.NDArray[np.int64], levels: Floats, base: float, doubt: float = 0.0) -> int:
    """Index where a line that rises from `base` through the later `levels` starts, by least squares.

    With `doubt`, the latest start whose squared error is not worse by more than `doubt` residual variances: the upper
    end of its profile-likelihood interval.

    Examples
    --------
    >>> places = np.arange(10)
    >>> knee(places, np.maximum(0.0, 0.1 * (places - 4)), 0.0)
    4
    """
    first = max(0, len(levels) - 96)
    costs = np.full(len(levels), np.inf)
    for start in range(first, len(levels) - 1):
        # `base` counts as much as four of the levels before the knee, which know the same thing.
        low = (4.0 * base + float(levels[:start].sum())) / (4.0 + start)
        past, run = levels[:start] - low, (places[start:] - places[start]).astype(np.float64)
        risen = levels[start:] - low
        slope = max(0.0, float(run @ risen) / max(float(run @ run), 1e-12))
        costs[start] = float(past @ past) + float(((risen - slope * run) ** 2).sum()) + 4.0 * (low - base) ** 2
    best = int(np.argmin(costs))
    if not np.isfinite(costs[best]):
        return 0
    variance = costs[best] / max(1, len(levels) - 3)
    return int(np.flatnonzero(costs <= costs[best] + doubt * variance + 1e-15)[-1])
