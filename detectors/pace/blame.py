"""Whose own time has grown, where it is known that the whole job has become slow.

That somebody is the cause is likely then, so less evidence does than where ranks are compared without such a sign
(`trainwarden.detectors.peers`): sharded training makes ranks wait within what is measured as computing, and one that is
half as slow again stands out less from step to step than its median does.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trainwarden.detectors.job.common_mode import median_of_others, quiet_median
from trainwarden.detectors.pace.row_memory import Growth

BLAMED: Final = 0.5  # of the job's growth (in logarithms) must be the rank's alone for it to be the cause
SHARED: Final = 0.5  # all have grown if the median rank has by this share
STEADY: Final = 0.65  # of the slow steps must show it: with two ranks the noise of both is in each
ERRORS: Final = 6.0  # of a mean; those of medians are a quarter larger, and both sides have one
LIKELY_STEPS: Final = 6  # are asked at least: four steps may be anybody's


def shared(growth: Growth, ratio: float) -> bool:
    """True if the median rank's own time has grown with the job's, or is not known."""
    middle = float(quiet_median(growth.own))
    return not np.isfinite(middle) or middle >= SHARED * float(np.log(ratio))


def likely(growth: Growth, ratio: float) -> tuple[int, float] | None:
    """The rank whose own time has grown by most of what steps have grown by, and how many times, beyond the others'.

    Parameters
    ----------
    growth : Growth
    ratio : float
        How many times as long steps take.

    Examples
    --------
    >>> steady, errors = np.array([0.5, 0.9, 0.6]), np.array([0.5, 9.0, 0.2])
    >>> place, times = likely(Growth(np.log([1.1, 1.7, 1.0]), steady, errors), 1.5)
    >>> place, round(times, 2)
    (1, 1.62)
    >>> likely(Growth(np.log([1.4, 1.5, 1.4]), steady, errors), 1.5) is None
    True
    """
    apart = growth.own - median_of_others(growth.own[None])[0]
    least = BLAMED * float(np.log(ratio))
    with np.errstate(invalid="ignore"):
        yes = (apart >= least) & (growth.own >= least) & (growth.steady >= STEADY) & (growth.errors >= ERRORS)
    if not yes.any():
        return None
    place = int(np.argmax(np.where(yes, apart, -np.inf)))
    return place, float(np.exp(apart[place]))
