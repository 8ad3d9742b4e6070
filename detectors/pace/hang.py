"""Where a hang is declared: all ranks stand still, for longer than what the culprit does may last.

A hang is declared from heartbeats while the iteration is still running, so it need not end first: 3 times the running
average of a step is one (He et al., Unicron, 2024, section 4.1). How long to wait depends on what the culprit is doing,
because a stopped process will not come back on its own and a rank that burns CPU may just be evaluating: three usual
steps and the longest such pause that is known, at least what an unknown pause may take, and never more than `most_s`.

Who holds up ranks that wait, where hosts run ahead of their devices: the counts of calls decide, not hosts' states.

A host that waits for its device is in no collective, and is no culprit for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.collectives.count_watch import blame, heard
from trainwarden.detectors.job.beats import EXIT, KNOWN_PAUSES, PHASE_CODE, PHASES, WAIT
from trainwarden.detectors.job.window import Window
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

_MOST: Final = 0.5  # of the ranks: if more have begun equally few calls, that tells nobody
_WHAT: Final = {
    "host": "its host has not enqueued a call that others wait in",
    "device": "its device has not started a call that others wait in",
    "link": "",
}


def stall_culprits(window: Window, absent: Flags, lasted_s: float) -> tuple[Flags, str]:
    """Ranks that hold up the others, and what tells so; nobody where that is not known.

    Parameters
    ----------
    window : Window
    absent : bool [ranks]
        Have not come to the collective in which others are seen to wait.
    lasted_s : float
        How long nobody has moved: what ranks have told of their counts meanwhile still holds.
    """
    if absent.sum() == 1:
        return absent, ""
    out = np.zeros(absent.size, dtype=np.bool_)
    found = None if window.counts is None else blame(heard(window.counts, window, lasted_s))
    if found is not None:
        out[[column for column in found.columns if column < out.size]] = True
        return out & window.live, _WHAT[found.kind]
    calls = window.beats.calls[: absent.size]
    fewest = absent & (calls == calls[absent].min(initial=np.iinfo(np.int64).max))
    if fewest.sum() < _MOST * window.live.sum() and (calls[window.live & ~fewest] > calls[fewest].max(initial=0)).all():
        return fewest, "it has begun the fewest collective calls"
    return out, ""


Flags = npt.NDArray[np.bool_]
MAX_SUSPECTS: Final = 16
MUTE_STEPS: Final = 2.0  # that are made without a node: it is there, and its agent is not
SILENT_S: Final = 3.0  # a node that has not been heard for so long is silent, and its ranks' state is not known
STILL_SHARE: Final = 0.8  # of a usual step must have passed without any progress before anything is looked at
LONGEST_TIMES: Final = 3.0  # short pauses, and known ones, may take so many times the longest that went over by itself
STOPPED_CPU_S: Final = 0.02  # CPU time comes in ticks of 10 ms: a stopped process has used no more since
_PAUSES: Final = frozenset(PHASES[code] for code in KNOWN_PAUSES)
_AT_WORK: Final = _PAUSES | {"busy", "computing"}
_ALONE: Final = {"computing": "it computes on without a step or a collective call"}
_ALL: Final = {
    **dict.fromkeys(("sleeping", "busy"), "some ranks wait, and who holds them up is not known"),
    "all_waiting": "all ranks wait in collectives",
    "computing": "all ranks compute on without a step or a collective call",
}
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
        Least patience with a culprit that sleeps, that burns CPU, that is in a known phase; the last also where all
        compute and nobody waits.
    most_s
        Most patience with anything. A start, and phases in which nobody waits, get all of it.
    """

    hang_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=100.0)] = 3.0
    stopped_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=100.0)] = 2.2
    busy_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=1000.0)] = 3.0
    floor_s: Annotated[float, msgspec.Meta(gt=0.0)] = 1.0
    stopped_floor_s: Annotated[float, msgspec.Meta(gt=0.0)] = 0.5
    all_waiting_s: Annotated[float, msgspec.Meta(gt=0.0)] = 2.0
    ended_s: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    sleeping_s: Annotated[float, msgspec.Meta(gt=0.0)] = 3.0
    busy_s: Annotated[float, msgspec.Meta(gt=0.0)] = 30.0
    pause_s: Annotated[float, msgspec.Meta(gt=0.0)] = 60.0
    most_s: Annotated[float, msgspec.Meta(gt=0.0)] = 1800.0  # what PyTorch gives any collective but NCCL's


