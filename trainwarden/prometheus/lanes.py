"""Series of an answer as arrays in time order, each stamp once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.errors import DataError
from trainwarden.prometheus.client import Series

Floats = npt.NDArray[np.float64]
MOST_BEFORE_S: Final = 86_400.0  # what a counter was longer ago than this says nothing


@dataclass(frozen=True, slots=True)
class Lane:
    """One series; the samples up to `since_s` only tell what counters were before.

    Attributes
    ----------
    times_s, values : float arrays [n]
        As they came, stamps rising.
    """

    labels: Mapping[str, str]
    times_s: Floats
    values: Floats
    since_s: float


def lanes_of(found: Iterable[Series], since_s: float, until_s: float = np.inf) -> list[Lane]:
    """Series as arrays, without stamps that were not asked for; of samples with one stamp the last is believed.

    Raises
    ------
    DataError
        If a value is no number.

    Examples
    --------
    >>> (lane,) = lanes_of([Series({"gpu": "0"}, [(1.0, "5"), (2.0, "6"), (2.0, "7"), (3.0, "NaN")])], 0.0)
    >>> lane.times_s.tolist(), lane.values.tolist()
    ([1.0, 2.0, 3.0], [5.0, 7.0, nan])
    """
    span_s = (since_s - MOST_BEFORE_S, until_s)
    return [Lane(one.metric, *_arrays(one, span_s), since_s) for one in found if one.values]


def _arrays(series: Series, span_s: tuple[float, float]) -> tuple[Floats, Floats]:
    count = len(series.values)
    try:
        times_s = np.fromiter((stamp for stamp, _ in series.values), np.float64, count)
        values = np.fromiter((float(text) for _, text in series.values), np.float64, count)
    except ValueError as error:
        raise DataError(f"a value of the answer is no number ({str(error)[:80]})") from error
    asked = (times_s >= span_s[0]) & (times_s <= span_s[1])
    times_s, values = times_s[asked], values[asked]
    if times_s.size > 1 and (np.diff(times_s) <= 0).any():
        order = np.argsort(times_s, kind="stable")
        times_s, values = times_s[order], values[order]
        kept = np.append(np.diff(times_s) > 0, True)
        times_s, values = times_s[kept], values[kept]
    return times_s, values


def interval_of(lanes: Iterable[Lane]) -> float | None:
    """Median time between two samples of a series; None if no series has two.

    Examples
    --------
    >>> interval_of(lanes_of([Series({}, [(0.0, "1"), (15.0, "1"), (30.1, "1"), (90.0, "1")])], 0.0))
    15.1
    """
    steps = [np.diff(lane.times_s) for lane in lanes if lane.times_s.size > 1]
    return round(float(np.median(np.concatenate(steps))), 3) if steps else None
