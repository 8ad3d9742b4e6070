"""Level shifts of many series at once: proposed by Bayesian online change points, believed only after verification.

Sources: proposal by Adams and MacKay 2007 (`detectors.bocd`); verification by Wu et al., Falcon, 2024, section 4.2,
with the mean after against the mean before; comparison with the healthy baseline as well, because the one change that
Falcon missed is a staircase of steps each too small to count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.bocd import Bocd
from detectors.common_mode import quiet_median
from detectors.verification import BEFORE, LevelMarks, jitter, middle, refine, trimmed
from trainwarden.settings import Config

Floats = npt.NDArray[np.float64]
HISTORY: Final = 160  # rows kept for the means before and after


class ShiftConfig(Config, frozen=True, kw_only=True):
    """When a level shift counts.

    Attributes
    ----------
    hazard : float
        Prior probability of a change at any one step.
    minimum_ratio : float
        Smallest change that counts (Falcon: 10 %).
    clear_ratio : float
        A change that looks this large (a true 20 % looks like 17 as often as like 23) is verified after
        `clear_steps` if it stands clear of the noise. Clusters of three slow steps are common in healthy recorded
        runs, so the fourth decides: still within three iterations of the first.
    noise_floor : float
        Relative noise below which a series is never taken to be, so that a constant one never alarms.
    """

    hazard: Annotated[float, msgspec.Meta(gt=0.0, lt=0.5)] = 0.004
    mass: Annotated[float, msgspec.Meta(gt=0.5, lt=1.0)] = 0.9
    minimum_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=3.0)] = 1.10
    clear_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=5.0)] = 1.17
    clear_steps: Annotated[int, msgspec.Meta(ge=3, le=100)] = 4
    small_steps: Annotated[int, msgspec.Meta(ge=5, le=60)] = 10
    warm_up: Annotated[int, msgspec.Meta(ge=6, le=60)] = 12
    baseline_steps: Annotated[int, msgspec.Meta(ge=10, le=120)] = 30
    noise_floor: Annotated[float, msgspec.Meta(gt=0.0, le=0.5)] = 0.01
    clear_noises: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    small_noises: Annotated[float, msgspec.Meta(gt=0.0)] = 2.0


@dataclass(frozen=True, slots=True)
class Shift:
    """One verified change of one series; sequence numbers are those of the rows given to `update`."""

    series: int
    onset: int
    reported: int
    before: float
    after: float
    basis: Literal["segment", "baseline"]

    @property
    def slower(self) -> bool:
        """True if the level rose."""
        return self.after > self.before


class LevelShifts:
    """Finds level shifts in log series, row by row.

    Parameters
    ----------
    config : ShiftConfig
        Thresholds.

    Notes
    -----
    `level` [series] is the log level of the present segment relative to nothing; `baseline` the healthy log level
    (NaN until known); `raised_since` the sequence number from which the series has been above its healthy baseline
    (-1: it is not).

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
        self._excursion = np.zeros((2, 0), dtype=np.int64)
        self._longest = np.zeros((2, 0), dtype=np.int64)
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
        for name in ("_centre", "_scale", "baseline", "level"):
            setattr(self, name, np.append(getattr(self, name), np.full(more, np.nan)))
        for name in ("_segment", "raised_since"):
            setattr(self, name, np.append(getattr(self, name), np.full(more, -1, dtype=np.int64)))
        for name in ("_excursion", "_longest"):
            setattr(self, name, np.hstack([getattr(self, name), np.zeros((2, more), dtype=np.int64)]))

    def forget(self, which: npt.NDArray[np.bool_]) -> None:
        """Begin afresh with the series `which` [series]: another node, another layout."""
        self.bocd.forget(which)
        self._rows[:, which] = np.nan
        self._marks.forget(which)
        self._seen[which] = 0
        self._centre[which] = self._scale[which] = np.nan
        self.baseline[which] = self.level[which] = np.nan
        self._segment[which] = self.raised_since[which] = -1
        self._excursion[:, which] = self._longest[:, which] = 0

    def update(self, seq: int, values: Floats) -> list[Shift]:
        """Take in one row of log values [series], NaN = unknown; the changes that it verified."""
        self.widen(values.size)
        self._append(seq, values)
        if self._marks.due():
            self._marks.add(quiet_median(self._recent(2 * self.config.small_steps)))
        known = np.isfinite(values)
        self._seen[known] += 1
        self._calibrate(seq)
        standard = (values - self._centre) / self._scale
        self.bocd.update(np.clip(standard, -60.0, 60.0))  # a stuck step of minutes must not become infinite evidence
        self._follow(values)
        runs = self.bocd.most_likely_run()
        candidates = self._candidates(known, runs)
        verified = (self._verify(int(series), seq, int(runs[series])) for series in candidates)
        found = [shift for shift in verified if shift is not None]
        for shift in found:
            self._accept(shift)
        raised = self._baseline_check(seq, known, {shift.series for shift in found})
        self._relieve(seq)
        return found + raised

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

    def _calibrate(self, seq: int) -> None:
        """Learn centre, noise and baseline of series that have just seen enough, and feed them their past."""
        due = np.flatnonzero((self._seen == self.config.warm_up) & np.isnan(self._centre))
        if due.size:
            past = self._recent(HISTORY)[:, due]
            self._centre[due] = self.level[due] = self.baseline[due] = quiet_median(past)
            self._scale[due] = jitter(past, self.config.noise_floor)
            self._segment[due] = seq - self.config.warm_up + 1
            self._replay(due)
        steps = self.config.baseline_steps
        due = np.flatnonzero((self._seen == steps) & (self._segment <= seq - steps + 1))
        if due.size:
            self.baseline[due] = quiet_median(self._recent(steps)[:, due])

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

    def _candidates(self, known: npt.NDArray[np.bool_], run: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        """Series whose present segment is probably younger than the one last accepted."""
        ready = known & np.isfinite(self._centre)
        if not ready.any():
            return np.zeros(0, dtype=np.intp)
        young = ready & (run >= self.config.clear_steps) & (run <= 2 * BEFORE)
        if not young.any():
            return np.zeros(0, dtype=np.intp)
        mass = self.bocd.mass_between(self.config.clear_steps, np.minimum(2 * BEFORE, self._seen - 5))
        return np.flatnonzero(young & (mass > self.config.mass))

    def _verify(self, series: int, seq: int, run: int) -> Shift | None:
        config = self.config
        seqs, values = self._history(series)
        first = int(np.searchsorted(seqs, self._segment[series]))
        onset = len(values) - run
        if onset - first < 6:
            return None
        onset = refine(values, first, onset)
        before, after = values[max(first, onset - BEFORE) : onset], values[onset:]
        if len(before) < 6 or len(after) < config.clear_steps:
            return None
        slower = bool(np.median(after) > np.median(before))
        low, high = middle(before), middle(after)
        # Both the median and the trimmed mean must have moved: isolated slow steps move the one but not the other.
        means = trimmed(after, slower=slower) - trimmed(before, slower=True)
        size = min(abs(high - low), max(0.0, means if slower else -means))
        noise = float(jitter(before, config.noise_floor))
        patience = 2 * int(self._longest[int(slower), series]) + 1
        separate = np.mean(before < after.min()) if slower else np.mean(before > after.max())
        clear = size >= np.log(config.clear_ratio) and size >= config.clear_noises * noise and separate >= 0.95
        small = size >= np.log(config.minimum_ratio) and size >= config.small_noises * noise
        unusual = not slower and self.raised_since[series] < 0  # faster than healthy: warm caches after a pause, mostly
        quick = config.small_steps if unusual else config.clear_steps
        needed = max(quick, patience) if clear else max(config.small_steps, patience)
        if not (clear or small) or len(after) < needed:
            return None
        return Shift(series, int(seqs[onset]), seq, float(np.exp(low)), float(np.exp(high)), "segment")

    def _accept(self, shift: Shift) -> None:
        series = shift.series
        self._segment[series] = shift.onset
        self.level[series] = np.log(shift.after)
        self._excursion[:, series] = 0
        base = self.baseline[series]
        raised = self.level[series] - base >= np.log(self.config.minimum_ratio)
        if raised and self.raised_since[series] < 0:
            self.raised_since[series] = shift.onset
        elif not raised:
            self.raised_since[series] = -1

    def _follow(self, values: Floats) -> None:
        """Count how long each series is away from its level; what comes back on its own sets the patience."""
        away = 0.5 * np.log(self.config.clear_ratio)
        with np.errstate(invalid="ignore"):
            apart = np.stack([values < self.level - away, values > self.level + away])
        known = np.isfinite(values) & np.isfinite(self.level)
        ended = ~apart & (self._excursion > 0) & known
        limit = 2 * self.config.small_steps  # longer ones are segments of their own, not jitter
        counted = ended & (self._excursion <= limit)
        self._longest = np.where(counted, np.maximum(self._longest, self._excursion), self._longest)
        self._excursion = np.where(known, np.where(apart, self._excursion + 1, 0), self._excursion)

    def _baseline_check(self, seq: int, known: npt.NDArray[np.bool_], busy: set[int]) -> list[Shift]:
        """Series that have crept above their healthy baseline without any one clear step."""
        config = self.config
        rows = 2 * config.small_steps
        settled = known & (self._seen > config.baseline_steps + rows) & (self.raised_since < 0)
        settled &= self._segment <= seq - rows  # the newest rows must not straddle a change that is accounted for
        if not settled.any():
            return []
        low = np.sort(self._recent(rows), axis=0)[rows // 4]
        least = np.log(config.minimum_ratio)
        # A drift that has gone on since the start is the program's own (growing windows or sequences): what counts
        # is what comes on top of the pace that it had from the start.
        grown = np.maximum(self._marks.halfway(self.baseline) - self.baseline, 0.0)
        with np.errstate(invalid="ignore"):
            high = settled & (low > self.baseline + least) & (low > self.baseline + 2.0 * grown + 0.4 * least)
        found = []
        for series in np.flatnonzero(high):
            if int(series) in busy:
                continue
            seqs, values = self._history(int(series))
            base = float(self.baseline[series])
            below = np.flatnonzero(values <= base + 0.2 * np.log(config.minimum_ratio))
            onset = int(seqs[min(int(below[-1]) + 1, len(seqs) - 1)]) if below.size else int(seqs[0])
            after = float(np.exp(trimmed(values[-rows:], slower=True)))
            shift = Shift(int(series), onset, seq, float(np.exp(base)), after, "baseline")
            found.append(shift)
            self._segment[series] = int(seqs[max(0, len(seqs) - rows)])
            self.level[series] = np.log(after)
            self.raised_since[series] = onset
        return found

    def _relieve(self, seq: int) -> None:
        """Let go of series that have come back to their baseline, however gently."""
        raised = np.flatnonzero((self.raised_since >= 0) & (self.raised_since <= seq - self.config.small_steps))
        if raised.size == 0:
            return
        recent = self._recent(self.config.small_steps)[:, raised]
        back = quiet_median(recent) < self.baseline[raised] + 0.6 * np.log(self.config.minimum_ratio)
        self.raised_since[raised[back]] = -1

    # -- state -----------------------------------------------------------------------------------------------

    _ARRAYS: Final = (
        "_rows", "_seqs", "_seen", "_centre", "_scale", "_segment", "_excursion", "_longest", "baseline",
        "level", "raised_since",
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
