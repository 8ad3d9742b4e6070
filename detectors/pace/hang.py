"""Where a hang is declared: all ranks stand still, for longer than what the culprit does may last.

A hang is declared from heartbeats while the iteration is still running, so it need not end first: 3 times the running
average of a step is one (He et al., Unicron, 2024, section 4.1). How long to wait depends on what the culprit is doing,
because a stopped process will not come back on its own and a rank that burns CPU may just be evaluating.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.job.rings import EXIT, PHASE_CODE, PHASES, WAIT
from detectors.job.window import Window
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

Flags = npt.NDArray[np.bool_]
KNOWN_PAUSES: Final = tuple(PHASE_CODE[name] for name in ("checkpoint", "evaluation", "data"))
MAX_SUSPECTS: Final = 16
SILENT_S: Final = 3.0  # a node that has not been heard for so long is silent, and its ranks' state is not known
STILL_SHARE: Final = 0.8  # of a usual step must have passed without any progress before anything is looked at
LONGEST_TIMES: Final = 3.0  # patience is so many times the longest such standstill that went over by itself
STOPPED_CPU_S: Final = 0.02  # CPU time comes in ticks of 10 ms: a stopped process has used no more since
BUSY_SHARE: Final = 0.1  # of the time: a rank that uses more CPU than this computes


class HangConfig(Config, frozen=True, kw_only=True):
    """The patience with each kind of standstill.

    Attributes
    ----------
    hang_ratio, stopped_ratio, busy_ratio
        In usual steps: in general, with a stopped process, with a culprit that burns CPU.
    floor_s, stopped_floor_s
        Least standstill that is ever called a hang; the second for a stopped process.
    all_waiting_s, ended_s
        Least patience where everybody waits; where they wait for a rank that has ended.
    sleeping_s, busy_s, pause_s
        Least patience with a culprit that sleeps, that burns CPU, that is in a known phase.
    """

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


@dataclass(frozen=True, slots=True)
class Standstill:
    """No rank has moved for `still_s`; `kind` is what the culprits do, for `lasted_s`, which may be `patience_s`."""

    kind: str
    lasted_s: float
    patience_s: float
    culprits: npt.NDArray[np.intp]
    since_s: float
    step: int
    what: str
    still_s: float

    @property
    def too_long(self) -> bool:
        """True if this is a hang."""
        return self.lasted_s > self.patience_s


@dataclass(frozen=True, slots=True)
class _Still:
    """What the newest heartbeats show: nobody has moved since `since_s`, and some of those `seen` are `waiting`."""

    window: Window
    seen: Flags
    waiting: Flags
    lasted_s: float
    since_s: float
    typical_s: float

    @property
    def step(self) -> int:
        return int(self.window.beats.step[: self.seen.size][self.seen].max())

    def because(self, kind: str, patience_s: float, culprits: npt.NDArray[np.intp], what: str) -> Standstill:
        return Standstill(kind, self.lasted_s, patience_s, culprits, self.since_s, self.step, what, self.lasted_s)


class HangWatch:
    """Follows whether a job stands still, and declares a hang when that takes too long.

    Parameters
    ----------
    config : HangConfig

    Attributes
    ----------
    hang : Standstill or None
        The hang that is on.
    longest_s : dict
        By kind, how long the longest standstill lasted that was no hang.
    """

    def __init__(self, config: HangConfig) -> None:
        self._config = config
        self._still: Standstill | None = None
        self._hung = False
        self.longest_s: dict[str, float] = {}

    @property
    def hang(self) -> Standstill | None:
        return self._still if self._hung else None

    def update(self, window: Window, typical_s: float | None) -> None:
        """Look at the newest heartbeats; a usual step takes `typical_s`, None while that is not known."""
        before, self._still = self._still, None if typical_s is None else self._look(window, typical_s)
        over = self._still is None or (before is not None and self._still.still_s < before.still_s)
        if before is not None and over:
            if not self._hung and window.phase not in {"start", "restart"}:
                self.longest_s[before.kind] = max(self.longest_s.get(before.kind, 0.0), before.lasted_s)
            self._hung = False
        if self._still is not None and self._still.too_long:
            self._hung = True

    # -- internals -------------------------------------------------------------------------------------------

    def _look(self, window: Window, typical_s: float) -> Standstill | None:
        """The present standstill; None while anything moves, or where nothing is known."""
        beats, size = window.beats, len(window.ranks)
        if window.finished or window.phase == "restart" or size == 0:
            return None
        # Nodes need not share a clock: silence is what the service has watched, durations are of each node's own clock.
        seen = window.live & np.isfinite(beats.clock_s[:size])
        silent_s = max(window.node_silent_s.values(), default=0.0)
        if silent_s > SILENT_S or (window.live & ~seen).any():
            return None  # a silent node: lost perhaps, and then the others wait for it
        if not seen.any() or (beats.phase[:size][seen] == PHASE_CODE["start"]).any():
            return None
        still_s = np.where(seen, beats.still_s[:size], np.inf)
        last = int(still_s.argmin())  # the rank that has moved last
        lasted_s, since_s = float(still_s[last]), float(beats.progress_s[last])
        if not lasted_s > STILL_SHARE * typical_s:
            return None
        waiting = seen & (beats.phase[:size] == WAIT)
        if not waiting.any():
            return None
        return self._judge(_Still(window, seen, waiting, lasted_s, since_s, typical_s))

    def _judge(self, still: _Still) -> Standstill:
        """What the culprits do, and how long that may take."""
        beats, size = still.window.beats, still.seen.size
        stopped_for_s = np.nan_to_num(beats.stopped_for_s[:size], nan=-1.0)
        ran_s = np.nan_to_num(beats.cpu_s[:size] - beats.cpu_at_stop_s[:size])
        stopped = still.seen & (stopped_for_s > 0) & (ran_s <= STOPPED_CPU_S)
        if stopped.any():
            return self._stopped(still, stopped, float(stopped_for_s[stopped].max()))
        absent = still.seen & ~still.waiting & (beats.phase[:size] != EXIT)
        return self._absent(still, absent) if absent.any() else self._nobody(still)

    def _stopped(self, still: _Still, stopped: Flags, longest_s: float) -> Standstill:
        """A process has been stopped by a signal, for `longest_s`."""
        config = self._config
        patience_s = max(config.stopped_ratio * still.typical_s, config.stopped_floor_s)
        held_s = min(longest_s, still.lasted_s + still.typical_s)
        culprits, what = np.flatnonzero(stopped), "the process is stopped"
        return Standstill("stopped", held_s, patience_s, culprits, still.since_s, still.step, what, still.lasted_s)

    def _absent(self, still: _Still, absent: Flags) -> Standstill:
        """The others wait in a collective to which `absent` ranks have not come."""
        config, beats, size = self._config, still.window.beats, absent.size
        used_s = np.nan_to_num(beats.cpu_s[:size] - beats.cpu_at_progress_s[:size])
        span_s = np.maximum(beats.still_s[:size], 1e-3)
        busy = absent & (used_s > BUSY_SHARE * span_s)
        known = absent & np.isin(beats.phase[:size], KNOWN_PAUSES)
        if known.any():
            kind = PHASES[int(beats.phase[:size][known][0])]
            least_s, what = config.pause_s, f"it has been in {kind} since"
        elif busy.any():
            kind, what = "busy", "it computes on and has not come to the collective"
            least_s = max(config.busy_s, config.busy_ratio * still.typical_s)
        else:
            kind, what = "sleeping", "it sleeps outside any collective"
            least_s = max(config.sleeping_s, config.hang_ratio * still.typical_s)
        patience_s = max(least_s, LONGEST_TIMES * self.longest_s.get(kind, 0.0))
        return still.because(kind, patience_s, np.flatnonzero(absent), what)

    def _nobody(self, still: _Still) -> Standstill:
        """Everybody waits: a rank that has left, or collectives that do not match."""
        config, window, seen = self._config, still.window, still.seen
        longest_s = LONGEST_TIMES * self.longest_s.get("all_waiting", 0.0)
        patience_s = max(config.hang_ratio * still.typical_s, config.floor_s, config.all_waiting_s, longest_s)
        left = np.flatnonzero(window.ended_cleanly | (seen & (window.beats.phase[: seen.size] == EXIT)))
        if left.size:
            what = "it has ended while the others wait for it"
            return still.because("all_waiting", max(patience_s, config.ended_s), left, what)
        calls = np.where(seen, window.beats.calls[: seen.size], np.iinfo(np.int64).max)
        fewest = np.flatnonzero(calls == calls.min())
        if len(fewest) > len(np.flatnonzero(seen)) // 2:
            fewest = np.zeros(0, dtype=np.intp)
        what = "it has begun the fewest collective calls while all ranks wait"
        return still.because("all_waiting", patience_s, fewest, what)


def hang_vote(window: Window, hang: Standstill, step_s: float) -> Vote:
    """The vote that declares `hang` and names its culprits; a step usually takes `step_s`."""
    excess = hang.lasted_s / hang.patience_s
    suspects = tuple(
        Suspect(
            score=1.0 if place == 0 else 0.9, reason=hang.what, rank=int(window.ranks[column]),
            node=window.nodes[column],
        )
        for place, column in enumerate(hang.culprits[:MAX_SUSPECTS])
    )  # fmt: skip
    who = f"rank {suspects[0].rank}: {hang.what}; " if suspects else "all ranks wait in collectives; "
    return Vote(
        opinion="anomalous",
        score=excess / (1.0 + excess),
        reason=f"{who}no rank has moved for {hang.lasted_s:.1f} s, a step takes {step_s:.3g} s",
        kind="hang",
        severity="sev2",
        suspects=suspects,
        onset_s=hang.since_s,
        onset_step=hang.step,
        at_step=hang.step,
        verified=True,
    )
