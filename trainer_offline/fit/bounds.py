"""What a count leaves open: bounds on a share and on a rate, so that little data is told apart from a bad model."""

from __future__ import annotations

import math
from typing import Final

from scipy.special import gammaincinv, ndtri, pdtr, pdtrik  # scipy.stats would take a second of each training

CONFIDENCE: Final = 0.95  # that the truth is above the lower bound, and that it is below the upper one
_Z: Final = float(ndtri(CONFIDENCE))


def share_bounds(found: float, of: float) -> tuple[float, float]:
    """Lower and upper bound of a share of which `found` of `of` were seen; 0 to 1 where none was.

    Parameters
    ----------
    found, of : float
        Independent trials; parts of one where what was counted is not independent.

    References
    ----------
    Wilson, Journal of the American Statistical Association 22 (1927); Brown, Cai, DasGupta, Statistical Science 16
    (2001), section 4, recommend it for small samples.

    Examples
    --------
    >>> [round(bound, 3) for bound in share_bounds(2, 2)], [round(bound, 3) for bound in share_bounds(90, 100)]
    ([0.425, 1.0], [0.84, 0.939])
    """
    if of <= 0.0:
        return 0.0, 1.0
    share, spread = found / of, _Z * _Z / of
    middle = (share + spread / 2.0) / (1.0 + spread)
    half = math.sqrt(spread * share * (1.0 - share) + spread * spread / 4.0) / (1.0 + spread)
    # Rounding alone would leave a bound of none or of all at 1e-17 from where it is, or beyond it.
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return (0.0 if share <= 0.0 else low), (1.0 if share >= 1.0 else high)


def count_bounds(seen: int) -> tuple[float, float]:
    """Lower and upper bound of the count that is to be expected where `seen` were seen.

    References
    ----------
    Garwood, Biometrika 28 (1936): exact for counts of independent events (Poisson).

    Examples
    --------
    >>> [round(bound, 2) for bound in count_bounds(0)], [round(bound, 2) for bound in count_bounds(10)]
    ([0.0, 3.0], [5.43, 16.96])
    """
    low = float(gammaincinv(seen, 1.0 - CONFIDENCE)) if seen else 0.0
    return low, float(gammaincinv(seen + 1, CONFIDENCE))


def most_by_chance(expected: float) -> int:
    """As many as chance gives where `expected` are to be expected: ``scipy.stats.poisson.ppf`` by its own formula.

    Examples
    --------
    >>> most_by_chance(0.0), most_by_chance(1.0), most_by_chance(10.0)
    (0, 3, 15)
    """
    if expected <= 0.0:
        return 0
    most: int = math.ceil(pdtrik(CONFIDENCE, expected))
    return most - 1 if most > 0 and pdtr(most - 1, expected) >= CONFIDENCE else most
