"""What level shifts are verified with: robust levels, noise, the likeliest place, and a long memory of levels."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from detectors.common_mode import noise, quiet_median

Floats = npt.NDArray[np.float64]
BEFORE: Final = 30  # values before the change that its mean is taken over
MARKS: Final = 256  # levels remembered over the whole run, thinned out as it grows
TRIM: Final = 2  # most extreme values left out of each mean: single slow steps are checkpoints, not changes


class LevelMarks:
    """The level of every series now and then over the whole run, in bounded memory.

    Examples
    --------
    >>> marks = LevelMarks(stride=1)
    >>> marks.widen(1)
    >>> for level in range(10):
    ...     marks.due() and marks.add(np.array([float(level)]))
    >>> marks.halfway(np.array([0.0])).tolist()
    [5.0]
    """

    def __init__(self, stride: int = 16) -> None:
        self._marks: Floats = np.full((MARKS, 0), np.nan)
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

    def add(self, level: Floats) -> None:
        """Remember `level` [series]; when there is no room left, every other one goes."""
        if self._count == MARKS:
            self._marks[: MARKS // 2] = self._marks[1::2].copy()
            self._count, self._stride = MARKS // 2, 2 * self._stride
        self._marks[self._count] = level
        self._count += 1

    def halfway(self, unknown: Floats) -> Floats:
        """The level of each series when the run was half as long as it is now, else `unknown` [series]."""
        if self._count < 2:
            return unknown.copy()
        half = self._marks[self._count // 2]
        return np.where(np.isfinite(half), half, unknown)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state; `load` takes it back."""
        return {"marks": self._marks, "marks_places": np.array([self._count, self._stride, self._fed])}

    def load(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `arrays`."""
        self._marks = arrays["marks"].copy()
        self._count, self._stride, self._fed = (int(place) for place in arrays["marks_places"])


def jitter(past: Floats, floor: float) -> Floats:
    """Noise of series [rows, ...] from their differences (a slow trend does not count), never below `floor`."""
    spread = np.nan_to_num(noise(np.diff(past, axis=0))) / np.sqrt(2.0)
    return np.asarray(np.maximum(np.maximum(floor, 0.5 * np.nan_to_num(noise(past))), spread))


def middle(values: Floats) -> float:
    """Median of known values."""
    return float(quiet_median(values))


def trimmed(values: Floats, *, slower: bool) -> float:
    """Mean without the `TRIM` largest (for a drop: smallest) values, but with at least one."""
    ordered = np.sort(values) if slower else np.sort(values)[::-1]
    return float(ordered[: max(1, len(ordered) - TRIM)].mean())


def refine(values: Floats, first: int, onset: int) -> int:
    """The split near `onset` with the least absolute deviation from the two sides' medians."""
    best, best_cost = onset, np.inf
    for split in range(max(first + 6, onset - 6), min(onset + 6, len(values) - 2)):
        left, right = values[max(first, split - BEFORE) : split], values[split:]
        cost = np.abs(left - np.median(left)).sum() + np.abs(right - np.median(right)).sum()
        # All splits must explain the same values, else a shorter left side always looks better.
        spare = values[max(first, onset - 6 - BEFORE) : max(first, split - BEFORE)]
        cost += np.abs(spare - np.median(left)).sum()
        if cost < best_cost - 1e-12:
            best, best_cost = split, cost
    return best
