"""Does waiting for a CPU explain that steps take longer? One rule for a host's ranks together and for one of them.

A step of length T whose ranks wait the share r of the time for a CPU loses r T. If steps have grown by T' - T and the
time that is lost by r' T' - r T, waiting explains the quotient of the two.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

QUEUED: Final = "rank_run_queue_wait_ratio"  # its queue on this system
ON_CPU: Final = "rank_cpu_ratio"  # the share of time that it computes, all its threads together
STOLEN: Final = "host_cpu_steal_ratio"  # what the hypervisor took
USED: Final = "host_cpu_utilization_ratio"
LEVEL_S: Final = 60.0  # over which a level is taken
LEAST_TICKS: Final = 3  # a share of one second says little
EXPLAINED: Final = 0.4  # of the time that steps have grown by; 0.43 to 1.1 on a machine whose pace wandered
GROWN: Final = 0.01  # the share itself must have: who is as busy as ever is slow for another reason


def most_explaining(before: Floats, now: Floats, before_s: float, now_s: float) -> int | None:
    """Whose wait explains it best that steps took `before_s` and take `now_s`; None if nobody's does.

    Parameters
    ----------
    before, now : float array [n]
        Shares of time in 0..1; NaN: not known.

    Examples
    --------
    >>> most_explaining(np.array([0.1, 0.1]), np.array([0.11, 0.4]), 1.0, 1.5)
    1
    >>> most_explaining(np.array([0.6]), np.array([0.6]), 1.0, 1.5) is None
    True
    """
    with np.errstate(invalid="ignore"):
        lost_s = np.where(now >= before + GROWN, now * now_s - before * before_s, -np.inf)
    worst = int(np.argmax(lost_s))
    return worst if 0.0 < EXPLAINED * (now_s - before_s) <= lost_s[worst] else None


def said(before: float, now: float) -> str:
    """What follows whoever it was.

    Examples
    --------
    >>> said(0.05, 0.5)
    'waited for a CPU 50% of the time, 5% before'
    """
    return f"waited for a CPU {now:.0%} of the time, {before:.0%} before"
