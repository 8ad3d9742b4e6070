"""Vote: the job, or one rank relative to the others, has changed its pace and stayed there.

Bayesian online change points on log time with verification (`detectors.level_shifts`), on two kinds of series: the
job's median step time without pauses, and every rank's compute time with the common mode of the ranks taken out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.common_mode import median_of_others, quiet_median
from detectors.level_shifts import LevelShifts, Shift, ShiftConfig
from detectors.protocol import abstain, pack, unpack
from detectors.window import Window, job_duration_s
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

MAX_FOUND = 10_000
MAX_SUSPECTS = 16


class ChangePointConfig(Config, frozen=True, kw_only=True):
    """Thresholds of the job's own series and of the ranks' relative compute time.

    Attributes
    ----------
    minimum_deviation_s : float
        A rank's compute time must have grown by this much too.
    lasting_steps, lasting_s, lasting_ratio
        A slowdown of everybody without a culprit is told when it has lasted this long and is this large.
    """

    job: ShiftConfig = msgspec.field(default_factory=ShiftConfig)
    ranks: ShiftConfig = msgspec.field(
        default_factory=lambda: ShiftConfig(
            minimum_ratio=1.15, clear_ratio=1.3, clear_steps=4, noise_floor=0.02, clear_noises=6.0, small_noises=3.0
        )
    )
    minimum_deviation_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.002
    lasting_steps: Annotated[int, msgspec.Meta(ge=0)] = 15
    lasting_s: Annotated[float, msgspec.Meta(ge=0.0)] = 10.0
    lasting_ratio: Annotated[float, msgspec.Meta(ge=1.0)] = 1.25


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
    more = False

    def __init__(self, config: ChangePointConfig) -> None:
        self._config = config
        self._job = LevelShifts(config.job)
        self._ranks = LevelShifts(config.ranks)
        self._next_seq = 0
        self._seen_rows = 0
        self._nodes: tuple[str, ...] = ()
        self._planned_job = False
        self._last_planned = -1_000
        self._rejected: Any = np.zeros(0, dtype=np.bool_)
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
        work = np.log(window.work_s(rows))
        relative = work - median_of_others(work)
        first = window.next_seq - count
        for index in range(count):
            seq = first + index
            if window.quiet_rows[rows][index]:
                self._last_planned = seq if self._seen_rows else -1_000
                continue
            self._seen_rows += 1
            for shift in self._job.update(seq, job[index : index + 1]):
                self._note_job(window, shift)
            for shift in self._ranks.update(seq, relative[index]):
                self._note_rank(window, shift)

    def score(self, window: Window) -> Vote:
        """Slow ranks first; else the whole job if it has been slow for long enough."""
        if self._seen_rows < self._config.job.warm_up:
            return abstain("warm-up")
        slow = self._slow_ranks(window)
        if slow:
            return slow_vote(slow, window, "compute time relative to the other ranks has stepped up")
        since = int(self._job.raised_since[0]) if self._job.raised_since.size else -1
        if since < 0 or self._planned_job:
            return Vote(opinion="normal", score=self._job_score(window))
        return self._slow_job(window, since)

    def state(self) -> bytes:
        """See `detectors.protocol.Detector`."""
        plain = {
            "next_seq": self._next_seq, "seen_rows": self._seen_rows, "nodes": self._nodes,
            "planned_job": self._planned_job, "last_planned": self._last_planned,
        }  # fmt: skip
        arrays: dict[str, npt.NDArray[Any]] = {f"job.{name}": array for name, array in self._job.arrays().items()}
        arrays |= {f"ranks.{name}": array for name, array in self._ranks.arrays().items()}
        return pack("change_point", plain, arrays | {"rejected": self._rejected})

    def restore(self, state: bytes) -> None:
        """See `detectors.protocol.Detector`."""
        plain, arrays = unpack("change_point", state)
        self._next_seq, self._seen_rows = plain["next_seq"], plain["seen_rows"]
        self._nodes, self._planned_job = tuple(plain["nodes"]), plain["planned_job"]
        self._last_planned, self._rejected = plain["last_planned"], arrays["rejected"]
        self._job.load({name[4:]: array for name, array in arrays.items() if name.startswith("job.")})
        self._ranks.load({name[6:]: array for name, array in arrays.items() if name.startswith("ranks.")})

    # -- internals -------------------------------------------------------------------------------------------

    def _moved(self, window: Window) -> None:
        """Ranks that now run on another node have no history there."""
        size = len(window.ranks)
        self._ranks.widen(size)
        self._rejected = np.append(self._rejected, np.zeros(size - self._rejected.size, dtype=np.bool_))
        if window.nodes != self._nodes:
            old = self._nodes
            moved = np.array([i < len(old) and old[i] != node for i, node in enumerate(window.nodes)], dtype=np.bool_)
            self._ranks.forget(moved)
            self._nodes = window.nodes

    def _note_job(self, window: Window, shift: Shift) -> None:
        planned = -1 <= shift.onset - self._last_planned <= 5
        if shift.slower or self._job.raised_since[0] < 0:
            self._planned_job = planned and shift.slower
        self._remember(window, shift, None, planned)

    def _note_rank(self, window: Window, shift: Shift) -> None:
        """A rank whose own compute time has not grown is no straggler, whatever the others do."""
        if shift.slower:
            split = max(0, shift.onset - window.first_seq)
            column = slice(shift.series, shift.series + 1)
            work = window.work_s(slice(max(0, split - 30), None))[:, column]
            cut = split - max(0, split - 30)
            if cut == 0 or cut >= len(work):
                return
            before, after = float(quiet_median(work[:cut])[0]), float(quiet_median(work[cut:])[0])
            own = np.log(after / before) >= 0.5 * np.log(shift.after / shift.before)
            self._rejected[shift.series] = not own or after - before < self._config.minimum_deviation_s
        else:
            self._rejected[shift.series] = False
        if not self._rejected[shift.series]:
            self._remember(window, shift, int(window.ranks[shift.series]), planned=False)

    def _remember(self, window: Window, shift: Shift, rank: int | None, planned: bool) -> None:
        step, reported = step_of(window, shift.onset), step_of(window, shift.reported)
        place = min(max(shift.onset - window.first_seq, 0), len(window.steps) - 1)
        direction: Literal["slower", "faster"] = "slower" if shift.slower else "faster"
        time_s = float(window.ends_s[place])
        self.found.append(FoundChange(rank, step, reported, time_s, shift.before, shift.after, direction, planned))

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
        recent = slice(-config.job.small_steps, None)
        ratio = float(quiet_median(job_duration_s(window, recent)) / np.exp(self._job.baseline[0]))
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


def step_of(window: Window, seq: int) -> int:
    """The job's own number of the step in row `seq`, or of the nearest row that is still kept."""
    return int(window.steps[min(max(seq - window.first_seq, 0), len(window.steps) - 1)])


def slow_vote(slow: list[tuple[int, float, int]], window: Window, what: str) -> Vote:
    """The vote that names slow ranks; `slow` are (column, ratio, onset sequence number), worst first."""
    suspects = []
    worst = np.log(slow[0][1])
    for column, ratio, _ in slow:
        reason = f"computes {ratio:.2f} times as long as it did, relative to the other ranks"
        rank, node = int(window.ranks[column]), window.nodes[column]
        suspects.append(Suspect(score=min(1.0, float(np.log(ratio) / worst)), reason=reason, rank=rank, node=node))
    onset = min(entry[2] for entry in slow)
    excess = float(worst / np.log(1.15))
    return Vote(
        opinion="anomalous",
        score=excess / (1.0 + excess),
        reason=f"rank {suspects[0].rank}: {what} {slow[0][1]:.2f} times",
        kind="slow_compute",
        severity="sev3",
        suspects=tuple(suspects),
        onset_s=float(window.ends_s[min(max(0, onset - window.first_seq), len(window.steps) - 1)]),
        onset_step=step_of(window, onset),
        at_step=int(window.steps[-1]),
        verified=True,
        metrics=("iteration_compute_seconds",),
    )
