"""Vote: this step takes too long, judged while it is still running.

1.1 times the running average is suspicious, 3 times is a hang (He et al., Unicron, 2024, section 4.1). A hang is
declared from heartbeats, so it need not end first; how long to wait depends on what the culprit is doing, because a
stopped process will not come back on its own and a rank that burns CPU may just be evaluating.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.job.packed import pack, unpack
from detectors.job.rings import EXIT, PHASE_CODE, PHASES, WAIT
from detectors.job.window import Window, job_duration_s
from detectors.protocol import abstain
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

KNOWN_PAUSES: Final = tuple(PHASE_CODE[name] for name in ("checkpoint", "evaluation", "data"))
MAX_SUSPECTS: Final = 16


class IterationThresholdConfig(Config, frozen=True, kw_only=True):
    """Multiples of the running average and the patience with each kind of standstill.

    Attributes
    ----------
    floor_s, stopped_floor_s
        Least standstill that is ever called a hang; the second for a stopped process.
    sleeping_s, busy_s, pause_s
        Least patience with a culprit that sleeps, that burns CPU, that is in a known phase.
    """

    suspicious_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=10.0)] = 1.1
    suspicious_steps: Annotated[int, msgspec.Meta(ge=1, le=100)] = 5
    hang_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=100.0)] = 3.0
    stopped_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=100.0)] = 2.2
    busy_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=1000.0)] = 30.0
    floor_s: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    stopped_floor_s: Annotated[float, msgspec.Meta(gt=0.0)] = 0.5
    all_waiting_s: Annotated[float, msgspec.Meta(gt=0.0)] = 2.0
    ended_s: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    sleeping_s: Annotated[float, msgspec.Meta(gt=0.0)] = 3.0
    busy_s: Annotated[float, msgspec.Meta(gt=0.0)] = 30.0
    pause_s: Annotated[float, msgspec.Meta(gt=0.0)] = 60.0
    warm_up: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3


@dataclass(frozen=True, slots=True)
class _Standstill:
    """No rank has moved for `lasted_s`; `kind` is what the culprits do, which may last for `patience_s`."""

    kind: str
    lasted_s: float
    patience_s: float
    culprits: npt.NDArray[np.intp]
    since_s: float
    step: int
    what: str


class IterationThreshold:
    """Suspiciously long steps, and hangs.

    Parameters
    ----------
    config : IterationThreshold.Config
    """

    Config = IterationThresholdConfig
    more = False

    def __init__(self, config: IterationThresholdConfig) -> None:
        self._config = config
        self._next_seq = 0
        self._average_s = float("nan")
        self._slowest_s = 0.0
        self._steps = 0
        self._recent: list[float] = []
        self._longest_s: dict[str, float] = {}
        self._standstill: _Standstill | None = None
        self._hung = False

    def update(self, window: Window) -> None:
        """Follow the running average and whether the job stands still."""
        rows = window.fresh(self._next_seq)
        self._next_seq = window.next_seq
        for duration_s, quiet in zip(job_duration_s(window, rows), window.quiet_rows[rows], strict=True):
            if np.isfinite(duration_s):
                self._follow(float(duration_s), bool(quiet))
        before = self._standstill
        self._standstill = self._look(window)
        over = self._standstill is None or (before is not None and self._standstill.since_s > before.since_s)
        if before is not None and over:
            if not self._hung and window.phase not in {"start", "restart"}:
                self._longest_s[before.kind] = max(self._longest_s.get(before.kind, 0.0), before.lasted_s)
            self._hung = False
        if self._standstill is not None and self._standstill.lasted_s > self._standstill.patience_s:
            self._hung = True

    def score(self, window: Window) -> Vote:
        """Hang, suspicious or normal."""
        if self._steps < self._config.warm_up:
            return abstain("warm-up")
        if self._hung and self._standstill is not None:
            return self._hang(window, self._standstill)
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

    def state(self) -> bytes:
        """See `detectors.protocol.Detector`."""
        plain: dict[str, Any] = {
            "next_seq": self._next_seq, "average_s": self._average_s if self._steps else None,
            "slowest_s": self._slowest_s, "steps": self._steps, "recent": self._recent, "longest_s": self._longest_s,
        }  # fmt: skip
        return pack("iteration_threshold", plain)

    def restore(self, state: bytes) -> None:
        """See `detectors.protocol.Detector`; a standstill is seen afresh in the next window."""
        plain, _ = unpack("iteration_threshold", state)
        self._next_seq, self._steps = plain["next_seq"], plain["steps"]
        self._average_s = float("nan") if plain["average_s"] is None else plain["average_s"]
        self._slowest_s, self._recent = plain["slowest_s"], list(plain["recent"])
        self._longest_s = dict(plain["longest_s"])

    # -- internals -------------------------------------------------------------------------------------------

    def _follow(self, duration_s: float, quiet: bool) -> None:
        self._steps += 1
        if self._steps <= self._config.warm_up:  # the very first steps are slow everywhere
            self._average_s = duration_s if self._steps == 1 else min(self._average_s, duration_s)
            return
        self._slowest_s = max(0.8 * self._slowest_s, duration_s)
        if quiet:
            self._average_s += 0.2 * (min(duration_s, 2.0 * self._average_s) - self._average_s)
            return
        self._recent = [*self._recent[-19:], duration_s]
        # Learn slowly from what is slow, so that a fault does not become the norm within a few steps.
        rate = 0.05 if duration_s < self._config.suspicious_ratio * self._average_s else 0.01
        self._average_s += rate * (min(duration_s, 2.0 * self._average_s) - self._average_s)

    def _look(self, window: Window) -> _Standstill | None:
        """The present standstill; None while anything moves, or where nothing is known."""
        beats, size = window.beats, len(window.ranks)
        if self._steps < self._config.warm_up or window.finished or window.phase == "restart" or size == 0:
            return None
        newest_s = float(np.nanmax(beats.time_s[:size], initial=-np.inf))
        seen = window.live & (beats.time_s[:size] > newest_s - 3.0)  # older ones: their node is silent, not hung
        if (window.live & ~seen).any():
            return None  # a silent node: lost perhaps, and then the others wait for it
        if not seen.any() or (beats.phase[:size][seen] == PHASE_CODE["start"]).any():
            return None
        since_s = float(np.nanmax(beats.progress_s[:size][seen]))
        lasted_s = newest_s - since_s
        typical_s = max(self._average_s, min(self._slowest_s, 10.0 * self._average_s))
        if not lasted_s > 0.8 * typical_s:
            return None
        waiting = seen & (beats.phase[:size] == WAIT)
        if not waiting.any():
            return None
        step = int(beats.step[:size][seen].max())
        return self._judge(window, seen, waiting, since_s, lasted_s, typical_s, step, newest_s)

    def _judge(
        self,
        window: Window,
        seen: npt.NDArray[np.bool_],
        waiting: npt.NDArray[np.bool_],
        since_s: float,
        lasted_s: float,
        typical_s: float,
        step: int,
        newest_s: float,
    ) -> _Standstill:
        config, beats, size = self._config, window.beats, len(window.ranks)
        stopped_for_s = np.nan_to_num(newest_s - beats.stopped_s[:size], nan=-1.0)
        ran_s = np.nan_to_num(beats.cpu_s[:size] - beats.cpu_at_stop_s[:size])
        stopped = seen & (stopped_for_s > 0) & (ran_s <= 0.02)  # CPU time comes in ticks of 10 ms
        if stopped.any():
            patience_s = max(config.stopped_ratio * typical_s, config.stopped_floor_s)
            held_s = min(float(stopped_for_s[stopped].max()), lasted_s + typical_s)
            culprits = np.flatnonzero(stopped)
            return _Standstill("stopped", held_s, patience_s, culprits, since_s, step, "the process is stopped")
        absent = seen & ~waiting & (beats.phase[:size] != EXIT)
        if not absent.any():
            return self._nobody(window, seen, since_s, lasted_s, typical_s, step)
        used_s = np.nan_to_num(beats.cpu_s[:size] - beats.cpu_at_progress_s[:size])
        span_s = np.maximum(newest_s - beats.progress_s[:size], 1e-3)
        busy = absent & (used_s > 0.1 * span_s)
        culprits = np.flatnonzero(absent)
        known = absent & np.isin(beats.phase[:size], KNOWN_PAUSES)
        if known.any():
            kind = PHASES[int(beats.phase[:size][known][0])]
            least_s, what = config.pause_s, f"it has been in {kind} since"
        elif busy.any():
            kind, what = "busy", "it computes on and has not come to the collective"
            least_s = max(config.busy_s, config.busy_ratio * typical_s)
        else:
            kind, what = "sleeping", "it sleeps outside any collective"
            least_s = max(config.sleeping_s, config.hang_ratio * typical_s)
        patience_s = max(least_s, 3.0 * self._longest_s.get(kind, 0.0))
        return _Standstill(kind, lasted_s, patience_s, culprits, since_s, step, what)

    def _nobody(
        self, window: Window, seen: npt.NDArray[np.bool_], since_s: float, lasted_s: float, typical_s: float, step: int
    ) -> _Standstill:
        """Everybody waits: a rank that has left, or collectives that do not match."""
        config, size = self._config, len(window.ranks)
        longest_s = 3.0 * self._longest_s.get("all_waiting", 0.0)
        patience_s = max(config.hang_ratio * typical_s, config.floor_s, config.all_waiting_s, longest_s)
        left = np.flatnonzero(window.ended_cleanly | (seen & (window.beats.phase[:size] == EXIT)))
        if left.size:
            patience_s = max(patience_s, config.ended_s)
            what = "it has ended while the others wait for it"
            return _Standstill("all_waiting", lasted_s, patience_s, left, since_s, step, what)
        calls = np.where(seen, window.beats.calls[:size], np.iinfo(np.int64).max)
        fewest = np.flatnonzero(calls == calls.min())
        if len(fewest) > len(np.flatnonzero(seen)) // 2:
            fewest = np.zeros(0, dtype=np.intp)
        what = "it has begun the fewest collective calls while all ranks wait"
        return _Standstill("all_waiting", lasted_s, patience_s, fewest, since_s, step, what)

    def _hang(self, window: Window, still: _Standstill) -> Vote:
        excess = still.lasted_s / still.patience_s
        named = still.culprits[:MAX_SUSPECTS]
        suspects = tuple(
            Suspect(
                score=1.0 if place == 0 else 0.9, reason=still.what, rank=int(window.ranks[column]),
                node=window.nodes[column],
            )
            for place, column in enumerate(named)
        )  # fmt: skip
        who = f"rank {suspects[0].rank}: {still.what}; " if suspects else "all ranks wait in collectives; "
        return Vote(
            opinion="anomalous",
            score=excess / (1.0 + excess),
            reason=f"{who}no rank has moved for {still.lasted_s:.1f} s, a step takes {self._average_s:.3g} s",
            kind="hang",
            severity="sev2",
            suspects=suspects,
            onset_s=still.since_s,
            onset_step=still.step,
            at_step=still.step,
            verified=True,
        )
