"""Proposal: in which series the level may have stepped, and how many values ago.

Two ways: Bayesian online change points (Adams and MacKay 2007, `trainwarden.detectors.pace.bocd`) on standardised
values, and a watch that counts how long a series has been off its level without a break. A segment that holds a wild
value explains a change for a while before the posterior lets go of it; the watch does not wait for that.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.pace.bocd import Bocd
from trainwarden.detectors.pace.shifts.history import HISTORY
from trainwarden.detectors.pace.shifts.levels import Levels
from trainwarden.detectors.pace.shifts.shift import Thresholds
from trainwarden.settings import Config

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
WILDEST: Final = 60.0  # noise widths: a stuck step of minutes must not become infinite evidence


class ProposalConfig(Config, frozen=True, kw_only=True):
    """What makes a step worth a closer look."""

    # one change in 250 steps
    hazard: Annotated[float, msgspec.Meta(gt=0.0, lt=0.5)] = 0.004
    # of the posterior that a fresh segment holds, as usual with this method
    mass: Annotated[float, msgspec.Meta(gt=0.5, lt=1.0)] = 0.9
    # values: twice what the level before is taken from
    longest: Annotated[int, msgspec.Meta(ge=20, le=HISTORY // 2)] = 60
    # of the smallest change: so far must the posterior mean be off the level
    off_level: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.6
    # values that the series must have before the segment
    older: Annotated[int, msgspec.Meta(ge=0, le=60)] = 5
    # of a clear change, in logs: nearer values are on the level
    away_ratio: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.5
    # noise widths: and so are these
    away_noises: Annotated[float, msgspec.Meta(gt=0.0)] = 3.0


class StepProposal:
    """Proposes steps of many series.

    Parameters
    ----------
    thresholds : Thresholds
    config : ProposalConfig

    Examples
    --------
    >>> thresholds = Thresholds()
    >>> levels, proposal = Levels(thresholds), StepProposal(thresholds, ProposalConfig())
    >>> levels.resize(1), proposal.resize(1)
    (None, None)
    >>> for seq in range(34):
    ...     values = np.array([0.01 * (seq % 2) + (0.4 if seq >= 30 else 0.0)])
    ...     known = levels.observe(seq, values)
    ...     proposal.replay(levels.calibrate(seq, known), levels)
    ...     proposal.observe(values, levels)
    ...     levels.follow(values)
    >>> proposal.candidates(known, levels, np.array([4]))
    [(0, 4)]
    """

    def __init__(self, thresholds: Thresholds, config: ProposalConfig) -> None:
        self._thresholds, self._config = thresholds, config
        self._bocd = Bocd(0, config.hazard)
        self._bayes, self._watch = thresholds.keeps("bayes"), thresholds.keeps("watch")
        self._away: Ints = np.zeros((2, 0), dtype=np.int64)
        self._longest: Ints = np.zeros((2, 0), dtype=np.int64)

    def longest(self, series: int, *, slower: bool) -> int:
        """The longest time for which a series was off its level, above or below, and came back by itself."""
        return int(self._longest[int(slower), series])

    def resize(self, more: int) -> None:
        """Add `more` series."""
        self._bocd.resize(self._bocd.series + more)
        self._away = np.hstack([self._away, np.zeros((2, more), dtype=np.int64)])
        self._longest = np.hstack([self._longest, np.zeros((2, more), dtype=np.int64)])

    def forget(self, which: Flags) -> None:
        """Begin afresh with the series `which` [series]."""
        self._bocd.forget(which)
        self._away[:, which] = self._longest[:, which] = 0

    def begin(self, series: int) -> None:
        """A segment of `series` has been accepted: it is at its level."""
        self._away[:, series] = 0

    def came_back(self, series: int, rows: int) -> None:
        """A segment of `series` that was faster has ended after `rows`: the next one must last longer to be told."""
        if rows <= 2 * self._thresholds.small_steps:
            self._longest[0, series] = max(self._longest[0, series], rows)

    def replay(self, series: Ints | npt.NDArray[np.intp], levels: Levels) -> None:
        """Give the change points the past, but the newest row, of series whose noise has just become known."""
        if not self._bayes or not series.size:
            return
        for row in levels.rows.recent(HISTORY)[:-1]:
            values = np.full(levels.seen.size, np.nan)
            values[series] = (row[series] - levels.centre[series]) / levels.scale[series]
            self._bocd.update(np.clip(values, -WILDEST, WILDEST))

    def filter_again(self, series: Ints, levels: Levels) -> None:
        """All is another past of `series`."""
        self._longest[:, series] = 0
        which = np.zeros(levels.seen.size, dtype=np.bool_)
        which[series] = True
        self._bocd.forget(which)
        self.replay(series, levels)

    def observe(self, values: Floats, levels: Levels) -> None:
        """Observe one row of log values [series], NaN = unknown."""
        if self._bayes:
            self._bocd.update(np.clip(levels.standard(values), -WILDEST, WILDEST))
        self._follow(values, levels)

    def candidates(self, known: Flags, levels: Levels, shortest: Ints) -> list[tuple[int, int]]:
        """(series, run length) whose present segment is probably younger than the one last accepted, and apart.

        `shortest` [series] is how many values such a segment has at least.
        """
        longest = self._config.longest
        away = self._away.max(axis=0)
        ready = known & np.isfinite(levels.centre)
        off = ready & (away >= shortest) & (away <= longest)
        if not self._watch:
            off[:] = False
        if not self._bayes:
            return [(int(one), int(away[one])) for one in np.flatnonzero(off)]
        run = self._bocd.most_likely_run()
        young = ready & ~off & (run >= shortest) & (run <= longest)
        if young.any():
            mean = levels.centre + levels.scale * self._bocd.most_likely_mean()
            young &= np.abs(mean - levels.slow) > self._config.off_level * self._thresholds.least
        if young.any():
            most = np.minimum(longest, levels.seen - self._config.older)
            young &= self._bocd.mass_between(shortest, most) > self._config.mass
        return [(int(one), int(away[one] if off[one] else run[one])) for one in np.flatnonzero(off | young)]

    # -- internals -------------------------------------------------------------------------------------------

    def _follow(self, values: Floats, levels: Levels) -> None:
        """Count how long each series is away from its level, and remember what came back on its own."""
        known = np.isfinite(values) & np.isfinite(levels.level)
        reach = np.fmax(
            self._config.away_ratio * np.log(self._thresholds.clear_ratio), self._config.away_noises * levels.scale
        )
        with np.errstate(invalid="ignore"):
            apart = np.stack([values < levels.slow - reach, values > levels.slow + reach])
        # One wild value on the other side ends nothing, two do.
        ended = ~apart & (self._away > 0) & known & (~apart[::-1] | (self._away[::-1] > 0))
        limit = 2 * self._thresholds.small_steps  # longer ones are segments of their own, not jitter
        counted = ended & (self._away <= limit)
        self._longest = np.where(counted, np.maximum(self._longest, self._away), self._longest)
        self._away = np.where(ended, 0, self._away + (apart & known))
