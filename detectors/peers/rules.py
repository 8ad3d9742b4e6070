"""The rules by which a rank is slow: against its own earlier level, against its role, and its role against the others.

Each rule looks at the newest k steps of a `PeerMemory` and returns what it finds; nothing is changed here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import median_of_others, noise, quiet_median
from trainwarden.detectors.peers.episodes import Basis, onset_rows
from trainwarden.detectors.peers.memory import ANCHOR, HELD_BACK, LEARN, LEAST_PEERS, PeerMemory
from trainwarden.detectors.peers.roles import Codes, median_of_peers
from trainwarden.settings import Config

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]


class EvidenceThreshold(NamedTuple):
    """Evidence over the newest `rows` steps: least ratio, and how many noise widths (of peers: robust z-score)."""

    rows: int
    ratio: float
    widths: float


# Evidence over the newest k steps: (k, least ratio, noise widths). Large deviations need few steps, small ones many;
# chosen on simulated ranks with 2 to 15 % noise and the tuning half of real series so that healthy hours name nobody.
EVIDENCE: Final = (
    EvidenceThreshold(4, 1.45, 8.0), EvidenceThreshold(6, 1.30, 6.0), EvidenceThreshold(10, 1.20, 5.0),
    EvidenceThreshold(20, 1.15, 6.0), EvidenceThreshold(40, 1.18, 3.0),
)  # fmt: skip
DRIFT: Final = EvidenceThreshold(30, 1.20, 3.0)  # the same against the level once learnt
KNOWN_SHARE: Final = 0.6  # of the steps in question must be known of a rank
CALM: Final = 5  # one in so many steps may be as fast as ever,
CALM_LONG: Final = (20, 4)  # and of so many steps one in 4: rare dips are no relief
PEERS_EVERY: Final = 4  # steps between two comparisons from the start
LEAST_SPREAD: Final = 0.02  # of ranks about their median, so that equal ranks do not make a small difference large


class PeerDeviationConfig(Config, frozen=True, kw_only=True):
    """When a rank differs enough from its peers.

    Attributes
    ----------
    minimum_deviation_s, minimum_share
        Least extra compute time per step, absolute and as a share of the step.
    minimum_span_s, minimum_small_span_s
        The evidence must span this much time, so that one stall of the machine is not evidence; the second for
        deviations below 40 %.
    peers_ratio, peers_steps, peers_span_s, peers_z
        Slower from the start than the median rank: ratio, over how many steps and how much time, robust z-score. Half
        the steps do where the ratio is above 1.4 and the score is 1.6 times as large.
    relief_ratio, relief_steps
        A spell is over when the median of so many steps, or of as many as it took to be believed, is below this.
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


@dataclass(frozen=True, slots=True)
class Finding:
    """Ranks that are slow by one rule.

    Attributes
    ----------
    columns : int [n]
    heights : float [n]
        Log ratios.
    rows : int [n]
        Of how many newest steps.
    needed : int [n]
        Steps it took to be believed.
    stage : str
        The role whose ranks are all slow, or empty.
    """

    basis: Basis
    columns: Codes
    heights: Floats
    rows: Counts
    needed: Counts
    stage: str = ""


def against_self(memory: PeerMemory, config: PeerDeviationConfig, free: Flags) -> list[Finding]:
    """Ranks among `free` that are slower than they were.

    Parameters
    ----------
    free : bool [ranks]
        Alive and not known to be slow.
    """
    room = memory.count - memory.healed
    best, needed = np.zeros(free.size), np.zeros(free.size, dtype=np.int64)
    bars = [(bar, memory.base[:2], LEARN) for bar in EVIDENCE]
    for bar, levels, learnt in [*bars, (DRIFT, memory.anchor, ANCHOR + HELD_BACK)]:
        span_s = config.minimum_small_span_s if bar.ratio < 1.4 else config.minimum_span_s
        if memory.count < bar.rows + learnt or memory.span_s(bar.rows) < span_s:
            continue
        wanted = free & (room >= bar.rows)
        if bar is DRIFT:
            wanted &= best == 0.0
        columns, heights = _risen(memory, config, wanted, bar, levels)
        higher = heights > best[columns]
        best[columns[higher]], needed[columns[higher]] = heights[higher], bar.rows
    columns = np.flatnonzero(best)
    if not columns.size:
        return []
    level = np.where(needed[columns] == DRIFT.rows, memory.anchor[0, columns], memory.base[0, columns])
    risen = memory.tail("relative", memory.remembered_steps, columns) - level
    return [Finding("self", columns, best[columns], _since(memory, risen, columns, best[columns]), needed[columns])]


