"""Vote: on a busy host, a rank needs more time on a processor than it did, beside the other ranks.

What ranks take by the clock on the wall is there mostly how long they wait for a processor, and chance. The seconds
that they are on one are counted by the kernel, and stay within some 10 % of each other's. A rank is named if its CPU
time has grown beside the others' and it computes longer than they do by the clock as well.

Four ranks on a busy host, as their agents would send it; with one that needs half as much CPU time again.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import median_of_others
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.peers.cpu_wait import ON_CPU, QUEUED
from trainwarden.detectors.peers.rank_seconds import (
    BUSY,
    GROWN,
    RECENT_S,
    CpuGrowth,
    RankSeconds,
    cpu_growth,
    in_steps,
    log_ratio,
    mean,
    measured,
)
from trainwarden.detectors.peers.slow_ranks import own_s
from trainwarden.detectors.protocol import Role, abstain
from trainwarden.records import IterationRecord, MetricsRecord, Record, Suspect, Vote
from trainwarden.settings import Config

Sent = tuple[float, Record]
START_S: Final = 1_000_000.0
_SECONDS, _RANKS, _SLOW, _FROM_S = 100, 4, 2, 50
_STEP_S: Final = 0.25


def cpu_records(sick: bool) -> list[Sent]:
    """Steps of a quarter of a second and a sample each second; all wait for processors half of the time."""
    rng, out = np.random.default_rng(0), list[Sent]()
    for second in range(_SECONDS):
        at_s = START_S + second + 1.0
        times = np.where((np.arange(_RANKS) == _SLOW) & sick & (second >= _FROM_S), 1.5, 1.0)
        names = tuple(f"rank-{rank}" for rank in range(_RANKS))
        on_cpu = 0.3 * times * rng.lognormal(0.0, 0.03, _RANKS)
        queued = 0.4 * rng.lognormal(0.0, 0.1, _RANKS)
        out += [_steps(rank, second, times, rng) for rank in range(_RANKS)]
        out.append(
            (
                at_s,
                MetricsRecord(
                    job="job", node="node0", time_s=at_s, devices=names, names=(ON_CPU, QUEUED),
                    values=(tuple(on_cpu.tolist()), tuple(queued.tolist())), ranks=tuple(range(_RANKS)),
                ),
            )
        )  # fmt: skip
    return out


def _steps(rank: int, second: int, times: Floats, rng: np.random.Generator) -> Sent:
    """The steps of one rank that end in a second."""
    count = int(1.0 / _STEP_S)
    ends_s = tuple(START_S + second + _STEP_S * (one + 1) for one in range(count))
    work_s = tuple((0.15 * times[rank] * rng.lognormal(0.0, 0.2, count)).tolist())
    return ends_s[-1], IterationRecord(
        job="job", node="node0", rank=rank, incarnation=str(rank),
        steps=tuple(range(count * second, count * (second + 1))), end_s=ends_s, duration_s=(_STEP_S,) * count,
        compute_s=work_s, wait_s=tuple(_STEP_S - one for one in work_s),
    )  # fmt: skip


Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
SPLITS_S: Final = (10.0, 15.0, 20.0, 30.0, 45.0)  # ago: beginnings that are tried
ERRORS: Final = 6.0  # standard errors that a growth must be above none: ranks, seconds and beginnings are many
LATE_S: Final = 15.0  # newest seconds by which a named rank is judged again
HALF: Final = 0.5  # of its growth is left of a rank that is still slow
COMPUTES: Final = 0.25  # of its growth, by which it must also compute longer than the others by the clock
LEAST_ROWS: Final = 8  # steps without which nothing is known of that
MAX_SUSPECTS: Final = 16
_STARTING: Final = frozenset({"start", "restart", "exit", "ended"})


class CpuTime(WholeMemory):
    """Ranks whose CPU time beside the others' has grown, where processors are scarce.

    Parameters
    ----------
    config : CpuTime.Config
    """

    class Config(Config, frozen=True, kw_only=True):
        """Nothing to set."""

    role = Role(reads="steps", opens=("verified",))
    contract_stream = staticmethod(cpu_records)
    more = False

    def __init__(self, config: Config) -> None:
        self._second = -1
        self._nodes: tuple[str, ...] = ()
        self._restarts = 0
        self._measured = False
        # Of each rank: log growth when it was named, log of its share before, growth now, since when, and which step.
        self._slow: Floats = np.zeros((5, 0))

    def update(self, window: Window) -> None:
        """Look at each new second, if a host is busy or a rank is named."""
        if window.restarts != self._restarts:
            self._restarts, self._slow = window.restarts, np.zeros((5, 0))
        self._resize(window)
        second = int(np.floor(window.end_s))
        if second <= self._second or len(window.ranks) < 2 or window.phase in _STARTING:
            return
        self._second = second
        newest = measured(window, RECENT_S)
        self._measured = self._measured or bool(np.isfinite(newest.on_cpu).any())
        if np.isfinite(self._slow[0]).any() or _busy(newest, window.nodes).any():
            self._look(window)

    def score(self, window: Window) -> Vote:
        """The ranks that are slow, the slowest first."""
        if len(window.ranks) < 2:
            return abstain("fewer than two ranks")
        if not self._measured:
            return abstain("nothing tells how long ranks were on a processor")
        found = np.flatnonzero(np.isfinite(self._slow[0]))
        if not found.size:
            return Vote(opinion="normal")
        worst = found[np.argsort(-self._slow[2, found])][:MAX_SUSPECTS]
        heights = self._slow[2, worst]
        suspects = tuple(
            Suspect(
                score=float(np.clip(height / heights[0], 0.0, 1.0)), rank=int(window.ranks[column]),
                node=window.nodes[column],
                reason=f"needs {float(np.exp(height)):.2f} times as much CPU time as it did, beside the other ranks",
            )
            for column, height in zip(worst.tolist(), heights.tolist(), strict=True)
        )  # fmt: skip
        excess = float(heights[0]) / GROWN
        first = found[np.argmin(self._slow[3, found])]
        return Vote(
            opinion="anomalous", score=max(0.5, excess / (1.0 + excess)), kind="slow_compute", severity="sev3",
            reason=f"rank {suspects[0].rank} {suspects[0].reason}, on a busy host", suspects=suspects, verified=True,
            onset_s=float(self._slow[3, first]), onset_step=int(self._slow[4, first]),
            at_step=int(window.steps[-1]) if len(window.steps) else None,
            metrics=(ON_CPU, "iteration_compute_seconds"),
        )  # fmt: skip

    # -- internals -------------------------------------------------------------------------------------------

    def _resize(self, window: Window) -> None:
        """Ranks that are new, or run on another node now, are not slow."""
        have = self._slow.shape[1]
        more = max(0, len(window.ranks) - have)
        self._slow = np.concatenate([self._slow, np.full((5, more), np.nan)], axis=1)
        if window.nodes != self._nodes:
            old = self._nodes
            moved = [i < len(old) and old[i] != node for i, node in enumerate(window.nodes)]
            self._slow[:, np.flatnonzero(moved)] = np.nan
            self._nodes = window.nodes

    def _look(self, window: Window) -> None:
        ranks = measured(window)
        calm = in_steps(window, ranks.seconds)
        own = np.where(window.live, ranks.on_cpu, np.nan)
        named = np.isfinite(self._slow[0])
        late, _ = log_ratio(own, median_of_others(own), calm & ranks.between(window.end_s - LATE_S))
        now = late - self._slow[1]
        with np.errstate(invalid="ignore"):
            over = named & ((now < HALF * self._slow[0]) | ~window.live)
        self._slow[2] = np.where(np.isfinite(now), now, self._slow[2])
        self._slow[:, over] = np.nan
        splits_s = (window.end_s - ago for ago in SPLITS_S)
        grown = cpu_growth(ranks, window.live, calm, splits_s)
        fresh = ~named & _slow(grown, window, _busy(ranks, window.nodes))
        if fresh.any():
            rows = np.searchsorted(window.ends_s, grown.since_s[fresh], side="right")
            steps = window.steps[np.minimum(rows, len(window.steps) - 1)]
            heights = grown.log_ratio[fresh]
            self._slow[:, fresh] = np.stack([heights, grown.before[fresh], heights, grown.since_s[fresh], steps])


def _slow(grown: CpuGrowth, window: Window, busy: Flags) -> Flags:
    """Which ranks of busy hosts have grown beyond chance and compute longer than the others by the clock [ranks]."""
    with np.errstate(invalid="ignore"):
        likely = busy & np.isfinite(grown.before) & (grown.log_ratio >= np.maximum(GROWN, ERRORS * grown.error))
    if not likely.any():
        return likely
    work = np.log(own_s(window, slice(None)))
    work[window.quiet_rows] = np.nan
    apart = work - median_of_others(work)
    apart[window.ends_s[:, None] <= np.nan_to_num(grown.since_s, nan=np.inf)] = np.nan
    enough = np.isfinite(apart).sum(axis=0) >= LEAST_ROWS
    with np.errstate(invalid="ignore"):
        return np.asarray(likely & enough & (mean(apart) >= COMPUTES * grown.log_ratio))


def _busy(ranks: RankSeconds, nodes: tuple[str, ...]) -> Flags:
    """Which ranks run on a node one of whose ranks waits for a processor now [ranks]."""
    lost = np.nan_to_num(ranks.lost(ranks.between(float(ranks.seconds[-1]) - RECENT_S)))
    _, places = np.unique(np.array(nodes, dtype=np.str_), return_inverse=True)
    worst = np.zeros(places.max(initial=-1) + 1)
    np.maximum.at(worst, places, lost)
    return np.asarray(worst[places] >= BUSY)