@dataclass(frozen=True, slots=True)
class Stall:
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
    slowed: float

    @property
    def whole(self) -> bool:
        """True if nothing is hidden: who is not seen may be the one that all wait for."""
        return not (self.window.live & ~self.seen).any()

    @property
    def step(self) -> int:
        return int(self.window.beats.step[: self.seen.size][self.seen].max())

    def because(self, kind: str, patience_s: float, culprits: npt.NDArray[np.intp], what: str) -> Stall:
        patience_s *= self.slowed
        return Stall(kind, self.lasted_s, patience_s, culprits, self.since_s, self.step, what, self.lasted_s)


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

    NOT_KEPT = ("_still", "_hung")

    def __init__(self, config: HangConfig) -> None:
        self._config = config
        self._still: Stall | None = None
        self._hung = False
        self.longest_s: dict[str, float] = {}

    @property
    def hang(self) -> Stall | None:
        return self._still if self._hung else None

    def update(self, window: Window, typical_s: float | None, slowed: float = 1.0) -> None:
        """Look at the newest heartbeats; a step takes `typical_s` (None: unknown), now all `slowed` times as long."""
        before, self._still = self._still, None if typical_s is None else self._look(window, typical_s, slowed)
        over = self._still is None or (before is not None and self._still.still_s < before.still_s)
        if before is not None and over:
            # Work that went over by itself was no hang, even if it was called one; a broken link may break for good.
            told_well = not self._hung or before.kind in _AT_WORK
            if told_well and not window.starting and _moved_since(window, before.since_s):
                self.longest_s[before.kind] = max(self.longest_s.get(before.kind, 0.0), before.lasted_s)
            self._hung = False
        if self._still is not None and self._still.too_long:
            self._hung = True

    # -- internals -------------------------------------------------------------------------------------------

    def _look(self, window: Window, typical_s: float, slowed: float) -> Stall | None:
        """The present standstill; None while anything moves, or where nothing is known."""
        beats, size = window.beats, len(window.ranks)
        if window.finished or window.phase == "restart" or size == 0:
            return None
        # Nodes need not share a clock: silence is what the service has watched, durations are of each node's own clock.
        seen = window.live & np.isfinite(beats.clock_s[:size])
        mute = self._mute(window, typical_s)
        if mute is None or (window.live & ~mute & ~seen).any():
            return None  # a silent node: lost perhaps, and then the others wait for it
        seen &= ~mute
        if not seen.any() or (beats.phase[:size][seen] == PHASE_CODE["start"]).any():
            return None
        still_s = np.where(seen, beats.still_s[:size], np.inf)
        last = int(still_s.argmin())  # the rank that has moved last
        lasted_s, since_s = float(still_s[last]), float(beats.progress_s[last])
        if not lasted_s > STILL_SHARE * typical_s:
            return None
        waiting = seen & (beats.phase[:size] == WAIT)
        if not waiting.any() and (beats.phase[:size][seen] == EXIT).all():
            return None
        return self._judge(_Still(window, seen, waiting, lasted_s, since_s, typical_s, slowed))

    def _mute(self, window: Window, typical_s: float) -> Flags | None:
        """Ranks that only their agent is silent of, as steps went on without it; None if a node may be lost."""
        silent = {node: silent_s for node, silent_s in window.node_silent_s.items() if silent_s > SILENT_S}
        # Less than what a lost node is given, so that a silence is always one or the other.
        if any(silent_s <= window.still_s + SILENT_S + MUTE_STEPS * typical_s for silent_s in silent.values()):
            return None
        return np.array([node in silent for node in window.nodes], dtype=np.bool_)

    def _judge(self, still: _Still) -> Stall:
        """What the culprits do, and how long that may take."""
        beats, size = still.window.beats, still.seen.size
        stopped_for_s = np.nan_to_num(beats.stopped_for_s[:size], nan=-1.0)
        ran_s = np.nan_to_num(beats.cpu_s[:size] - beats.cpu_at_stop_s[:size])
        stopped = still.seen & (stopped_for_s > 0) & (ran_s <= STOPPED_CPU_S)
        if stopped.any():
            return self._stopped(still, stopped, float(stopped_for_s[stopped].max()))
        absent = still.seen & ~still.waiting & (beats.phase[:size] != EXIT)
        if not still.waiting.any():
            return self._nobody_waits(still, absent)
        return self._absent(still, absent) if absent.any() else self._all_wait(still)

    def _stopped(self, still: _Still, stopped: Flags, longest_s: float) -> Stall:
        """A process has been stopped by a signal, for `longest_s`."""
        config = self._config
        patience_s = max(config.stopped_ratio * still.typical_s, config.stopped_floor_s)
        held_s = min(longest_s, still.lasted_s + still.typical_s)
        culprits, what = np.flatnonzero(stopped), "the process is stopped"
        return Stall("stopped", held_s, patience_s, culprits, still.since_s, still.step, what, still.lasted_s)

    def _absent(self, still: _Still, absent: Flags) -> Stall:
        """The others wait in a collective to which `absent` ranks have not come."""
        config, beats, size = self._config, still.window.beats, absent.size
        known = absent & np.isin(beats.phase[:size], KNOWN_PAUSES)
        if known.any():
            kind = PHASES[int(beats.phase[:size][known][0])]
            patience_s = self._patience_s(still, kind, config.pause_s, config.hang_ratio)
            return still.because(kind, patience_s, np.flatnonzero(known), f"it has been in {kind} since")
        culprits, told = absent, ""
        if (absent & still.window.asynchronous).any():
            culprits, told = stall_culprits(still.window, absent, still.lasted_s)
        used_s = np.nan_to_num(beats.cpu_s[:size] - beats.cpu_at_progress_s[:size])
        busy = used_s > BUSY_SHARE * np.maximum(beats.still_s[:size], 1e-3)
        if busy[culprits if culprits.any() else absent].any():
            kind, what = "busy", "it computes on and has not come to the collective"
            least_s = config.pause_s if still.window.starting else config.busy_s
            patience_s = self._patience_s(still, kind, least_s, config.busy_ratio)
        else:
            kind, what = "sleeping", "it sleeps outside any collective"
            patience_s = self._patience_s(still, kind, config.sleeping_s, config.hang_ratio)
        return still.because(kind, patience_s, np.flatnonzero(culprits), told or what)

    def _nobody_waits(self, still: _Still, absent: Flags) -> Stall:
        """No rank is seen to wait: all compute, or sit in a device's kernels; who holds up whom cannot be told."""
        config, window, phases = self._config, still.window, still.window.beats.phase[: absent.size]
        known = absent & np.isin(phases, KNOWN_PAUSES)
        kind = PHASES[int(phases[known][0])] if known.any() else "computing"
        alone = absent.sum() == 1 and still.whole and (window.live | window.ended_cleanly).all()  # not the last to fail
        culprits = np.flatnonzero(absent) if alone else np.zeros(0, dtype=np.intp)
        ending = window.ended_cleanly.any() or (phases[still.seen] == EXIT).any()
        if known.any() or ending or window.starting:  # compilers at work, or what comes after the last step
            patience_s = config.most_s
        else:
            patience_s = self._patience_s(still, kind, config.pause_s, config.hang_ratio)
        return still.because(kind, patience_s, culprits, _ALONE.get(kind, f"it has been in {kind} since"))

    def _patience_s(self, still: _Still, kind: str, least_s: float, ratio: float) -> float:
        """How long a standstill of `kind` may last: so many usual steps and the longest one known."""
        longest_s = self.longest_s.get(kind, 0.0)
        often_s = LONGEST_TIMES * longest_s
        if kind not in _PAUSES:  # of these only short ones differ by multiples
            often_s = min(often_s, self._config.busy_s)
        return min(max(least_s, ratio * still.typical_s + longest_s, often_s), self._config.most_s)

    def _all_wait(self, still: _Still) -> Stall:
        """Everybody waits: a rank that has left, or collectives that do not match."""
        config, window, seen = self._config, still.window, still.seen
        least_s = max(config.floor_s, config.all_waiting_s)
        patience_s = self._patience_s(still, "all_waiting", least_s, config.hang_ratio)
        left = np.flatnonzero(window.ended_cleanly | (seen & (window.beats.phase[: seen.size] == EXIT)))
        if left.size:
            what = "it has ended while the others wait for it"
            return still.because("all_waiting", max(patience_s, config.ended_s), left, what)
        calls = np.where(seen, window.beats.calls[: seen.size], np.iinfo(np.int64).max)
        fewest = np.flatnonzero(calls == calls.min())
        if len(fewest) > len(np.flatnonzero(seen)) // 2 or not still.whole:
            fewest = np.zeros(0, dtype=np.intp)
        what = "it has begun the fewest collective calls while all ranks wait"
        return still.because("all_waiting", patience_s, fewest, what)


def _moved_since(window: Window, since_s: float) -> bool:
    """True if a rank that lives has gone on after `since_s`: a standstill that ended with its ranks was no pause."""
    return bool((window.beats.progress_s[: len(window.ranks)][window.live] > since_s).any())


def hang_vote(window: Window, hang: Stall, step_s: float) -> Vote:
    """The vote that declares `hang` and names its culprits; a step usually takes `step_s`."""
    excess = hang.lasted_s / hang.patience_s
    suspects = tuple(
        Suspect(
            score=1.0 if place == 0 else 0.9, reason=hang.what, rank=int(window.ranks[column]),
            node=window.nodes[column],
        )
        for place, column in enumerate(hang.culprits[:MAX_SUSPECTS])
    )  # fmt: skip
    all_do = _ALL.get(hang.kind, f"all ranks have been in {hang.kind} since")
    who = f"rank {suspects[0].rank}: {hang.what}; " if suspects else f"{all_do}; "
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
