"""Level shifts of many series at once: proposed, believed only after verification, told with the onset they had.

One row after the other goes through what the folder's other files do: `levels` keeps what is known of every series,
`proposal` and `drift` say where the level may have changed, `verification` and `waits` whether it has, `onsets` since
when. Any mechanism can be left out by its name (`trainwarden.detectors.pace.shifts.shift.MECHANISMS`).

Sources: proposal by Adams and MacKay 2007 (`trainwarden.detectors.pace.bocd`); verification by Wu et al., Falcon, 2024,
section 4.2. The file to read first in this room.
"""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.pace.periodic import SeasonalityFilter
from trainwarden.detectors.pace.shifts.drift import DriftConfig, DriftProposer, RecoveryProposer
from trainwarden.detectors.pace.shifts.levels import Levels
from trainwarden.detectors.pace.shifts.onsets import LastReported, OnsetConfig, Onsets
from trainwarden.detectors.pace.shifts.proposal import ProposalConfig, StepProposal
from trainwarden.detectors.pace.shifts.shift import Shift, Thresholds
from trainwarden.detectors.pace.shifts.verification import Verification, VerificationConfig
from trainwarden.detectors.pace.shifts.waits import ConfirmationDelay, WaitConfig

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class _Part(Protocol):
    """What remembers something of every series."""

    def resize(self, more: int) -> None: ...

    def forget(self, which: npt.NDArray[np.bool_]) -> None: ...


class ShiftConfig(Thresholds, frozen=True, kw_only=True):
    """When a level shift counts, and the numbers of each part."""

    proposal: ProposalConfig = msgspec.field(default_factory=ProposalConfig)
    drift: DriftConfig = msgspec.field(default_factory=DriftConfig)
    verification: VerificationConfig = msgspec.field(default_factory=VerificationConfig)
    waits: WaitConfig = msgspec.field(default_factory=WaitConfig)
    onsets: OnsetConfig = msgspec.field(default_factory=OnsetConfig)


