"""Vote: the job, or one rank relative to the others, has changed its pace and stayed there.

Bayesian online change points on log time with verification (`trainwarden.detectors.pace.shifts.level_shifts`), on two
kinds of series: the job's median step time without pauses, and every rank's compute time with the common mode of the
ranks taken out. Where no compute times are known (recordings), a rank's own duration takes their place.

The file to read first in this room; `trainwarden.detectors.pace.shifts` is how a change is found,
`trainwarden.detectors.pace.hang` where a hang is declared.

Whose own time has grown, where it is known that the whole job has become slow.

That somebody is the cause is likely then, so less evidence does than where ranks are compared without such a sign
(`trainwarden.detectors.peers`): sharded training makes ranks wait within what is measured as computing, and one that is
half as slow again stands out less from step to step than its median does.

Where a job may keep another pace by plan: after a new split of micro-batches, a program started anew, a resize.

What the rows were in which a change is told: their steps, when they ended, and every rank's own time in them.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import median_of_others, noise, quiet_median
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.detectors.pace.change_config import ChangePointConfig
from trainwarden.detectors.pace.contention import LOST, Contention, HostContention
from trainwarden.detectors.pace.shifts.level_shifts import LevelShifts, ShiftConfig
from trainwarden.detectors.pace.shifts.shift import Mechanism, Shift
from trainwarden.detectors.peers.slow_ranks import own_s, slow_vote, step_of
from trainwarden.detectors.protocol import Role, abstain
from trainwarden.records import Vote

Floats = npt.NDArray[np.float64]
ROWS: Final = 1024  # rows whose step and time are remembered, so that the onset of a drift long ago can be named
OWN: Final = 128  # rows of own times kept to tell a rank that has become slow from one whose peers have become fast
BESIDE: Final = 30  # rows of own times on each side of a change, as many as its verification takes
MAX_STRIDE: Final = 1_000  # iterations that a row of a sampled job stands for at most; more is a job that went on
LEAST_NOISE: Final = 0.01  # of one step, so that a constant time never makes a small difference clear


class Growth(NamedTuple):
    """How much longer ranks compute than before a change [ranks]; NaN where unknown.

    Attributes
    ----------
    own : float [ranks]
        Log growth of a rank's own time.
    steady : float [ranks]
        Share of the rows since the change in which half of what a rank has grown by beyond the others is seen.
    errors : float [ranks]
        That growth beyond the others, in standard errors by the noise before the change.
    """

    own: Floats
    steady: Floats
    errors: Floats


class RowMemory:
    """The newest rows of a job, by sequence number.

    Examples
    --------
    >>> rows = RowMemory()
    >>> rows.resize(1)
    >>> for seq in range(60):
    ...     stride = rows.note(seq, 10 * seq, 2.0 * seq, np.array([0.1 if seq < 40 else 0.3]))
    >>> stride, rows.step(40, 59), rows.end_s(40, 59), rows.own_levels_s(0, 40, 59)
    (10, 400, 80.0, (0.1, 0.3))
    """

    def __init__(self) -> None:
        self._steps = np.zeros(ROWS, dtype=np.int64)
        self._ends_s: Floats = np.zeros(ROWS)
        self._own: Floats = np.full((OWN, 0), np.nan)

    def resize(self, ranks: int) -> None:
        """Make room for `ranks`."""
        self._own = np.hstack([self._own, np.full((OWN, ranks - self._own.shape[1]), np.nan)])

    def forget(self, which: npt.NDArray[np.bool_]) -> None:
        """The ranks `which` [ranks] have no own times here."""
        self._own[:, which] = np.nan

    def note(self, seq: int, step: int, end_s: float, own_s: Floats) -> int:
        """Keep row `seq`, in which the ranks' own times were `own_s` [ranks]; iterations since the row before it."""
        previous = int(self._steps[(seq - 1) % ROWS])
        self._steps[seq % ROWS], self._ends_s[seq % ROWS] = step, end_s
        self._own[seq % OWN] = own_s
        return min(max(step - previous, 1), MAX_STRIDE)

    def step(self, seq: int, newest: int) -> int:
        """The step of row `seq`, or of the oldest one that is still remembered in row `newest`."""
        return int(self._steps[max(seq, newest - ROWS + 1, 0) % ROWS])

    def end_s(self, seq: int, newest: int) -> float:
        """When that step ended."""
        return float(self._ends_s[max(seq, newest - ROWS + 1, 0) % ROWS])

    def own_levels_s(self, column: int, onset: int, reported: int) -> tuple[float, float]:
        """A rank's own time before row `onset`, or in the oldest rows that are kept, and in the newest rows.

        `reported` is the newest row.
        """
        kept = min(OWN, reported + 1)
        first = reported - kept + 1
        own = self._own[np.arange(first, reported + 1) % OWN, column]
        split = max(onset - first, min(BESIDE, kept // 2))
        before, after = own[max(0, split - BESIDE) : split], own[split:][-BESIDE:]
        return float(quiet_median(before)), float(quiet_median(after))

    def growth(self, onset: int, newest: int, live: npt.NDArray[np.bool_]) -> Growth:
        """How the own times of the `live` ranks [ranks] have grown from before row `onset` to since then."""
        kept = min(OWN, newest + 1)
        first = newest - kept + 1
        own = np.where(live, np.log(self._own[np.arange(first, newest + 1) % OWN][:, : live.size]), np.nan)
        split = max(onset - first, 0)
        before, after = own[max(0, split - BESIDE) : split], own[split:]
        usual = before - median_of_others(before)
        apart = after - median_of_others(after) - quiet_median(usual)
        middle = quiet_median(apart)
        with np.errstate(invalid="ignore", divide="ignore"):
            steady = (apart >= middle / 2.0).mean(axis=0)
            errors = middle * np.sqrt(len(after)) / np.maximum(noise(usual), LEAST_NOISE)
        return Growth(quiet_median(after) - quiet_median(before), np.asarray(steady), np.asarray(errors))


PLANNED_ROWS: Final = (-1, 5)  # a change that begins this near to a row of the plan is the plan taking effect


class PlannedPace(msgspec.Struct):
    """The newest row of a plan. A restart explains a pause, not a new pace: by itself it is none.

    Attributes
    ----------
    row : int, optional
        Sequence number of that row.
    team : int
        Ranks that took part in the newest step that was not quiet.
    """

    row: int | None = None
    team: int = 0
    after_quiet: bool = False

    def quiet(self, seq: int, *, repaced: bool) -> None:
        """Row `seq` is one in which slowness is planned; `repaced`: and what comes after may be, too."""
        if repaced and self.team:
            self.row = seq
        self.after_quiet = True

    def closed(self, seq: int, team: int) -> None:
        """Row `seq` is an ordinary one; another number of ranks than before the quiet ones goes at another pace."""
        if self.after_quiet and self.team not in {0, team}:
            self.row = seq - 1
        self.team, self.after_quiet = team, False

    def explains(self, onset: int) -> bool:
        """True if a change that begins in row `onset` is planned."""
        low, high = PLANNED_ROWS
        return self.row is not None and low <= onset - self.row <= high


BLAMED: Final = 0.5  # of the job's growth (in logarithms) must be the rank's alone for it to be the cause
SHARED: Final = 0.5  # all have grown if the median rank has by this share
STEADY: Final = 0.65  # of the slow steps must show it: with two ranks the noise of both is in each
ERRORS: Final = 6.0  # of a mean; those of medians are a quarter larger, and both sides have one
LIKELY_STEPS: Final = 6  # are asked at least: four steps may be anybody's


def shared(growth: Growth, ratio: float) -> bool:
    """True if the median rank's own time has grown with the job's, or is not known."""
    middle = float(quiet_median(growth.own))
    return not np.isfinite(middle) or middle >= SHARED * float(np.log(ratio))


def likely(growth: Growth, ratio: float) -> tuple[int, float] | None:
    """The rank whose own time has grown by most of what steps have grown by, and how many times, beyond the others'.

    Parameters
    ----------
    growth : Growth
    ratio : float
        How many times as long steps take.

    Examples
    --------
    >>> steady, errors = np.array([0.5, 0.9, 0.6]), np.array([0.5, 9.0, 0.2])
    >>> place, times = likely(Growth(np.log([1.1, 1.7, 1.0]), steady, errors), 1.5)
    >>> place, round(times, 2)
    (1, 1.62)
    >>> likely(Growth(np.log([1.4, 1.5, 1.4]), steady, errors), 1.5) is None
    True
    """
    apart = growth.own - median_of_others(growth.own[None])[0]
    least = BLAMED * float(np.log(ratio))
    with np.errstate(invalid="ignore"):
        yes = (apart >= least) & (growth.own >= least) & (growth.steady >= STEADY) & (growth.errors >= ERRORS)
    if not yes.any():
        return None
    place = int(np.argmax(np.where(yes, apart, -np.inf)))
    return place, float(np.exp(apart[place]))


MAX_FOUND = 10_000
MAX_SUSPECTS = 16
PLANNED_STEPS = (-5, 10)  # a change that begins this near to a planned step is that plan taking effect
HOST_S = 4.0  # so long is waited for what the host says: it is looked at once a second


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


class ChangePoint(WholeMemory):
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
    HELD = (PlannedPace,)
    NOT_KEPT = ("found",)

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
        self._host = HostContention()
        self._slow_since = self._told = -1
        self._of_host = False  # told as the host's doing; what was told as the job's stays so
        self._shares: Any = np.zeros(0, dtype=np.float32)
        self.found: deque[FoundChange] = deque(maxlen=MAX_FOUND)

    def update(self, window: Window) -> None:
        """Feed every row that closed since the last window; rows in which slowness is planned are left out."""
        rows = window.fresh(self._next_seq)
        self._next_seq = window.next_seq
        self._moved(window)
        self._host.update(window)
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
            if self._split_anew(window.micro_batches[rows][index]):
                self._planned.row = seq
            stride = stride if self._seen_rows else 1  # what was before the first row is not known
            self._seen_rows += 1
            for shift in self._job.update(seq, job[index : index + 1], stride):
                self._note_job(shift)
            if len(window.ranks) < 2:
                continue  # nobody to be compared with
            for shift in self._ranks.update(seq, relative[index], stride):
                self._note_rank(int(window.ranks[shift.series]), shift)
        self._follow_job(window)

    def score(self, window: Window) -> Vote:
        """A job that is slow, and which of its ranks have grown by most of that, if any has."""
        if self._seen_rows < self._config.job.warm_up:
            return abstain("warm-up")
        since, ratio = self._slow_since, self._job_ratio()
        if since < 0 or ratio < self._config.lasting_ratio:
            return Vote(opinion="normal", score=self._job_score(window))
        slow = [one for one in self._slow_ranks(window) if np.log(one[1]) >= BLAMED * np.log(ratio)]
        growth = self._rows.growth(since, window.next_seq - 1, window.live)
        if not slow and window.next_seq - since >= LIKELY_STEPS and (found := likely(growth, ratio)):
            slow = [(*found, since)]
        if slow:
            return slow_vote(slow, window, "compute time relative to the other ranks has stepped up")
        return self._slow_job(window, ratio, shared=shared(growth, ratio))

    # -- internals -------------------------------------------------------------------------------------------

    @property
    def _whose_memory(self) -> str:
        """With what the job's series and those of the ranks are found without: their state has no room for it."""
        job, ranks = self._left_out()
        return f"ChangePoint without {', '.join(job) or 'none'}, of ranks {', '.join(ranks) or 'none'}"

    def _left_out(self) -> list[list[str]]:
        config = self._config
        return [sorted({*config.leave_out, *one.leave_out}) for one in (config.job, config.ranks)]

    def _split_anew(self, shares: Any) -> bool:
        """True if some rank has another share of the micro-batches [ranks] than in the row before."""
        before, self._shares = self._shares, np.array(shares)
        return bool((before != self._shares[: before.size])[np.isfinite(before)].any())

    def _moved(self, window: Window) -> None:
        """Ranks that now run on another node have no history there."""
        size = len(window.ranks)
        self._ranks.resize(size)
        more = size - self._rejected.size
        self._rejected = np.append(self._rejected, np.zeros(more, dtype=np.bool_))
        self._rows.resize(size)
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

    def _follow_job(self, window: Window) -> None:
        """Note since when the job has been slow, and what its hosts were like until then."""
        since = int(self._job.raised_since[0]) if self._job.raised_since.size else -1
        if since >= 0 and since != self._slow_since:
            self._host.begin(self._rows.end_s(since - 1, window.next_seq - 1))
        self._slow_since = since

    def _job_ratio(self) -> float:
        """The verified level, not the newest steps: an incident must not close and open again with the noise."""
        return float(np.exp(self._job.level[0] - self._job.baseline[0])) if self._slow_since >= 0 else 1.0

    def _slow_job(self, window: Window, ratio: float, *, shared: bool) -> Vote:
        """Everybody is slow; told once it is known whether a rank or the host is to blame, and from then on."""
        since = self._slow_since
        place, before_s = max(0, since - window.first_seq), float(np.exp(self._job.baseline[0]))
        begun_s = self._rows.end_s(since - 1, window.next_seq - 1)
        host = self._host.explains(begun_s, before_s, ratio * before_s)
        if self._told != since and (wait := self._waits_for(window, host, shared=shared)):
            return Vote(opinion="normal", score=self._job_score(window), reason=wait)
        self._of_host = host is not None and (self._of_host or self._told != since)
        self._told = since
        excess = float(np.log(ratio) / np.log(self._config.job.minimum_ratio))
        why = f"; {host.reason()}" if host is not None else ""
        known = np.isfinite(own_s(window, slice(-1, None))).any()
        whose = "on all ranks alike" if known else "and durations alone do not tell whose doing it is"
        return Vote(
            opinion="anomalous",
            score=excess / (1.0 + excess),
            reason=f"steps take {ratio:.2f} times as long as the healthy {before_s:.3g} s, {whose}{why}",
            kind="host_contention" if self._of_host else "slow_job",
            severity="sev3",
            suspects=host.suspects if host is not None and self._of_host else (),
            onset_s=float(window.ends_s[place]),
            onset_step=step_of(window, since),
            at_step=int(window.steps[-1]),
            verified=True,
            metrics=("iteration_duration_seconds", *(LOST if host is not None else ())),
        )

    def _waits_for(self, window: Window, host: Contention | None, *, shared: bool) -> str:
        """Why a slow job is not told yet; empty if it is time."""
        config, since = self._config, self._slow_since
        steps = window.next_seq - since
        begun_s = self._rows.end_s(since - 1, window.next_seq - 1)
        lasted_s = float(window.ends_s[-1]) - begun_s
        if steps < config.culprit_steps and not shared:
            return "steps take longer, but most ranks do not: whose slowness it is remains to be seen"
        if host is None:
            return "what the host says remains to be seen" if lasted_s < HOST_S and self._host.unknown(begun_s) else ""
        short = steps < config.contended_steps or lasted_s < config.contended_s
        return f"slow for {lasted_s:.0f} s; {host.reason()}" if short else ""


def _without(config: ShiftConfig, leave_out: tuple[Mechanism, ...]) -> ShiftConfig:
    return msgspec.structs.replace(config, leave_out=(*config.leave_out, *leave_out)) if leave_out else config
