"""The memory of one limit over the devices of a family: since when each is beyond it, or how much it has grown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.devices.limits import Limit
from trainwarden.detectors.job.last_seen import absent_after, interval_after

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.int64]
BUCKETS: Final = 12  # of the time in which growth is counted
_BY_ROW: Final = ("since_s", "seen_s", "heard_s", "every_s", "value", "peer", "bucket", "held", "well")


def _none() -> Floats:
    return np.full(0, np.nan)


@dataclass(slots=True)
class LimitMemory:
    """One limit over all devices of a family.

    Attributes
    ----------
    since_s : float array [rows]
        Since when a device is beyond, or its counter grows (once beyond the limit, by so much); NaN if it is not.
    seen_s : float array [rows]
        Its newest sample of the metric, by its node's clock.
    heard_s : float array [rows]
        When that was heard of: clocks of nodes may be apart.
    every_s : float array [rows]
        Seconds from one that is heard of to the next.
    value : float array [rows]
        That sample, or the growth counted.
    peer : float array [rows]
        That sample, if the device was at work then: what others are held against.
    buckets, bucket : arrays [rows, BUCKETS], [rows]
        Growth by stretches of time, and the newest stretch's number.
    held : float array [rows]
        1 while the limit is broken, so that it takes `Limit.relief` to end it.
    well : float array [rows]
        1 once the device has been seen within the limit.
    """

    limit: Limit
    since_s: Floats = field(default_factory=_none)
    seen_s: Floats = field(default_factory=_none)
    heard_s: Floats = field(default_factory=_none)
    every_s: Floats = field(default_factory=_none)
    value: Floats = field(default_factory=_none)
    peer: Floats = field(default_factory=_none)
    buckets: Floats = field(default_factory=lambda: np.zeros((0, BUCKETS)))
    bucket: Floats = field(default_factory=_none)
    held: Floats = field(default_factory=_none)
    well: Floats = field(default_factory=_none)

    def observe(
        self,
        rows: Rows,
        values: Floats,
        times_s: Floats,
        *,
        heard_s: float | None = None,
        idle: Flags | None = None,
        void: Flags | None = None,
    ) -> None:
        """Samples of one moment: ``values [n]`` of the devices `rows`, taken at ``times_s [n]``, heard of at `heard_s`.

        `idle` devices are nobody's peers; `void` samples are within the limit whatever their value.
        """
        self._room(int(rows.max(initial=-1)) + 1)
        known = np.isfinite(values) & ~(times_s <= self.seen_s[rows])
        rows, values, times_s = rows[known], values[known], times_s[known]
        elapsed_s = (times_s if heard_s is None else heard_s) - self.heard_s[rows]
        self.every_s[rows] = interval_after(self.every_s[rows], np.where(elapsed_s > 0.0, elapsed_s, np.nan))
        self.heard_s[rows] = times_s if heard_s is None else heard_s
        if self.limit.total is None:
            self.peer[rows] = values if idle is None else np.where(idle[known], np.nan, values)
            self._level(rows, values, times_s, np.zeros(rows.size, dtype=np.bool_) if void is None else void[known])
        else:
            self._growth(rows, values, times_s)
        self.seen_s[rows] = times_s

    def broken(self, now_s: float) -> Rows:
        """The devices beyond the limit."""
        with np.errstate(invalid="ignore"):
            return np.flatnonzero((self.held > 0.0) & np.isfinite(self.since_s) & self._there(now_s))

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Arrays for `restore`; of counters that stand still, which nearly all do, no buckets."""
        grown = np.flatnonzero(self.buckets.any(axis=1))
        return {name: getattr(self, name) for name in _BY_ROW} | {"grown": grown, "buckets": self.buckets[grown]}

    def restore(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `state`'s arrays.

        Raises
        ------
        ValueError, IndexError
            If they do not fit together.
        """
        size = arrays["since_s"].size
        for name in _BY_ROW:
            setattr(self, name, arrays[name].astype(np.float64).reshape(size))
        self.buckets = np.zeros((size, BUCKETS))
        self.buckets[arrays["grown"]] = arrays["buckets"]

    # -- internals -------------------------------------------------------------------------------------------

    def _there(self, now_s: float) -> Flags:
        """Which devices the metric is still heard of; of what is lost nothing is said."""
        with np.errstate(invalid="ignore"):
            return np.asarray(now_s - self.heard_s < absent_after(self.every_s), dtype=np.bool_)

    def _apart(self, values: Floats, now_s: float) -> Flags:
        """Whether each value is as far from the median of all devices at work as the limit asks."""
        limit = self.limit
        if limit.hotter is None and limit.times is None:
            return np.ones(values.size, dtype=np.bool_)
        peers = self.peer[np.isfinite(self.peer) & self._there(now_s)]
        middle = np.median(peers) if peers.size else np.nan
        far = limit.side * (values - middle) > (limit.hotter or 0.0)
        return np.asarray(far & (limit.side * (values - (limit.times or 1.0) * middle) > 0.0))

    def _bar(self, rows: Rows) -> Floats:
        """What each of `rows` is held against: while it is broken, the limit's relief."""
        relief = self.limit.bar if self.limit.relief is None else self.limit.relief
        return np.where(self.held[rows] > 0.0, relief, self.limit.bar)

    def _level(self, rows: Rows, values: Floats, times_s: Floats, void: Flags) -> None:
        limit, held = self.limit, self.held[rows] > 0.0
        beyond = limit.side * (values - self._bar(rows)) > 0.0
        told = self._apart(values, float(self.heard_s[rows].max(initial=-np.inf)))
        if limit.turned:
            told &= self.well[rows] > 0.0
        over = beyond & ~void & (told | (held & (limit.relief is not None or limit.turned)))
        since_s = np.where(over, np.where(np.isnan(self.since_s[rows]), times_s, self.since_s[rows]), np.nan)
        with np.errstate(invalid="ignore"):
            self.held[rows] = over & (times_s - since_s >= limit.over_s)
        self.well[rows] = np.where(limit.side * (values - limit.bar) > 0.0, self.well[rows], 1.0)
        self.since_s[rows], self.value[rows] = since_s, values

    def _growth(self, rows: Rows, rates: Floats, times_s: Floats) -> None:
        number = np.floor(times_s / (self.limit.over_s / BUCKETS))
        # Nearly all counters of errors stand still: those cost nothing.
        moving = (rates > 0.0) | (self.value[rows] > 0.0)
        still = rows[~moving]
        self.since_s[still], self.value[still], self.held[still] = np.nan, 0.0, 0.0
        self.bucket[still] = number[~moving]
        rows, rates, times_s, number = rows[moving], rates[moving], times_s[moving], number[moving]
        passed = np.where(np.isnan(self.bucket[rows]), BUCKETS, number - self.bucket[rows])
        age = np.mod(number[:, None] - np.arange(BUCKETS), BUCKETS)  # of each bucket: 0 is the newest
        kept = np.where(age < passed[:, None], 0.0, self.buckets[rows])
        # Nobody knows when it grew between two samples: evenly, and what is before the stretch is not of it.
        elapsed_s = np.minimum(np.nan_to_num(times_s - self.seen_s[rows]), self.limit.over_s)
        grown = np.maximum(rates, 0.0) * elapsed_s
        spread = np.clip(passed, 1, BUCKETS)[:, None]
        kept += np.where(age < spread, grown[:, None] / spread, 0.0)
        total = np.round(kept.sum(axis=1), 3)
        since_s = np.where(np.isnan(self.since_s[rows]), times_s, self.since_s[rows])
        over = total > self._bar(rows)
        new = np.flatnonzero(over & ~(self.held[rows] > 0.0))
        since_s[new] = np.maximum(since_s[new], self._begun_s(kept[new], age[new], number[new]))
        self.since_s[rows], self.held[rows] = np.where(total > 0.0, since_s, np.nan), over
        self.buckets[rows], self.bucket[rows], self.value[rows] = kept, number, total

    def _begun_s(self, kept: Floats, age: Floats, number: Floats) -> Floats:
        """Since when counters have grown beyond the bar: what one error long before has grown is not of it."""
        newest_first = np.take_along_axis(kept, np.argsort(age, axis=1), axis=1)
        enough = np.argmax(np.cumsum(newest_first, axis=1) > self.limit.bar, axis=1)
        return np.asarray((number - enough) * (self.limit.over_s / BUCKETS))

    def _room(self, size: int) -> None:
        more = size - self.since_s.size
        if more <= 0:
            return
        for name in _BY_ROW:
            setattr(self, name, np.append(getattr(self, name), np.full(more, np.nan)))
        self.buckets = np.concatenate([self.buckets, np.zeros((more, BUCKETS))])
