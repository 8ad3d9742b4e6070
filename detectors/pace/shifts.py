"""A verified change of level, and when one counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from trainwarden.settings import Config

SLACK: Final = 0.85  # a true 10 % looks like 8.5 % as often as like 11.5: that share of a threshold counts as reached


class ShiftConfig(Config, frozen=True, kw_only=True):
    """When a level shift counts.

    Attributes
    ----------
    hazard : float
        Prior probability of a change at any one step.
    minimum_ratio : float
        Smallest change that counts (Falcon: 10 %), also of a slow rise above the level that was accepted last.
    clear_ratio : float
        A change that looks this large (a true 20 % looks like 17 as often as like 23) is verified after
        `clear_steps` if it stands clear of the noise. Clusters of three slow steps are common in healthy recorded
        runs, so the fourth decides: still within three iterations of the first.
    noise_floor : float
        Relative noise below which a series is never taken to be, so that a constant one never alarms.
    clear_noises : float
        How many noise widths a change must measure to be clear.
    small_evidence : float
        How many standard errors a smaller change must measure, after `small_steps` or more.
    drift_steps : int
        A slow rise that takes no longer than about this for `minimum_ratio` is a fault whenever it comes; a slower
        one must come on top of the pace that the series has had all along.
    """

    hazard: Annotated[float, msgspec.Meta(gt=0.0, lt=0.5)] = 0.004
    mass: Annotated[float, msgspec.Meta(gt=0.5, lt=1.0)] = 0.9
    minimum_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=3.0)] = 1.10
    clear_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=5.0)] = 1.17
    clear_steps: Annotated[int, msgspec.Meta(ge=3, le=100)] = 4
    small_steps: Annotated[int, msgspec.Meta(ge=5, le=60)] = 10
    warm_up: Annotated[int, msgspec.Meta(ge=6, le=60)] = 12
    baseline_steps: Annotated[int, msgspec.Meta(ge=10, le=120)] = 60
    noise_floor: Annotated[float, msgspec.Meta(gt=0.0, le=0.5)] = 0.01
    clear_noises: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    small_evidence: Annotated[float, msgspec.Meta(gt=0.0)] = 5.5
    drift_steps: Annotated[int, msgspec.Meta(ge=50, le=100_000)] = 400

    @property
    def least(self) -> float:
        """Smallest measured log change that counts."""
        return SLACK * float(np.log(self.minimum_ratio))


@dataclass(frozen=True, slots=True)
class Shift:
    """One verified change of one series; sequence numbers are those of the rows given to `update`."""

    series: int
    onset: int
    reported: int
    before: float
    after: float
    basis: Literal["segment", "baseline"]

    @property
    def slower(self) -> bool:
        """True if the level rose."""
        return self.after > self.before
