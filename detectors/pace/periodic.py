"""Repeating patterns taken out of series of iteration times, so that they neither hide a change nor look like one.

Two paces in turn, or one slow step in every five, are how some programs run (gradient accumulation, an optimiser that
works every so many steps, a coarse clock). Each value is compared with its own phase of the pattern; which phase that
is, is found anew with every row, because programs skip a beat now and then.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
KEPT: Final = 96  # newest rows that a period is looked for in
EVERY: Final = 32  # rows between two looks
LEAST_KNOWN: Final = 64  # known values without which there is no telling
LONGEST: Final = 8  # periods looked for; a longer one is learnt too slowly, and its slow steps are single ones
ALIKE: Final = 0.5  # a period must bring steps this much nearer to each other than neighbours are
LEAST: Final = 0.08  # mean log difference of neighbours: a pattern smaller than the changes looked for does not matter
LEARNT: Final = 7  # newest periods that the pattern is the median of
ALIGNED: Final = 2  # newest periods that tell the phase
SLIPPED: Final = 0.5  # another phase is taken when it fits so much better


class SeasonalityFilter:
    """Series less their repeating pattern, if they have one.

    Notes
    -----
    `period` [series] is 1 for none. It is kept until the series is forgotten or has another one.

    Examples
    --------
    >>> steady = SeasonalityFilter()
    >>> turns = np.tile([0.0, 0.2], 60)
    >>> said = []
    >>> for value in turns:
    ...     said.append(float(steady.update(np.array([value]))[0]))
    ...     changed = steady.changed()
    >>> said[:4], np.round(said[-4:], 2).tolist(), steady.period.tolist()
    ([0.0, 0.2, 0.0, 0.2], [0.1, 0.1, 0.1, 0.1], [2])
    """

    def __init__(self) -> None:
        self.period: Ints = np.ones(0, dtype=np.int64)
        self._phase: Ints = np.zeros(0, dtype=np.int64)
        self._pattern: Floats = np.zeros((LONGEST, 0))
        self._rows: Floats = np.full((KEPT, 0), np.nan)
        self._fed = 0

    def resize(self, more: int) -> None:
        """Add `more` series."""
        self._rows = np.hstack([self._rows, np.full((KEPT, more), np.nan)])
        self._pattern = np.hstack([self._pattern, np.zeros((LONGEST, more))])
        self.period = np.append(self.period, np.ones(more, dtype=np.int64))
        self._phase = np.append(self._phase, np.zeros(more, dtype=np.int64))

    def forget(self, which: npt.NDArray[np.bool_]) -> None:
        """Begin afresh with the series `which` [series]."""
        self._rows[:, which] = np.nan
        self.period[which] = 1

    def update(self, values: Floats) -> Floats:
        """Observe one row of log values [series], NaN = unknown; the row without patterns."""
        if values.size > self.period.size:
            self.resize(values.size - self.period.size)
        self._rows[self._fed % KEPT] = values
        self._fed += 1
        steady = values
        for period in np.unique(self.period[self.period > 1]).tolist():
            which = np.flatnonzero((self.period == period) & np.isfinite(values))
            steady = steady.copy() if steady is values else steady
            steady[which] -= self._expected(which, period)
        return steady

    def changed(self) -> Ints:
        """Look for periods, now and then: the series that have got another one with the last row."""
        none = np.zeros(0, dtype=np.int64)
        if self._fed % EVERY or self._fed < LEAST_KNOWN:
            return none
        rows = self._ordered()
        series = np.flatnonzero(np.isfinite(rows).sum(axis=0) >= LEAST_KNOWN)
        beside = _apart(rows[:, series], 1)
        restless = (beside > LEAST) | (self.period[series] > 1)
        series, beside = series[restless], beside[restless]
        if not series.size:
            return none
        apart = np.stack([_apart(rows[:, series], lag) for lag in range(2, LONGEST + 1)])
        best = apart.min(axis=0)
        # The shortest of the periods that do about as well: its multiples are periods too.
        period = 2 + np.argmax(apart <= 1.15 * best + 0.002, axis=0)
        old = self.period[series]
        present = apart[np.maximum(old - 2, 0), np.arange(series.size)]
        stale = (old == 1) | (present > beside)
        fresh = (best < ALIKE * beside) & (beside > LEAST) & stale & (period != old)
        period = np.where(fresh, period, old)
        learnt = [
            self._learn(series[mine], one, rows) for one in np.unique(period[period > 1]).tolist()
            for mine in [np.flatnonzero(period == one)]
        ]  # fmt: skip
        return np.concatenate([none, *learnt])

    def history(self, series: Ints) -> Floats:
        """The newest values of `series` without their pattern [rows, series], NaN where they are not known."""
        rows = self._ordered()
        out = rows[:, series].copy()
        for period in np.unique(self.period[series]).tolist():
            if period == 1:
                continue
            mine = np.flatnonzero(self.period[series] == period)
            # All of the past is taken to be in the present phase: what is not, is noise of the past.
            back = np.arange(len(rows) - 1, -1, -1)[:, None]
            phase = (self._phase[series[mine]][None] - back) % period
            out[:, mine] -= self._pattern[phase, series[mine]]
        return out

    def _expected(self, which: npt.NDArray[np.intp], period: int) -> Floats:
        """What the pattern is in the newest row of series `which`, after finding the phase that it is in."""
        self._phase[which] = (self._phase[which] + 1) % period
        back = np.arange(ALIGNED * period)
        newest = self._rows[(self._fed - 1 - back) % KEPT][:, which]
        pattern = self._pattern[:period, which]
        # [back, slip, series]: all phases at once, for calls cost more than sums of so few rows.
        phase = (self._phase[which] + np.arange(period)[:, None] - back[:, None, None]) % period
        rest = newest[:, None] - pattern[phase, np.arange(which.size)]
        errors = _spread(rest.reshape(back.size, -1)).reshape(period, which.size)
        slip = np.argmin(errors, axis=0)
        better = errors[slip, np.arange(which.size)] < SLIPPED * errors[0]
        self._phase[which] = (self._phase[which] + np.where(better, slip, 0)) % period
        return np.asarray(pattern[self._phase[which], np.arange(which.size)])

    def _learn(self, series: Ints, period: int, rows: Floats) -> Ints:
        """Learn the pattern of `series`: each phase's median distance from the middle of its own period.

        It is taken where it fits much better than what was known. Those that had another period before are returned.
        """
        newest = rows[-LEARNT * period :, series]
        folded = newest.reshape(LEARNT, period, series.size)
        pattern = np.nan_to_num(_median(folded - _median(folded.swapaxes(0, 1))[:, None]))
        pattern -= pattern.mean(axis=0)
        fits = _spread((folded - pattern).reshape(newest.shape))
        better = fits < SLIPPED * _spread(self.history(series)[-len(newest) :])
        series = series[better]
        fresh: Ints = series[self.period[series] != period]
        self.period[series], self._phase[series] = period, period - 1
        self._pattern[:period, series] = pattern[:, better]
        return fresh

    def _ordered(self) -> Floats:
        """Rows, oldest first."""
        if self._fed < KEPT:
            return self._rows[: self._fed]
        return np.roll(self._rows, -(self._fed % KEPT), axis=0)


def _apart(rows: Floats, lag: int) -> Floats:
    """Mean distance of values `lag` rows apart [series], without the largest tenth: those are single slow steps."""
    distance = np.sort(np.abs(rows[lag:] - rows[:-lag]), axis=0)  # NaN last
    count = np.isfinite(distance).sum(axis=0)
    inside = np.arange(len(distance))[:, None] < 0.9 * count
    return np.asarray(np.where(inside, distance, 0.0).sum(axis=0) / np.maximum(inside.sum(axis=0), 1))


def _spread(rows: Floats) -> Floats:
    """Mean distance from the middle [series], without the largest tenth."""
    distance = np.sort(np.abs(rows - _median(rows)), axis=0)
    inside = np.arange(len(rows))[:, None] < 0.9 * np.isfinite(rows).sum(axis=0)
    return np.asarray(np.where(inside, distance, 0.0).sum(axis=0) / np.maximum(inside.sum(axis=0), 1))


def _median(rows: Floats) -> Floats:
    """Median along the first axis without the unknown, NaN where nothing is known."""
    ordered = np.sort(rows, axis=0)  # NaN last
    count = np.isfinite(rows).sum(axis=0)
    low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, len(rows) - 1)
    pair = np.take_along_axis(ordered, low[None], axis=0)[0] + np.take_along_axis(ordered, high[None], axis=0)[0]
    return np.asarray(pair / 2.0)
