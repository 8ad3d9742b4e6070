"""A verified change of level, when one counts, and the mechanisms that can be left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.settings import Config

SLACK: Final = 0.85  # a true 10 % looks like 8.5 % as often as like 11.5: that share of a threshold counts as reached

SURE_ROWS: Final = 3  # a checkpoint beside an evaluation are two

Mechanism = Literal[
    "bayes", "watch", "periodic", "drift", "own_drift", "drift_wait", "relief",
    "trimmed_mean", "paired_noise", "separate", "wander", "gentle_gain",
    "cluster_wait", "restart_wait", "restart_drop", "faster_wait", "excursion_wait",
    "refine", "staircase", "late_onset", "continuation",
]  # fmt: skip
MECHANISMS: Final[tuple[Mechanism, ...]] = get_args(Mechanism)
"""Everything that `leave_out` may name; docs/change_points.md says what each does."""


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
    sure_ratio : float
        Of a sampled series, whose rows stand for several iterations, `SURE_ROWS` are enough that look this large and
        last for `small_steps` iterations.
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

    Notes
    -----
    "tune" in a comment is the share of jobs right with another number, 98.8 % as it is, by
    ``python -m tests.benchmarks.detection.ablation --numbers --synthetic 40 --every 9``.

    Examples
    --------
    >>> Thresholds(leave_out=("drift",)).keeps("drift"), Thresholds().keeps("drift")
    (False, True)
    """

    # Falcon 4.2: 10 % (tune: 96.0 % at 1.05, 90.8 % at 1.2)
    minimum_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=3.0)] = 1.10
    # a true 20 % looks like it as often as not (tune: 80.6 % at 1.085, 98.6 % at 1.34)
    clear_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=5.0)] = 1.17
    # the bar: a change of 20 % within 3 iterations of its first (tune: 98.6 % at 8)
    clear_steps: Annotated[int, msgspec.Meta(ge=3, le=100)] = 4
    # twice the largest spread of one pace in the recorded runs (two paces in turn, 21 %)
    sure_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 1.5
    # Falcon 4.2: ten iterations (tune: 96.5 % at 5, 98.6 % at 20)
    small_steps: Annotated[int, msgspec.Meta(ge=5, le=60)] = 10
    # of which the middle two thirds are eight values (tune: 98.8 % at 6 and at 24)
    warm_up: Annotated[int, msgspec.Meta(ge=6, le=60)] = 12
    # a median of 60 values is known to a sixth of the noise (tune: 98.6 % at 30, 98.8 % at 120)
    baseline_steps: Annotated[int, msgspec.Meta(ge=10, le=120)] = 60
    # chosen by hand; not measured by halves and doubles yet
    noise_floor: Annotated[float, msgspec.Meta(gt=0.0, le=0.5)] = 0.01
    # Unicron 4.1
    pause_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 3.0
    # injected drifts take 60 to 500 steps for 10 %, programs that grow about 1,000
    drift_steps: Annotated[int, msgspec.Meta(ge=50, le=100_000)] = 400
    leave_out: tuple[Mechanism, ...] = ()

    @property
    def least(self) -> float:
        """Smallest measured log change that counts."""
        return SLACK * float(np.log(self.minimum_ratio))

    def fewest(self, stride: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Rows that a clear change must have lasted for at least [series], where a row is of `stride` iterations."""
        return np.where(SURE_ROWS * stride >= self.small_steps, min(SURE_ROWS, self.clear_steps), self.clear_steps)

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