class LevelShifts:
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
    >>> shifts = LevelShifts(ShiftConfig())
    >>> found = []
    >>> noise = np.random.default_rng(0).normal(0.0, 0.01, 80)
    >>> for seq in range(80):
    ...     found += shifts.update(seq, np.array([noise[seq] + (0.4 if seq >= 50 else 0.0)]))
    >>> [(shift.onset, shift.reported, shift.slower) for shift in found]
    [(50, 53, True)]
    """

    NOT_KEPT = ("_parts", "_rises", "_reliefs", "_verification", "_waits", "_onsets")

    def __init__(self, config: ShiftConfig) -> None:
        self._config, self._levels = config, Levels(config)
        self._steady = SeasonalityFilter() if config.keeps("periodic") else None
        self._proposal = StepProposal(config, config.proposal)
        self._rises, self._reliefs = DriftProposer(config, config.drift), RecoveryProposer(config, config.drift)
        self._verification, self._waits = (
            Verification(config, config.verification),
            ConfirmationDelay(config, config.waits),
        )
        self._onsets, self._told = Onsets(config, config.onsets), LastReported(config, config.onsets)
        self._parts: list[_Part] = [self._levels, self._proposal, self._told]
        if self._steady is not None:
            self._parts.append(self._steady)

    @property
    def level(self) -> Floats:
        """Log level of the present segment [series]."""
        return self._levels.level

    @property
    def baseline(self) -> Floats:
        """Healthy log level, NaN until known [series]."""
        return self._levels.baseline

    @property
    def raised_since(self) -> Ints:
        """The row from which the series has been above its healthy baseline, -1 where it is not [series]."""
        return self._levels.raised_since

    def resize(self, series: int) -> None:
        """Add fresh series until there are `series`."""
        more = series - self._levels.seen.size
        if more > 0:
            for part in self._parts:
                part.resize(more)

    def forget(self, which: npt.NDArray[np.bool_]) -> None:
        """Begin afresh with the series `which` [series]: another node, another layout."""
        for part in self._parts:
            part.forget(which)

    def rebase(self, series: int) -> None:
        """Take the present level of `series` for healthy: its last change was planned."""
        self._levels.rebase(series)

    def update(self, seq: int, values: Floats, stride: int | Ints = 1) -> list[Shift]:
        """Observe one row of log values [series], NaN = unknown; the changes that it verified.

        `stride` is how many iterations a row stands for where only every so many are sampled.
        """
        known = self._observe(seq, values)
        strides = np.broadcast_to(stride, values.shape)
        fewest = self._config.fewest(strides)
        proposed = self._proposal.candidates(known, self._levels, fewest)
        verified = [self._step(series, seq, run, int(fewest[series])) for series, run in proposed]
        found = [shift for shift in verified if shift is not None and self._accept(shift)]
        rises = self._rises.candidates(seq, known, strides, self._levels)
        found += [shift for series, level in rises if (shift := self._rise(series, seq, level)) is not None]
        back = self._reliefs.candidates(seq, known, self._levels)
        return found + [shift for series, level in back if (shift := self._relief(series, seq, level)) is not None]

    # -- internals -------------------------------------------------------------------------------------------

    def _observe(self, seq: int, values: Floats) -> npt.NDArray[np.bool_]:
        """Let one row of log values [series] go through patterns, levels and proposal; which of it is known."""
        self.resize(values.size)
        levels = self._levels
        steady = values if self._steady is None else self._steady.update(values)
        known = levels.observe(seq, steady)
        self._proposal.replay(levels.calibrate(seq, known), levels)
        if self._steady is not None and (fresh := self._steady.changed()).size:
            fresh = fresh[np.isfinite(levels.centre[fresh])]
            if fresh.size:
                levels.filter_again(fresh, self._steady.history(fresh))
                self._proposal.filter_again(fresh, levels)
            steady = levels.rows.recent(1)[0].copy()
        levels.mark(seq)
        self._proposal.observe(steady, levels)
        levels.follow(steady)
        return known

    def _step(self, series: int, seq: int, run: int, fewest: int) -> Shift | None:
        """The step that was proposed `run` values ago, if it is one; it has lasted for `fewest` values at least."""
        levels = self._levels
        seqs, values = levels.rows.of(series)
        first = int(np.searchsorted(seqs, levels.segment[series]))
        if not self._verification.plausible(values, first, len(values) - run, fewest):
            return None
        onset = self._onsets.of_step(values, first, len(values) - run)
        raised = bool(levels.raised_since[series] >= 0)
        change = self._verification.judge(values, first, onset, raised=raised, fewest=fewest)
        if change is None:
            return None
        longest = self._proposal.longest(series, slower=change.slower)
        relief = raised and levels.is_healthy(series, change.high)
        needed = self._waits.needed(values, onset, change, longest=longest, relief=relief)
        if fewest < self._config.clear_steps and self._waits.sure(values[onset:], change):
            needed = max(fewest, longest + 1)
        if len(values) - onset < needed:
            return None
        return Shift(series, int(seqs[onset]), seq, float(np.exp(change.low)), float(np.exp(change.high)), "segment")

    def _rise(self, series: int, seq: int, level: float) -> Shift | None:
        """The slow rise to `level`, if it is one and is not part of a change that has been told."""
        levels, base, rows = self._levels, float(self._levels.level[series]), self._rises.rows
        seqs, values = levels.rows.of(series)
        first = int(np.searchsorted(seqs, levels.segment[series]))
        if not self._verification.rises(values, first, level - base, rows):
            return None
        onset = self._onsets.of_rise(series, rows, levels)
        shift = Shift(series, onset, seq, float(np.exp(base)), float(np.exp(level)), "baseline")
        fresh = self._accept(shift)
        levels.segment[series] = seq - rows
        return shift if fresh else None

    def _relief(self, series: int, seq: int, level: float) -> Shift | None:
        """The gentle way back to `level`, if it is not part of a relief that has been told."""
        levels = self._levels
        onset, before = self._onsets.of_relief(series, levels), float(np.exp(levels.level[series]))
        shift = Shift(series, onset, seq, before, float(np.exp(level)), "baseline")
        fresh = self._accept(shift)
        levels.raised_since[series] = -1
        return shift if fresh else None

    def _accept(self, shift: Shift) -> bool:
        """Make `shift` the present segment; False if it only goes on with a change that has been told."""
        fresh = not self._told.goes_on(shift)
        self._told.note(shift)
        if shift.slower:  # perhaps only a few fast steps of a slow job were told as its relief
            self._proposal.came_back(shift.series, shift.onset - int(self._levels.segment[shift.series]))
        self._levels.begin(shift.series, shift.onset, float(np.log(shift.after)))
        self._proposal.begin(shift.series)
        return fresh
