"""Verification takes its time: how many values a change must have lasted for before it is told.

Bursts, restarts, warm caches and what the series itself does now and then look like changes while they last.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.pace.shifts.shift import Thresholds
from trainwarden.detectors.pace.shifts.verification import Verdict, restart_rows
from trainwarden.settings import Config

Floats = npt.NDArray[np.float64]


class WaitConfig(Config, frozen=True, kw_only=True):
    """What is waited out, and how long."""

    # values that a usual step is taken from, as many as verification takes
    before: Annotated[int, msgspec.Meta(ge=10, le=100)] = 30
    # further values: three slow steps, and another one that chanced to follow, do not fill six
    burst_rows: Annotated[int, msgspec.Meta(ge=0, le=60)] = 2
    # left out at either end of the spread before: single slow steps
    tail_percent: Annotated[float, msgspec.Meta(gt=0.0, lt=50.0)] = 5.0
    # times that spread: 4.9 standard deviations of normal noise for the range of four values
    spreads: Annotated[float, msgspec.Meta(gt=0.0)] = 1.5
    # of the change: rows of one pace are nearer to each other than to the pace before
    sure_spread: Annotated[float, msgspec.Meta(gt=0.0)] = 0.5
    # times the noise floor, for series without any spread
    floors: Annotated[float, msgspec.Meta(gt=0.0)] = 6.0


class ConfirmationDelay:
    """How many values a verified change must have lasted for.

    Parameters
    ----------
    thresholds : Thresholds
    config : WaitConfig

    Examples
    --------
    >>> waits = ConfirmationDelay(Thresholds(), WaitConfig())
    >>> change = Verdict(low=0.0, high=0.4, rows=30, clear=True)
    >>> calm = np.r_[np.tile([0.0, 0.01], 20), np.full(6, 0.4)]
    >>> waits.needed(calm, 40, change, longest=0, relief=False), waits.needed(calm, 40, change, longest=7, relief=False)
    (4, 8)
    >>> waits.needed(np.r_[calm[:40], 3.0, calm[40:]], 40, change, longest=0, relief=False)  # a restart
    13
    """

    def __init__(self, thresholds: Thresholds, config: WaitConfig) -> None:
        self._thresholds, self._config = thresholds, config
        self._clusters, self._restarts = thresholds.keeps("cluster_wait"), thresholds.keeps("restart_wait")
        self._faster, self._excursions = thresholds.keeps("faster_wait"), thresholds.keeps("excursion_wait")

    def needed(self, values: Floats, onset: int, change: Verdict, *, longest: int, relief: bool) -> int:
        """How many values from `onset` on there must be.

        Parameters
        ----------
        values : float [rows]
            Log values of one series, oldest first.
        longest : int
            The longest time for which the series was off its level in this direction and came back by itself.
        relief : bool
            Whether the change leads back to the healthy baseline. Steps of a slow job that are faster than that, or not
            as fast, may be a few after a validation, as those of a healthy one.
        """
        thresholds, config = self._thresholds, self._config
        needed = thresholds.clear_steps if change.clear else thresholds.small_steps
        if self._clusters and change.clear and self._is_burst(values, onset, change.rows):
            needed += config.burst_rows  # three slow steps and another one that chanced to follow
        if change.slower:
            paused = self._restarts and restart_rows(values, onset, thresholds.pause_ratio, config.before)
            needed = thresholds.warm_up + paused if paused else needed  # a restart has its own slow start
        elif self._faster and not relief:
            needed = thresholds.small_steps if change.clear else 2 * thresholds.small_steps
        elif self._faster and not self._agrees(values, onset, change.rows):
            needed = thresholds.small_steps
        return max(needed, longest + 1) if self._excursions else needed

    def sure(self, after: Floats, change: Verdict) -> bool:
        """True if the values `after` a change are so far off, and so near to each other, that few rows are enough.

        That is where each row stands for several iterations (`Thresholds.fewest`).
        """
        size = abs(change.high - change.low)
        apart = float(np.ptp(after))
        return change.clear and size >= np.log(self._thresholds.sure_ratio) and apart <= self._config.sure_spread * size

    def _is_burst(self, values: Floats, onset: int, rows: int) -> bool:
        """True if the few values from `onset` on differ more among themselves than the `rows` before it usually do."""
        few = len(values) - onset < self._thresholds.clear_steps + self._config.burst_rows
        return few and not self._agrees(values, onset, rows)

    def _agrees(self, values: Floats, onset: int, rows: int) -> bool:
        """True if the values from `onset` on are as near to each other as the `rows` before it usually are."""
        return agree(values[onset - rows : onset], values[onset:], self._thresholds.noise_floor, self._config)


def agree(before: Floats, after: Floats, floor: float, config: WaitConfig) -> bool:
    """True if the few values `after` a change differ among themselves no more than those before it usually do.

    Three slow steps and an unrelated fourth one do not.

    Examples
    --------
    >>> calm, config = np.tile([0.0, 0.01], 10), WaitConfig()
    >>> agree(calm, np.array([0.5, 0.51, 0.5, 0.51]), 0.01, config)
    True
    >>> agree(calm, np.array([0.5, 0.51, 0.5, 0.9]), 0.01, config)
    False
    """
    low, high = np.percentile(before, (config.tail_percent, 100.0 - config.tail_percent))
    return bool(np.ptp(after) <= max(config.spreads * float(high - low), config.floors * floor))
