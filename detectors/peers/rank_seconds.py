"""How ranks fare on their processors, second by second, and by how much their CPU time has grown beside the others'."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import median_of_others
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.peers.cpu_wait import LEVEL_S, ON_CPU, QUEUED, STOLEN, USED
from trainwarden.detectors.peers.episodes import onset_rows

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
BUSY: Final = 0.1  # of the time the others of a node wait for a processor; some 0.01 where there are enough
RECENT_S: Final = 10.0
GROWN: Final = float(np.log(1.25))  # of the time on a processor; sharing one costs a rank some 1.2 in caches
CPU_TICKS: Final = 8  # seconds without which nothing is known of it
PAUSE_S: Final = 0.5  # a pause of any rank that takes most of a second: CPU time in it is not that of steps


class RankSeconds(NamedTuple):
    """What is measured of the ranks in each second [seconds, ranks], in the order of the window's ranks."""

    seconds: npt.NDArray[np.int64]
    on_cpu: Floats
    queued: Floats
    stolen: Floats  # of each rank's node
    used: Floats  # share of the node's processors

    def between(self, after_s: float, until_s: float = np.inf) -> Flags:
        """Which seconds are wholly within."""
        return np.asarray((self.seconds > after_s) & (self.seconds <= until_s))

    @property
    def known_until_s(self) -> float:
        """The newest second in which any rank is measured, or the newest of all if none is."""
        known = self.seconds[np.isfinite(self.queued).any(axis=1)]
        return float(known[-1] if known.size else self.seconds[-1])

    def lost(self, when: Flags) -> Floats:
        """The share of time that each rank could not run in the seconds `when` [ranks]; NaN where not known."""
        return np.asarray(mean(self.queued[when]) + np.nan_to_num(mean(self.stolen[when])))


class CpuGrowth(NamedTuple):
    """Log of how many times as long each rank is on a processor, beside the others, its error, since when [ranks].

    `before` is the log of its CPU time over the others' until then; where that is not known, it is taken for theirs.
    Unknown is NaN.
    """

    log_ratio: Floats
    error: Floats
    since_s: Floats
    before: Floats


def measured(window: Window, lasting_s: float = 2 * LEVEL_S) -> RankSeconds:
    """The newest seconds of all ranks."""
    end = int(np.floor(window.end_s))
    seconds = np.arange(end - int(lasting_s) + 1, end + 1)
    entities, of_ranks = window.board.by_second("rank", (ON_CPU, QUEUED), seconds)
    columns = {int(rank): place for place, rank in enumerate(window.ranks)}
    pairs = [(columns[one.rank], row) for row, one in enumerate(entities) if one.rank in columns]
    mine, rows = np.array(pairs, dtype=np.intp).reshape(-1, 2).T
    table = np.full((2, seconds.size, len(window.ranks)), np.nan)
    table[:, :, mine] = of_ranks[:, :, rows]
    hosts, of_hosts = window.board.by_second("host", (STOLEN, USED), seconds)
    places = {one.node or "": row for row, one in enumerate(hosts)}
    unknown = np.full((2, seconds.size, 1), np.nan)
    of_nodes = np.concatenate([of_hosts, unknown], axis=2)[:, :, [places.get(node, -1) for node in window.nodes]]
    return RankSeconds(seconds, *table, *of_nodes)


def in_steps(window: Window, seconds: npt.NDArray[np.int64]) -> Flags:
    """Which seconds lie in steps only: after the first, outside of planned slowness and of pauses [seconds]."""
    paused = window.quiet_rows | (np.fmax.reduce(window.pause_s, axis=1, initial=0.0) > PAUSE_S)
    calm = np.flatnonzero(~window.quiet_rows)
    if not calm.size:
        return np.zeros(seconds.size, dtype=np.bool_)
    took_s = np.fmax.reduce(window.duration_s[paused].astype(np.float64), axis=1, initial=0.0)
    edges = np.zeros(seconds.size + 1, dtype=np.int64)
    ends_s = window.ends_s[paused]
    # A sample of second s is of the time since the one before it.
    np.add.at(edges, np.clip(np.floor(ends_s - took_s) - seconds[0], 0, seconds.size).astype(np.int64), 1)
    np.add.at(edges, np.clip(np.floor(ends_s) + 2 - seconds[0], 0, seconds.size).astype(np.int64), -1)
    return np.asarray((np.cumsum(edges)[:-1] == 0) & (seconds > window.ends_s[calm[0]]))


def cpu_growth(ranks: RankSeconds, live: Flags, calm: Flags, splits_s: Iterable[float]) -> CpuGrowth:
    """How each rank's CPU time has grown beside the others' at that one of `splits_s` where this is clearest."""
    own = np.where(live, ranks.on_cpu, np.nan)
    beside = median_of_others(own)
    unknown = np.full(live.size, np.nan)
    best = CpuGrowth(unknown, unknown, unknown, unknown)
    splits_s = tuple(splits_s)
    for split_s in splits_s:
        after, error = log_ratio(own, beside, calm & ranks.between(split_s))
        before, error_before = log_ratio(own, beside, calm & ranks.between(split_s - LEVEL_S, split_s))
        height, error = after - np.nan_to_num(before), np.hypot(error, np.nan_to_num(error_before))
        with np.errstate(invalid="ignore", divide="ignore"):
            clearer = np.isfinite(height) & ~(height * best.error <= best.log_ratio * error)
            risen = np.log(own / beside) - np.nan_to_num(before)
        lasts = onset_rows(np.where(np.isfinite(risen), risen, np.nan), np.where(clearer, height, 0.0))
        since_s = np.where(height > 0.0, np.maximum(ranks.seconds[-lasts], min(splits_s)), split_s)
        now = (height, error, since_s, before)
        best = CpuGrowth(*(np.where(clearer, new, old) for new, old in zip(now, best, strict=True)))
    return best


def log_ratio(own: Floats, beside: Floats, when: Flags) -> tuple[Floats, Floats]:
    """Log of `own` over `beside` in the seconds `when`, and its standard error [ranks]; NaN where these are too few."""
    known = when[:, None] & np.isfinite(own) & np.isfinite(beside)
    count = known.sum(axis=0)
    total, usual = (np.where(known, one, 0.0).sum(axis=0) for one in (own, beside))
    enough = (count >= CPU_TICKS) & (np.minimum(total, usual) > 0.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        apart = np.where(known, own - total / usual * beside, np.nan)
        spread = np.sqrt(np.maximum(mean(apart**2) - mean(apart) ** 2, 0.0))
        found = np.log(total / usual), spread * np.sqrt(count) / total
    return np.where(enough, found[0], np.nan), np.where(enough, found[1], np.nan)


def mean(values: Floats) -> Floats:
    """Mean along the first axis of what is known; NaN where nothing is."""
    known = np.isfinite(values)
    count = known.sum(axis=0)
    total = np.where(known, values, 0.0).sum(axis=0)
    return np.asarray(np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0))
