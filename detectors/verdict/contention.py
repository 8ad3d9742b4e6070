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

from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.detectors.peers.cpu_wait import (
    LEAST_TICKS,
    LEVEL_S,
    ON_CPU,
    QUEUED,
    STOLEN,
    USED,
    most_explaining,
    said,
)
from trainwarden.detectors.peers.episodes import onset_rows
from trainwarden.records import IncidentRecord, Suspect, Vote

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
BUSY: Final = 0.1  # of the time the others of a node wait for a processor; some 0.01 where there are enough
FULL: Final = 0.9  # of a host's processors in use: who waits for one there waits for the host
RECENT_S: Final = 10.0
HOST_S: Final = 4.0  # so long is waited for what the host says: it is looked at once a second
LASTING_S: Final = 30.0  # the pace of a shared machine wanders: what is shorter is no incident of the host
GROWN: Final = float(np.log(1.25))  # of the time on a processor; sharing one costs a rank some 1.2 in caches
ERRORS: Final = 3.0  # standard errors that this must be above none
CPU_TICKS: Final = 8  # seconds without which nothing is known of it
SPLITS_S: Final = (10.0, 20.0, 30.0, 45.0)  # ago: other beginnings that are tried
LATER_S: Final = 3.0  # seconds by which a beginning must be later to be told instead
_KINDS: Final = frozenset({"slow_compute", "slow_job", "metric_anomaly"})
_OF_PACE: Final = ("iteration_", "rank_cpu_", "rank_run_queue_", "rank_involuntary_switches_")


class _Ranks(NamedTuple):
    """What is measured of the ranks in each second [seconds, ranks], in the order of the window's ranks."""

    seconds: npt.NDArray[np.int64]
    on_cpu: Floats
    queued: Floats
    stolen: Floats  # of each rank's node
    used: Floats  # share of the node's processors

    def between(self, after_s: float, until_s: float) -> Flags:
        """Which seconds are wholly within."""
        return np.asarray((self.seconds > after_s) & (self.seconds <= until_s))


class _Found(NamedTuple):
    """Of one rank: why it is not named, or since when it is slow, where that is better known than by the vote."""

    excuse: str = ""
    since_s: float | None = None


class _Growth(NamedTuple):
    """Log of how many times as long a rank is on a processor, beside the others, its standard error, and since when."""

    log_ratio: float
    error: float
    since_s: float


def excused(votes: Mapping[str, Vote], window: Window, incidents: Sequence[IncidentRecord]) -> dict[str, Vote]:
    """The votes without ranks that only a busy host makes slow; whoever an open incident names already stays named.

    A vote that then names nobody is about the host where its ranks wait for a processor more than they did.
    """
    named = {suspect.rank for one in incidents for suspect in one.suspects if suspect.rank is not None}
    wanted = {name: vote for name, vote in votes.items() if _of_pace(vote) and not _known(vote, named)}
    if not wanted:
        return dict(votes)
    ranks = _ranks(window)
    return {**votes, **{name: _excused(vote, window, ranks, named) for name, vote in wanted.items()}}


def _of_pace(vote: Vote) -> bool:
    """True if a vote is about the pace of the job or of ranks, and of nothing else."""
    pace = bool(vote.metrics) and all(name.startswith(_OF_PACE) for name in vote.metrics)
    return vote.opinion == "anomalous" and not vote.hard and pace and vote.kind in _KINDS


def _known(vote: Vote, named: set[int]) -> bool:
    """True if a vote names ranks, all of which are named already."""
    return bool(vote.suspects) and all(suspect.rank in named for suspect in vote.suspects)


def _excused(vote: Vote, window: Window, ranks: _Ranks, named: set[int]) -> Vote:
    onset_s = vote.onset_s if vote.onset_s is not None else max(window.end_s - RECENT_S, 0.0)
    kept, why, since_s = list[Suspect](), "", list[float]()
    for suspect in vote.suspects:
        column = None if suspect.rank in named else _column(window, suspect.rank)
        found = _Found() if column is None else _judged(column, onset_s, window, ranks)
        if found.excuse:
            why = why or found.excuse
        else:
            kept.append(suspect)
            since_s.append(onset_s if found.since_s is None else found.since_s)
    if vote.suspects and not why:
        return _began(vote, min(since_s), window)
    if kept:
        reason = kept[0].reason if kept[0].rank is None else f"rank {kept[0].rank} {kept[0].reason}"
        return _began(msgspec.structs.replace(vote, suspects=tuple(kept), reason=reason), min(since_s), window)
    if not vote.suspects and not (busiest := _busiest(window, ranks)):
        return vote
    host = _of_host(vote, onset_s, window, ranks)
    if host is None and not vote.suspects:
        return vote
    if host is not None and window.end_s - onset_s >= LASTING_S:
        return host
    why = why or f"{busiest}; how long that lasts remains to be seen"
    return Vote(opinion="normal", score=min(vote.score, 0.499), reason=why)


