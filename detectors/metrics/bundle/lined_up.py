"""Samples of ranks side by side by the time at which they were taken, whenever they came."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from trainwarden.detectors.metrics.models.rows import Floats

TOGETHER: Final = 0.1
"""Of an interval: samples that lie no farther apart were taken together. Agents that keep time stray by less."""
ASKED: Final = 256  # ranks that are asked for their interval


def interval_s(times_s: Sequence[Floats]) -> float:
    """Seconds between samples taken at ``times_s [r, m]``: the median's of evenly spaced ranks; NaN if unknown.

    Examples
    --------
    >>> interval_s([np.array([[0.0, 10.0, 20.1], [np.nan, 14.0, 24.0]])])
    10.0
    """
    steps = [np.diff(one[:: max(1, -(-len(one) // ASKED))], axis=1).ravel() for one in times_s]
    known = np.concatenate(steps)
    known = known[known > 0.0]
    return float(np.median(known)) if known.size else float("nan")


def taken_together(times_s: Floats, every_s: float) -> bool:
    """Whether all ranks were sampled at the same ``times_s [r, m]``."""
    apart_s = np.abs(times_s - times_s[:1])
    same = np.isnan(times_s) == np.isnan(times_s[:1])
    return bool(same.all() and not (apart_s > TOGETHER * every_s).any())


def lined_up(values: Floats, times_s: Floats, end_s: float, every_s: float, places: int) -> tuple[Floats, Floats]:
    """``values [r, d, m]`` taken at ``times_s [r, m]``, in `places` that are `every_s` apart and end at `end_s`.

    What lies nearest to a place stands there, by half an interval at most; NaN where nothing does.

    Returns
    -------
    float array [r, d, places]
    float array [r]
        How far the samples of each rank are from their places, in intervals.

    Examples
    --------
    >>> times_s = np.array([[0.0, 10.0, 20.0, 30.0], [4.0, 14.0, 24.0, np.nan]])
    >>> found, off = lined_up(np.arange(8.0).reshape(2, 1, 4), times_s, 30.0, 10.0, 3)
    >>> found[:, 0].tolist(), off.tolist()
    ([[1.0, 2.0, 3.0], [5.0, 6.0, nan]], [0.0, 0.4])
    """
    if not times_s.shape[1]:
        return np.full((*values.shape[:2], places), np.nan), np.full(len(values), np.nan)
    # A rank's places are counted from its own sample next to the end, so that a little jitter moves none of them.
    apart_s = np.where(np.isnan(times_s), np.inf, np.abs(times_s - end_s))
    near_s = np.take_along_axis(times_s, apart_s.argmin(axis=1)[:, None], axis=1)
    base = np.rint((end_s - near_s) / every_s)
    back = base + np.rint((near_s - times_s) / every_s)
    row, column = np.nonzero((back >= 0.0) & (back < places))  # NaN is neither
    place = np.full((len(values), places), -1)
    # Of two in one place the newer one: it is written last.
    place[row, places - 1 - back[row, column].astype(np.int64)] = column
    found = np.take_along_axis(values, np.maximum(place, 0)[:, None, :], axis=2)
    found[np.broadcast_to(place[:, None, :] < 0, found.shape)] = np.nan
    taken_s = np.where(place < 0, np.nan, np.take_along_axis(times_s, np.maximum(place, 0), axis=1))
    off = np.abs(taken_s - (end_s - every_s * np.arange(places - 1, -1, -1.0))) / every_s
    known = ~np.isnan(off).all(axis=1)
    middle = np.full(len(values), np.nan)
    middle[known] = np.nanmedian(off[known], axis=1)
    return found, middle
