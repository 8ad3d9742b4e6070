"""Whose scale does not follow its samples now: of whoever is strange, because a fault must not become what is normal.

Decided from the scores alone, sample by sample, so that a live job and a recording that is scored at once come to the
same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import Floats
from trainwarden.detectors.metrics.hysteresis import EXPIRE_S

Rows = npt.NDArray[np.int64]
STRANGE: Final = 0.5  # of the whole vote, as `usual_most`; at 0.41 levels that wander are held and stay strange
HOLD: Final = 3  # so many strange samples of the newest five hold,
LET_GO: Final = 15  # and so many in a row that are not let go: as incidents open and close
_NEWEST: Final = np.uint64(0b11111)
ARRAYS: Final = ("recent", "below", "since_s", "learns")


@dataclass(slots=True)
class BaselineFreeze:
    """Which entities of a family learn, by the board's rows.

    Examples
    --------
    >>> holding = BaselineFreeze()
    >>> holding.resize(1)
    >>> scores, times_s = np.array([[0.1, 0.6, 0.6, 0.6, 0.6]]), 60.0 * np.arange(5.0)[None]
    >>> holding.observe(np.array([0]), scores, times_s), holding.learns.tolist()
    (4, [False])
    """

    recent: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))  # newest in bit 0
    below: Rows = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    since_s: Floats = field(default_factory=lambda: np.zeros(0))  # NaN: not held
    learns: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    ever: bool = False  # somebody did not learn at some time

    def resize(self, more: int) -> None:
        """Room for `more` entities; they learn."""
        self.recent = np.append(self.recent, np.zeros(more, dtype=np.uint64))
        self.below = np.append(self.below, np.zeros(more, dtype=np.int64))
        self.since_s = np.append(self.since_s, np.full(more, np.nan))
        self.learns = np.append(self.learns, np.ones(more, dtype=np.bool_))

    def observe(self, rows: Rows, scores: Floats, times_s: Floats) -> int:
        """Observe scores ``[r, k]`` up to the sample after which somebody begins or ends to learn; how many that is."""
        with np.errstate(invalid="ignore"):
            strange = scores >= STRANGE
        if self.learns[rows].all() and not self.recent[rows].any() and not strange.any():
            return int(scores.shape[1])
        measured = ~np.isnan(scores)
        for sample in range(scores.shape[1]):
            if self._step(rows, strange[:, sample], measured[:, sample], times_s[:, sample]):
                return sample + 1
        return int(scores.shape[1])

    def _step(
        self, rows: Rows, strange: npt.NDArray[np.bool_], measured: npt.NDArray[np.bool_], time_s: Floats
    ) -> bool:
        """One sample; True if somebody begins or ends to learn."""
        before = self.recent[rows]
        recent = np.where(measured, ((before << np.uint64(1)) | strange) & _NEWEST, before)
        below = np.where(strange, 0, self.below[rows] + measured)
        since_s = self.since_s[rows]
        since_s = np.where(np.isnan(since_s) & (np.bitwise_count(recent) >= HOLD), time_s, since_s)
        over = below >= LET_GO
        since_s = np.where(over, np.nan, since_s)
        with np.errstate(invalid="ignore"):
            learns = ~(time_s - since_s <= EXPIRE_S)
        turned = bool((learns != self.learns[rows]).any())
        self.ever |= not learns.all()
        self.recent[rows], self.below[rows] = np.where(over, np.uint64(0), recent), below
        self.since_s[rows], self.learns[rows] = since_s, learns
        return turned