def _began(vote: Vote, since_s: float, window: Window) -> Vote:
    """`vote` with a later beginning, where its ranks have been slow in CPU time only since then."""
    if vote.onset_s is None or since_s - vote.onset_s < LATER_S or not len(window.steps):
        return vote
    row = min(int(np.searchsorted(window.ends_s, since_s, side="right")), len(window.steps) - 1)
    return msgspec.structs.replace(vote, onset_s=since_s, onset_step=int(window.steps[row]))


def _judged(column: int, onset_s: float, window: Window, ranks: _Ranks) -> _Found:
    """Why the rank in `column` is not to be named, or since when it is slow."""
    others = window.live & (np.array(window.nodes) == window.nodes[column])
    others[column] = others.sum() == 1
    late = ranks.between(max(onset_s, window.end_s - RECENT_S), np.inf)
    lost = _lost(ranks, late)
    measured = np.isfinite(lost[others]).any()
    if not measured and window.end_s - onset_s < HOST_S and np.isfinite(_lost(ranks, ~late)[others]).any():
        return _Found("what the host says remains to be seen")
    busy = float(quiet_median(lost[others])) if measured else 0.0
    if _mean(ranks.used[late])[column] >= FULL:  # its peer may have a processor for itself while this one has not
        busy = float(np.fmax(busy, lost[column]))
    if not busy >= BUSY or _waits_little(column, onset_s, window, ranks):
        return _Found()
    where = f"the ranks of {window.nodes[column] or 'this host'} wait for a CPU {busy:.0%} of the time"
    grown = _on_cpu(column, onset_s, window, ranks)
    if grown is None:
        return _Found(where)
    if grown.log_ratio >= max(GROWN, ERRORS * grown.error):
        return _Found(since_s=grown.since_s)
    times = f"{float(np.exp(grown.log_ratio)):.2f} times as long as before"
    return _Found(f"{where}; beside the others, rank {int(window.ranks[column])} is on a CPU {times}")


def _on_cpu(column: int, onset_s: float, window: Window, ranks: _Ranks) -> _Growth | None:
    """How a rank's CPU time has grown beside the others', where that is clearest; None where it is not known.

    A vote that noise has begun tells too early a beginning, so later ones are tried.
    """
    calm = np.flatnonzero(~window.quiet_rows)
    first_s = float(window.ends_s[calm[0]]) if calm.size else np.inf
    others = np.where(window.live, ranks.on_cpu, np.nan)
    others[:, column] = np.nan
    own, beside = ranks.on_cpu[:, column], quiet_median(others.T)
    best: _Growth | None = None
    for split_s in (onset_s, *(window.end_s - back for back in SPLITS_S if window.end_s - back > onset_s)):
        after, error = _ratio(own, beside, ranks.between(max(first_s, split_s), np.inf))
        before, error_before = _ratio(own, beside, ranks.between(max(first_s, split_s - LEVEL_S), split_s))
        if np.isnan(after):
            continue
        if np.isnan(before):
            before = error_before = 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            risen = np.log(own / beside)[:, None] - before
        grown = _Growth(after - before, float(np.hypot(error, error_before)), split_s)
        if best is None or grown.log_ratio * best.error > best.log_ratio * grown.error:
            lasts = int(onset_rows(np.where(np.isfinite(risen), risen, np.nan), np.array([grown.log_ratio]))[0])
            began_s = float(ranks.seconds[-lasts]) if grown.log_ratio > 0.0 else split_s
            best = grown._replace(since_s=max(onset_s, began_s))
    return best


def _ratio(own: Floats, beside: Floats, when: Flags) -> tuple[float, float]:
    """Log of `own` over `beside` in the seconds `when`, and its standard error; NaN where these are too few."""
    known = when & np.isfinite(own) & np.isfinite(beside)
    count = int(known.sum())
    total, usual = float(own[known].sum()), float(beside[known].sum())
    if count < CPU_TICKS or min(total, usual) <= 0.0:
        return float("nan"), float("nan")
    apart = own[known] - total / usual * beside[known]
    return float(np.log(total / usual)), float(apart.std() * np.sqrt(count) / total)


