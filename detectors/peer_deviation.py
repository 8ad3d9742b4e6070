"""Vote: one rank computes longer than its peers, relative to its own earlier level or from the start.

Robust z-score of every rank's compute time against its role group (median and median absolute deviation), with a least
absolute and relative deviation, and localisation by compute against wait: in synchronous training the straggler
computes longest and waits least (Wu et al., Falcon, 2024, section 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.common_mode import median_of_others, noise, quiet_median
from detectors.peer_memory import ANCHOR, HELD_BACK, LEARN, ROWS, PeerMemory
from detectors.protocol import abstain, pack, unpack
from detectors.window import Window
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

Floats = npt.NDArray[np.float64]
_Judged = tuple[Literal["self", "peers"], Floats, npt.NDArray[np.int64]]
MAX_SUSPECTS: Final = 16
# Evidence over the newest k steps: (k, least ratio, noise widths). Large deviations need few steps, small ones many;
# chosen on simulated ranks with 2 to 15 % noise so that a clean hour names nobody.
EVIDENCE: Final = ((4, 1.45, 8.0), (6, 1.30, 6.0), (10, 1.20, 5.0), (20, 1.15, 4.0))


class PeerDeviationConfig(Config, frozen=True, kw_only=True):
    """When a rank differs enough from its peers.

    Attributes
    ----------
    minimum_deviation_s, minimum_share
        Least extra compute time per step, absolute and as a share of the step.
    minimum_span_s, minimum_small_span_s
        The evidence must span this much time, so that one stall of the machine is not evidence; the second for
        deviations below 40 %.
    peers_ratio, peers_steps, peers_z
        Slower from the start than the median rank: ratio, over how many steps, robust z-score.
    """

    minimum_deviation_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.002
    minimum_share: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.04
    minimum_span_s: Annotated[float, msgspec.Meta(ge=0.0)] = 0.6
    minimum_small_span_s: Annotated[float, msgspec.Meta(ge=0.0)] = 1.5
    peers_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 1.25
    peers_steps: Annotated[int, msgspec.Meta(ge=5, le=100)] = 24
    peers_span_s: Annotated[float, msgspec.Meta(ge=0.0)] = 3.0
    peers_z: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    relief_ratio: Annotated[float, msgspec.Meta(gt=1.0)] = 1.08
    relief_steps: Annotated[int, msgspec.Meta(ge=3, le=60)] = 8


@dataclass(slots=True)
class Episode:
    """One spell of one rank being slow; `to_step` None while it lasts, `row` counts the judged steps before it."""

    rank: int
    node: str
    from_step: int
    reported_step: int
    onset_s: float
    ratio: float
    basis: Literal["self", "peers"]
    evidence: Literal["compute", "duration"]
    row: int = 0
    to_step: int | None = None


class PeerDeviation:
    """Stragglers among ranks of one role.

    Parameters
    ----------
    config : PeerDeviation.Config

    Notes
    -----
    `episodes` holds every spell found, newest last.
    """

    Config = PeerDeviationConfig
    more = False

    def __init__(self, config: PeerDeviationConfig) -> None:
        self._config = config
        self._next_seq = 0
        self._nodes: tuple[str, ...] = ()
        self._memory = PeerMemory()
        self._slow: Floats = np.zeros(0)  # log ratio of ranks that are slow now, 0 for the others
        self._evidence: Literal["compute", "duration"] = "compute"
        self._open: dict[int, Episode] = {}
        self.episodes: list[Episode] = []

    def update(self, window: Window) -> None:
        """Judge every row that closed since the last window; rows in which slowness is planned are left out."""
        rows = window.fresh(self._next_seq)
        self._next_seq = window.next_seq
        self._widen(window)
        if len(window.steps[rows]) == 0 or len(window.ranks) < 2:
            return
        work = window.work_s(rows)
        self._evidence = "compute" if np.isfinite(work).any() else "duration"
        if self._evidence == "duration":
            work = window.busy_s(rows)
        own = np.log(work)
        relative = own - median_of_others(own)
        wait = window.wait_s[rows].astype(np.float64)
        busy = quiet_median(window.busy_s(rows).T)
        for index in np.flatnonzero(~window.quiet_rows[rows]):
            step, end_s = int(window.steps[rows][index]), float(window.ends_s[rows][index])
            sick = self._slow > 0
            self._memory.push(step, end_s, busy[index], own[index], relative[index], wait[index], sick)
            self._judge(window)

    def score(self, window: Window) -> Vote:
        """The slow ranks, worst first."""
        if len(window.ranks) < 2:
            return abstain("fewer than two ranks")
        if self._memory.count < LEARN + HELD_BACK // 4:
            return abstain("warm-up")
        if not self._open:
            return Vote(opinion="normal", score=self._calm_score())
        slow = sorted(self._open.items(), key=lambda entry: -self._slow[entry[0]])[:MAX_SUSPECTS]
        worst = max(float(self._slow[slow[0][0]]), 1e-6)
        suspects = tuple(
            Suspect(
                score=float(np.clip(self._slow[column] / worst, 0.0, 1.0)),
                reason=_reason(episode, float(np.exp(self._slow[column]))),
                rank=episode.rank,
                node=episode.node,
            )
            for column, episode in slow
        )
        first = slow[0][1]
        excess = worst / float(np.log(1.15))
        return Vote(
            opinion="anomalous",
            score=excess / (1.0 + excess),
            reason=f"rank {first.rank} {suspects[0].reason}",
            kind="slow_compute",
            severity="sev3",
            suspects=suspects,
            metrics=("iteration_compute_seconds" if first.evidence == "compute" else "iteration_duration_seconds",),
            onset_s=min(episode.onset_s for _, episode in slow),
            onset_step=min(episode.from_step for _, episode in slow),
            at_step=int(self._memory.steps[-1]),
            verified=True,
        )

    def state(self) -> bytes:
        """See `detectors.protocol.Detector`."""
        plain = {
            "next_seq": self._next_seq, "nodes": self._nodes, "evidence": self._evidence,
            "open": [[column, _plain(episode)] for column, episode in self._open.items()],
            "episodes": [_plain(episode) for episode in self.episodes if episode.to_step is not None],
        }  # fmt: skip
        return pack("peer_deviation", plain, self._memory.arrays() | {"slow": self._slow})

    def restore(self, state: bytes) -> None:
        """See `detectors.protocol.Detector`."""
        plain, arrays = unpack("peer_deviation", state)
        self._memory.load(arrays)
        self._next_seq, self._slow = plain["next_seq"], arrays["slow"]
        self._nodes, self._evidence = tuple(plain["nodes"]), plain["evidence"]
        self._open = {column: Episode(**episode) for column, episode in plain["open"]}
        self.episodes = [Episode(**episode) for episode in plain["episodes"]] + list(self._open.values())

    def _widen(self, window: Window) -> None:
        more = len(window.ranks) - self._slow.size
        self._memory.widen(len(window.ranks))
        self._slow = np.append(self._slow, np.zeros(max(0, more)))
        if window.nodes != self._nodes:
            old = self._nodes
            for column, node in enumerate(window.nodes):
                if column < len(old) and old[column] != node:
                    self._memory.forget(column)
                    self._close(column)
            self._nodes = window.nodes

    # -- judgement -------------------------------------------------------------------------------------------

    def _judge(self, window: Window) -> None:
        live = window.live
        judged = [*self._against_self(), *self._against_peers(window)]
        for basis, ratio, onset_rows in judged:
            for column in np.flatnonzero((ratio > 0) & live & (self._slow == 0) & self._waits_least()):
                self._start(window, int(column), float(ratio[column]), basis, int(onset_rows[column]))
        self._follow(live)

    def _against_self(self) -> list[_Judged]:
        """Log ratio of ranks that are slower than they were, 0 for the others, and since how many rows."""
        config = self._config
        level, own_level, _ = self._memory.base
        spread = self._memory.spread()
        best: Floats = np.zeros(self._slow.size)
        for rows, least, widths in EVIDENCE:
            if self._memory.count < rows + LEARN:
                continue
            span_s = self._memory.ends_s[-1] - self._memory.ends_s[-rows] + self._memory.busy_s[-rows]
            small = least < 1.4
            if not span_s >= (config.minimum_small_span_s if small else config.minimum_span_s):
                continue
            risen = self._memory.relative[-rows:] - level
            own = quiet_median(self._memory.own[-rows:]) - own_level
            middle, low = quiet_median(risen), np.sort(risen, axis=0)[rows // 4]
            extra_s = np.expm1(np.maximum(middle, 0.0)) * np.exp(own_level)
            with np.errstate(invalid="ignore"):
                yes = (middle >= np.log(least)) & (middle >= widths * spread) & (low >= 0.5 * middle)
                yes &= (own >= 0.5 * middle) & (extra_s >= self._least_extra_s())
            best = np.where(yes & (middle > best), middle, best)
        drift = self._drifted()
        best = np.where((best == 0) & (drift > 0), drift, best)
        return [("self", best, self._memory.rows_above(level))]

    def _drifted(self) -> Floats:
        """Log ratio of ranks that have crept away from where they once were."""
        rows = 30
        if self._memory.count < ANCHOR + HELD_BACK + rows:
            return np.zeros(self._slow.size)
        risen = self._memory.relative[-rows:] - self._memory.anchor[0]
        middle, low = quiet_median(risen), np.sort(risen, axis=0)[rows // 4]
        own = quiet_median(self._memory.own[-rows:]) - self._memory.anchor[1]
        with np.errstate(invalid="ignore"):
            yes = (middle >= np.log(1.2)) & (low >= 0.5 * middle) & (own >= 0.5 * middle)
            yes &= np.expm1(np.maximum(middle, 0.0)) * np.exp(self._memory.anchor[1]) >= self._least_extra_s()
        return np.where(yes, middle, 0.0)

    def _against_peers(self, window: Window) -> list[_Judged]:
        """Log ratio of ranks that have been slower than the median rank of their role from the start."""
        config, rows = self._config, self._config.peers_steps
        if self._memory.count < rows or self._memory.ends_s[-1] - self._memory.ends_s[-rows] < config.peers_span_s:
            return []
        ratio: Floats = np.zeros(self._slow.size)
        roles = np.array(window.roles)
        for role in set(window.roles):
            group = np.flatnonzero((roles == role) & window.live)
            if len(group) < 3 or role.startswith("p2p"):
                continue
            own = self._memory.own[-rows:, group]
            apart = own - median_of_others(own)
            middle, low = quiet_median(apart), np.sort(apart, axis=0)[rows // 5]
            others = median_of_others(np.abs(middle)[None, :])[0]
            extra_s = np.expm1(np.maximum(middle, 0.0)) * np.exp(quiet_median(own) - middle)
            with np.errstate(invalid="ignore"):
                yes = (middle >= np.log(config.peers_ratio)) & (low >= 0.5 * middle)
                yes &= middle >= config.peers_z * np.maximum(1.4826 * others, 0.02)
                yes &= middle >= 2.0 * noise(apart)
                yes &= extra_s >= self._least_extra_s()
            ratio[group] = np.where(yes, middle, 0.0)
        first = np.full(self._slow.size, min(self._memory.count, ROWS), dtype=np.int64)
        return [("peers", ratio, first)]

    def _least_extra_s(self) -> float:
        return max(self._config.minimum_deviation_s, self._config.minimum_share * self._memory.typical_s)

    def _waits_least(self) -> npt.NDArray[np.bool_]:
        """False for ranks that wait clearly longer than the others: those are victims."""
        wait = quiet_median(self._memory.wait_s[-8:])
        others = median_of_others(wait[None, :])[0]
        with np.errstate(invalid="ignore"):
            victim: npt.NDArray[np.bool_] = wait > others + 0.1 * self._memory.typical_s
        return ~victim

    def _start(self, window: Window, column: int, log_ratio: float, basis: Literal["self", "peers"], rows: int) -> None:
        self._slow[column] = log_ratio
        self._memory.sick[-rows:, column] = True
        rank, node = int(window.ranks[column]), window.nodes[column]
        onset, now = int(self._memory.steps[-rows]), int(self._memory.steps[-1])
        onset_s = float(self._memory.ends_s[-rows] - self._memory.busy_s[-rows])
        began = self._memory.count - rows
        episode = Episode(rank, node, onset, now, onset_s, float(np.exp(log_ratio)), basis, self._evidence, began)
        self._open[column] = episode
        self.episodes.append(episode)

    def _follow(self, live: npt.NDArray[np.bool_]) -> None:
        """Bring the ratios of slow ranks up to date and let go of those that are back."""
        for column, episode in list(self._open.items()):
            rows = int(np.clip(self._memory.count - episode.row, 1, self._config.relief_steps))
            level = self._memory.base[0, column] if episode.basis == "self" else 0.0
            if episode.basis == "self" and np.isfinite(self._memory.anchor[0, column]):
                level = min(level, self._memory.anchor[0, column])
            recent = self._memory.relative[-rows:, column] - level
            now = float(np.nan_to_num(quiet_median(recent)))
            if not live[column] or now < np.log(self._config.relief_ratio):
                self._close(column)
                continue
            self._slow[column] = max(now, 1e-3)
            episode.ratio = max(episode.ratio, float(np.exp(now)))

    def _close(self, column: int) -> None:
        self._slow[column] = 0.0
        episode = self._open.pop(column, None)
        if episode is not None:
            episode.to_step = int(self._memory.steps[-1])

    def _calm_score(self) -> float:
        """How far the most deviating rank is from being called slow, below one half."""
        if self._memory.count < 10 or not np.isfinite(self._memory.base[0]).any():
            return 0.0
        excess = float(
            np.nanmax(np.append(quiet_median(self._memory.relative[-10:] - self._memory.base[0]), 0.0))
        ) / float(np.log(1.2))
        return min(0.499, excess / (1.0 + excess))


def _reason(episode: Episode, ratio: float) -> str:
    if episode.basis == "peers":
        return f"computes {ratio:.2f} times as long as the median rank, from the start"
    what = "computes" if episode.evidence == "compute" else "takes"
    return f"{what} {ratio:.2f} times as long as it did, relative to the other ranks, and waits least"


def _plain(episode: Episode) -> dict[str, Any]:
    return {name: getattr(episode, name) for name in Episode.__slots__}
