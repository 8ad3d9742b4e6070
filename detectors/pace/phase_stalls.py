"""Vote: the job stands still in a phase that has always been much shorter: loading, evaluation, checkpoint, compiling.

A phase is compared with its own history and with what the other ranks do. The vote comes while the stall lasts; once it
is over, the event of the pause gives its whole length. How long such a standstill may last before the ranks are taken
for hung is judged in `trainwarden.detectors.pace.hang`, later than here.

Records of a job whose ranks load data: the contract's checks of `trainwarden.detectors.pace.phase_stalls`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.beats import KNOWN_PAUSES, PHASE_CODE, PHASES, WAIT
from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.detectors.pace.steal_time import StealTime
from trainwarden.detectors.protocol import Role, abstain
from trainwarden.records import (
    EventRecord,
    HeartbeatRecord,
    IncidentKind,
    IterationRecord,
    Phase,
    Record,
    Suspect,
    Vote,
)
from trainwarden.settings import Config

Sent = tuple[float, Record]
_JOB: Final = "job"
_NODE: Final = "node0"
_START_S: Final = 1_000_000.0
_RANKS, _STEPS, _STALLED = 4, 40, 1
_STEP_S, _DATA_S, _EVERY_S = 0.3, 0.05, 0.2


def stall_records(sick: bool) -> list[Sent]:
    """Every rank loads data for each step; after 40 of them rank 1 does for 20 s if the job is `sick`, and goes on."""
    begin_s = _START_S + _STEPS * _STEP_S
    end_s = begin_s + (20.0 if sick else 2.0)
    out = _steps(0, _START_S)
    for beat in range(1, int((end_s - begin_s) / _EVERY_S)):
        out.append(_beat(begin_s + beat * _EVERY_S, _STEPS, begin_s, "wait", "data"))
    took_s = end_s - begin_s
    over = EventRecord(
        id="phase/1", job=_JOB, node=_NODE, time_s=end_s, kind="phase", rank=_STALLED,
        message=f"rank {_STALLED} spent {took_s:.1f} s in data during step {_STEPS}",
        fields={"phase": "data", "duration_s": took_s, "step": _STEPS},
    )  # fmt: skip
    return [*out, (end_s + 0.1, over), *_steps(_STEPS, end_s)]


def _steps(first: int, start_s: float) -> list[Sent]:
    out: list[Sent] = []
    for step in range(first, first + _STEPS):
        end_s = start_s + (step - first + 1) * _STEP_S
        out.append(_beat(end_s - 0.5 * _STEP_S, step, end_s - _STEP_S, "compute", "compute"))
        out += [
            (
                end_s,
                IterationRecord(
                    job=_JOB, node=_NODE, rank=rank, incarnation=str(rank), steps=(step,), end_s=(end_s,),
                    duration_s=(_STEP_S,), compute_s=(_STEP_S - _DATA_S,), wait_s=(0.0,), pause_s=(_DATA_S,),
                ),
            )
            for rank in range(_RANKS)
        ]  # fmt: skip
    return out


def _beat(at_s: float, step: int, since_s: float, others: Phase, stalled: Phase) -> Sent:
    ranks = tuple(range(_RANKS))
    record = HeartbeatRecord(
        job=_JOB, node=_NODE, time_s=at_s, ranks=ranks, pids=tuple(1000 + rank for rank in ranks),
        incarnations=tuple(map(str, ranks)), steps=(step,) * _RANKS, step_end_s=(None,) * _RANKS,
        phases=tuple(stalled if rank == _STALLED else others for rank in ranks),
        phase_since_s=(since_s,) * _RANKS, calls=(step,) * _RANKS, states=("S",) * _RANKS,
        cpu_s=(at_s - _START_S,) * _RANKS,
    )  # fmt: skip
    return at_s, record


Flags = npt.NDArray[np.bool_]
PAUSE: Final = "rank_pause_seconds"
"""The metric that votes on phases blame; no other vote that opens an incident does."""
_DATA: Final = "data"
_KINDS: Final[dict[str, IncidentKind]] = {
    "data": "data_stall",
    "evaluation": "data_stall",
    "checkpoint": "checkpoint",
    "compile": "slow_job",
}
MAX_SUSPECTS: Final = 16
KEPT: Final = 32  # pauses of each phase that held up the job
NOTED_S: Final = 1.0  # shorter ones are no history worth keeping: the least time that is ever judged is longer
SILENT_S: Final = 3.0  # the state of ranks on a node that has been silent for so long is not known
LEARNT: Final = 3  # pauses before an evaluation or a checkpoint has a history; data are loaded for every step
LEAST_STEPS: Final = 3  # steps before anything is usual: the first batch starts workers and fills queues
HUNG_S: Final = 120.0  # what lasts so long, and twice its patience, is left to those who declare hangs
FEW: Final = 0.5  # of the ranks: where more of them are in the phase, something that they share holds them up


class PhaseStallsConfig(Config, frozen=True, kw_only=True):
    """How long a phase may hold up the job.

    Attributes
    ----------
    data_s, pause_s
        Least length of a stall: while data are loaded; in an evaluation or a checkpoint.
    data_ratio, pause_ratio
        So many times what is usual for the phase, and `data_ratio` times the usual step while data are loaded.
    """

    data_s: Annotated[float, msgspec.Meta(gt=0.0)] = 12.0
    pause_s: Annotated[float, msgspec.Meta(gt=0.0)] = 60.0
    data_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=1000.0)] = 3.0
    pause_ratio: Annotated[float, msgspec.Meta(gt=1.0, le=1000.0)] = 5.0


@dataclass(frozen=True, slots=True)
class Pause:
    """No rank moves, and `columns` are in `phase`: for `lasted_s`, the first of them since `since_s` of its node."""

    phase: str
    lasted_s: float
    since_s: float
    step: int
    columns: tuple[int, ...]
    waiting: int
    live: int
    usual_s: float
    patience_s: float

    @property
    def too_long(self) -> bool:
        """True if this is a stall."""
        return self.lasted_s > self.patience_s

    @property
    def hung(self) -> bool:
        """True if it is no passing stall any more."""
        return self.lasted_s > max(HUNG_S, 2.0 * self.patience_s)


class PhaseStalls(WholeMemory):
    """Phases that hold up the job for much longer than they ever did.

    Parameters
    ----------
    config : PhaseStalls.Config
    """

    Config = PhaseStallsConfig
    role = Role(reads="steps", opens=("verified",), weight=0.0)
    contract_stream = staticmethod(stall_records)
    more = False
    HELD = (Pause, Suspect, Vote)
    NOT_KEPT = ("_stolen",)

    def __init__(self, config: PhaseStallsConfig) -> None:
        self._config = config
        self._past_s: dict[str, list[float]] = {}
        self._pause: Pause | None = None
        self._stalled: tuple[str, int, float, float] | None = None  # phase, rank or -1, since when, usual length
        self._stolen = StealTime()
        self._has_beats = False
        self._vote = Vote(opinion="normal")

    def update(self, window: Window) -> None:
        """Follow which phase holds up the job."""
        self._stolen.update(window)
        self._has_beats |= window.beats.has_data
        before, self._pause = self._pause, self._look(window)
        now = self._pause
        over = before is not None and (now is None or now.since_s != before.since_s or now.phase != before.phase)
        if before is not None and over and before.lasted_s >= NOTED_S and not window.finished:
            past_s = self._past_s.setdefault(before.phase, [])
            self._past_s[before.phase] = [*past_s[1 - KEPT :], before.lasted_s]
        if now is not None and now.too_long:
            alone = len(now.columns) == 1 or _few(now)
            rank = int(window.ranks[now.columns[0]]) if alone else -1
            self._stalled = (now.phase, rank, now.since_s, now.usual_s)
            self._vote = Vote(opinion="normal") if now.hung else _vote(window, now)
        else:
            self._vote = self._ended(window) or Vote(opinion="normal")

    def score(self, window: Window) -> Vote:
        """The stall that is on, or has just ended; normal if there is none."""
        if not self._has_beats:
            return abstain("no heartbeats say which phase ranks are in")
        if len(window.steps) < LEAST_STEPS and self._vote.opinion == "normal":
            return abstain("warm-up")
        return self._vote

    # -- internals -------------------------------------------------------------------------------------------

    def _look(self, window: Window) -> Pause | None:
        """The phase that the job stands still in; None while anything moves, or where that is not known."""
        beats, size = window.beats, len(window.ranks)
        if window.finished or not _runs(window):
            return None
        live = window.live
        known = live & np.isfinite(beats.clock_s[:size])
        if not known.any() or (live & ~known).any() or max(window.node_silent_s.values(), default=0.0) > SILENT_S:
            return None  # who is not seen may be the one that all wait for
        phases = beats.phase[:size]
        inside = live & np.isin(phases, KNOWN_PAUSES)
        if not inside.any():
            return None
        still_s = float(beats.still_s[:size][live].min())
        # A rank may have begun the phase only now, after something else that took long.
        age_s = np.where(inside, beats.time_s[:size] - beats.phase_since_s[:size], -np.inf)
        age_s = np.where(np.isfinite(age_s), age_s, -np.inf)
        first = int(age_s.argmax())
        lasted_s = min(still_s, float(age_s[first]))
        if not lasted_s > 0.0:
            return None
        phase = PHASES[int(phases[first])]
        columns = np.flatnonzero(inside & (phases == PHASE_CODE[phase]) & (age_s >= 0.5 * age_s[first]))
        waiting = int((live & (phases == WAIT)).sum())
        usual_s, patience_s = self._patience(window, phase, columns, waiting)
        return Pause(
            phase, lasted_s, float(beats.phase_since_s[first]), int(beats.step[:size][live].max()),
            tuple(columns[np.argsort(-age_s[columns], kind="stable")].tolist()), waiting, int(live.sum()), usual_s,
            patience_s * self._stolen.slowed(window.now_s),
        )  # fmt: skip

    def _patience(self, window: Window, phase: str, columns: npt.NDArray[np.intp], waiting: int) -> tuple[float, float]:
        """What is usual for `phase`, and how long it may last now."""
        config, past_s = self._config, sorted(self._past_s.get(phase, ()))
        # One pause that was long is no habit: the second longest is what has come twice.
        longest_s = past_s[-2] if len(past_s) > 1 else 0.0
        if phase == _DATA:
            own_s = window.pause_s[:, columns].astype(np.float64)
            own_s = own_s[np.isfinite(own_s)]
            usual_s = max(longest_s, float(np.quantile(own_s, 0.9)) if own_s.size else 0.0)
            step_s = float(np.nan_to_num(quiet_median(job_duration_s(window, slice(-50, None)))))
            return usual_s, max(config.data_s, config.data_ratio * step_s, config.data_ratio * usual_s)
        if waiting or len(past_s) < LEARNT:
            return longest_s, np.inf  # where others wait, a hang is declared as soon as it is one
        return longest_s, max(config.pause_s, config.pause_ratio * longest_s)

    def _ended(self, window: Window) -> Vote | None:
        """The stall that has just ended, with its whole length, as the event of its pause says; shown once."""
        if self._stalled is None:
            return None
        phase, rank, since_s, usual_s = self._stalled
        for event in window.events:
            took_s, step = event.fields.get("duration_s"), event.fields.get("step")
            same = event.fields.get("phase") == phase and rank in {event.rank, -1}
            if not same or not isinstance(took_s, int | float) or abs(event.time_s - took_s - since_s) > NOTED_S:
                continue
            self._stalled = None
            at_step = int(step) if isinstance(step, int) and step >= 0 else None
            who = f"rank {rank}" if rank >= 0 else "all ranks" if len(window.ranks) > 1 else f"rank {event.rank}"
            text = f"{who} spent {took_s:.1f} s in {phase}, where {_short(usual_s)} is usual"
            suspects: tuple[Suspect, ...] = ()
            if rank >= 0:
                suspects = (Suspect(score=1.0, reason=f"spent {took_s:.1f} s in {phase}", rank=rank, node=event.node),)
            return _made(phase, text, suspects, since_s=since_s, step=at_step, score=0.99)
        return None


def _runs(window: Window) -> bool:
    """True once the ranks' present processes have made their first steps."""
    made = window.quiet_rows[-LEAST_STEPS:]
    # The steps after a start are marked as quiet, so those of the processes before it are not taken for them.
    return len(made) == LEAST_STEPS and window.phase != "restart" and (not window.starting or bool(made.all()))


