"""A verified change of level, when one counts, and the mechanisms that can be left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

import msgspec
import numpy as np

from trainwarden.settings import Config

SLACK: Final = 0.85  # a true 10 % looks like 8.5 % as often as like 11.5: that share of a threshold counts as reached

Mechanism = Literal[
    "bayes", "watch", "periodic", "drift", "own_drift", "drift_wait", "relief",
    "trimmed_mean", "paired_noise", "separate", "slope", "gentle_gain",
    "cluster_wait", "restart_wait", "restart_drop", "faster_wait", "excursion_wait",
    "refine", "staircase", "late_onset", "continuation",
]  # fmt: skip
MECHANISMS: Final[tuple[Mechanism, ...]] = get_args(Mechanism)
"""Everything that `leave_out` may name; docs/detection.md says what each does."""


class Thresholds(Config, frozen=True, kw_only=True):
    """When a level shift counts: what proposal, verification and the naming of onsets have in common.

    Attributes
    ----------
    minimum_ratio : float
        Smallest change that counts (Falcon: 10 %), also of a slow rise above the level that was accepted last.
    clear_ratio : float
        A change that looks this large (a true 20 % looks like 17 as often as like 23) is verified after
        `clear_steps` if it stands clear of the noise. Clusters of three slow steps are common in healthy recorded
        runs, so the fourth decides: still within three iterations of the first.
    small_steps : int
        A smaller change must have lasted this long (Falcon: ten iterations).
    warm_up, baseline_steps : int
        Values after which a level is known at all, and after which it may be taken for healthy.
    noise_floor : float
        Relative noise below which a series is never taken to be, so that a constant one never alarms.
    pause_ratio : float
        A step so many times as long as those after it was a hang or a restart (Unicron 2024, section 4.1).
    drift_steps : int
        A slow rise that takes no longer than about this for `minimum_ratio` is a fault whenever it comes; a slower
        one must come on top of the pace that the series has had all along. One as far behind another is the same one.
    leave_out : tuple of str
        Mechanisms that do not take part.

    Examples
    --------
    >>> Thresholds(leave_out=("drift",)).keeps("drift"), Thresholds().keeps("drift")
    (False, True)
    """

    minimum_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=3.0)] = 1.10
    clear_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=5.0)] = 1.17
    clear_steps: Annotated[int, msgspec.Meta(ge=3, le=100)] = 4
    small_steps: Annotated[int, msgspec.Meta(ge=5, le=60)] = 10
    warm_up: Annotated[int, msgspec.Meta(ge=6, le=60)] = 12
    baseline_steps: Annotated[int, msgspec.Meta(ge=10, le=120)] = 60
    noise_floor: Annotated[float, msgspec.Meta(gt=0.0, le=0.5)] = 0.01
    pause_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 3.0
    drift_steps: Annotated[int, msgspec.Meta(ge=50, le=100_000)] = 400
    leave_out: tuple[Mechanism, ...] = ()

    @property
    def least(self) -> float:
        """Smallest measured log change that counts."""
        return SLACK * float(np.log(self.minimum_ratio))

    def keeps(self, mechanism: Mechanism) -> bool:
        """False if `mechanism` is left out."""
        return mechanism not in self.leave_out


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
