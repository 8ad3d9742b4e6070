"""No accusation under contention: on a busy host a rank is named only if it is slow in CPU time as well.

Ranks that share processors with others are held up at random, now this one and now that one. What a rank computes is
told by the time it has been on a processor, beside its peers in the same seconds. Where the slowness is a sleep, which
takes no processor, it must be more than all that the rank has waited for one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import median_of_others, quiet_median
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.detectors.peers.cpu_wait import (
    EXPLAINED,
    LEAST_TICKS,
    LEVEL_S,
    ON_CPU,
    QUEUED,
    STOLEN,
    most_explaining,
    said,
)
from trainwarden.detectors.peers.cpu_wait import GROWN as WAITS_GROWN
from trainwarden.detectors.peers.rank_seconds import (
    BUSY,
    GROWN,
    RECENT_S,
    CpuGrowth,
    RankSeconds,
    cpu_growth,
    in_steps,
    mean,
    measured,
)
from trainwarden.records import IncidentRecord, Suspect, Vote

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Columns = npt.NDArray[np.intp]
FULL: Final = 0.9  # of a host's processors in use: who waits for one there waits for the host
HOST_S: Final = 4.0  # so long is waited for what the host says: it is looked at once a second
LASTING_S: Final = 30.0  # the pace of a shared machine wanders: what is shorter is no incident of the host
ERRORS: Final = 3.0  # standard errors that growth of CPU time must be above none
SPLITS_S: Final = (10.0, 20.0, 30.0, 45.0)  # ago: other beginnings that are tried
LATER_S: Final = 3.0  # seconds by which a beginning must be later to be told instead
RISEN: Final = 0.02  # of the time: waits that have risen by less are as they were
ALONE: Final = 0.2  # of the time, and twice: so much longer than each other rank of its host waits one that is starved
LEAST_OTHERS: Final = 2  # ranks of the same host beside which that is seen
TOGETHER: Final = 0.9  # of the time that steps have grown by, if no rank's waits explain it but those of all do
TYPICAL: Final = EXPLAINED / 2.0  # of it, for the middle rank: many that wait a little wait at the same moments
_KINDS: Final = frozenset({"slow_compute", "slow_job", "metric_anomaly"})
_OF_PACE: Final = ("iteration_", "rank_cpu_", "rank_run_queue_", "rank_involuntary_switches_", "host_cpu_")


class _Found(NamedTuple):
    """Of one rank: why it is not named, or since when it is slow, where that is better known than by the vote."""

    excuse: str = ""
    since_s: float | None = None


def excused(votes: Mapping[str, Vote], window: Window, incidents: Sequence[IncidentRecord]) -> dict[str, Vote]:
    """The votes without ranks that only a busy host makes slow; whoever an open incident calls slow stays named.

    A vote that then names nobody is about the host where its ranks wait for a processor more than they did.
    """
    slow = (one for one in incidents if one.kind in _KINDS and about_pace(one.metrics))
    named = {suspect.rank for one in slow for suspect in one.suspects if suspect.rank is not None}
    votes = {
        name: _calm(vote, "a rank is slow") if _explained(vote, window, incidents) else vote
        for name, vote in votes.items()
    }
    wanted = {name: vote for name, vote in votes.items() if _of_pace(vote) and not _known(vote, named, incidents)}
    if not wanted:
        return dict(votes)
    ranks = measured(window)
    return {**votes, **{name: _excused(vote, window, ranks, named) for name, vote in wanted.items()}}


def _explained(vote: Vote, window: Window, incidents: Sequence[IncidentRecord]) -> bool:
    """True if a vote would open an incident of the host where a rank is known to be slow, or all have ended."""
    kinds = {one.kind for one in incidents}
    host = vote.opinion == "anomalous" and vote.kind == "host_contention" and not vote.hard
    ended = bool(vote.metrics) and not window.live.any()  # a kernel's own line needs no rank
    return host and "host_contention" not in kinds and ("slow_compute" in kinds or ended)


def _of_pace(vote: Vote) -> bool:
    """True if a vote is about the pace of the job or of ranks, of nothing else, and was not judged by CPU time yet."""
    pace = bool(vote.metrics) and about_pace(vote.metrics)
    judged = vote.verified and ON_CPU in vote.metrics
    return vote.opinion == "anomalous" and not vote.hard and pace and vote.kind in _KINDS and not judged


def about_pace(metrics: Sequence[str]) -> bool:
    """True if all of `metrics` tell how fast ranks or steps are, or of processors."""
    return all(name.startswith(_OF_PACE) for name in metrics)


def _known(vote: Vote, named: set[int], incidents: Sequence[IncidentRecord]) -> bool:
    """True if a vote names ranks, all of which are named already, or joins an open incident of slowness."""
    if vote.suspects:
        return all(suspect.rank in named for suspect in vote.suspects)
    return any(one.kind in ("slow_compute", "slow_job") for one in incidents)


def _excused(vote: Vote, window: Window, ranks: RankSeconds, named: set[int]) -> Vote:
    onset_s = vote.onset_s if vote.onset_s is not None else max(window.end_s - RECENT_S, 0.0)
    if not vote.suspects:
        return _of_job(vote, onset_s, window, ranks)
    judged = _judged(vote.suspects, onset_s, window, ranks, named)
    kept = [(one, found) for one, found in zip(vote.suspects, judged, strict=True) if not found.excuse]
    if kept:
        since_s = min(onset_s if found.since_s is None else found.since_s for _, found in kept)
        first, suspects = kept[0][0], tuple(one for one, _ in kept)
        if len(kept) < len(judged):
            reason = first.reason if first.rank is None else f"rank {first.rank} {first.reason}"
            vote = msgspec.structs.replace(vote, suspects=suspects, reason=reason)
        return _began(vote, since_s, window)
    host = _of_host(vote, onset_s, window, ranks)
    if host is not None and window.end_s - onset_s >= LASTING_S:
        return host
    return _calm(vote, judged[0].excuse)


def _of_job(vote: Vote, onset_s: float, window: Window, ranks: RankSeconds) -> Vote:
    """A vote that the whole job is slow: on a busy host it has to last, and is the host's where waiting explains it."""
    if not window.live.any():
        return _calm(vote, "all ranks have ended")
    busiest = _busiest(window, ranks) or _held_up(onset_s, window, ranks)
    if not busiest:
        return vote
    if vote.verified and _busy_as_ever(onset_s, window, ranks):
        return vote
    if window.end_s - onset_s < LASTING_S:
        return _calm(vote, f"{busiest}; how long that lasts remains to be seen")
    host = _of_host(vote, onset_s, window, ranks)
    if host is not None:
        return host
    return vote if _slow_itself(onset_s, window, ranks) else _calm(vote, busiest)


