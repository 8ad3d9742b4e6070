"""How often the entities that models were trained on were sampled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import lookup
from trainwarden.detectors.metrics.models.rows import Floats
from trainwarden.errors import DetectorError

FACTOR: Final = 1.5
"""Further apart two intervals are unlike: from here on two samples make a better interval of training than one does."""


@dataclass(frozen=True, slots=True)
class SamplingInterval:
    """Seconds between two samples of an entity, of the most often and the least often sampled one of training.

    `averaged`: a sample of training was the mean of several, so it has to be in service.

    Examples
    --------
    >>> SamplingInterval.of([np.arange(5.0), np.array([0.0, 2.0, 4.1, 60.0, 62.0])]).summary
    '1 to 2.05 s'
    """

    fastest_s: float
    slowest_s: float
    averaged: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.fastest_s <= self.slowest_s < np.inf:
            raise DetectorError(f"sampling intervals from {self.fastest_s} s to {self.slowest_s} s are none")

    @classmethod
    def of(cls, times: Iterable[Floats]) -> Self | None:
        """That of series' times; None where none has two."""
        steps = [np.diff(one) for one in times]
        found = [float(np.median(one[one > 0.0])) for one in steps if (one > 0.0).any()]
        return cls(min(found), max(found)) if found else None

    @property
    def summary(self) -> str:
        """As a person reads it."""
        alike = self.slowest_s <= self.fastest_s * 1.01
        return f"{self.fastest_s:.3g} s" if alike else f"{self.fastest_s:.3g} to {self.slowest_s:.3g} s"

    def with_other(self, other: Self) -> Self | None:
        """What both know; None where they are unlike."""
        fastest_s, slowest_s = max(self.fastest_s, other.fastest_s), min(self.slowest_s, other.slowest_s)
        if fastest_s > FACTOR * slowest_s:
            return None
        averaged = self.averaged or other.averaged
        return type(self)(min(fastest_s, slowest_s), max(fastest_s, slowest_s), averaged)

    def to_array(self) -> npt.NDArray[Any]:
        return np.array([self.fastest_s, self.slowest_s, float(self.averaged)])

    @classmethod
    def from_array(cls, array: npt.NDArray[Any]) -> Self:
        """Pace from `to_array`; raises DetectorError where it is damaged."""
        try:
            fastest_s, slowest_s, averaged = (float(one) for one in array)
        except (TypeError, ValueError) as error:
            raise DetectorError(f"state of a pace is damaged: {error}") from error
        return cls(fastest_s, slowest_s, bool(averaged))


def smallest_steps(names: Sequence[str], pace: SamplingInterval | None) -> Floats:
    """What each metric ``[d]`` moves by at least if it moves: a counter of events by one in an interval, others by any.

    Examples
    --------
    >>> smallest_steps(["nic_rdma_symbol_errors_count", "gpu_power_watts"], SamplingInterval(5.0, 5.0)).tolist()
    [0.2, 0.0]
    """
    known = [lookup(name) for name in names]
    counts = [metric is not None and metric.kind == "counter" and metric.unit == "count" for metric in known]
    return np.array(counts, dtype=np.float64) * (0.0 if pace is None else 1.0 / pace.fastest_s)
