"""What the rows were in which a change is told: their steps, when they ended, and every rank's own time in them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import median_of_others, noise, quiet_median

Floats = npt.NDArray[np.float64]
ROWS: Final = 1024  # rows whose step and time are remembered, so that the onset of a drift long ago can be named
OWN: Final = 128  # rows of own times kept to tell a rank that has become slow from one whose peers have become fast
BESIDE: Final = 30  # rows of own times on each side of a change, as many as its verification takes
MAX_STRIDE: Final = 1_000  # iterations that a row of a sampled job stands for at most; more is a job that went on
LEAST_NOISE: Final = 0.01  # of one step, so that a constant time never makes a small difference clear


class Growth(NamedTuple):
    """How much longer ranks compute than before a change [ranks]; NaN where unknown.

    Attributes
    ----------
    own : float [ranks]
        Log growth of a rank's own time.
    steady : float [ranks]
        Share of the rows since the change in which half of what a rank has grown by beyond the others is seen.
    errors : float [ranks]
        That growth beyond the others, in standard errors by the noise before the change.
    """

    own: Floats
    steady: Floats
    errors: Floats


class RowMemory:
    """The newest rows of a job, by sequence number.

    Examples
    --------
    >>> rows = RowMemory()
    >>> rows.resize(1)
    >>> for seq in range(60):
    ...     stride = rows.note(seq, 10 * seq, 2.0 * seq, np.array([0.1 if seq < 40 else 0.3]))
    >>> stride, rows.step(40, 59), rows.end_s(40, 59), rows.own_levels_s(0, 40, 59)
    (10, 400, 80.0, (0.1, 0.3))
    """

    def __init__(self) -> None:
        self._steps = np.zeros(ROWS, dtype=np.int64)
        self._ends_s: Floats = np.zeros(ROWS)
        self._own: Floats = np.full((OWN, 0), np.nan)

    def resize(self, ranks: int) -> None:
        """Make room for `ranks`."""
        self._own = np.hstack([self._own, np.full((OWN, ranks - self._own.shape[1]), np.nan)])

    def forget(self, which: npt.NDArray[np.bool_]) -> None:
        """The ranks `which` [ranks] have no own times here."""
        self._own[:, which] = np.nan

    def note(self, seq: int, step: int, end_s: float, own_s: Floats) -> int:
        """Keep row `seq`, in which the ranks' own times were `own_s` [ranks]; iterations since the row before it."""
        previous = int(self._steps[(seq - 1) % ROWS])
        self._steps[seq % ROWS], self._ends_s[seq % ROWS] = step, end_s
        self._own[seq % OWN] = own_s
        return min(max(step - previous, 1), MAX_STRIDE)

    def step(self, seq: int, newest: int) -> int:
        """The step of row `seq`, or of the oldest one that is still remembered in row `newest`."""
        return int(self._steps[max(seq, newest - ROWS + 1, 0) % ROWS])

    def end_s(self, seq: int, newest: int) -> float:
        """When that step ended."""
        return float(self._ends_s[max(seq, newest - ROWS + 1, 0) % ROWS])

    def own_levels_s(self, column: int, onset: int, reported: int) -> tuple[float, float]:
        """A rank's own time before row `onset`, or in the oldest rows that are kept, and in the newest rows.

        `reported` is the newest row.
        """
        kept = min(OWN, reported + 1)
        first = reported - kept + 1
        own = self._own[np.arange(first, reported + 1) % OWN, column]
        split = max(onset - first, min(BESIDE, kept // 2))
        before, after = own[max(0, split - BESIDE) : split], own[split:][-BESIDE:]
        return float(quiet_median(before)), float(quiet_median(after))

    def growth(self, onset: int, newest: int, live: npt.NDArray[np.bool_]) -> Growth:
        """How the own times of the `live` ranks [ranks] have grown from before row `onset` to since then."""
        kept = min(OWN, newest + 1)
        first = newest - kept + 1
        own = np.where(live, np.log(self._own[np.arange(first, newest + 1) % OWN][:, : live.size]), np.nan)
        split = max(onset - first, 0)
        before, after = own[max(0, split - BESIDE) : split], own[split:]
        usual = before - median_of_others(before)
        apart = after - median_of_others(after) - quiet_median(usual)
        middle = quiet_median(apart)
        with np.errstate(invalid="ignore", divide="ignore"):
            steady = (apart >= middle / 2.0).mean(axis=0)
            errors = middle * np.sqrt(len(after)) / np.maximum(noise(usual), LEAST_NOISE)
        return Growth(quiet_median(after) - quiet_median(before), np.asarray(steady), np.asarray(errors))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state; `load` takes it back."""
        return {"steps": self._steps, "ends_s": self._ends_s, "own": self._own}

    def load(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `arrays`."""
        self._steps, self._ends_s, self._own = (arrays[name].copy() for name in ("steps", "ends_s", "own"))