def _calm(vote: Vote, why: str) -> Vote:
    return Vote(opinion="normal", score=min(vote.score, 0.499), reason=why)


def _began(vote: Vote, since_s: float, window: Window) -> Vote:
    """`vote` with a later beginning, where its ranks have been slow in CPU time only since then."""
    if vote.onset_s is None or since_s - vote.onset_s < LATER_S or not len(window.steps):
        return vote
    row = min(int(np.searchsorted(window.ends_s, since_s, side="right")), len(window.steps) - 1)
    return msgspec.structs.replace(vote, onset_s=since_s, onset_step=int(window.steps[row]))


def _judged(
    suspects: Sequence[Suspect], onset_s: float, window: Window, ranks: RankSeconds, named: set[int]
) -> list[_Found]:
    """Of each suspect why it is not to be named, or since when it is slow."""
    places = {int(rank): column for column, rank in enumerate(window.ranks)}
    known = [one.rank for one in suspects if one.rank is not None and one.rank in places and one.rank not in named]
    columns = np.array([places[rank] for rank in known], dtype=np.intp)
    late = ranks.between(max(onset_s, ranks.known_until_s - RECENT_S))
    there = window.live | np.isfinite(ranks.lost(late))  # those that have just ended waited too
    beside, busy = _waits(columns, late, window, ranks, there)
    before, _ = _waits(columns, ~late, window, ranks, there)
    early = window.end_s - onset_s < HOST_S
    unseen = np.isnan(beside) & early & np.isfinite(before)
    waiting = (busy >= BUSY) & ~_waits_little(onset_s, window, ranks)[columns]
    splits_s = (onset_s, *(window.end_s - ago for ago in SPLITS_S if window.end_s - ago > onset_s))
    grown = cpu_growth(ranks, there, in_steps(window, ranks.seconds), splits_s) if waiting.any() else None
    found = {
        rank: _Found("what the host says remains to be seen") if unseen[place]
        else _said(int(columns[place]), float(busy[place]), grown, window) if waiting[place] and grown is not None
        else _Found()
        for place, rank in enumerate(known)
    }  # fmt: skip
    return [_Found() if one.rank is None else found.get(one.rank, _Found()) for one in suspects]


