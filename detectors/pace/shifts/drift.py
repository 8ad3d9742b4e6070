"""Changes without any one clear step: slow rises (drifts and staircases), and the gentle way back.

The one change that Falcon missed (Wu et al. 2024) is a staircase of steps each too small to count, and a slow drift has
no step at all: so the newest values are compared with the level of the segment that was accepted last as well.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.pace.shifts.levels import Levels
from trainwarden.detectors.pace.shifts.robust import levels as levels_of
from trainwarden.detectors.pace.shifts.shift import Thresholds
from trainwarden.settings import Config

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


class DriftConfig(Config, frozen=True, kw_only=True):
    """When a slow rise, or a gentle way back, is worth a closer look."""

    # newest values that a slow rise is judged by: their median is known to a quarter of the noise
    rows: Annotated[int, msgspec.Meta(ge=8, le=80)] = 24
    # of the smallest change: `trail` must be so far off before anything is sorted
    off_level: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.6
    # of 10 %, in logs: a drift is told from there on (nine in ten drifts 21 steps after 10 % are passed, 15 at 0.94)
    reached: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    # of 10 %, in logs: what must have come within `drift_steps`, about 7 %
    fast: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.7
    # times the rise by half of the segment: a steady slope has risen twice as far by its end
    own_pace: Annotated[float, msgspec.Meta(ge=0.0)] = 2.0
    # of 10 %, in logs: what must come on top of that, about 4 %
    onward: Annotated[float, msgspec.Meta(ge=0.0)] = 0.4
    # of the smallest change: so near to the baseline is back,
    back: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.6
    # if it is within this share of what the series had risen, too
    back_share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.4


class DriftProposer:
    """Proposes series that have left the level accepted last without any one clear step.

    Parameters
    ----------
    thresholds : Thresholds
    config : DriftConfig
    """

    def __init__(self, thresholds: Thresholds, config: DriftConfig) -> None:
        self._thresholds, self._config = thresholds, config
        self._kept, self._own_drift = thresholds.keeps("drift"), thresholds.keeps("own_drift")
        self._wait = thresholds.keeps("drift_wait")

    @property
    def rows(self) -> int:
        """By how many of the newest values a rise is judged."""
        return self._config.rows

    def candidates(self, seq: int, known: Flags, stride: Ints, levels: Levels) -> list[tuple[int, float]]:
        """(series, log level of the newest values) that have risen slowly.

        Parameters
        ----------
        stride : int [series]
            How many iterations a row stands for.
        """
        if not self._kept:
            return []
        config, rows = self._thresholds, self._config.rows
        with np.errstate(invalid="ignore"):
            look = known & (levels.trail > levels.level + self._config.off_level * config.least)
        series = np.flatnonzero(look & (levels.segment <= seq - rows) & (levels.seen > config.warm_up + rows))
        if series.size == 0:
            return []
        newest, base = levels.rows.recent(rows)[:, series], levels.level[series]
        now = np.fmin(levels_of(newest), quiet_median(newest))
        high = now > np.fmax(base, levels.baseline[series]) + self._config.reached * np.log(config.minimum_ratio)
        if self._wait:
            high &= ~self._stepping(newest)
        series, now, base = series[high], now[high], base[high]
        due = self._beyond_its_own(seq, series, now, stride, levels) if self._own_drift else np.isfinite(now)
        return [(int(one), float(level)) for one, level in zip(series[due], now[due], strict=True)]

    def _beyond_its_own(
        self, seq: int, series: npt.NDArray[np.intp], now: Floats, stride: Ints, levels: Levels
    ) -> Flags:
        """Which of `series` rise by more than their program does by itself.

        A drift that has gone on all the time is the program's own (growing windows or sequences): a fault comes
        faster, or on top of the pace that the series had in the first half of its present segment.
        """
        config, least = self._config, np.log(self._thresholds.minimum_ratio)
        base, marks = levels.level[series], levels.marks
        then = marks.at(seq - self._thresholds.drift_steps // stride[series], series, base)
        fast = now - np.maximum(then, base) > config.fast * least
        half = marks.at(levels.segment[series] + (seq - levels.segment[series]) // 2, series, base)
        onward = now > base + config.own_pace * np.maximum(half - base, 0.0) + config.onward * least
        return np.asarray(fast | onward)

    def _stepping(self, newest: Floats) -> Flags:
        """True where the younger half of `newest` [rows, series] lies a whole change above the older half.

        That is a step, of which verification says what it is: 24 rows of the fastest drift looked for rise by 2 % from
        half to half, and a stair of 8 % by less than what counts.
        """
        half = len(newest) // 2
        return np.asarray(quiet_median(newest[half:]) - quiet_median(newest[:half]) >= self._thresholds.least)


class RecoveryProposer:
    """Proposes series that have come back to their baseline, however gently; the way back is a change too.

    Parameters
    ----------
    thresholds : Thresholds
    config : DriftConfig
    """

    def __init__(self, thresholds: Thresholds, config: DriftConfig) -> None:
        self._thresholds, self._config = thresholds, config
        self._kept = thresholds.keeps("relief")

    def candidates(self, seq: int, known: Flags, levels: Levels) -> list[tuple[int, float]]:
        """(series, log level of the newest values) that are back."""
        config, rows = self._thresholds, self._thresholds.small_steps
        raised = np.flatnonzero(known & (levels.raised_since >= 0) & (levels.raised_since <= seq - rows))
        if not self._kept or raised.size == 0:
            return []
        excess = levels.level[raised] - levels.baseline[raised]
        newest = levels.rows.recent(2 * rows)[:, raised]  # ten of them may be a few fast steps among slow ones
        now = np.fmax(np.fmax(quiet_median(newest[-rows:]), quiet_median(newest)), levels_of(newest))
        bar = np.fmin(self._config.back * config.least, self._config.back_share * excess)
        back = now < levels.baseline[raised] + bar
        return [(int(one), float(level)) for one, level in zip(raised[back], now[back], strict=True)]
