"""Level shifts of many series at once: proposed by Bayesian online change points, believed only after verification.

Sources: proposal by Adams and MacKay 2007 (`pace.bocd`); verification by Wu et al., Falcon, 2024, section 4.2,
with the mean after against the mean before; comparison with the level of the last accepted segment as well, because the
one change that Falcon missed is a staircase of steps each too small to count, and a slow drift has no step at all.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from detectors.job.common_mode import quiet_median
from detectors.pace.level_state import SETTLED, LevelState
from detectors.pace.shifts import Shift
from detectors.pace.verification import (
    BEFORE,
    PAUSE,
    RESUMED,
    agree,
    began,
    knee,
    lasting_jitter,
    levels,
    middle,
    refine,
    restart_rows,
    trimmed,
)

Floats = npt.NDArray[np.float64]
NEAR: Final = 15  # values on each side that tell a step from a slope
CREEP: Final = 24  # newest values that a slow rise is judged by
CREPT: Final = 0.94  # share of the smallest change that a slow rise, known from more values, must have reached
DOUBT: Final = 9.0  # residual variances: an onset is named late enough to be right by three standard errors
SAME: Final = 100  # rows within which a further small rise belongs to the staircase or drift that is told already


class LevelShifts(LevelState):
    """Finds level shifts in log series, row by row.

    Parameters
    ----------
    config : ShiftConfig
        Thresholds.

    Notes
    -----
    Per series and row the cost is constant, and so is the state, however long the series.

    Examples
    --------
    >>> from detectors.pace.shifts import ShiftConfig
    >>> shifts = LevelShifts(ShiftConfig())
    >>> found = []
    >>> noise = np.random.default_rng(0).normal(0.0, 0.01, 80)
    >>> for seq in range(80):
    ...     found += shifts.update(seq, np.array([noise[seq] + (0.4 if seq >= 50 else 0.0)]))
    >>> [(shift.onset, shift.reported, shift.slower) for shift in found]
    [(50, 53, True)]
    """

    def update(self, seq: int, values: Floats, stride: int | npt.NDArray[np.int64] = 1) -> list[Shift]:
        """Take in one row of log values [series], NaN = unknown; the changes that it verified.

        `stride` is how many iterations a row stands for where only every so many are sampled.
        """
        _, known = self.take(seq, values)
        verified = (self._verify(int(series), seq, run) for series, run in self._candidates(known))
        found = [shift for shift in verified if shift is not None]
        found = [shift for shift in found if self._accept(shift)]
        found += self._crept(seq, known, np.broadcast_to(stride, values.shape))
        return found + self._relieved(seq, known)

    # -- internals -------------------------------------------------------------------------------------------

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
        clear = bool(size >= np.log(config.clear_ratio) and size >= config.clear_noises * noise and separate >= 0.95)
        error = noise * np.sqrt(1.0 / len(before) + 1.0 / len(after))
        small = size >= config.least and size >= config.small_evidence * error
        # On a slope the two sides differ because they are long, not where they meet.
        near = np.concatenate([before[-NEAR:], after[:NEAR]])
        small = small and abs(_apart(near, min(len(after), NEAR))) > 0.5 * size
        if not slower and self.raised_since[series] < 0:  # faster than healthy: warm caches after a pause, mostly
            small = small and size >= np.log(config.minimum_ratio) and not restart_rows(values, onset, RESUMED)
        if not (clear or small) or len(values) - onset < self._patience(
            series, values, (len(before), onset), clear, slower
        ):
            return None
        return Shift(series, int(seqs[onset]), seq, float(np.exp(low)), float(np.exp(high)), "segment")

    def _patience(self, series: int, values: Floats, place: tuple[int, int], clear: bool, slower: bool) -> int:
        """How many values a change must have lasted for; `place` is how many values are before it, and its onset."""
        config, (rows, onset) = self.config, place
        after = values[onset:]
        needed = config.clear_steps if clear else config.small_steps
        few = clear and len(after) < config.clear_steps + 2
        if few and not agree(values[onset - rows : onset], after, config.noise_floor):
            needed += 2  # three slow steps and another one that chanced to follow
        if slower:
            paused = restart_rows(values, onset, PAUSE)
            needed = config.warm_up + paused if paused else needed  # a restart has its own slow start
        elif self.raised_since[series] < 0:
            needed = config.small_steps if clear else 2 * config.small_steps
        return max(needed, int(self._longest[int(slower), series]) + 1)

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

    def _crept(self, seq: int, known: npt.NDArray[np.bool_], stride: npt.NDArray[np.int64]) -> list[Shift]:
        """Series that have left the level accepted last without any one clear step."""
        config = self.config
        with np.errstate(invalid="ignore"):
            look = known & (self._trail > self.level + 0.6 * config.least)
        look &= ~self._pending()
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

    def _pending(self) -> npt.NDArray[np.bool_]:
        """Series that have just stepped up, perhaps right after a restart: `_verify` is waiting for that to last."""
        config, out = self.config, self._excursion[1]
        young: npt.NDArray[np.bool_] = (out >= config.clear_steps) & (out <= 2 * config.small_steps)
        if not young.any():
            return young
        with np.errstate(invalid="ignore"):
            paused = (self._recent(CREEP) > self._slow + np.log(PAUSE)).any(axis=0)
        young &= paused | (out <= config.small_steps)
        return young

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
        stair, bend = began(points, base, 1.5 * width), knee(places, points, base, DOUBT)
        rise = float(points[stair + 1 : stair + 4].mean()) - base if stair + 1 < len(points) else 0.0
        if rise > 0.3 * np.log(self.config.minimum_ratio):
            stair = began(points, base, max(1.5 * width, 0.5 * rise))  # a wobble before it is no stair
            return min(int(places[stair]), int(seqs[-CREEP]))
        # Stairs that the noise hides meet the base before they begin:
        # somewhere between the knee and the first level that is certainly off the base.
        late = max(self.config.small_steps // 2, int(0.3 * (places[stair] - places[bend])))
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


def _apart(values: Floats, newest: int) -> float:
    """Median of the `newest` values less that of those before them."""
    return float(np.median(values[-newest:]) - np.median(values[:-newest]))