def _said(column: int, busy: float, grown: CpuGrowth, window: Window) -> _Found:
    """Whether a rank that waits for processors is slow in CPU time, in words if not."""
    where = f"the ranks of {window.nodes[column] or 'this host'} wait for a CPU {busy:.0%} of the time"
    height = float(grown.log_ratio[column])
    if not np.isfinite(height):
        return _Found(where)
    if height >= max(GROWN, ERRORS * float(grown.error[column])):
        return _Found(since_s=float(grown.since_s[column]))
    times = f"{float(np.exp(height)):.2f} times as long as before"
    return _Found(f"{where}; beside the others, rank {int(window.ranks[column])} is on a CPU {times}")


def _waits(columns: Columns, when: Flags, window: Window, ranks: RankSeconds, there: Flags) -> tuple[Floats, Floats]:
    """How much of the time the other ranks of the same nodes wait, and how busy that makes the host [columns]."""
    lost, nodes = ranks.lost(when), np.array(window.nodes)
    others = (nodes[:, None] == nodes[columns]) & there[:, None]
    alone = others.sum(axis=0) == 1
    others[columns, np.arange(columns.size)] &= alone
    beside = quiet_median(np.where(others, lost[:, None], np.nan))
    # On a full host a peer may have a processor for itself while this one has not.
    full = mean(ranks.used[when])[columns] >= FULL
    return beside, np.where(full, np.fmax(beside, lost[columns]), beside)


def _waits_little(onset_s: float, window: Window, ranks: RankSeconds) -> Flags:
    """Which ranks compute longer than the others by more than all that they wait for a processor [ranks]."""
    rows = (window.ends_s > onset_s) & ~window.quiet_rows
    seconds = ranks.between(onset_s)
    if not rows.any() or not seconds.any():
        return np.zeros(len(window.ranks), dtype=np.bool_)
    took_s = float(np.mean(job_duration_s(window, slice(None))[rows]))
    waited_s = took_s * np.nan_to_num(ranks.lost(seconds))
    work_s = np.where(window.live, mean(window.compute_s[rows].astype(np.float64)), np.nan) - waited_s
    return np.asarray(work_s - median_of_others(work_s[None])[0] >= waited_s)


def _busiest(window: Window, ranks: RankSeconds) -> str:
    """Which host's ranks wait for a processor now, in words; empty if none's do."""
    lost = ranks.lost(ranks.between(window.end_s - RECENT_S))  # those that end just now waited too
    worst = int(np.argmax(np.nan_to_num(lost))) if lost.size else 0
    if not lost.size or not lost[worst] >= BUSY:
        return ""
    return f"the ranks of {window.nodes[worst] or 'this host'} wait for a CPU {lost[worst]:.0%} of the time"


def _held_up(onset_s: float, window: Window, ranks: RankSeconds) -> str:
    """Which full host holds up the job although each of its ranks waits little, in words; empty if none does."""
    full = _full(window, ranks)
    if not full.any():
        return ""
    host = window.nodes[int(np.argmax(full))] or "this host"
    if window.end_s - onset_s < HOST_S:
        return f"all processors of {host} are in use"
    levels = _levels(onset_s, window, ranks)
    place = None if levels is None else _explaining_together(levels, full, window)
    return "" if place is None else f"the ranks of {window.nodes[place] or 'this host'} hold each other up"


def _full(window: Window, ranks: RankSeconds) -> Flags:
    """Whose host has no processor left [ranks]."""
    return np.asarray(mean(ranks.used[ranks.between(window.end_s - RECENT_S)]) >= FULL)


def _explaining_together(levels: _Levels, full: Flags, window: Window) -> int | None:
    """The rank that waits longest of a job on one full host, if its waits explain it, or those of all together.

    Waits add up only where they fall to different ranks at different moments. On several hosts that cannot be known:
    what holds the job up may be elsewhere.
    """
    here = np.flatnonzero(window.live)
    if not here.size or not full[here].all() or len({window.nodes[place] for place in here.tolist()}) > 1:
        return None
    grown_s, risen_s = levels.now_s - levels.before_s, levels.risen_s[here]
    alone = risen_s.max() >= EXPLAINED * grown_s
    together = risen_s.sum() >= TOGETHER * grown_s and np.median(risen_s) >= TYPICAL * grown_s
    return int(here[np.argmax(risen_s)]) if grown_s > 0.0 and (alone or together) else None


