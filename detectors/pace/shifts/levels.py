"""What is known of the level of many series: where it is, where it is healthy, how noisy it is.

Bounded in memory and constant in cost per row, however long the series.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.pace.shifts.history import HISTORY, LevelMarks, RowHistory
from trainwarden.detectors.pace.shifts.robust import jitter, levels
from trainwarden.detectors.pace.shifts.shift import Thresholds

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
GAINED: Final = 0.5  # of the smallest change: a program that has become so much faster has another healthy level
SETTLED: Final = 30  # values after which a level is known better than when its change was verified
TRAIL_ROWS: Final = 12.0  # rows over which `trail` follows, half of those that a slow rise is judged by,
TRAIL_NOISES: Final = 3.0  # and how much of one value it believes
SLOW_ROWS: Final = 100.0  # rows over which `slow` follows: an excursion of 20 moves it by a fifth,
SLOW_NOISES: Final = 1.0  # and that by no more noise widths


class Levels:
    """Levels of many series and the rows that they are known from.

    Parameters
    ----------
    config : Thresholds

    Attributes
    ----------
    level, baseline : float [series]
        Log level of the present segment; healthy log level; both NaN until known.
    raised_since : int [series]
        Sequence number from which the series has been above its healthy baseline (-1: it is not).
    segment, age, seen : int [series]
        Where the present segment began, how many values it has, how many the series has.
    centre, scale : float [series]
        First level and noise: what a value is standardised by.
    trail, slow : float [series]
        The level followed within some ten rows, and within a hundred.

    Notes
    -----
    `trainwarden.detectors.pace.periodic.SeasonalityFilter` has removed repeating patterns from all rows.
    """

    def __init__(self, config: Thresholds) -> None:
        self.config = config
        self.rows = RowHistory()
        self.marks = LevelMarks()
        self._gentle_gain = config.keeps("gentle_gain")
        self.seen = np.zeros(0, dtype=np.int64)
        self.age = np.zeros(0, dtype=np.int64)
        self.segment = np.zeros(0, dtype=np.int64)
        self.raised_since = np.zeros(0, dtype=np.int64)
        self.centre: Floats = np.zeros(0)
        self.scale: Floats = np.zeros(0)
        self.trail: Floats = np.zeros(0)
        self.slow: Floats = np.zeros(0)
        self.baseline: Floats = np.zeros(0)
        self.level: Floats = np.zeros(0)

    _LEVELS: Final = ("centre", "trail", "slow", "baseline", "level")
    _ARRAYS: Final = ("seen", "age", "segment", "raised_since", "scale", *_LEVELS)

    def resize(self, more: int) -> None:
        """Add `more` series."""
        self.rows.resize(more)
        self.marks.resize(more)
        for name in ("seen", "age"):
            setattr(self, name, np.append(getattr(self, name), np.zeros(more, dtype=np.int64)))
        for name in ("segment", "raised_since"):
            setattr(self, name, np.append(getattr(self, name), np.full(more, -1, dtype=np.int64)))
        for name in ("scale", *self._LEVELS):
            setattr(self, name, np.append(getattr(self, name), np.full(more, np.nan)))

    def forget(self, which: Flags) -> None:
        """Begin afresh with the series `which` [series]."""
        self.rows.values[:, which] = np.nan
        self.marks.forget(which)
        self.seen[which] = self.age[which] = 0
        self.segment[which] = self.raised_since[which] = -1
        for name in ("scale", *self._LEVELS):
            getattr(self, name)[which] = np.nan

    def rebase(self, series: int) -> None:
        """Take the present level of `series` for healthy: its last change was planned."""
        self.baseline[series] = self.level[series]
        self.raised_since[series] = -1

    def is_healthy(self, series: int, level: float) -> bool:
        """True if `level` is nearer to the healthy baseline of `series` than any change that counts."""
        return bool(abs(level - self.baseline[series]) < self.config.least)

    def observe(self, seq: int, values: Floats) -> Flags:
        """Keep one row of log values [series], NaN = unknown; which of it is known."""
        self.rows.append(seq, values)
        known = np.isfinite(values)
        self.seen[known] += 1
        self.age[known] += 1
        return known

    def calibrate(self, seq: int, known: Flags) -> npt.NDArray[np.intp]:
        """Learn centre, noise and baseline of the series that have just been seen for long enough; which ones."""
        config = self.config
        begun = np.flatnonzero((self.seen == config.warm_up) & np.isnan(self.centre))
        if begun.size:
            past = self.rows.recent(HISTORY)[:, begun]
            first = levels(past)
            for name in self._LEVELS:
                getattr(self, name)[begun] = first
            self.scale[begun] = jitter(past, config.noise_floor)
            self.segment[begun] = seq - config.warm_up + 1
        for rows in (SETTLED, config.baseline_steps):
            due = np.flatnonzero((self.age == rows) & known & np.isfinite(self.level))
            if due.size:
                self._settle(due, levels(self.rows.recent(rows)[:, due]), rows)
        return begun

    def filter_again(self, series: Ints, past: Floats) -> None:
        """Make `past` [rows, series] of `series`, of which another pattern is taken out now; all levels move along."""
        rows = min(len(past), self.rows.end)
        raw = np.where(np.isfinite(past[-rows:]), self.rows.recent(rows)[:, series], np.nan)
        move = levels(past[-rows:]) - levels(raw)
        self.rows.replace(series, past[-rows:])
        for name in self._LEVELS:
            getattr(self, name)[series] += move
        self.marks.move(series, move)
        self.scale[series] = jitter(past, self.config.noise_floor)

    def mark(self, seq: int) -> None:
        """Now and then, remember where every series is; one that gets faster without a step takes its levels along."""
        if not self.marks.due():
            return
        level = levels(self.rows.recent(2 * self.config.small_steps))
        everyone = np.arange(level.size)
        slowest = np.fmax(np.fmax(level, self.trail), self.marks.at(np.full(level.size, seq), everyone, self.baseline))
        self.marks.add(seq, level)
        if not self._gentle_gain:
            return
        with np.errstate(invalid="ignore"):
            faster = (self.raised_since < 0) & (slowest < self.baseline - GAINED * self.config.least)
        faster &= self.segment <= seq - SETTLED
        self.baseline[faster] = self.level[faster] = slowest[faster]
        self.slow[faster] = np.minimum(self.slow[faster], slowest[faster])  # or a step back to it is none

    def standard(self, values: Floats) -> Floats:
        """`values` [series] in noise widths from the first level."""
        return (values - self.centre) / self.scale

    def follow(self, values: Floats) -> None:
        """Let `trail` and `slow` follow one row of values [series]."""
        known = np.isfinite(values) & np.isfinite(self.level)
        reach = TRAIL_NOISES * self.scale
        pull = np.clip(values - self.trail, -reach, reach)
        self.trail = np.where(known, self.trail + pull / TRAIL_ROWS, self.trail)
        reach = SLOW_NOISES * self.scale
        pull = np.clip(values - self.slow, -reach, reach)
        self.slow = np.where(known, self.slow + pull / SLOW_ROWS, self.slow)

    def begin(self, series: int, seq: int, level: float) -> None:
        """A segment of `series` at `level` began in row `seq`."""
        self.segment[series] = seq
        self.level[series] = self.trail[series] = self.slow[series] = level
        self.age[series] = self.rows.since(series, seq)
        raised = level - self.baseline[series] >= self.config.least
        if raised and self.raised_since[series] < 0:
            self.raised_since[series] = seq
        elif not raised:
            self.raised_since[series] = -1

    # -- internals -------------------------------------------------------------------------------------------

    def _settle(self, due: npt.NDArray[np.intp], level: Floats, rows: int) -> None:
        """A segment has lasted: its level is better known now, and if it is the first or the fastest one, healthy."""
        self.level[due] = np.where(np.isfinite(level), level, self.level[due])
        first = self.seen[due] <= rows
        faster = (self.raised_since[due] < 0) & (rows >= self.config.baseline_steps) & (level < self.baseline[due])
        self.baseline[due] = np.where((first | faster) & np.isfinite(level), level, self.baseline[due])
