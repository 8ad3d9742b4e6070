"""Means and medians of the newest samples at each time, gaps left out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.models.rows import FILLED_SHARE, Floats


def trailing_mean(values: Floats, rows: int, newest: int | None = None) -> Floats:
    """Mean of the newest `rows` samples at each time, along the last axis, gaps left out; fewer at the start.

    With `newest` only the last so many times are worked out.

    Examples
    --------
    >>> trailing_mean(np.array([2.0, 4.0, np.nan, 6.0]), 2).tolist()
    [2.0, 3.0, 4.0, 6.0]
    >>> trailing_mean(np.array([2.0, 4.0, np.nan, 6.0]), 2, newest=1).tolist()
    [6.0]
    """
    samples = values.shape[-1]
    first = 0 if newest is None else max(samples - newest, 0)
    part = values[..., max(first - rows + 1, 0) :]
    first = min(first, rows - 1)
    missing = np.isnan(part)
    gaps = bool(missing.any())
    plain = np.where(missing, 0.0, part) if gaps else part
    sums = plain[..., first:].copy()
    counts = (~missing[..., first:]).astype(np.float64) if gaps else np.ones(sums.shape[-1])
    # Added sample by sample: a running sum would make the result depend on what lies before the window.
    for back in range(1, min(rows, part.shape[-1])):
        low, high = max(first - back, 0), part.shape[-1] - back
        late = max(back - first, 0)
        sums[..., late:] += plain[..., low:high]
        counts[..., late:] += ~missing[..., low:high] if gaps else 1.0
    if not gaps:
        return np.asarray(sums / counts, dtype=np.float64)
    return np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan)


def trailing_median(values: Floats, rows: int) -> Floats:
    """Median of the newest `rows` samples at each time, along the last axis; NaN stays where it was.

    Examples
    --------
    >>> trailing_median(np.array([1.0, 9.0, 1.0, 1.0]), 3).tolist()
    [1.0, 5.0, 1.0, 1.0]
    """
    if rows == 3 and values.shape[-1] >= 3:
        return _median_of_three(values)
    lags = [np.full_like(values, np.nan) for _ in range(rows)]
    for back, lag in enumerate(lags[: values.shape[-1]]):
        lag[..., back:] = values[..., : values.shape[-1] - back]
    stacked = np.sort(np.stack(lags), axis=0)  # NaN last
    counts = (~np.isnan(stacked)).sum(axis=0)
    low = np.take_along_axis(stacked, np.maximum((counts - 1) // 2, 0)[None], axis=0)[0]
    high = np.take_along_axis(stacked, (counts // 2).clip(max=rows - 1)[None], axis=0)[0]
    return np.where(np.isnan(values), np.nan, (low + high) / 2.0)


def _median_of_three(values: Floats) -> Floats:
    """`trailing_median` over three samples, without sorting; of two samples the median is their mean."""
    old, mid, new = values[..., :-2], values[..., 1:-1], values[..., 2:]
    middle = np.maximum(np.minimum(old, mid), np.minimum(np.maximum(old, mid), new))
    second = (values[..., 0:1] + values[..., 1:2]) / 2.0
    found = np.concatenate([values[..., 0:1], second, middle], axis=-1)
    # What a gap has spoilt above is the mean of the one or two samples that there are.
    spoilt = np.isnan(found) & ~np.isnan(values)
    for column in np.flatnonzero(spoilt.reshape(-1, spoilt.shape[-1]).any(axis=0)).tolist():
        mean = trailing_mean(values[..., max(0, column - 2) : column + 1], 3, newest=1)[..., 0]
        found[..., column] = np.where(spoilt[..., column], mean, found[..., column])
    return found


def filled(there: npt.NDArray[np.bool_], rows: int, newest: int) -> npt.NDArray[np.bool_]:
    """Whether enough of the last `rows` samples are ``there [r, t]``, at the `newest` times."""
    counts = np.cumsum(np.pad(there, ((0, 0), (rows, 0))), axis=1, dtype=np.int64)
    return np.asarray((counts[:, rows:] - counts[:, :-rows])[:, -newest:] >= FILLED_SHARE * rows, dtype=np.bool_)
