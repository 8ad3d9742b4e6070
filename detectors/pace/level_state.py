"""What is remembered of many series whose level is watched: rows, levels, healthy levels, noise, excursions.

Bounded in memory and constant in cost per row, however long the series.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from detectors.pace.bocd import Bocd
from detectors.pace.periodic import SteadyPace
from detectors.pace.shifts import ShiftConfig
from detectors.pace.verification import LevelMarks, jitter, levels

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
HISTORY: Final = 160  # rows kept for the means before and after
SETTLED: Final = 30  # values after which a level is known better than when its change was verified
NEVER: Final = -1_000_000_000


class LevelState:
    """State of `detectors.pace.level_shifts.LevelShifts`, and how a new row changes it.

    Parameters
    ----------
    config : ShiftConfig
        Thresholds.

    Notes
    -----
    `level` [series] is the log level of the present segment; `baseline` the healthy log level (NaN until known);
    `raised_since` the sequence number from which the series has been above its healthy baseline (-1: it is not).
    Of series with a repeating pattern all rows are those that `SteadyPace` makes of them.
    """

    def __init__(self, config: ShiftConfig) -> None:
        self.config = config
        self.bocd = Bocd(0, config.hazard)
        self._rows: Floats = np.full((2 * HISTORY, 0), np.nan)
        self._seqs = np.full(2 * HISTORY, -1, dtype=np.int64)
        self._marks = LevelMarks()
        self._steady = SteadyPace()
        self._end = 0
        self._seen = np.zeros(0, dtype=np.int64)
        self._centre: Floats = np.zeros(0)
        self._scale: Floats = np.zeros(0)
        self._segment = np.zeros(0, dtype=np.int64)
        self._age = np.zeros(0, dtype=np.int64)
        self._excursion = np.zeros((2, 0), dtype=np.int64)
        self._longest = np.zeros((2, 0), dtype=np.int64)
        self._trail: Floats = np.zeros(0)
        self._slow: Floats = np.zeros(0)
        self._told = np.zeros((3, 0), dtype=np.int64)
        self.baseline: Floats = np.zeros(0)
        self.level: Floats = np.zeros(0)
        self.raised_since = np.zeros(0, dtype=np.int64)

    def widen(self, series: int) -> None:
        """Add fresh series until there are `series`."""
        more = series - self._seen.size
        if more <= 0:
            return
        self.bocd.widen(series)
        self._rows = np.hstack([self._rows, np.full((2 * HISTORY, more), np.nan)])
        self._marks.widen(more)
        self._steady.widen(more)
        self._seen = np.append(self._seen, np.zeros(more, dtype=np.int64))
        self._age = np.append(self._age, np.zeros(more, dtype=np.int64))
        for name in ("_centre", "_scale", "_trail", "_slow", "baseline", "level"):
            setattr(self, name, np.append(getattr(self, name), np.full(more, np.nan)))
        for name in ("_segment", "raised_since"):
            setattr(self, name, np.append(getattr(self, name), np.full(more, -1, dtype=np.int64)))
        for name in ("_excursion", "_longest"):
            setattr(self, name, np.hstack([getattr(self, name), np.zeros((2, more), dtype=np.int64)]))
        self._told = np.hstack([self._told, np.full((3, more), NEVER, dtype=np.int64)])

    def forget(self, which: npt.NDArray[np.bool_]) -> None:
        """Begin afresh with the series `which` [series]: another node, another layout."""
        self.bocd.forget(which)
        self._rows[:, which] = np.nan
        self._marks.forget(which)
        self._steady.forget(which)
        self._seen[which] = self._age[which] = 0
        for array in (self._centre, self._scale, self._trail, self._slow, self.baseline, self.level):
            array[which] = np.nan
        self._segment[which] = self.raised_since[which] = -1
        self._excursion[:, which] = self._longest[:, which] = 0
        self._told[:, which] = NEVER

    def rebase(self, series: int) -> None:
        """Take the present level of `series` for healthy: its last change was planned."""
        self.baseline[series] = self.level[series]
        self.raised_since[series] = -1

    def take(self, seq: int, values: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Take in one row of log values [series]; the row without patterns, and which of it is known."""
        self.widen(values.size)
        steady = self._steady.update(values)
        self._append(seq, steady)
        known = np.isfinite(steady)
        self._seen[known] += 1
        self._age[known] += 1
        self._calibrate(seq, known)
        fresh = self._steady.changed()
        if fresh.size:
            self._refilter(fresh)
            steady = self._rows[self._end - 1].copy()
        if self._marks.due():
            self._mark(seq)
        standard = (steady - self._centre) / self._scale
        self.bocd.update(np.clip(standard, -60.0, 60.0))  # a stuck step of minutes must not become infinite evidence
        self._follow(steady)
        return steady, known

    # -- internals -------------------------------------------------------------------------------------------

    def _append(self, seq: int, values: Floats) -> None:
        if self._end == 2 * HISTORY:
            self._rows[:HISTORY] = self._rows[HISTORY:].copy()
            self._seqs[:HISTORY] = self._seqs[HISTORY:].copy()
            self._end = HISTORY
        self._rows[self._end], self._seqs[self._end] = values, seq
        self._end += 1

    def _recent(self, rows: int) -> Floats:
        return self._rows[max(0, self._end - rows) : self._end]

    def _history(self, series: int) -> tuple[Ints, Floats]:
        """Sequence numbers and known values of one series, oldest first."""
        column = self._rows[: self._end, series]
        known = np.isfinite(column)
        known[: max(0, self._end - HISTORY)] = False
        return self._seqs[: self._end][known], column[known]

    def _calibrate(self, seq: int, known: npt.NDArray[np.bool_]) -> None:
        """Learn centre, noise and baseline of series that have just seen enough, and feed them their past."""
        config = self.config
        due = np.flatnonzero((self._seen == config.warm_up) & np.isnan(self._centre))
        if due.size:
            past = self._recent(HISTORY)[:, due]
            self._centre[due] = self._slow[due] = self._trail[due] = self.level[due] = self.baseline[due] = levels(past)
            self._scale[due] = jitter(past, config.noise_floor)
            self._segment[due] = seq - config.warm_up + 1
            self._replay(due)
        for rows in (SETTLED, config.baseline_steps):
            due = np.flatnonzero((self._age == rows) & known & np.isfinite(self.level))
            if due.size:
                self._settle(due, levels(self._recent(rows)[:, due]), rows)

    def _settle(self, due: npt.NDArray[np.intp], level: Floats, rows: int) -> None:
        """A segment has lasted: its level is better known now, and if it is the first or the fastest one, healthy."""
        self.level[due] = np.where(np.isfinite(level), level, self.level[due])
        first = self._seen[due] <= rows
        faster = (self.raised_since[due] < 0) & (rows >= self.config.baseline_steps) & (level < self.baseline[due])
        self.baseline[due] = np.where((first | faster) & np.isfinite(level), level, self.baseline[due])

    def _mark(self, seq: int) -> None:
        """Remember where every series is; one that becomes faster without any step takes its levels along."""
        level = levels(self._recent(2 * self.config.small_steps))
        everyone = np.arange(level.size)
        slowest = np.fmax(
            np.fmax(level, self._trail), self._marks.at(np.full(level.size, seq), everyone, self.baseline)
        )
        self._marks.add(seq, level)
        with np.errstate(invalid="ignore"):
            faster = (self.raised_since < 0) & (slowest < self.baseline - 0.5 * self.config.least)
        faster &= self._segment <= seq - SETTLED
        self.baseline[faster] = self.level[faster] = slowest[faster]

    def _replay(self, due: npt.NDArray[np.intp]) -> None:
        """Give the past, but the newest row, to the change-point core of series whose noise has just become known."""
        past = self._recent(HISTORY)[:-1]
        for row in past:
            values = np.full(self._seen.size, np.nan)
            values[due] = (row[due] - self._centre[due]) / self._scale[due]
            self.bocd.update(np.clip(values, -60.0, 60.0))

    def _refilter(self, series: Ints) -> None:
        """Begin to take a pattern out of `series`: their past and all their levels become those of the new filter."""
        series = series[np.isfinite(self._centre[series])]
        if not series.size:
            return
        past = self._steady.history(series)
        rows = min(len(past), self._end)
        raw = np.where(np.isfinite(past[-rows:]), self._recent(rows)[:, series], np.nan)
        move = levels(past[-rows:]) - levels(raw)
        self._rows[: self._end, series] = np.nan
        self._rows[self._end - rows : self._end, series] = past[-rows:]
        for array in (self._centre, self._trail, self._slow, self.baseline, self.level):
            array[series] += move
        self._marks.move(series, move)
        self._scale[series] = jitter(past, self.config.noise_floor)
        self._longest[:, series] = 0
        which = np.zeros(self._seen.size, dtype=np.bool_)
        which[series] = True
        self.bocd.forget(which)
        self._replay(series)

    def _follow(self, values: Floats) -> None:
        """Count how long each series is away from its level; what comes back on its own sets the patience."""
        known = np.isfinite(values) & np.isfinite(self.level)
        away = np.fmax(0.5 * np.log(self.config.clear_ratio), 3.0 * self._scale)
        with np.errstate(invalid="ignore"):
            apart = np.stack([values < self._slow - away, values > self._slow + away])
        # One wild value on the other side ends nothing, two do.
        ended = ~apart & (self._excursion > 0) & known & (~apart[::-1] | (self._excursion[::-1] > 0))
        limit = 2 * self.config.small_steps  # longer ones are segments of their own, not jitter
        counted = ended & (self._excursion <= limit)
        self._longest = np.where(counted, np.maximum(self._longest, self._excursion), self._longest)
        self._excursion = np.where(ended, 0, self._excursion + (apart & known))
        pull = np.clip(values - self._trail, -3.0 * self._scale, 3.0 * self._scale)
        self._trail = np.where(known, self._trail + pull / 12.0, self._trail)
        pull = np.clip(values - self._slow, -self._scale, self._scale)
        self._slow = np.where(known, self._slow + pull / 100.0, self._slow)

    # -- state -----------------------------------------------------------------------------------------------

    _ARRAYS: Final = (
        "_rows", "_seqs", "_seen", "_age", "_centre", "_scale", "_segment", "_excursion", "_longest", "_trail",
        "_slow", "_told", "baseline", "level", "raised_since",
    )  # fmt: skip

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state; `load` takes it back."""
        own: dict[str, npt.NDArray[Any]] = {name: getattr(self, name) for name in self._ARRAYS}
        own |= {"_places": np.array([self._end]), **self._marks.arrays(), **self._steady.arrays()}
        return own | {f"bocd.{name}": array for name, array in self.bocd.arrays().items()}

    def load(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `arrays`."""
        for name in self._ARRAYS:
            setattr(self, name, arrays[name].copy())
        self._end = int(arrays["_places"][0])
        self._marks.load(arrays)
        self._steady.load(arrays)
        self.bocd.load({name[5:]: array for name, array in arrays.items() if name.startswith("bocd.")})
