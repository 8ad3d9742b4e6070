"""Members' opinions put together: weighted means over those that have one."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainwarden.detectors.metrics.models.rows import Floats


def weighted_mean(parts: Mapping[str, Floats], weights: Mapping[str, float], shape: tuple[int, ...]) -> Floats:
    """Weighted mean over the members that have an opinion (are not NaN), NaN where none has.

    Examples
    --------
    >>> weighted_mean({"a": np.array([1.0, np.nan]), "b": np.array([4.0, 4.0])}, {"a": 2.0, "b": 1.0}, (2,)).tolist()
    [2.0, 4.0]
    """
    weighted, total = np.zeros(shape), np.zeros(shape)
    for name, part in parts.items():
        if weights[name] > 0.0:
            here = weights[name] * ~np.isnan(part)
            weighted += np.nan_to_num(part) * here
            total += here
    return np.where(total > 0.0, weighted / np.maximum(total, np.finfo(float).tiny), np.nan)


def shares_of(parts: Mapping[str, Floats], weights: Mapping[str, float], shape: tuple[int, ...]) -> Floats:
    """Weighted mean of each member's own shares of blame ``[r, d]``; rows sum to 1, or 0 without blame."""
    total = np.zeros(shape)
    for name, part in parts.items():
        sums = part.sum(axis=1, keepdims=True)
        total += weights[name] * np.divide(part, sums, out=np.zeros(shape), where=sums > 0.0)
    sums = total.sum(axis=1, keepdims=True)
    return np.asarray(np.divide(total, sums, out=np.zeros(shape), where=sums > 0.0), dtype=np.float64)
