"""Bayesian online change-point detection (Adams and MacKay 2007), batched over series, with bounded memory.

Each series carries at most `width` hypotheses "the present segment began at observation t". A segment's values are
normal with unknown mean and variance under a normal-inverse-gamma prior, so the predictive density is a Student t
(Murphy 2007, section 3). The hazard is constant. When all places are taken the least likely hypothesis goes: pruning
by a probability threshold prunes almost nothing on a stable series, so the number is bounded instead.
"""

from __future__ import annotations

from math import lgamma, log, pi
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

# Prior of a segment on standardised data (noise about 1): the mean may be anywhere within some tens of noise
# widths (1 / sqrt(KAPPA)), the variance is about 1 with the weight of two observations.
KAPPA: Final = 0.001
ALPHA: Final = 1.5
BETA: Final = 1.5


class Bocd:
    """Run-length posteriors of many series at once.

    Parameters
    ----------
    series : int
        How many.
    hazard : float
        Probability that a segment ends at any one observation.
    width : int
        Hypotheses kept per series.

    Examples
    --------
    >>> bocd = Bocd(series=1, hazard=0.01, width=16)
    >>> for x in [0.1, -0.2, 0.0, 0.3, -0.1, 0.2, 8.0, 8.1, 7.9]:
    ...     bocd.update(np.array([x]))
    >>> int(bocd.most_likely_run()[0])
    3
    """

    NOT_KEPT = ("_log_hazard", "_log_survive", "_norm")

    def __init__(self, series: int, hazard: float, width: int = 32) -> None:
        self._log_hazard = np.log(hazard)
        self._log_survive = np.log1p(-hazard)
        self._width = width
        self.log_mass: Floats = np.full((series, width), -np.inf)
        self.run = np.zeros((series, width), dtype=np.int64)
        self._mean: Floats = np.zeros((series, width))
        self._scatter: Floats = np.zeros((series, width))
        self._norm: Floats = _log_norm(1024)

    @property
    def series(self) -> int:
        """How many series there are."""
        return len(self.log_mass)

    def resize(self, series: int) -> None:
        """Add fresh series at the end until there are `series`."""
        more = series - self.series
        if more > 0:
            self.log_mass = np.vstack([self.log_mass, np.full((more, self._width), -np.inf)])
            self.run = np.vstack([self.run, np.zeros((more, self._width), dtype=np.int64)])
            self._mean = np.vstack([self._mean, np.zeros((more, self._width))])
            self._scatter = np.vstack([self._scatter, np.zeros((more, self._width))])

    def forget(self, which: npt.NDArray[np.bool_]) -> None:
        """Start the series `which` [series] afresh."""
        self.log_mass[which] = -np.inf

    def update(self, values: Floats) -> None:
        """Observe one standardised value per series; NaN leaves that series as it was.

        Parameters
        ----------
        values : float [series]
        """
        known = np.isfinite(values)
        if not known.any():
            return
        everyone = bool(known.all())
        pick: slice | npt.NDArray[np.bool_] = slice(None) if everyone else known
        x = values[pick][:, None]
        log_mass, run = self.log_mass[pick], self.run[pick]
        mean, scatter = self._mean[pick], self._scatter[pick]
        grown = log_mass + self._predictive(x, run, mean, scatter)
        evidence = _log_sum(log_mass)  # 0 once there is any hypothesis, -inf before the first value
        born = self._first(x[:, 0])
        first = np.isneginf(evidence)
        born = np.where(first, 0.0, born + self._log_hazard + np.where(first, 0.0, evidence))
        grown += self._log_survive
        place = np.argmin(grown, axis=1)
        count = run + 1.0
        kept = count + KAPPA
        delta = x - mean
        scatter = scatter + delta * delta * (run + KAPPA) / kept
        mean = mean + delta / kept
        run = run + 1
        line = np.arange(len(place))
        grown[line, place], run[line, place] = born, 1
        mean[line, place] = x[:, 0] / (1.0 + KAPPA)
        scatter[line, place] = x[:, 0] ** 2 * KAPPA / (1.0 + KAPPA)
        grown -= _log_sum(grown)[:, None]
        if everyone:
            self.log_mass, self.run, self._mean, self._scatter = grown, run, mean, scatter
        else:
            self.log_mass[pick], self.run[pick] = grown, run
            self._mean[pick], self._scatter[pick] = mean, scatter

    def most_likely_run(self) -> npt.NDArray[np.int64]:
        """Length of the most likely present segment, its newest value included [series]; 0 before any value."""
        best = np.argmax(self.log_mass, axis=1)
        run = np.take_along_axis(self.run, best[:, None], axis=1)[:, 0]
        return np.where(np.isneginf(self.log_mass.max(axis=1)), 0, run)

    def most_likely_mean(self) -> Floats:
        """Mean of the most likely present segment, in standardised units [series]."""
        best = np.argmax(self.log_mass, axis=1)
        return np.take_along_axis(self._mean, best[:, None], axis=1)[:, 0]

    def mass_between(self, shortest: npt.NDArray[np.int64] | int, longest: npt.NDArray[np.int64] | int) -> Floats:
        """Posterior probability that the present segment is `shortest` to `longest` values long [series]."""
        least, most = (np.broadcast_to(np.asarray(one), (self.series,))[:, None] for one in (shortest, longest))
        within = (self.run >= least) & (self.run <= most)
        mass: Floats = np.exp(np.where(within, self.log_mass, -np.inf)).sum(axis=1)
        return mass

    def _first(self, x: Floats) -> Floats:
        """Log density of `x` as the first value of a segment: `_predictive` of what has no past, a scalar variance."""
        variance = BETA * (KAPPA + 1.0) / (ALPHA * KAPPA)
        exponent = (ALPHA + 0.5) * np.log1p(x * x / (2.0 * ALPHA * variance))
        density: Floats = self._norm[0] - 0.5 * np.log(variance) - exponent
        return density

    def _predictive(self, x: Floats, run: npt.NDArray[np.int64], mean: Floats, scatter: Floats) -> Floats:
        """Log density of `x` under each hypothesis: Student t with 2 alpha degrees of freedom."""
        kappa, alpha = KAPPA + run, ALPHA + 0.5 * run
        beta = BETA + 0.5 * scatter
        variance = beta * (kappa + 1.0) / (alpha * kappa)
        delta = x - mean
        longest = int(run.max(initial=0))
        if longest >= self._norm.size:
            self._norm = _log_norm(2 * longest)
        exponent = (alpha + 0.5) * np.log1p(delta * delta / (2.0 * alpha * variance))
        density: Floats = self._norm[run] - 0.5 * np.log(variance) - exponent
        return density


def _log_norm(longest: int) -> Floats:
    """Normalising constants of the Student t for run lengths 0 to `longest` - 1."""
    degrees = [2.0 * ALPHA + run for run in range(longest)]
    return np.array([lgamma((nu + 1.0) / 2.0) - lgamma(nu / 2.0) - 0.5 * log(nu * pi) for nu in degrees])


def _log_sum(log_mass: Floats) -> Floats:
    top = log_mass.max(axis=1)
    safe = np.where(np.isneginf(top), 0.0, top)
    with np.errstate(divide="ignore"):
        total: Floats = safe + np.log(np.exp(log_mass - safe[:, None]).sum(axis=1))
    return total