class _Levels(NamedTuple):
    """What steps take and ranks wait, before an onset and since."""

    before_s: float
    now_s: float
    before: Floats
    now: Floats

    @property
    def risen_s(self) -> Floats:
        """By how much longer each rank waits in a step [ranks]; 0 where not known, and where its share is as it was."""
        more = self.now >= self.before + WAITS_GROWN
        return np.where(more, self.now * self.now_s - self.before * self.before_s, 0.0)


def _levels(onset_s: float, window: Window, ranks: RankSeconds) -> _Levels | None:
    """None where there are too few steps."""
    duration_s = job_duration_s(window, slice(None))
    calm = ~window.quiet_rows & np.isfinite(duration_s)
    before_s, now_s = duration_s[calm & (window.ends_s <= onset_s)], duration_s[calm & (window.ends_s > onset_s)]
    if min(before_s.size, now_s.size) < LEAST_TICKS:
        return None
    before = ranks.lost(ranks.between(onset_s - LEVEL_S, onset_s))
    now = ranks.lost(ranks.between(max(onset_s, window.end_s - LEVEL_S)))
    return _Levels(float(np.median(before_s)), float(np.median(now_s)), before, now)


def _busy_as_ever(onset_s: float, window: Window, ranks: RankSeconds) -> bool:
    """True if no rank waits longer for a processor than it did: what has not changed explains no change.

    Where CPU times are measured, they decide.
    """
    if np.isfinite(ranks.on_cpu).any():
        return False
    levels = _levels(onset_s, window, ranks)
    if levels is None:
        return False
    risen = levels.now - levels.before
    return bool(np.isfinite(risen).any() and np.nanmax(risen) < RISEN)


def _slow_itself(onset_s: float, window: Window, ranks: RankSeconds) -> bool:
    """True if steps have grown by more than all that any rank waits for a processor, or by the CPU time of most."""
    levels = _levels(onset_s, window, ranks)
    if levels is None:
        return False
    if levels.now_s - levels.before_s >= levels.now_s * float(np.nan_to_num(levels.now).max(initial=0.0)):
        return True
    then, late = (
        mean(ranks.on_cpu[when]) for when in (ranks.between(onset_s - LEVEL_S, onset_s), ranks.between(onset_s))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        grown = np.log(late * levels.now_s) - np.log(then * levels.before_s)
    return float(quiet_median(grown[np.isfinite(grown)])) >= GROWN


def _of_host(vote: Vote, onset_s: float, window: Window, ranks: RankSeconds) -> Vote | None:
    """A vote about the node whose ranks wait more than they did, if that explains the slowness.

    It names the rank that alone waits so long, as the one that suffers.
    """
    levels = _levels(onset_s, window, ranks)
    if levels is None:
        return None
    worst = most_explaining(levels.before, levels.now, levels.before_s, levels.now_s)
    waited_s = 0.0 if worst is None else float(levels.risen_s[worst])
    if worst is None:
        worst = _explaining_together(levels, _full(window, ranks), window)
        waited_s = float(levels.risen_s[window.live].sum())
    if worst is None:
        return None
    node, share = window.nodes[worst], float(levels.now[worst])
    others = levels.now[window.live & (np.array(window.nodes) == node) & (np.arange(len(window.nodes)) != worst)]
    most = float(np.fmax.reduce(others, initial=0.0))
    alone = np.isfinite(others).sum() >= LEAST_OTHERS and share >= max(2.0 * most, most + ALONE)
    reason = f"the ranks of {node or 'the host'} {said(float(levels.before[worst]), share)}"
    if alone:
        who = f"rank {int(window.ranks[worst])} {said(float(levels.before[worst]), share)}"
        reason = f"{who}, the other ranks of {node or 'the host'} {most:.0%} at most"
    reason = f"{reason}; of {levels.now_s - levels.before_s:.2g} s that steps take longer, waits are {waited_s:.2g} s"
    suspect = Suspect(score=1.0, reason=reason, node=node or None, rank=int(window.ranks[worst]) if alone else None)
    return msgspec.structs.replace(
        vote, kind="host_contention", severity="sev3", reason=reason, metrics=(QUEUED, STOLEN), verified=True,
        suspects=(suspect,),
    )  # fmt: skip