def _waits_little(column: int, onset_s: float, window: Window, ranks: _Ranks) -> bool:
    """True if a rank computes longer than the others by more than all that it waits for a processor."""
    rows = (window.ends_s > onset_s) & ~window.quiet_rows
    seconds = ranks.between(onset_s, np.inf)
    if not rows.any() or not seconds.any():
        return False
    took_s = float(np.mean(job_duration_s(window, slice(None))[rows]))
    waited_s = took_s * np.nan_to_num(_lost(ranks, seconds))
    work_s = np.where(window.live, _mean(window.compute_s[rows].astype(np.float64)), np.nan) - waited_s
    others = work_s.copy()
    others[column] = np.nan
    return bool(work_s[column] - float(quiet_median(others)) >= waited_s[column])


def _busiest(window: Window, ranks: _Ranks) -> str:
    """Which host's ranks wait for a processor now, in words; empty if none's do."""
    lost = np.where(window.live, _lost(ranks, ranks.between(window.end_s - RECENT_S, np.inf)), np.nan)
    worst = int(np.argmax(np.nan_to_num(lost))) if lost.size else 0
    if not lost.size or not lost[worst] >= BUSY:
        return ""
    return f"the ranks of {window.nodes[worst] or 'this host'} wait for a CPU {lost[worst]:.0%} of the time"


def _of_host(vote: Vote, onset_s: float, window: Window, ranks: _Ranks) -> Vote | None:
    """A vote about the node whose ranks wait more than they did, if that explains the slowness."""
    duration_s = job_duration_s(window, slice(None))
    calm = ~window.quiet_rows & np.isfinite(duration_s)
    before_s, now_s = duration_s[calm & (window.ends_s <= onset_s)], duration_s[calm & (window.ends_s > onset_s)]
    if min(before_s.size, now_s.size) < LEAST_TICKS:
        return None
    then, late = ranks.between(onset_s - LEVEL_S, onset_s), ranks.between(max(onset_s, window.end_s - LEVEL_S), np.inf)
    before, now = _lost(ranks, then), _lost(ranks, late)
    worst = most_explaining(before, now, float(np.median(before_s)), float(np.median(now_s)))
    return None if worst is None else host_vote(vote, window.nodes[worst], float(before[worst]), float(now[worst]))


def host_vote(vote: Vote, node: str, before: float, now: float) -> Vote:
    """`vote` as one about `node`, whose ranks wait for a processor the share `now` of the time, and `before` then."""
    reason = f"the ranks of {node or 'the host'} {said(before, now)}"
    return msgspec.structs.replace(
        vote, kind="host_contention", severity="sev3", reason=reason, metrics=(QUEUED, STOLEN), verified=True,
        suspects=(Suspect(score=1.0, reason=reason, node=node or None),),
    )  # fmt: skip


def _column(window: Window, rank: int | None) -> int | None:
    places = [] if rank is None else np.flatnonzero(window.ranks == rank).tolist()
    return places[0] if places else None


def _lost(ranks: _Ranks, when: Flags) -> Floats:
    """The share of time that each rank could not run in the seconds `when` [ranks]; NaN where that is not known."""
    return np.asarray(_mean(ranks.queued[when]) + np.nan_to_num(_mean(ranks.stolen[when])))


def _mean(values: Floats) -> Floats:
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0))


def _ranks(window: Window) -> _Ranks:
    """The newest seconds of all ranks."""
    end = int(np.floor(window.end_s))
    seconds = np.arange(end - int(2 * LEVEL_S) + 1, end + 1)
    size = len(window.ranks)
    entities, of_ranks = window.board.by_second("rank", (ON_CPU, QUEUED), seconds)
    columns = {int(rank): place for place, rank in enumerate(window.ranks)}
    pairs = [(columns[one.rank], row) for row, one in enumerate(entities) if one.rank in columns]
    mine, rows = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    table = np.full((2, seconds.size, size), np.nan)
    table[:, :, mine] = of_ranks[:, :, rows]
    hosts, of_hosts = window.board.by_second("host", (STOLEN, USED), seconds)
    places = {one.node or "": row for row, one in enumerate(hosts)}
    unknown = np.full((2, seconds.size, 1), np.nan)
    of_nodes = np.concatenate([of_hosts, unknown], axis=2)[:, :, [places.get(node, -1) for node in window.nodes]]
    return _Ranks(seconds, *table, *of_nodes)
