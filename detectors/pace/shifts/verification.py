"""Verification: is a proposed change real? Robust levels on both sides, against the noise of the series.

Source: Wu et al., Falcon, 2024, section 4.2: the mean after against the mean before, at least 10 % apart. Here the
median and a trimmed mean must both have moved, clear of the noise; how long a change must have lasted besides is
`trainwarden.detectors.pace.shifts.waits`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.pace.shifts.levels import SETTLED
from trainwarden.detectors.pace.shifts.robust import apart, jitter, lasting_jitter, levels, middle, wander
from trainwarden.detectors.pace.shifts.shift import Thresholds
from trainwarden.settings import Config

Floats = npt.NDArray[np.float64]


class VerificationConfig(Config, frozen=True, kw_only=True):
    """How much evidence a change needs.

    Attributes
    ----------
    clear_noises : float
        How many noise widths a change must measure to be clear.
    small_evidence : float
        How many standard errors a smaller change must measure.
    """

    # of one value; the mean of four is known to half a width
    clear_noises: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    # p = 4e-8: of four million looks (4,096 series, 1,000 steps) none by chance
    small_evidence: Annotated[float, msgspec.Meta(gt=0.0)] = 5.5
    # standard errors, by how far the series wanders by itself: that is known from few blocks, so a bound of its own
    wander_evidence: Annotated[float, msgspec.Meta(ge=0.0)] = 4.0
    # values whose means are compared for it: as long as a small change must last
    wander_block: Annotated[int, msgspec.Meta(ge=2, le=30)] = 10
    # standard errors: what is known to be less than the smallest change is none
    doubt: Annotated[float, msgspec.Meta(ge=0.0)] = 2.0
    # values that the level before is taken from; their median is known to a quarter of the noise
    before: Annotated[int, msgspec.Meta(ge=10, le=100)] = 30
    # values: of fewer the middle two thirds are less than four
    least_before: Annotated[int, msgspec.Meta(ge=2, le=30)] = 6
    # of the smallest change: medians nearer than this are not looked at
    hint: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.5
    # one value in twenty before a change may be a pause or a checkpoint
    separate: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.95
    # most extreme values left out of each mean: single slow steps are checkpoints, not changes
    trim: Annotated[int, msgspec.Meta(ge=0, le=10)] = 2
    # one value in so many, `trim` at most, is left out on the other side
    trim_other: Annotated[int, msgspec.Meta(ge=2)] = 8
    # a drop after even such a step is more often warm caches than a faster program
    resumed_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 2.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """A change that stands out: log levels `low` before it and `high` after it, of `rows` values before it."""

    low: float
    high: float
    rows: int
    clear: bool

    @property
    def slower(self) -> bool:
        """True if the level rose."""
        return self.high > self.low


class Verification:
    """Tells changes of level from noise.

    Parameters
    ----------
    thresholds : Thresholds
    config : VerificationConfig

    Examples
    --------
    >>> verification = Verification(Thresholds(), VerificationConfig())
    >>> values = np.r_[np.tile([0.0, 0.01], 20), np.full(4, 0.4)]
    >>> verification.judge(values, 0, 40, raised=False, fewest=4)
    Verdict(low=0.005, high=0.4, rows=30, clear=True)
    >>> verification.judge(values[:42], 0, 40, raised=False, fewest=4) is None
    True
    """

    def __init__(self, thresholds: Thresholds, config: VerificationConfig) -> None:
        self._thresholds, self._config = thresholds, config
        self._trims, self._pairs = thresholds.keeps("trimmed_mean"), thresholds.keeps("paired_noise")
        self._wanders = thresholds.keeps("wander")
        self._separates, self._restarts = thresholds.keeps("separate"), thresholds.keeps("restart_drop")

    def plausible(self, values: Floats, first: int, onset: int, fewest: int) -> bool:
        """A cheap look: True if the medians on both sides of `onset` differ, with enough of the segment before it."""
        config = self._config
        if onset - first < self._least_before(fewest):
            return False
        newest = values[max(first, onset - config.before) :]
        return abs(apart(newest, len(values) - onset)) >= config.hint * self._thresholds.least

    def judge(self, values: Floats, first: int, onset: int, *, raised: bool, fewest: int) -> Verdict | None:
        """What changed at `onset`, if it stands clear of the noise, or is smaller but known well enough.

        Parameters
        ----------
        values : float [rows]
            Log values of one series, oldest first; its present segment begins at `first`.
        raised : bool
            Whether the series is above its healthy baseline now.
        fewest : int
            Values that a clear change must have lasted for at least.
        """
        config, thresholds = self._config, self._thresholds
        before, after = values[max(first, onset - config.before) : onset], values[onset:]
        if len(before) < self._least_before(fewest) or len(after) < fewest:
            return None
        low, high = middle(before), middle(after)
        slower = high > low
        size = self._size(before, after, high - low)
        noise = self._noise(before)
        clear = bool(size >= np.log(thresholds.clear_ratio) and size >= config.clear_noises * noise)
        clear = clear and self._separate(before, after, slower=slower)
        error = noise * np.sqrt(1.0 / len(before) + 1.0 / len(after))
        least = max(thresholds.least, np.log(thresholds.minimum_ratio) - config.doubt * error)
        small = size >= least and size >= config.small_evidence * error
        if not slower and not raised:  # faster than healthy: warm caches after a pause, mostly
            small = small and size >= np.log(thresholds.minimum_ratio)
            small = small and not (self._restarts and restart_rows(values, onset, config.resumed_ratio, config.before))
        if not (clear or small):
            return None
        if not clear and (slower or not raised) and self._usual(values[:onset], first, len(before), len(after), size):
            return None
        return Verdict(low, high, len(before), clear)

    def rises(self, values: Floats, first: int, size: float, rows: int) -> bool:
        """True if a slow rise by `size`, judged by the newest `rows` of `values`, is more than noise.

        With fewer values it is none: the past of a series that was filtered anew is no longer than its filter.
        """
        if len(values) < rows:
            return False
        noise = self._noise(values[-2 * self._config.before :])
        if self._usual(values[:-rows], first, SETTLED, rows, size):
            return False
        return bool(size >= self._config.small_evidence * noise * np.sqrt(1.0 / rows + 1.0 / SETTLED))

    # -- internals -------------------------------------------------------------------------------------------

    def _least_before(self, fewest: int) -> int:
        """Of a coarse series, a segment that was told is enough to tell its end."""
        return fewest if fewest < self._thresholds.clear_steps else self._config.least_before

    def _noise(self, past: Floats) -> float:
        floor = self._thresholds.noise_floor
        return lasting_jitter(past, floor) if self._pairs else float(jitter(past, floor))

    def _usual(self, past: Floats, first: int, before: int, after: int, size: float) -> bool:
        """True if levels of so many values `before` and `after` lie so far apart by themselves now and then.

        Of the `past` all is asked but the change at place `first`, which has been told.
        """
        config = self._config
        if not self._wanders:
            return False
        error = wander(past, first, config.wander_block) * np.sqrt(1.0 / before + 1.0 / after)
        return bool(size < config.wander_evidence * error)

    def _size(self, before: Floats, after: Floats, moved: float) -> float:
        """How far both median and trimmed mean have moved: isolated slow steps move the one but not the other."""
        if not self._trims:
            return abs(moved)
        means = trimmed(after, self._config, slower=moved > 0.0) - float(levels(before))
        return min(abs(moved), max(0.0, means if moved > 0.0 else -means))

    def _separate(self, before: Floats, after: Floats, *, slower: bool) -> bool:
        """True if nearly all values before lie on the other side of all values after, for a drop but the slowest."""
        if not self._separates:
            return True
        share = np.mean(before < after.min()) if slower else np.mean(before > _slowest(after, self._config))
        return bool(share >= self._config.separate)


def trimmed(values: Floats, config: VerificationConfig, *, slower: bool) -> float:
    """Mean without the `config.trim` largest (for a drop: smallest) values, but with at least one.

    A single slow step must not hide a drop either: of many values the largest do not count there.

    Examples
    --------
    >>> trimmed(np.array([1.0, 1.0, 4.0, 9.0]), VerificationConfig(), slower=True)
    1.0
    """
    ordered = np.sort(values) if slower else np.sort(values)[::-1]
    other = 0 if slower else _single(len(ordered), config)
    return float(ordered[other : max(1, len(ordered) - config.trim)].mean())


def _slowest(values: Floats, config: VerificationConfig) -> float:
    """The largest of the values after a drop, without the single slow steps that `trimmed` leaves out there."""
    return float(np.sort(values)[len(values) - 1 - _single(len(values), config)])


def _single(values: int, config: VerificationConfig) -> int:
    """How many of so many `values` after a drop are taken for single slow steps."""
    return min(config.trim, values // config.trim_other)


def restart_rows(values: Floats, onset: int, ratio: float, before: int) -> int:
    """How many values from `onset` on end with a step as long as `ratio` usual ones; 0 if there is none near it.

    Examples
    --------
    >>> restart_rows(np.log([1.0, 1.0, 1.0, 9.0, 1.5, 1.5, 1.5, 1.5]), 3, 3.0, 30)
    1
    """
    first = max(0, onset - 2)
    near = values[first : onset + 3]
    longest = int(near.argmax())
    usual = max(float(np.median(values[max(0, onset - before) : onset])), float(np.median(values[onset:])))
    return max(1, first + longest + 1 - onset) if near[longest] > usual + np.log(ratio) else 0