def against_peers(memory: PeerMemory, config: PeerDeviationConfig, free: Flags, live: Flags) -> list[Finding]:
    """Ranks among `free` that are slower than the others of their role, and roles slower than the other roles."""
    found: list[Finding] = []
    if memory.count % PEERS_EVERY:
        return []
    quick = EvidenceThreshold(config.peers_steps // 2, max(1.4, config.peers_ratio), 1.6 * config.peers_z)
    for bar in (quick, EvidenceThreshold(config.peers_steps, config.peers_ratio, config.peers_z)):
        if memory.count < bar.rows or memory.span_s(bar.rows) < config.peers_span_s:
            continue
        wanted = free & (memory.count - memory.healed >= bar.rows)
        raised = memory.raised("apart", bar.rows, 0.0, 0.5 * float(np.log(bar.ratio))) >= _enough(bar.rows)
        if (wanted & raised).any():
            found.append(_apart(memory, config, wanted & raised, live, bar))
        found += _slow_roles(memory, wanted, bar)
    return [finding for finding in found if finding.columns.size]


def apart_of_two(memory: PeerMemory, config: PeerDeviationConfig, live: Flags) -> float | None:
    """How many times as long as the other one of two ranks takes, where a third would make it a straggler.

    Of two nobody can say which is the odd one, unless one has become slower than it was.
    """
    columns = np.flatnonzero(live)
    if (
        columns.size != 2
        or memory.count < config.peers_steps
        or memory.span_s(config.peers_steps) < config.peers_span_s
    ):
        return None
    apart = memory.tail("apart", config.peers_steps, columns)
    middle = quiet_median(apart)
    bar = EvidenceThreshold(config.peers_steps, config.peers_ratio, config.peers_z)
    if not _different(apart, middle, np.zeros(2), bar).any():
        return None
    return float(np.exp(np.nanmax(middle)))


def alone(memory: PeerMemory) -> Flags:
    """True for ranks whose role has too few others to tell what is usual in it [ranks]."""
    members = np.bincount(memory.codes, minlength=len(memory.roles))
    return np.asarray(members[memory.codes] < LEAST_PEERS)


def _risen(
    memory: PeerMemory, config: PeerDeviationConfig, wanted: Flags, bar: EvidenceThreshold, levels: Floats
) -> tuple[Codes, Floats]:
    """Who is slower by `bar` than at `levels` (relative, own) [2, ranks], and the log ratios."""
    rows, least = bar.rows, np.log(bar.ratio)
    # What a rank must at least show is cheap to count; the medians are only taken of the few ranks that show it.
    columns = np.flatnonzero(wanted & (memory.raised("relative", rows, levels[0], 0.5 * float(least)) >= _enough(rows)))
    if not columns.size:
        return columns, np.zeros(0)
    risen = memory.tail("relative", rows, columns) - levels[0, columns]
    own = quiet_median(memory.tail("own", rows, columns)) - levels[1, columns]
    middle, low = quiet_median(risen), np.sort(risen, axis=0)[_calm(rows)]
    extra_s = np.expm1(np.maximum(middle, 0.0)) * np.exp(levels[1, columns])
    with np.errstate(invalid="ignore"):
        yes = (middle >= least) & (middle >= bar.widths * memory.spread[columns]) & (low >= 0.5 * middle)
        yes &= (own >= 0.5 * middle) & (extra_s >= _least_extra_s(memory, config))
    yes &= np.isfinite(risen).sum(axis=0) >= KNOWN_SHARE * rows
    return columns[yes], middle[yes]


def _apart(
    memory: PeerMemory, config: PeerDeviationConfig, wanted: Flags, live: Flags, bar: EvidenceThreshold
) -> Finding:
    """Which of the ranks `wanted` lie above the others of their role."""
    columns = np.flatnonzero(wanted)
    apart = memory.tail("apart", bar.rows, np.arange(wanted.size))
    middle = quiet_median(apart)
    yes = _different(apart[:, columns], middle[columns], _usual(memory, middle, live)[columns], bar)
    own = quiet_median(memory.tail("own", bar.rows, columns))
    extra_s = np.expm1(np.maximum(middle[columns], 0.0)) * np.exp(own - middle[columns])
    columns = columns[yes & (extra_s >= _least_extra_s(memory, config))]
    rows_since = _since(memory, memory.tail("apart", memory.remembered_steps, columns), columns, middle[columns])
    return Finding("peers", columns, middle[columns], rows_since, np.full(columns.size, bar.rows))


def _usual(memory: PeerMemory, apart: Floats, live: Flags) -> Floats:
    """How far the others of each rank's role usually are from their median, of a few all others [ranks]."""
    distance = np.where(live, np.abs(apart), np.nan)
    usual = np.where(alone(memory), median_of_others(distance[None])[0], median_of_peers(distance, memory.codes)[0])
    for code in np.flatnonzero(np.bincount(memory.codes[np.isfinite(distance)]) == LEAST_PEERS):
        trio = np.flatnonzero((memory.codes == code) & np.isfinite(distance))
        usual[trio] = _between_two(apart[trio])
    return usual


def _between_two(apart: Floats) -> Floats:
    """Of three values, each less the mean of the two others: how far those two are from their own mean [3].

    By their distances they would seem half of the third one's excess away, which is in the mean of their others, and
    nobody of three would ever be slow. Differences of such values are one and a half times as large as of the values.
    """
    return np.asarray(np.abs(np.roll(apart, 1) - np.roll(apart, 2)) / 3.0)


def _slow_roles(memory: PeerMemory, wanted: Flags, bar: EvidenceThreshold) -> list[Finding]:
    """Roles that lie above the other roles, with all their ranks."""
    rows, least = bar.rows, float(np.log(bar.ratio))
    excess = memory.stage_tail(rows, np.arange(len(memory.roles)))
    middle = quiet_median(excess)
    if not (middle >= least).any():
        return []
    found = []
    usual = median_of_others(np.abs(middle)[None])[0]
    known = np.isfinite(middle)
    if np.count_nonzero(known) == LEAST_PEERS:
        usual[known] = _between_two(middle[known])
    for code in np.flatnonzero(_different(excess, middle, usual, bar)):
        columns = np.flatnonzero(wanted & (memory.codes == code))
        apart = memory.tail("apart", memory.remembered_steps, columns) + memory.stage_tail(
            memory.remembered_steps, np.array([code])
        )
        heights = quiet_median(apart[-rows:])
        columns, heights, apart = columns[heights >= least], heights[heights >= least], apart[:, heights >= least]
        since = _since(memory, apart, columns, heights)
        found.append(Finding("peers", columns, heights, since, np.full(columns.size, rows), memory.roles[code]))
    return found


def _different(apart: Floats, middle: Floats, usual: Floats, bar: EvidenceThreshold) -> Flags:
    low = np.sort(apart, axis=0)[_calm(len(apart))]
    with np.errstate(invalid="ignore"):
        yes = (middle >= float(np.log(bar.ratio))) & (low >= 0.5 * middle) & (middle >= 2.0 * noise(apart))
        yes &= np.isfinite(apart).sum(axis=0) >= KNOWN_SHARE * len(apart)
        return np.asarray(yes & (middle >= bar.widths * np.maximum(1.4826 * np.nan_to_num(usual), LEAST_SPREAD)))


def _enough(rows: int) -> int:
    """Of the known steps all but the few calm ones must be raised."""
    return int(np.ceil(KNOWN_SHARE * rows)) - _calm(rows)


def _calm(rows: int) -> int:
    return rows // (CALM if rows < CALM_LONG[0] else CALM_LONG[1])


def _since(memory: PeerMemory, risen: Floats, columns: Codes, heights: Floats) -> Counts:
    """Since how many steps, not counting any that belong to an earlier spell."""
    room = memory.count - memory.healed[columns]
    age = np.arange(len(risen), 0, -1)[:, None]
    rows = onset_rows(np.where(age <= room, risen, -np.inf), heights)
    return np.asarray(np.clip(rows, 1, np.maximum(room, 1)))


def _least_extra_s(memory: PeerMemory, config: PeerDeviationConfig) -> float:
    return max(config.minimum_deviation_s, config.minimum_share * memory.typical_s)
