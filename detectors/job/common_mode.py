"""What one rank does that the others do not: series over ranks with their common mode taken out.

Synchronous training slows all ranks alike, and so does a busy machine; what remains of a rank's compute time after
the others' median is taken out is its own (Wu et al., Falcon, 2024, section 4.3).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def median_of_others(values: Floats) -> Floats:
    """For each column the median of all other columns, row by row; NaN where there is no other.

    Parameters
    ----------
    values : float [rows, ranks]
        NaN = unknown.

    Returns
    -------
    float [rows, ranks]

    Examples
    --------
    >>> median_of_others(np.array([[1.0, 2.0, 9.0]])).tolist()
    [[5.5, 5.0, 1.5]]
    """
    rows, ranks = values.shape
    if ranks < 2:
        return np.full((rows, ranks), np.nan)
    order = values.argsort(axis=1, kind="stable")  # NaN sorts last
    # numpy's own *_along_axis make this anew at each call, which costs most on few ranks.
    row = np.arange(rows)[:, None]
    ordered = values[row, order]
    finite = np.isfinite(values)
    place = np.empty_like(order)
    place[row, order] = np.arange(ranks)
    others = finite.sum(axis=1, keepdims=True) - finite
    low, high = (others - 1) // 2, others // 2
    # Without the element at `place`, everything above it moves down by one.
    low_index = np.minimum(np.maximum(low + (low >= place), 0), ranks - 1)
    high_index = np.minimum(high + (high >= place), ranks - 1)
    middle = (ordered[row, low_index] + ordered[row, high_index]) / 2
    return np.where(others > 0, middle, np.nan)


def noise(values: Floats) -> Floats:
    """Robust standard deviation along the rows [ranks]: 1.4826 times the median absolute deviation."""
    centre = quiet_median(values)
    return 1.4826 * quiet_median(np.abs(values - centre))


def quiet_median(values: Floats) -> Floats:
    """Median along the rows without the unknown; NaN where a column knows nothing.

    Many times faster than ``numpy.nanmedian`` on small arrays, and silent.

    Examples
    --------
    >>> quiet_median(np.array([[1.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])).tolist()
    [2.0, nan]
    """
    if values.shape[0] == 0:
        return np.full(values.shape[1:], np.nan)
    ordered = np.sort(values, axis=0)  # NaN last
    rows = values.shape[0]
    least, most = ordered[0], ordered[-1]
    if math.isfinite(least) and math.isfinite(most) if values.ndim == 1 else np.isfinite(least + most).all():
        return np.asarray((ordered[(rows - 1) // 2] + ordered[rows // 2]) / 2.0)
    count = np.isfinite(values).sum(axis=0)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, rows - 1)
    if values.ndim == 1:
        return np.asarray((ordered[low] + ordered[high]) / 2.0)
    middle: Floats = (
        np.take_along_axis(ordered, low[None], axis=0)[0] + np.take_along_axis(ordered, high[None], axis=0)[0]
    ) / 2.0
    return middle
