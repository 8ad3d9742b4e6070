"""The recent steps of ranks as logarithms, and what is normal for each of them."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from detectors.common_mode import noise, quiet_median

Floats = npt.NDArray[np.float64]
ROWS: Final = 160  # steps remembered: the newest are judged, the older healthy ones are the baseline
HELD_BACK: Final = 20  # newest steps that are not yet part of the baseline, so that a fault cannot teach it
LEARN: Final = 8  # steps without which there is no baseline
ANCHOR: Final = 50  # healthy steps after which a fixed baseline is kept too, against slow drifts


class PeerMemory:
    """Compute time of every rank over the newest steps, its own and relative to the median of the others.

    Attributes
    ----------
    own, relative : float [ROWS, ranks]
        Natural logarithms, newest last; NaN where nothing is known.
    sick : bool [ROWS, ranks]
        Steps in which the rank was known to be slow; nothing is learnt from those.
    base : float [3, ranks]
        Normal relative level, own level and noise, from the newest healthy steps but the very newest.
    anchor : float [2, ranks]
        Relative and own level once learnt and then kept.
    """

    def __init__(self) -> None:
        self.count = 0
        self.own: Floats = np.full((ROWS, 0), np.nan)
        self.relative: Floats = np.full((ROWS, 0), np.nan)
        self.wait_s: Floats = np.full((ROWS, 0), np.nan)
        self.sick = np.zeros((ROWS, 0), dtype=np.bool_)
        self.ends_s: Floats = np.full(ROWS, np.nan)
        self.steps = np.zeros(ROWS, dtype=np.int64)
        self.busy_s: Floats = np.full(ROWS, np.nan)
        self.base: Floats = np.full((3, 0), np.nan)
        self.anchor: Floats = np.full((2, 0), np.nan)

    @property
    def ranks(self) -> int:
        """How many columns there are."""
        return int(self.own.shape[1])

    @property
    def typical_s(self) -> float:
        """Median step time of late, without pauses."""
        return float(quiet_median(self.busy_s[-20:]))

    def widen(self, ranks: int) -> None:
        """Add fresh columns until there are `ranks`."""
        more = ranks - self.ranks
        if more <= 0:
            return
        for name in ("own", "relative", "wait_s", "base", "anchor"):
            array = getattr(self, name)
            setattr(self, name, np.hstack([array, np.full((len(array), more), np.nan)]))
        self.sick = np.hstack([self.sick, np.zeros((ROWS, more), dtype=np.bool_)])

    def forget(self, column: int) -> None:
        """The rank of `column` now runs elsewhere and has no history there."""
        for array in (self.own, self.relative, self.wait_s, self.base, self.anchor):
            array[:, column] = np.nan
        self.sick[:, column] = False

    def push(
        self,
        step: int,
        end_s: float,
        busy_s: float,
        own: Floats,
        relative: Floats,
        wait_s: Floats,
        sick: npt.NDArray[np.bool_],
    ) -> None:
        """Add one step of all ranks and learn from what has become old enough."""
        for array in (self.own, self.relative, self.wait_s, self.sick, self.ends_s, self.steps, self.busy_s):
            array[:-1] = array[1:].copy()
        self.own[-1], self.relative[-1], self.wait_s[-1], self.sick[-1] = own, relative, wait_s, sick
        self.ends_s[-1], self.steps[-1], self.busy_s[-1] = end_s, step, busy_s
        self.count += 1
        if self.count <= 2 * LEARN + HELD_BACK or self.count % 8 == 0:
            self._learn()

    def spread(self) -> Floats:
        """Noise of each rank, not below what is usual among them [ranks]."""
        known = self.base[2][np.isfinite(self.base[2])]
        usual = float(quiet_median(known)) if known.size else 0.0
        return np.asarray(np.maximum(np.nan_to_num(self.base[2]), max(0.02, 0.7 * usual)))

    def rows_above(self, level: Floats) -> npt.NDArray[np.int64]:
        """Since how many of the newest steps each rank has been above `level`, one calm step forgiven [ranks]."""
        newest = (self.relative[-40:] - level)[::-1]
        half = 0.5 * quiet_median(newest[:4])
        with np.errstate(invalid="ignore"):
            calm = ~(newest > np.maximum(half, 0.05))
        twice = calm[:-1] & calm[1:]
        found = np.where(twice.any(axis=0), np.argmax(twice, axis=0), len(newest) - 1)
        return np.maximum(found, 1)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state; `load` takes it back."""
        return {name: array for name, array in vars(self).items() if isinstance(array, np.ndarray)} | {
            "count": np.array(self.count)
        }

    def load(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `arrays`."""
        self.count = int(arrays["count"])
        for name in [name for name, array in vars(self).items() if isinstance(array, np.ndarray)]:
            setattr(self, name, arrays[name])

    def _learn(self) -> None:
        """Baselines from the healthy steps, but the newest."""
        # While there are few steps, all but the newest four are taken: a baseline is needed before it is ideal.
        held = HELD_BACK if self.count >= LEARN + HELD_BACK else max(4, self.count - LEARN)
        part = slice(max(0, ROWS - self.count), ROWS - held)
        healthy = np.where(self.sick[part], np.nan, self.relative[part])
        own = np.where(self.sick[part], np.nan, self.own[part])
        number = np.isfinite(healthy).sum(axis=0)
        fresh = np.stack([quiet_median(healthy), quiet_median(own), noise(healthy)])
        self.base = np.where(number >= LEARN, fresh, self.base)
        self.anchor = np.where((number >= ANCHOR) & np.isnan(self.anchor[0]), fresh[:2], self.anchor)
