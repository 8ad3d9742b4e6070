"""Level shifts of many series at once: proposed by Bayesian online change points, believed only after verification.

Sources: proposal by Adams and MacKay 2007 (`detectors.bocd`); verification by Wu et al., Falcon, 2024, section 4.2,
with the mean after against the mean before; comparison with the level of the last accepted segment as well, because the
one change that Falcon missed is a staircase of steps each too small to count, and a slow drift has no step at all.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from detectors.bocd import Bocd
from detectors.common_mode import quiet_median
from detectors.shifts import Shift, ShiftConfig
from detectors.verification import (
    BEFORE,
    LevelMarks,
    began,
    jitter,
    knee,
    lasting_jitter,
    levels,
    middle,
    refine,
    trimmed,
)

Floats = npt.NDArray[np.float64]
HISTORY: Final = 160  # rows kept for the means before and after
NEAR: Final = 15  # values on each side that tell a step from a slope
CREEP: Final = 24  # newest values that a slow rise is judged by
CREPT: Final = 0.94  # share of the smallest change that a slow rise, known from more values, must have reached
SETTLED: Final = 30  # values after which a level is known better than when its change was verified
NEVER: Final = -1_000_000_000
SAME: Final = 100  # rows within which a further small rise belongs to the staircase or drift that is told already


class LevelShifts:
    """Finds level shifts in log series, row by row.

    Parameters
    ----------
    config : ShiftConfig
        Thresholds.

    Notes
    -----
    `level` [series] is the log level of the present segment; `baseline` the healthy log level (NaN until known);
    `raised_since` the sequence number from which the series has been above its healthy baseline (-1: it is not).
    Per series and row the cost is constant, and so is the state, however long the series.

    Examples
    --------
    >>> shifts = LevelShifts(ShiftConfig())
    >>> found = []
    >>> noise = np.random.default_rng(0).normal(0.0, 0.01, 80)
    >>> for seq in range(80):
    ...     found += shifts.update(seq, np.array([noise[seq] + (0.4 if seq >= 50 else 0.0)]))
    >>> [(shift.onset, shift.reported, shift.slower) for shift in found]
    [(50, 53, True)]
    """

    def __init__(self, config: ShiftConfig) -> None:
        self.config = config
        self.bocd = Bocd(0, config.hazard)
        self._rows: Floats = np.full((2 * HISTORY, 0), np.nan)
        self._seqs = np.full(2 * HISTORY, -1, dtype=np.int64)
        self._marks = LevelMarks()
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

    def update(self, seq: int, values: Floats, stride: int | npt.NDArray[np.int64] = 1) -> list[Shift]:
        """Take in one row of log values [series], NaN = unknown; the changes that it verified.

        `stride` is how many iterations a row stands for where only every so many are sampled.
        """
        self.widen(values.size)
        self._append(seq, values)
        known = np.isfinite(values)
        self._seen[known] += 1
        self._age[known] += 1
        self._calibrate(seq, known)
        if self._marks.due():
            self._mark(seq)
        standard = (values - self._centre) / self._scale
        self.bocd.update(np.clip(standard, -60.0, 60.0))  # a stuck step of minutes must not become infinite evidence
        self._follow(values)
        verified = (self._verify(int(series), seq, run) for series, run in self._candidates(known))
        found = [shift for shift in verified if shift is not None]
        found = [shift for shift in found if self._accept(shift)]
        found += self._crept(seq, known, np.broadcast_to(stride, values.shape))
        return found + self._relieved(seq, known)

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
        """Give the warm-up values, but the last, to the change-point core of series that have just calibrated."""
        past = self._recent(HISTORY)[:-1]
        for row in past:
            values = np.full(self._seen.size, np.nan)
            values[due] = (row[due] - self._centre[due]) / self._scale[due]
            self.bocd.update(np.clip(values, -60.0, 60.0))

    def _history(self, series: int) -> tuple[npt.NDArray[np.int64], Floats]:
        """Sequence numbers and known values of one series, oldest first."""
        column = self._rows[: self._end, series]
        known = np.isfinite(column)
        known[: max(0, self._end - HISTORY)] = False
        return self._seqs[: self._end][known], column[known]

    def _candidates(self, known: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
        """(series, run length) whose present segment is probably younger than the one last accepted, and apart.

        A segment that holds a wild value explains a change for a while before the posterior lets go of it; an unbroken
        row of values off the level is proposed without waiting for that.
        """
        shortest, longest = self.config.clear_steps, 2 * BEFORE
        run, away = self.bocd.most_likely_run(), self._excursion.max(axis=0)
        ready = known & np.isfinite(self._centre)
        off = ready & (away >= shortest) & (away <= longest)
        young = ready & ~off & (run >= shortest) & (run <= longest)
        if young.any():
            mean = self._centre + self._scale * self.bocd.most_likely_mean()
            young &= np.abs(mean - self._slow) > 0.6 * self.config.least
        if young.any():
            young &= self.bocd.mass_between(shortest, np.minimum(longest, self._seen - 5)) > self.config.mass
        return [(int(one), int(away[one] if off[one] else run[one])) for one in np.flatnonzero(off | young)]

    def _verify(self, series: int, seq: int, run: int) -> Shift | None:
        config = self.config
        seqs, values = self._history(series)
        first = int(np.searchsorted(seqs, self._segment[series]))
        onset = len(values) - run
        if onset - first < 6 or abs(_apart(values[max(first, onset - BEFORE) :], run)) < 0.5 * config.least:
            return None
        onset = refine(values, first, onset)
        before, after = values[max(first, onset - BEFORE) : onset], values[onset:]
        if len(before) < 6 or len(after) < config.clear_steps:
            return None
        low, high = middle(before), middle(after)
        slower = high > low
        # Both the median and the trimmed mean must have moved: isolated slow steps move the one but not the other.
        means = trimmed(after, slower=slower) - float(levels(before))
        size = min(abs(high - low), max(0.0, means if slower else -means))
        noise = lasting_jitter(before, config.noise_floor)
        separate = np.mean(before < after.min()) if slower else np.mean(before > after.max())
        clear = size >= np.log(config.clear_ratio) and size >= config.clear_noises * noise and separate >= 0.95
        error = noise * np.sqrt(1.0 / len(before) + 1.0 / len(after))
        small = size >= config.least and size >= config.small_evidence * error
        # On a slope the two sides differ because they are long, not where they meet.
        near = np.concatenate([before[-NEAR:], after[:NEAR]])
        small = small and abs(_apart(near, min(len(after), NEAR))) > 0.5 * size
        patience = int(self._longest[int(slower), series]) + 1
        needed = config.clear_steps if clear else config.small_steps
        if not slower and self.raised_since[series] < 0:  # faster than healthy: warm caches after a pause, mostly
            small = small and size >= np.log(config.minimum_ratio)
            needed = config.small_steps if clear else 2 * config.small_steps
        if not (clear or small) or len(after) < max(needed, patience):
            return None
        return Shift(series, int(seqs[onset]), seq, float(np.exp(low)), float(np.exp(high)), "segment")

    def _accept(self, shift: Shift) -> bool:
        """Make `shift` the present segment; False if it only goes on with a change that has been told."""
        series, config = shift.series, self.config
        level = float(np.log(shift.after))
        onset, reported, direction = self._told[:, series]
        small = abs(level - np.log(shift.before)) < np.log(config.clear_ratio)
        within = config.drift_steps if shift.basis == "baseline" and shift.slower else SAME
        again = shift.onset - onset < config.small_steps or (small and shift.onset - reported < within)
        self._begin(shift, level)
        return not (again and direction == (1 if shift.slower else -1))

    def _begin(self, shift: Shift, level: float) -> None:
        series = shift.series
        self._segment[series] = shift.onset
        self.level[series] = self._trail[series] = self._slow[series] = level
        self._told[:, series] = shift.onset, shift.reported, 1 if shift.slower else -1
        self._age[series] = np.count_nonzero(
            np.isfinite(self._rows[: self._end, series]) & (self._seqs[: self._end] >= shift.onset)
        )
        self._excursion[:, series] = 0
        raised = level - self.baseline[series] >= self.config.least
        if raised and self.raised_since[series] < 0:
            self.raised_since[series] = shift.onset
        elif not raised:
            self.raised_since[series] = -1

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

    def _crept(self, seq: int, known: npt.NDArray[np.bool_], stride: npt.NDArray[np.int64]) -> list[Shift]:
        """Series that have left the level accepted last without any one clear step."""
        config = self.config
        with np.errstate(invalid="ignore"):
            look = known & (self._trail > self.level + 0.6 * config.least)
        series = np.flatnonzero(look & (self._segment <= seq - CREEP) & (self._seen > config.warm_up + CREEP))
        if series.size == 0:
            return []
        newest, base = self._recent(CREEP)[:, series], self.level[series]
        now = np.fmin(levels(newest), quiet_median(newest))
        high = now > np.fmax(base, self.baseline[series]) + CREPT * np.log(config.minimum_ratio)
        series, now, base = series[high], now[high], base[high]
        # A drift that has gone on all the time is the program's own (growing windows or sequences): a fault comes
        # faster, or on top of the pace that the series had in the first half of its present segment.
        risen = now - np.maximum(self._marks.at(seq - config.drift_steps // stride[series], series, base), base)
        fast = risen > 0.7 * np.log(config.minimum_ratio)
        half = self._marks.at(self._segment[series] + (seq - self._segment[series]) // 2, series, base)
        onward = now > base + 2.0 * np.maximum(half - base, 0.0) + 0.4 * np.log(config.minimum_ratio)
        due = fast | onward
        told = (self._creep(int(one), seq, float(level)) for one, level in zip(series[due], now[due], strict=True))
        return [shift for shift in told if shift is not None]

    def _creep(self, series: int, seq: int, level: float) -> Shift | None:
        base = float(self.level[series])
        noise = lasting_jitter(self._history(series)[1][-2 * BEFORE :], self.config.noise_floor)
        if level - base < self.config.small_evidence * noise * np.sqrt(1.0 / CREEP + 1.0 / SETTLED):
            return None
        onset = self._onset(series, base)
        shift = Shift(series, onset, seq, float(np.exp(base)), float(np.exp(level)), "baseline")
        fresh = self._accept(shift)
        self._segment[series] = seq - CREEP
        return shift if fresh else None

    def _onset(self, series: int, base: float) -> int:
        """Where the rise above `base` began: the first stair if there is one, else the knee of the slope."""
        seqs, values = self._history(series)
        marks, past = self._marks.of(series)
        old = (marks >= self._segment[series]) & (marks < seqs[0])
        blocks = np.array_split(values, max(1, len(values) // 8))
        places = np.concatenate([marks[old] - self.config.small_steps, seqs[3::8][: len(blocks)]])
        points = np.concatenate([past[old], [np.median(block) for block in blocks]])[: len(places)]
        width = max(float(self._scale[series]) * 1.25 / np.sqrt(8.0), 0.004)
        stair, bend = began(points, base, 1.5 * width), knee(places, points, base)
        rise = points[stair : stair + 2].mean() - points[max(0, stair - 2) : max(1, stair)].mean()
        if rise > 0.25 * np.log(self.config.minimum_ratio):
            return min(int(places[stair]), int(seqs[-CREEP]))
        # A knee is known to about ten rows either way, and stairs that the noise hides meet the base before they begin:
        # somewhere between the knee and the first level that is certainly off the base.
        late = max(self.config.small_steps, int(0.3 * (places[stair] - places[bend])))
        return min(int(places[bend]) + late, int(seqs[-CREEP]))

    def _relieved(self, seq: int, known: npt.NDArray[np.bool_]) -> list[Shift]:
        """Series that have come back to their baseline, however gently; the way back is a change too."""
        rows = self.config.small_steps
        raised = np.flatnonzero(known & (self.raised_since >= 0) & (self.raised_since <= seq - rows))
        if raised.size == 0:
            return []
        excess = self.level[raised] - self.baseline[raised]
        now = quiet_median(self._recent(rows)[:, raised])
        little = excess < np.log(self.config.clear_ratio)  # so little that ten values may only look like it
        now = np.where(little, np.fmax(now, levels(self._recent(2 * rows)[:, raised])), now)
        back = now < self.baseline[raised] + np.fmin(0.6 * self.config.least, 0.4 * excess)
        found = []
        for series, level in zip(raised[back], now[back], strict=True):
            seqs, values = self._history(int(series))
            between = 0.5 * (self.level[series] + self.baseline[series])
            onset = int(seqs[began(-values, -between, 0.0)])
            before = float(np.exp(self.level[series]))
            shift = Shift(int(series), onset, seq, before, float(np.exp(level)), "baseline")
            if self._accept(shift):
                found.append(shift)
            self.raised_since[series] = -1
        return found

    # -- state -----------------------------------------------------------------------------------------------

    _ARRAYS: Final = (
        "_rows", "_seqs", "_seen", "_age", "_centre", "_scale", "_segment", "_excursion", "_longest", "_trail",
        "_slow", "_told", "baseline", "level", "raised_since",
    )  # fmt: skip

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state; `load` takes it back."""
        own: dict[str, npt.NDArray[Any]] = {name: getattr(self, name) for name in self._ARRAYS}
        own["_places"] = np.array([self._end])
        return own | self._marks.arrays() | {f"bocd.{name}": array for name, array in self.bocd.arrays().items()}

    def load(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `arrays`."""
        for name in self._ARRAYS:
            setattr(self, name, arrays[name].copy())
        self._end = int(arrays["_places"][0])
        self._marks.load(arrays)
        self.bocd.load({name[5:]: array for name, array in arrays.items() if name.startswith("bocd.")})


def _apart(values: Floats, newest: int) -> float:
    """Median of the `newest` values less that of those before them."""
    return float(np.median(values[-newest:]) - np.median(values[:-newest]))
