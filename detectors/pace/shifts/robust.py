"""Levels and noise of log series as single slow steps, trends and two paces in turn leave them alone."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import noise, quiet_median

Floats = npt.NDArray[np.float64]
CUT: Final = 6  # one value in so many is left out at either end: the middle two thirds remain
QUIET_SHARE: Final = 0.5  # of the spread about the median is believed where neighbours hardly differ
TAIL_PERCENT: Final = 5.0  # single slow steps count for no more than the value that so many are beyond
PAIRS: Final = 8  # values from which on pairs can tell two paces in turn


def jitter(past: Floats, floor: float) -> Floats:
    """Noise of series [rows, ...] from their differences (a slow trend does not count), never below `floor`."""
    spread = np.nan_to_num(noise(np.diff(past, axis=0))) / np.sqrt(2.0)
    return np.asarray(np.maximum(np.maximum(floor, QUIET_SHARE * np.nan_to_num(noise(past))), spread))


def lasting_jitter(past: Floats, floor: float) -> float:
    """Noise of a series [rows] as far as it does not cancel in pairs: two paces in turn are no noise of the level.

    Examples
    --------
    >>> lasting_jitter(np.tile([0.0, 0.2], 20), 0.01)
    0.01
    """
    pairs = 0.5 * (past[1:] + past[:-1])
    known = float(noise(pairs[2:] - pairs[:-2])) if len(past) > PAIRS else np.inf
    return max(floor, min(float(jitter(past, floor)), known))


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
    cut = count // CUT
    place = np.arange(len(values)).reshape((-1,) + (1,) * (values.ndim - 1))
    inside = (place >= cut) & (place < count - cut)
    kept = np.maximum(inside.sum(axis=0), 1)
    mean = np.where(inside, ordered, 0.0).sum(axis=0) / kept
    return np.asarray(np.where(count > 0, mean, np.nan))


def middle(values: Floats) -> float:
    """Median of known values."""
    return float(quiet_median(values))


def apart(values: Floats, newest: int) -> float:
    """Median of the `newest` values less that of those before them.

    Examples
    --------
    >>> apart(np.array([1.0, 1.0, 1.0, 3.0, 3.0]), 2)
    2.0
    """
    return float(np.median(values[-newest:]) - np.median(values[:-newest]))


def wander(past: Floats, first: int, block: int) -> float:
    """Noise of a series [rows] by how far apart the means of neighbouring blocks are, single slow steps cut back.

    Two paces by chance, runs of either and a level that goes up and down by itself are all in it, where `jitter` takes
    values for independent of each other, and of two paces knows only the more frequent one. Blocks on both sides of
    place `first`, where a change was told, are not compared. 0 where there are not four blocks: it is not known.

    Examples
    --------
    >>> runs = np.tile(np.repeat([0.0, 0.2], 10), 4)
    >>> round(wander(np.tile([0.0, 0.2], 40), 0, 10), 3), round(wander(runs, 0, 10), 3)
    (0.0, 0.265)
    """
    if len(past) < 4 * block:
        return 0.0
    low, high = np.percentile(past, (TAIL_PERCENT, 100.0 - TAIL_PERCENT))
    sums = np.concatenate([[0.0], np.cumsum(np.clip(past, low, high))])
    moved = sums[2 * block :] - 2.0 * sums[block:-block] + sums[: -2 * block]
    places = np.arange(len(moved))
    kept = moved[(places >= first) | (places + 2 * block <= first)]
    return float(np.sqrt(np.mean(kept**2) / (2.0 * block))) if kept.size else 0.0
