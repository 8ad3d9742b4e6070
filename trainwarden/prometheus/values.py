"""Values of exporters as arrays: without blanks, without what is not possible, and what a mask tells."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import CATALOGUE
from trainwarden.prometheus.exporters import BLANKS, MOST, REASON_BITS

Floats = npt.NDArray[np.float64]


def without_blanks(values: Floats) -> Floats:
    """`values` with DCGM's marks for "not supported" and the like, and what is not finite, as NaN.

    Examples
    --------
    >>> without_blanks(np.array([61.0, 2147483632.0, 140737488355330.0, 9.3e18, np.inf])).tolist()
    [61.0, nan, nan, nan, nan]
    """
    size = np.abs(values)
    blank = ~(size < MOST)
    for low, high in BLANKS:
        blank |= (size >= low) & (size <= high)
    return np.where(blank, np.nan, values)


def possible(name: str, values: Floats) -> Floats:
    """`values` of a catalogue metric with what is not possible as NaN."""
    metric = CATALOGUE[name]
    with np.errstate(invalid="ignore"):
        bad = np.zeros(values.shape, dtype=np.bool_) if metric.low is None else values < metric.low
        bad |= values > metric.high if metric.high is not None else False
    return np.where(bad, np.nan, values)


def states_of(reasons: Floats) -> dict[str, Floats]:
    """The throttle states that a mask of clock event reasons tells.

    Examples
    --------
    >>> for name, one in states_of(np.array([0.0, 4.0, 32.0, 8.0])).items():
    ...     print(name, one.tolist())
    gpu_throttle_thermal_state [0.0, 0.0, 1.0, 0.0]
    gpu_throttle_hardware_state [0.0, 0.0, 0.0, 1.0]
    gpu_throttle_power_state [0.0, 1.0, 0.0, 0.0]
    """
    known = np.isfinite(reasons)
    mask = np.where(known, reasons, 0.0).astype(np.int64)
    return {
        name: np.where(known, ((mask & bits) != 0).astype(np.float64), np.nan) for name, bits in REASON_BITS.items()
    }