def _few(pause: Pause) -> bool:
    return len(pause.columns) <= FEW * pause.live


def _vote(window: Window, pause: Pause) -> Vote:
    """The vote that declares the stall and names the ranks in it."""
    excess = pause.lasted_s / pause.patience_s
    columns = pause.columns[:MAX_SUSPECTS] if len(pause.columns) == 1 or _few(pause) else ()
    stay = f"has been in {pause.phase} for {pause.lasted_s:.1f} s, where {_short(pause.usual_s)} is usual"
    suspects = tuple(
        Suspect(score=1.0 if place == 0 else 0.9, reason=stay, rank=int(window.ranks[column]),
                node=window.nodes[column])
        for place, column in enumerate(columns)
    )  # fmt: skip
    many = len(pause.columns)
    if suspects:
        who = f"rank {suspects[0].rank}" + (f" and {many - 1} more" if many > 1 else "")
    else:
        who = f"each of {many} ranks"
    waits = f"; {pause.waiting} of {pause.live} ranks wait in a collective" if pause.waiting else ""
    score = excess / (1.0 + excess)
    return _made(pause.phase, f"{who} {stay}{waits}", suspects, since_s=pause.since_s, step=pause.step, score=score)


def _made(
    phase: str, reason: str, suspects: tuple[Suspect, ...], *, since_s: float, step: int | None, score: float
) -> Vote:
    return Vote(
        opinion="anomalous", score=score, reason=reason, kind=_KINDS[phase], severity="sev3", suspects=suspects,
        onset_s=since_s, onset_step=step, at_step=step, verified=True, metrics=(PAUSE,),
    )  # fmt: skip


def _short(seconds: float) -> str:
    """A length that is usual.

    Examples
    --------
    >>> _short(0.0), _short(0.52), _short(12.04)
    ('less than 0.1 s', '0.52 s', '12 s')
    """
    return "less than 0.1 s" if seconds < 0.1 else f"{seconds:.2g} s"
