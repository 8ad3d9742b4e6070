"""Raw score to 0..1 by how rare it was among its own normal scores; rises for ever, and one value means one rarity.

Rarity is counted in nats: -ln of the share of normal scores at least as large. Inside the normal range it is read from
the normal scores themselves; above their top 2 % the tail is taken as exponential (the first-order
peaks-over-threshold model: Pickands, Annals of Statistics 3, 1975; Balkema and de Haan, Annals of Probability 2, 1974),
so it keeps rising in proportion to the raw score. `squeeze` brings nats to 0..1 through a logarithm: no raw score that
a float can hold reaches 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from trainwarden.errors import DetectorError

Floats = npt.NDArray[np.float64]

TAIL_SHARE: Final = 0.02
TAIL_LEAST: Final = 10
"""The tail's slope comes from the top 2 % of normal scores, from ten at least."""
KNOTS: Final = 512
HALF_RARITY: Final = 1e-4
"""The calibrated score is 0.5 where one normal sample in this many is as strange."""
_HALF: Final = float(np.log1p(-np.log(HALF_RARITY)))


def squeeze(nats: npt.ArrayLike) -> Floats:
    """Nats of rarity to 0..1, strictly rising.

    Examples
    --------
    >>> squeeze([0.0, -np.log(1e-4), 1e6, 1e300]).round(3).tolist()
    [0.0, 0.5, 0.856, 0.997]
    """
    slow = np.log1p(np.maximum(np.asarray(nats, dtype=np.float64), 0.0))
    return np.asarray(slow / (slow + _HALF), dtype=np.float64)


def unsqueeze(scores: npt.ArrayLike) -> Floats:
    """Nats of rarity of calibrated `scores`; the inverse of `squeeze`.

    Examples
    --------
    >>> unsqueeze(squeeze([0.5, 20.0])).round(6).tolist()
    [0.5, 20.0]
    """
    values = np.asarray(scores, dtype=np.float64)
    return np.asarray(np.expm1(_HALF * values / (1.0 - values)), dtype=np.float64)


class Calibration:
    """Rarity of raw scores among one detector's own normal scores.

    Examples
    --------
    >>> calibration = Calibration.fit(np.random.default_rng(0).exponential(size=10_000))
    >>> [round(float(v), 1) for v in calibration.nats([1.0, 3.0, 30.0])]
    [1.0, 3.0, 30.7]
    """

    def __init__(self, raw: Floats, nats: Floats, slope: float) -> None:
        self._raw = raw
        self._nats = nats
        self._slope = slope  # nats per unit of raw score beyond the last knot

    @classmethod
    def fit(cls, normal: npt.ArrayLike) -> Self:
        """Learn from normal raw scores; NaN (nothing measured) is left out.

        Raises
        ------
        DetectorError
            If none is left or one is infinite.
        """
        values = np.asarray(normal, dtype=np.float64).ravel()
        values = np.sort(values[~np.isnan(values)])
        if not values.size or np.isinf(values).any():
            raise DetectorError("calibration needs finite normal scores")
        tail = min(max(TAIL_LEAST, int(values.size * TAIL_SHARE)), max(values.size // 2, 1))
        start = values[values.size - tail]
        excess = float((values[values.size - tail :] - start).mean())
        # A tail without spread (constant normal scores) still has to rise: one nat per thousandth of the level.
        slope = 1.0 / max(excess, 1e-3 * abs(start), 1e-9)
        shares = np.linspace(0.0, 1.0 - tail / values.size, KNOTS)
        raw, first = np.unique(np.append(np.quantile(values, shares[:-1]), start), return_index=True)
        nats = -np.log1p(-shares[first])
        below = raw < start
        raw, nats = np.append(raw[below], start), np.append(nats[below], -np.log1p(-shares[-1]))
        return cls(raw, nats, slope)

    def nats(self, raw: npt.ArrayLike) -> Floats:
        """Rarity, 0 and up, without bound; NaN stays NaN."""
        values = np.asarray(raw, dtype=np.float64)
        inside = np.interp(values, self._raw, self._nats)
        return np.asarray(inside + np.maximum(values - self._raw[-1], 0.0) * self._slope, dtype=np.float64)

    def score(self, raw: npt.ArrayLike) -> Floats:
        """Calibrated scores, 0..1."""
        return squeeze(self.nats(raw))

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """State as arrays."""
        return {"raw": self._raw, "nats": self._nats, "slope": np.array([self._slope])}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Calibration from `to_arrays`.

        Raises
        ------
        DetectorError
            If the knots do not rise or the slope is not positive.
        """
        try:
            raw, nats, slope = (np.asarray(arrays[name], dtype=np.float64) for name in ("raw", "nats", "slope"))
        except (KeyError, ValueError) as error:
            raise DetectorError(f"state of a calibration is damaged: {error}") from error
        rising = raw.ndim == 1 and raw.shape == nats.shape and raw.size > 0 and bool((np.diff(raw) > 0.0).all())
        if not rising or slope.shape != (1,) or not slope[0] > 0.0:
            raise DetectorError("state of a calibration is damaged: it does not rise")
        return cls(raw, nats, float(slope[0]))
