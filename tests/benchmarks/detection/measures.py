"""How good a score is on labelled recordings: volumes and events, never point-adjusted.

Curves without a buffer (average precision) are scikit-learn's; it has none with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.errors import DataError
from trainwarden.trainer_offline.fit.judge import episodes, segments

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]

MARGIN_SAMPLES: Final = 5
"""An episode this close to an event is not false."""
BUFFER_SAMPLES: Final = 100
"""Largest buffer around events in `vus_pr`; the default of the TSB-AD benchmark (Liu and Paparrizos, 2024)."""
THRESHOLDS: Final = 250
"""Points on each precision-recall curve of `vus_pr`, as published (Paparrizos et al., 2022)."""


@dataclass(frozen=True, slots=True)
class EventQuality:
    """What a person on call would have seen.

    `precision` and `recall` are None where they have no meaning (no episode, no event); `delay_samples` is the median
    over found events; `false_per_day` counts false episodes per machine-day of normal time.
    """

    events: int
    found: int
    episodes: int
    false_episodes: int
    precision: float | None
    recall: float | None
    f1: float | None
    delay_samples: float | None
    false_per_day: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


def vus_pr(labels: npt.ArrayLike, scores: npt.ArrayLike, buffer_samples: int = BUFFER_SAMPLES) -> float:
    """Volume under the precision-recall surface: range-aware average precision over buffers 0..`buffer_samples`.

    For a buffer l, labels fade as sqrt(1 - distance / l) over half a buffer to either side of an event; recall counts
    the mean of the plain and the faded positives and is multiplied by the share of (merged) events touched at all.

    Raises
    ------
    DataError
        If labels and scores differ in length, a score is not finite, or no label is true.

    References
    ----------
    Paparrizos, Boniol, Palpanas, Tsay, Elmore, Franklin: Volume Under the Surface, VLDB 2022, sections 3 and 4.

    Examples
    --------
    >>> labels = np.zeros(1000); labels[400:450] = 1
    >>> round(vus_pr(labels, labels), 2) > round(vus_pr(labels, np.roll(labels, 200)), 2)
    True
    """
    flags, values = _checked(labels, scores)
    order = np.argsort(-values, kind="stable")
    cuts = values[order][np.linspace(0, values.size - 1, THRESHOLDS).astype(np.int64)]
    counts = np.searchsorted(-values[order], -cuts, side="right")
    areas = []
    for size in range(buffer_samples + 1):
        faded = _faded(flags, size)
        hits = np.cumsum(faded[order])[counts - 1]
        recall = np.minimum(hits / ((flags.sum() + faded.sum()) / 2.0), 1.0) * _touched(faded, values, cuts)
        areas.append(float(np.sum(np.diff(recall, prepend=0.0) * hits / counts)))
    return float(np.mean(areas))


def _touched(faded: Floats, values: Floats, cuts: Floats) -> Floats:
    """Share of the (merged) events of `faded` labels that scores from each of `cuts` on touch at all."""
    runs = segments(faded > 0.0)
    highest = np.maximum.reduceat(np.append(values, -np.inf), runs.ravel() + np.tile([0, 1], len(runs)))[::2]
    return np.asarray((highest[None, :] >= cuts[:, None]).mean(axis=1))


def _faded(flags: Flags, buffer: int) -> Floats:
    """Labels as numbers, fading away from each event over half of `buffer` to either side."""
    faded = flags.astype(np.float64)
    steps = np.arange(1, buffer // 2 + 1)
    ramp = np.sqrt(1.0 - steps / max(buffer, 1))
    for first, last in segments(flags):
        after = last + steps
        before = first - steps
        faded[after[after < flags.size]] += ramp[after < flags.size]
        faded[before[before >= 0]] += ramp[before >= 0]
    return np.minimum(faded, 1.0)


def event_quality(labels: npt.ArrayLike, alerts: npt.ArrayLike, samples_per_day: float) -> EventQuality:
    """Alerts against labelled events: an event is found if an episode starts within it; an episode near none is false.

    Raises
    ------
    DataError
        If the two differ in length.

    Examples
    --------
    >>> labels = [0] * 20 + [1] * 10 + [0] * 20
    >>> alerts = [0] * 22 + [1] * 2 + [0] * 20 + [1] * 2 + [0] * 4
    >>> quality = event_quality(labels, alerts, 1440.0)
    >>> quality.recall, quality.precision, quality.delay_samples
    (1.0, 0.5, 2.0)
    """
    flags = np.asarray(labels).astype(bool)
    if flags.shape != np.shape(alerts):
        raise DataError(f"{flags.size} labels but {np.size(alerts)} alerts")
    events, alarms = segments(flags), episodes(alerts)
    starts = alarms[:, 0]
    inside = (starts[None, :] >= events[:, :1]) & (starts[None, :] <= events[:, 1:])
    found = inside.any(axis=1)
    near = (alarms[:, 0][None, :] <= events[:, 1:] + MARGIN_SAMPLES) & (
        alarms[:, 1][None, :] >= events[:, :1] - MARGIN_SAMPLES
    )
    wrong = int((~near.any(axis=0)).sum())
    delays = [float(starts[row].min() - first) for row, first in zip(inside, events[:, 0], strict=True) if row.any()]
    precision = 1.0 - wrong / len(alarms) if len(alarms) else None
    recall = float(found.mean()) if len(events) else None
    f1 = None
    if precision is not None and recall is not None:
        f1 = 2.0 * precision * recall / (precision + recall) if precision + recall else 0.0
    normal_days = max(int((~flags).sum()), 1) / samples_per_day
    return EventQuality(
        events=len(events),
        found=int(found.sum()),
        episodes=len(alarms),
        false_episodes=wrong,
        precision=precision,
        recall=recall,
        f1=f1,
        delay_samples=float(np.median(delays)) if delays else None,
        false_per_day=wrong / normal_days,
    )


def blamed_share(events: Sequence[tuple[int, int, frozenset[int]]], blame: Floats, first: int = 3) -> float:
    """Share of `events` (first, last, labelled metrics) whose `first` most blamed metrics contain a labelled one.

    `blame` is ``[samples, metrics]``; the mean over the event's samples counts.
    """
    hits = [
        bool(named & set(np.argsort(-blame[start : end + 1].mean(axis=0), kind="stable")[:first].tolist()))
        for start, end, named in events
    ]
    return float(np.mean(hits)) if hits else 0.0


def bootstrap(values: Sequence[float], seed: int = 0, rounds: int = 2000) -> Interval:
    """Mean over machines (runs, jobs) with its 95 % percentile interval from resampling them, never points.

    Examples
    --------
    >>> bootstrap([0.5, 0.5, 0.5])
    Interval(mean=0.5, low=0.5, high=0.5)
    """
    array = np.asarray(values, dtype=np.float64)
    if not array.size:
        raise DataError("no machine to bootstrap over")
    means = array[np.random.default_rng(seed).integers(0, array.size, (rounds, array.size))].mean(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Interval(mean=float(array.mean()), low=float(low), high=float(high))


def _checked(labels: npt.ArrayLike, scores: npt.ArrayLike) -> tuple[Flags, Floats]:
    flags, values = np.asarray(labels).astype(bool), np.asarray(scores, dtype=np.float64)
    if flags.shape != values.shape or flags.ndim != 1:
        raise DataError(f"labels {flags.shape} and scores {values.shape} must be two series of one length")
    if not np.isfinite(values).all():
        raise DataError("scores must be finite")
    if not flags.any():
        raise DataError("no label is true, so precision and recall mean nothing")
    return flags, values
