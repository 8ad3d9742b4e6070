"""The scoring protocol over several machines: events and episodes are pooled, intervals are drawn over machines.

Nothing is point-adjusted. An event is found if an alert starts within it; alerts less than 5 samples apart are one
episode; an episode that touches no event (margin 5 samples) is false.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.benchmarks.detection.measures import event_quality
from trainwarden.trainer_offline.fit.judge import episodes, segments

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
ALARM_RATES: Final = (0.1, 0.5, 1.0)
"""False alarms per machine-day at which recall is read off."""
FROZEN_RATE: Final = 0.5
"""False alarms per machine-day for which the threshold of a mere score is chosen on the choosing half."""
CUTS: Final = 250
DRAWS: Final = 1000


@dataclass(frozen=True, slots=True)
class Counts:
    """What one method did on one machine."""

    events: int
    found: int
    episodes: int
    false: int
    normal_days: float
    delays: tuple[float, ...] = ()


def counts(labels: Flags, alerts: Flags, per_day: float) -> Counts:
    """Events, episodes and delays (samples) of one machine.

    Examples
    --------
    >>> labels, alerts = np.zeros(300, dtype=bool), np.zeros(300, dtype=bool)
    >>> labels[100:120] = alerts[104:106] = alerts[200] = True
    >>> counts(labels, alerts, per_day=280.0)
    Counts(events=1, found=1, episodes=2, false=1, normal_days=1.0, delays=(4.0,))
    """
    quality = event_quality(labels, alerts, per_day)
    starts, delays = episodes(alerts)[:, 0], []
    for first, last in segments(labels):
        inside = starts[(starts >= first) & (starts <= last)]
        delays += [float(inside[0] - first)] if inside.size else []
    days = max(int((~labels).sum()), 1) / per_day
    return Counts(quality.events, quality.found, quality.episodes, quality.false_episodes, days, tuple(delays))


def quality(machines: Sequence[Counts]) -> dict[str, float | None]:
    """Pooled event quality; None where there is nothing to measure."""
    return _quality(*(sum(getattr(one, name) for one in machines) for name in _SUMS))


_SUMS: Final = ("events", "found", "episodes", "false", "normal_days")


def _quality(events: float, found: float, alarms: float, false: float, days: float) -> dict[str, float | None]:
    precision = 1.0 - false / alarms if alarms else None
    recall = found / events if events else None
    f1 = None if recall is None else 0.0
    if precision and recall:
        f1 = 2.0 * precision * recall / (precision + recall)
    return {"precision": precision, "recall": recall, "f1": f1, "false_per_day": false / days if days else None}


def intervals(machines: Sequence[Counts]) -> dict[str, list[float]]:
    """95 % bootstrap intervals of `quality`, drawn over machines."""
    table = np.array([[getattr(one, name) for name in _SUMS] for one in machines], dtype=np.float64)
    drawn = table[np.random.default_rng(0).integers(len(table), size=(DRAWS, len(table)))].sum(axis=1)
    values = [_quality(*row) for row in drawn.tolist()]
    out = {}
    for name in ("precision", "recall", "f1", "false_per_day"):
        known = [value for one in values if (value := one[name]) is not None]
        if known:
            out[f"{name}_ci"] = [float(end) for end in np.percentile(known, (2.5, 97.5))]
    return out


@dataclass(frozen=True, slots=True)
class Series:
    """One method's score on one machine."""

    labels: Flags
    scores: Floats
    per_day: float


@dataclass(frozen=True, slots=True)
class Curve:
    """What every threshold would do, the same one for all machines."""

    cuts: Floats
    recall: Floats
    false_per_day: Floats

    def at(self, rate: float) -> tuple[float, float]:
        """Highest event recall with at most `rate` false alarms per machine-day, and the threshold for it."""
        fine = np.flatnonzero(self.false_per_day <= rate)
        best = fine[np.argmax(self.recall[fine])]  # the first, i.e. highest threshold of equal ones
        return float(self.recall[best]), float(self.cuts[best])


def curve(machines: Sequence[Series], cuts: int = CUTS) -> Curve:
    """Recall and false alarms at thresholds from above all scores downwards, dense towards the top."""
    values = np.concatenate([one.scores for one in machines])
    tail = np.unique(np.quantile(values, 1.0 - np.geomspace(1.0 / values.size, 0.5, cuts)))
    levels = np.append(np.nextafter(values.max(), np.inf), tail[::-1])
    recall, false = np.zeros(levels.size), np.zeros(levels.size)
    for place, level in enumerate(levels):
        pooled = quality([counts(one.labels, one.scores >= level, one.per_day) for one in machines])
        recall[place], false[place] = pooled["recall"] or 0.0, pooled["false_per_day"] or 0.0
    return Curve(levels, recall, false)


def summary(machines: Sequence[Counts], minutes: float) -> dict[str, Any]:
    """One method's figures on one set of machines; `minutes` between two samples."""
    delays = [delay for one in machines for delay in one.delays]
    out: dict[str, Any] = {"events": sum(one.events for one in machines), **quality(machines), **intervals(machines)}
    out["delay_median_samples"] = float(np.median(delays)) if delays else None
    out["delay_median_minutes"] = float(np.median(delays)) * minutes if delays else None
    return out


def spans_quality(
    events: Sequence[tuple[float, float]], alarms: Sequence[tuple[float, float]], margin_s: float
) -> dict[str, Any]:
    """The same rules for times instead of samples: an event ``(first, last)`` in seconds is found if an alarm opens
    within it, an alarm ``(opened, closed)`` that touches none is false.

    Examples
    --------
    >>> said = spans_quality([(100.0, 160.0)], [(110.0, 200.0), (300.0, 310.0)], margin_s=10.0)
    >>> said["found"], said["false"], said["delays_s"]
    (1, 1, [10.0])
    """
    delays = []
    for first, last in events:
        inside = sorted(opened for opened, _ in alarms if first <= opened <= last)
        delays += [inside[0] - first] if inside else []
    false = [
        (opened, closed)
        for opened, closed in alarms
        if not any(opened <= last + margin_s and closed >= first - margin_s for first, last in events)
    ]
    return {
        "events": len(events), "found": len(delays), "episodes": len(alarms), "false": len(false), "delays_s": delays,
    }  # fmt: skip


def blamed_by_chance(events: Sequence[tuple[int, int, frozenset[int]]], width: int, first: int = 3) -> float:
    """How often `first` metrics named at random would contain a labelled one.

    Examples
    --------
    >>> round(blamed_by_chance([(0, 1, frozenset({0}))], width=6), 3)
    0.5
    """
    shares = []
    for _, _, named in events:
        places = np.arange(min(first, width))
        shares.append(1.0 - float(np.prod(np.maximum(width - len(named) - places, 0) / (width - places))))
    return float(np.mean(shares))


def rounded(row: Mapping[str, Any], digits: int = 4) -> dict[str, Any]:
    """Floats to so many places: what follows is noise."""

    def short(value: Any) -> Any:
        if isinstance(value, float):
            return round(value, digits)
        return [short(one) for one in value] if isinstance(value, list) else value

    return {name: short(value) for name, value in row.items()}
