"""Vote: this step takes too long, judged while it is still running.

1.1 times the running average is suspicious, 3 times is a hang (He et al., Unicron, 2024, section 4.1). Whether a
standstill is a hang is judged in `trainwarden.detectors.pace.hang`.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import numpy as np

from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.detectors.pace.hang import HangConfig, HangWatch, hang_vote
from trainwarden.detectors.pace.steal_time import StealTime
from trainwarden.detectors.protocol import Role, abstain
from trainwarden.records import Vote


class IterationThresholdConfig(HangConfig, frozen=True, kw_only=True):
    """Multiples of the running average, and (`HangConfig`) the patience with each kind of standstill.

    Attributes
    ----------
    suspicious_ratio, suspicious_steps
        A job is suspicious when the median of so many newest steps is above this multiple (Unicron: 1.1).
    warm_up : int
        Steps without which there is no running average.
    """

    suspicious_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=10.0)] = 1.1
    suspicious_steps: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    warm_up: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3


class IterationThreshold(WholeMemory):
    """Suspiciously long steps, and hangs.

    Parameters
    ----------
    config : IterationThreshold.Config
    """

    Config = IterationThresholdConfig
    role = Role(reads="steps", opens=("verified",))
    more = False
    NOT_KEPT = ("_stolen",)

    def __init__(self, config: IterationThresholdConfig) -> None:
        self._config = config
        self._next_seq = 0
        self._average_s = float("nan")
        self._slowest_s = 0.0
        self._steps = 0
        self._recent: list[float] = []
        self._hangs = HangWatch(config)
        self._stolen = StealTime()

    def update(self, window: Window) -> None:
        """Follow the running average and whether the job stands still."""
        rows = window.fresh(self._next_seq)
        self._next_seq = window.next_seq
        for duration_s, quiet in zip(job_duration_s(window, rows), window.quiet_rows[rows], strict=True):
            if np.isfinite(duration_s):
                self._follow(float(duration_s), bool(quiet))
        typical_s = max(self._average_s, min(self._slowest_s, 10.0 * self._average_s))
        self._stolen.update(window)
        slowed = self._stolen.slowed(window.now_s)
        self._hangs.update(window, typical_s if self._steps >= self._config.warm_up else None, slowed)

    def score(self, window: Window) -> Vote:
        """Hang, suspicious or normal."""
        if self._steps < self._config.warm_up:
            return abstain("warm-up")
        if (hang := self._hangs.hang) is not None:
            return hang_vote(window, hang, self._average_s)
        if len(self._recent) < self._config.suspicious_steps:
            return Vote(opinion="normal")
        ratio = float(np.median(self._recent[-self._config.suspicious_steps :])) / self._average_s
        excess = max(0.0, ratio - 1.0) / (self._config.suspicious_ratio - 1.0)
        score = excess / (1.0 + excess)
        if ratio < self._config.suspicious_ratio:
            return Vote(opinion="normal", score=score)
        return Vote(
            opinion="anomalous",
            score=score,
            reason=f"the newest steps take {ratio:.2f} times the running average of {self._average_s:.3g} s",
            kind="slow_job",
            severity="sev3",
            metrics=("iteration_duration_seconds",),
            at_step=int(window.steps[-1]) if len(window.steps) else None,
        )

    # -- internals -------------------------------------------------------------------------------------------

    def _follow(self, duration_s: float, quiet: bool) -> None:
        self._steps += 1
        if self._steps <= self._config.warm_up:  # the very first steps are slow everywhere
            # The first may have begun before the hook came in: it counts only until there is another.
            self._average_s = duration_s if self._steps <= 2 else min(self._average_s, duration_s)
            return
        self._slowest_s = max(0.8 * self._slowest_s, duration_s)
        if quiet:
            self._average_s += 0.2 * (min(duration_s, 2.0 * self._average_s) - self._average_s)
            return
        self._recent = [*self._recent[-19:], duration_s]
        # Learn slowly from what is slow, so that a fault does not become the norm within a few steps.
        rate = 0.05 if duration_s < self._config.suspicious_ratio * self._average_s else 0.01
        self._average_s += rate * (min(duration_s, 2.0 * self._average_s) - self._average_s)
