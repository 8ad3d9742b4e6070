"""Vote: the job, or one rank relative to the others, has changed its pace and stayed there.

Bayesian online change points on log time with verification (`detectors.pace.shifts.level_shifts`), on two kinds of
series: the job's median step time without pauses, and every rank's compute time with the common mode of the ranks taken
out. Where no compute times are known (recordings), a rank's own duration takes their place.

The file to read first in this room; `detectors.pace.shifts` is how a change is found, `detectors.pace.hang` where a
hang is declared.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.job.common_mode import median_of_others, quiet_median
from detectors.job.packed import pack, unpack
from detectors.job.window import Window, job_duration_s
from detectors.pace.planned_pace import PlannedPace
from detectors.pace.row_memory import BESIDE, OWN, RowMemory
from detectors.pace.shifts.level_shifts import LevelShifts, ShiftConfig
from detectors.pace.shifts.shift import Mechanism, Shift
from detectors.pace.shifts.verification import VerificationConfig
from detectors.peers.slow_ranks import own_s, slow_vote, step_of
from detectors.protocol import Role, abstain
from trainwarden.errors import DetectorError
from trainwarden.records import Vote
from trainwarden.settings import Config

MAX_FOUND = 10_000
MAX_SUSPECTS = 16
MAX_PLANNED = 10_000
PLANNED_STEPS = (-5, 10)  # a change that begins this near to a planned step is that plan taking effect


class ChangePointConfig(Config, frozen=True, kw_only=True):
    """Thresholds of the job's own series and of the ranks' relative compute time.

    Attributes
    ----------
    minimum_deviation_s : float
        A rank's compute time must have grown by this much too.
    ranks_vote : bool
        Whether a rank's own change is a vote by itself, or only found and told.
    lasting_steps, lasting_s, lasting_ratio
        A slowdown of everybody without a culprit is told when it has lasted this long and is this large.
    planned_steps : tuple of int
        Steps at which the program itself changes its pace (``[[planned_change]]`` of a recorded folder).
    leave_out : tuple of str
        Mechanisms that take no part in finding changes, of the job and of ranks (docs/detection.md lists them).
    """

    job: ShiftConfig = msgspec.field(default_factory=ShiftConfig)
    ranks: ShiftConfig = msgspec.field(
        default_factory=lambda: ShiftConfig(
            minimum_ratio=1.15, clear_ratio=1.3, clear_steps=4, noise_floor=0.02,
            verification=VerificationConfig(clear_noises=6.0, small_evidence=8.0),
        )
    )  # fmt: skip
    minimum_deviation_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.002
    ranks_vote: bool = True
    lasting_steps: Annotated[int, msgspec.Meta(ge=0)] = 15
    lasting_s: Annotated[float, msgspec.Meta(ge=0.0)] = 10.0
    lasting_ratio: Annotated[float, msgspec.Meta(ge=1.0)] = 1.25
    planned_steps: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_PLANNED)] = ()
    leave_out: tuple[Mechanism, ...] = ()


def for_recording(planned_steps: tuple[int, ...] = ()) -> ChangePointConfig:
    """Settings for a recorded folder: every verified slowdown is told at once, and ranks are judged as finely as jobs.

    Live, ranks share hosts with us and with each other, and telling everybody's slowness late costs little; a
    recording is judged by what is in it. So fine a look at each rank tells of changes, but opens no incident without
    the comparison with its peers: where the work wanders over the ranks, every rank has its changes.
    """
    return ChangePointConfig(
        ranks=ShiftConfig(), ranks_vote=False, minimum_deviation_s=0.0, lasting_steps=0, lasting_s=0.0,
        lasting_ratio=1.05, planned_steps=planned_steps,
    )  # fmt: skip


@dataclass(slots=True)
class FoundChange:
    """One verified change, for reports; `rank` None is the whole job."""

    rank: int | None
    step: int
    reported_step: int
    time_s: float
    before_s: float
    after_s: float
    direction: Literal["slower", "faster"]
    planned: bool

    @property
    def ratio(self) -> float:
        """Level after over level before."""
        return self.after_s / self.before_s


class ChangePoint:
    """Verified changes of pace.

    Parameters
    ----------
    config : ChangePoint.Config

    Notes
    -----
    `found` holds every verified change, newest last, also the planned ones and those to faster.
    """

    Config = ChangePointConfig
    role = Role(reads="steps", opens=("verified",))
    more = False

    def __init__(self, config: ChangePointConfig) -> None:
        self._config = config
        self._job = LevelShifts(_without(config.job, config.leave_out))
        self._ranks = LevelShifts(_without(config.ranks, config.leave_out))
        self._next_seq = 0
        self._seen_rows = 0
        self._nodes: tuple[str, ...] = ()
        self._planned = PlannedPace()
        self._rejected: Any = np.zeros(0, dtype=np.bool_)
        self._rows = RowMemory()
        self.found: deque[FoundChange] = deque(maxlen=MAX_FOUND)

    def update(self, window: Window) -> None:
        """Feed every row that closed since the last window; rows in which slowness is planned are left out."""
        rows = window.fresh(self._next_seq)
        self._next_seq = window.next_seq
        self._moved(window)
        count = len(window.steps[rows])
        if count == 0:
            return
        job = np.log(job_duration_s(window, rows))
        work = own_s(window, rows)
        relative = np.log(work) - median_of_others(np.log(work))
        steps, ends_s, quiet = window.steps[rows], window.ends_s[rows], window.quiet_rows[rows]
        first = window.next_seq - count
        for index in range(count):
            seq = first + index
            stride = self._rows.note(seq, int(steps[index]), float(ends_s[index]), work[index])
            if quiet[index]:
                self._planned.quiet(seq, repaced=bool(window.repaced_rows[rows][index]))
                continue
            self._planned.closed(seq, int(np.count_nonzero(np.isfinite(window.duration_s[rows][index]))))
            stride = stride if self._seen_rows else 1  # what was before the first row is not known
            self._seen_rows += 1
            for shift in self._job.update(seq, job[index : index + 1], stride):
                self._note_job(shift)
            if len(window.ranks) < 2:
                continue  # nobody to be compared with
            for shift in self._ranks.update(seq, relative[index], stride):
                self._note_rank(int(window.ranks[shift.series]), shift)

    def score(self, window: Window) -> Vote:
        """Slow ranks first; else the whole job if it has been slow for long enough."""
        if self._seen_rows < self._config.job.warm_up:
            return abstain("warm-up")
        slow = self._slow_ranks(window) if self._config.ranks_vote else []
        if slow:
            return slow_vote(slow, window, "compute time relative to the other ranks has stepped up")
        since = int(self._job.raised_since[0]) if self._job.raised_since.size else -1
        if since < 0:
            return Vote(opinion="normal", score=self._job_score(window))
        return self._slow_job(window, since)

    def state(self) -> bytes:
        """See `detectors.protocol.Detector`."""
        plain = {
            "next_seq": self._next_seq, "seen_rows": self._seen_rows, "nodes": self._nodes,
            "planned": self._planned, "left_out": self._left_out(),
        }  # fmt: skip
        arrays: dict[str, npt.NDArray[Any]] = {f"job.{name}": array for name, array in self._job.arrays().items()}
        arrays |= {f"ranks.{name}": array for name, array in self._ranks.arrays().items()}
        arrays |= {f"rows.{name}": array for name, array in self._rows.arrays().items()}
        return pack("change_point", plain, arrays | {"rejected": self._rejected})

    def restore(self, state: bytes) -> None:
        """See `detectors.protocol.Detector`."""
        plain, arrays = unpack("change_point", state)
        if plain["left_out"] != self._left_out():
            raise DetectorError("this state of change_point is of one that leaves out other mechanisms")
        self._next_seq, self._seen_rows = plain["next_seq"], plain["seen_rows"]
        self._nodes, self._planned = tuple(plain["nodes"]), msgspec.convert(plain["planned"], PlannedPace)
        self._rejected = arrays["rejected"].copy()
        self._rows.load({name[5:]: array for name, array in arrays.items() if name.startswith("rows.")})
        self._job.load({name[4:]: array for name, array in arrays.items() if name.startswith("job.")})
        self._ranks.load({name[6:]: array for name, array in arrays.items() if name.startswith("ranks.")})

    # -- internals -------------------------------------------------------------------------------------------

    def _left_out(self) -> list[list[str]]:
        """What the job's series and those of the ranks are found without: their state has no room for it."""
        config = self._config
        return [sorted({*config.leave_out, *one.leave_out}) for one in (config.job, config.ranks)]

    def _moved(self, window: Window) -> None:
        """Ranks that now run on another node have no history there."""
        size = len(window.ranks)
        self._ranks.widen(size)
        more = size - self._rejected.size
        self._rejected = np.append(self._rejected, np.zeros(more, dtype=np.bool_))
        self._rows.widen(size)
        if window.nodes != self._nodes:
            old = self._nodes
            moved = np.array([i < len(old) and old[i] != node for i, node in enumerate(window.nodes)], dtype=np.bool_)
            self._ranks.forget(moved)
            self._rows.forget(moved)
            self._nodes = window.nodes

    def _note_job(self, shift: Shift) -> None:
        planned = self._planned.explains(shift.onset) or self._is_planned(shift)
        if planned:
            self._job.rebase(0)
        self._remember(shift, None, planned)

    def _is_planned(self, shift: Shift) -> bool:
        """True if the row of a planned step is near the onset; rows may be sampled, so both are compared."""
        early, late = PLANNED_STEPS
        low = self._rows.step(shift.onset - late, shift.reported) if shift.onset >= late else -1
        high = self._rows.step(min(shift.onset - early, shift.reported), shift.reported)
        return any(low <= step <= high for step in self._config.planned_steps)

    def _note_rank(self, rank: int, shift: Shift) -> None:
        """A rank whose own compute time has not grown is no straggler, whatever the others do."""
        before_s, after_s = self._rows.own_levels_s(shift.series, shift.onset, shift.reported)
        # Of a rise that began before the oldest time that is kept, only the end can be seen.
        share = 0.0 if shift.reported - shift.onset > OWN - BESIDE else 0.5
        grown_s = after_s - before_s if share else self._config.minimum_deviation_s
        own = (
            after_s >= before_s * (shift.after / shift.before) ** share and grown_s >= self._config.minimum_deviation_s
        )
        self._rejected[shift.series] = shift.slower and not own
        if not self._rejected[shift.series]:
            ratio = shift.after / shift.before  # relative to the other ranks
            after_s = after_s if np.isfinite(after_s) else shift.after
            self._remember(replace(shift, before=after_s / ratio, after=after_s), rank, planned=False)

    def _remember(self, shift: Shift, rank: int | None, planned: bool) -> None:
        direction: Literal["slower", "faster"] = "slower" if shift.slower else "faster"
        onset, reported = self._rows.step(shift.onset, shift.reported), self._rows.step(shift.reported, shift.reported)
        time_s = self._rows.end_s(shift.onset, shift.reported)
        self.found.append(FoundChange(rank, onset, reported, time_s, shift.before, shift.after, direction, planned))

    def _slow_ranks(self, window: Window) -> list[tuple[int, float, int]]:
        """(column, ratio, onset sequence number) of ranks that are slow now, worst first."""
        ranks = self._ranks
        raised = (ranks.raised_since >= 0) & ~self._rejected[: ranks.raised_since.size] & window.live
        slow = []
        for column in np.flatnonzero(raised):
            ratio = float(np.exp(ranks.level[column] - ranks.baseline[column]))
            slow.append((int(column), ratio, int(ranks.raised_since[column])))
        return sorted(slow, key=lambda entry: -entry[1])[:MAX_SUSPECTS]

    def _job_score(self, window: Window) -> float:
        if not self._job.baseline.size or not np.isfinite(self._job.baseline[0]) or len(window.steps) == 0:
            return 0.0
        now = np.log(quiet_median(job_duration_s(window, slice(-10, None))))
        excess = max(0.0, float(now - self._job.baseline[0])) / float(np.log(self._config.job.minimum_ratio))
        return min(0.499, excess / (1.0 + excess))

    def _slow_job(self, window: Window, since: int) -> Vote:
        config = self._config
        # The verified level, not the newest steps: an incident must not close and open again with the noise.
        ratio = float(np.exp(self._job.level[0] - self._job.baseline[0]))
        steps = window.next_seq - since
        place = max(0, since - window.first_seq)
        lasted_s = float(window.ends_s[-1] - window.ends_s[place])
        short = steps < config.lasting_steps or lasted_s < config.lasting_s
        if ratio < config.lasting_ratio or short:
            return Vote(opinion="normal", score=self._job_score(window), reason="not slow enough for long enough")
        excess = float(np.log(ratio) / np.log(config.job.minimum_ratio))
        before = float(np.exp(self._job.baseline[0]))
        return Vote(
            opinion="anomalous",
            score=excess / (1.0 + excess),
            reason=f"steps take {ratio:.2f} times as long as the healthy {before:.3g} s, on all ranks alike",
            kind="slow_job",
            severity="sev3",
            onset_s=float(window.ends_s[place]),
            onset_step=step_of(window, since),
            at_step=int(window.steps[-1]),
            verified=True,
            metrics=("iteration_duration_seconds",),
        )


def _without(config: ShiftConfig, leave_out: tuple[Mechanism, ...]) -> ShiftConfig:
    return msgspec.structs.replace(config, leave_out=(*config.leave_out, *leave_out)) if leave_out else config
