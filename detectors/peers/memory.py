"""The recent steps of ranks as logarithms, and what is normal for each of them."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import median_of_others, quiet_median
from trainwarden.detectors.peers.roles import Codes, median_of_peers

Floats = npt.NDArray[np.float64]
Lane = Literal["own", "relative", "apart"]
ROWS: Final = 160  # steps remembered: the newest are judged, the older healthy ones are the baseline
SLACK: Final = 32  # rows appended before the rings are moved to the front, so that an append does not copy them
HELD_BACK: Final = 20  # newest steps that are not yet part of the baseline, so that a fault cannot teach it
LEARN: Final = 8  # steps without which there is no baseline
ANCHOR: Final = 50  # healthy steps after which a fixed baseline is kept too, against slow drifts
EARLY: Final = 2 * LEARN + HELD_BACK  # so many steps long ranks are learnt again at every other step, then every 8
WAITS: Final = 8  # newest steps over which waits are compared
WARM: Final = 10  # planned-slow steps at the start that are kept to tell since when a rank has been different
SCARCE: Final = 24  # healthy steps below which the noise is taken from the standard deviation: it needs fewer
LEAST_PEERS: Final = 3  # ranks of one role that can be compared among each other


class PeerStep(NamedTuple):
    """One step of all ranks: its number and end, the job's time without pauses; log `own` work and waits [ranks]."""

    number: int
    end_s: float
    busy_s: float
    own: Floats
    wait_s: Floats


class PeerMemory:
    """Compute time of every rank over the newest steps: its own, and relative to others in three ways.

    Attributes
    ----------
    count : int
        Steps taken in.
    base : float [3, ranks]
        Normal relative level, own level and noise, from the newest healthy steps but the very newest.
    anchor : float [2, ranks]
        Relative and own level once learnt and then kept.
    healed : int [ranks]
        `count` at the end of the last slow spell; onsets are not looked for before it.
    codes : int [ranks], roles : tuple of str
        Role of each rank as a place in `roles`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.roles: tuple[str, ...] = ()
        self.codes: Codes = np.zeros(0, dtype=np.intp)
        self._end = ROWS
        self._rings: dict[str, npt.NDArray[Any]] = {
            **{lane: np.full((ROWS + SLACK, 0), np.nan, dtype=np.float32) for lane in ("own", "relative", "apart")},
            "sick": np.zeros((ROWS + SLACK, 0), dtype=np.bool_),
            "stage": np.full((ROWS + SLACK, 0), np.nan, dtype=np.float32),
            "ends_s": np.full(ROWS + SLACK, np.nan),
            "steps": np.zeros(ROWS + SLACK, dtype=np.int64),
            "busy_s": np.full(ROWS + SLACK, np.nan),
        }
        self._wait_s: npt.NDArray[np.float32] = np.full((WAITS, 0), np.nan, dtype=np.float32)
        self._warm: npt.NDArray[np.float32] = np.full((WARM, 0), np.nan, dtype=np.float32)
        self._warm_steps = np.zeros(0, dtype=np.int64)
        self._warm_begins_s: Floats = np.zeros(0)
        self.base: Floats = np.full((3, 0), np.nan)
        self.anchor: Floats = np.full((2, 0), np.nan)
        self.healed = np.zeros(0, dtype=np.int64)
        self._spread: Floats = np.zeros(0)

    @property
    def ranks(self) -> int:
        """How many columns there are."""
        return int(self.healed.size)

    @property
    def typical_s(self) -> float:
        """Median step time of late, without pauses."""
        return float(quiet_median(self._newest("busy_s", 20)))

    @property
    def spread(self) -> Floats:
        """Noise of each rank, not below what is usual among them [ranks]."""
        return self._spread

    @property
    def remembered_steps(self) -> int:
        """Steps that are still remembered."""
        return min(self.count, ROWS)

    def step(self, rows_ago: int) -> int:
        """Number of the step `rows_ago` steps before the newest."""
        return int(self._rings["steps"][self._end - 1 - rows_ago])

    def begin_s(self, rows_ago: int) -> float:
        """When that step began."""
        row = self._end - 1 - rows_ago
        return float(self._rings["ends_s"][row] - self._rings["busy_s"][row])

    def span_s(self, rows: int) -> float:
        """Time from the begin of the oldest to the end of the newest of the last `rows` steps."""
        return float(self._rings["ends_s"][self._end - 1]) - self.begin_s(rows - 1)

    def tail(self, lane: Lane, rows: int, columns: Codes) -> Floats:
        """The newest `rows` values of some ranks [rows, columns]."""
        return np.asarray(self._newest(lane, rows)[:, columns], dtype=np.float64)

    def stage_tail(self, rows: int, codes: Codes) -> Floats:
        """By how much the given roles are above the other roles' median [rows, codes]."""
        return np.asarray(self._newest("stage", rows)[:, codes], dtype=np.float64)

    def raised(self, lane: Lane, rows: int, level: Floats | float, least: float) -> npt.NDArray[np.intp]:
        """In how many of the newest `rows` steps each rank was `least` above `level` [ranks]; cheap for many ranks."""
        with np.errstate(invalid="ignore"):
            bar = np.asarray(level + least, dtype=np.float32)
            return np.asarray((self._newest(lane, rows) >= bar).sum(axis=0))

    def wait_levels_s(self) -> Floats:
        """Median wait of late [ranks]."""
        return quiet_median(self._wait_s.astype(np.float64))

    def resize(self, ranks: int) -> None:
        """Add fresh columns until there are `ranks`."""
        more = ranks - self.ranks
        if more <= 0:
            return
        for lane in ("own", "relative", "apart"):
            self._rings[lane] = _wider(self._rings[lane], more, np.nan)
        self._rings["sick"] = _wider(self._rings["sick"], more, False)
        self._wait_s, self._warm = _wider(self._wait_s, more, np.nan), _wider(self._warm, more, np.nan)
        self.base, self.anchor = _wider(self.base, more, np.nan), _wider(self.anchor, more, np.nan)
        self.healed = np.append(self.healed, np.full(more, self.count))
        self._spread = np.append(self._spread, np.full(more, 0.02))
        self.codes = np.append(self.codes, np.zeros(more, dtype=np.intp))

    def assign(self, names: tuple[str, ...]) -> None:
        """Take over the ranks' roles; ranks whose trainer talks point to point only differ by design."""
        unique, inverse = np.unique(np.array(names, dtype=np.str_), return_inverse=True)
        self.roles, self.codes = tuple(str(name) for name in unique), inverse.astype(np.intp)
        if self._rings["stage"].shape[1] != len(self.roles):
            self._rings["stage"] = np.full((ROWS + SLACK, len(self.roles)), np.nan, dtype=np.float32)

    def forget(self, column: int) -> None:
        """The rank of `column` now runs elsewhere and has no history there."""
        for array in (*(self._rings[lane] for lane in ("own", "relative", "apart")), self._wait_s, self._warm):
            array[:, column] = np.nan
        self.base[:, column] = self.anchor[:, column] = np.nan
        self._rings["sick"][:, column] = False
        self.healed[column] = self.count

    def warm_up(self, step: int, begin_s: float, own: Floats) -> None:
        """Note a step at the start in which slowness is planned; nothing is learnt from it."""
        if self.count or self._warm_steps.size == WARM:
            return
        self._warm[self._warm_steps.size] = own
        self._warm_steps = np.append(self._warm_steps, step)
        self._warm_begins_s = np.append(self._warm_begins_s, begin_s)

    def first(self, column: int, others: Codes, excess: float) -> tuple[int, float] | None:
        """Step and time since when `column` was `excess` above the median of `others` before the first judged step."""
        warm = self._warm[: self._warm_steps.size].astype(np.float64)
        apart = warm[:, column] - quiet_median(warm[:, others].T)
        with np.errstate(invalid="ignore"):
            calm = np.flatnonzero(~(apart >= excess))
        place = int(calm[-1]) + 1 if calm.size else 0
        return (int(self._warm_steps[place]), float(self._warm_begins_s[place])) if place < len(warm) else None

    def push(self, step: PeerStep, sick: Floats) -> None:
        """Add one step; `sick` [ranks] is > 0 for ranks that are slow now."""
        if self._end == ROWS + SLACK:
            for array in self._rings.values():
                array[:ROWS] = array[SLACK:].copy()
            self._end = ROWS
        row, rings, own = self._end, self._rings, step.own
        rings["own"][row], rings["sick"][row] = own, sick > 0
        rings["relative"][row] = own - median_of_others((own - self._usual())[None])[0]
        rings["apart"][row], rings["stage"][row] = self._beside(own)
        rings["steps"][row], rings["ends_s"][row], rings["busy_s"][row] = step.number, step.end_s, step.busy_s
        self._wait_s[:-1] = self._wait_s[1:].copy()
        self._wait_s[-1] = step.wait_s
        self._end += 1
        self.count += 1
        if self.count % (2 if self.count <= EARLY else LEARN) == 0:
            self._learn()

    def mark(self, column: int, rows: int, sick: bool) -> None:
        """Say of the newest `rows` steps of a rank whether it was slow in them."""
        self._rings["sick"][self._end - rows : self._end, column] = sick

    # -- internals -------------------------------------------------------------------------------------------

    def _newest(self, name: str, rows: int) -> npt.NDArray[Any]:
        return np.asarray(self._rings[name][self._end - rows : self._end])

    def _usual(self) -> Floats:
        """Each rank's usual place above or below the others, so that what they share is told by the change in all."""
        level = self.base[1]
        known = level[np.isfinite(level)]
        return np.nan_to_num(level - np.median(known)) if known.size else np.zeros(level.size)

    def _beside(self, own: Floats) -> tuple[Floats, Floats]:
        """Excess over the others of one's role [ranks], and of each role over the other roles [roles]."""
        if not self.roles:
            return own - median_of_others(own[None])[0], np.zeros(0)
        members = np.bincount(self.codes, minlength=len(self.roles))
        of_peers, level = median_of_peers(own, self.codes)
        apart = own - of_peers
        few = members[self.codes] < LEAST_PEERS
        if few.any():
            apart[few] = (own - median_of_others(own[None])[0])[few]
        designed = np.array([name.startswith("p2p") for name in self.roles])
        ends = np.array([name.endswith((":first", ":last")) for name in self.roles])
        apart[designed[self.codes] | (few & ends[self.codes])] = np.nan
        level = np.where((members < LEAST_PEERS) | designed | ends, np.nan, level)
        if np.isfinite(level).sum() < LEAST_PEERS:
            return apart, np.full(level.size, np.nan)
        return apart, level - median_of_others(level[None])[0]

    def _learn(self) -> None:
        """Baselines from the healthy steps, but the newest."""
        # While there are few steps, all but the newest four are taken: a baseline is needed before it is ideal.
        held = HELD_BACK if self.count >= LEARN + HELD_BACK else max(4, self.count - LEARN)
        part = slice(self._end - self.remembered_steps, self._end - held)
        if part.stop - part.start < LEARN:
            return
        sick, first = self._rings["sick"][part], not np.isfinite(self.base[1]).any()
        own = np.where(sick, np.nan, self._rings["own"][part])
        number = np.isfinite(own).sum(axis=0)
        self.base[1] = np.where(number >= LEARN, quiet_median(own), self.base[1])
        if first:  # what the ranks share is now told better than it was for the steps before
            known = self._newest("own", self.remembered_steps).astype(np.float64)
            self._newest("relative", self.remembered_steps)[:] = known - median_of_others(known - self._usual())
        healthy = np.where(sick, np.nan, self._rings["relative"][part])
        level = quiet_median(healthy)
        self.base[0] = np.where(number >= LEARN, level, self.base[0])
        self.base[2] = np.where(number >= LEARN, _noise(healthy, level, number), self.base[2])
        self.anchor = np.where((number >= ANCHOR) & np.isnan(self.anchor[0]), self.base[:2], self.anchor)
        known = self.base[2][np.isfinite(self.base[2])]
        usual = float(quiet_median(known)) if known.size else 0.0
        self._spread = np.asarray(np.maximum(np.nan_to_num(self.base[2]), max(0.02, 0.7 * usual)))


def _noise(healthy: Floats, level: Floats, number: npt.NDArray[Any]) -> Floats:
    """Robust standard deviation about `level` [ranks]; on the safe side where little is known."""
    spread = 1.4826 * quiet_median(np.abs(healthy - level))
    if int(number.max(initial=0)) < SCARCE:
        squares = np.where(np.isfinite(healthy), (healthy - level) ** 2, 0.0).sum(axis=0)
        spread = np.maximum(spread, np.sqrt(squares / np.maximum(number - 1, 1)))
    return np.asarray(spread * (1.0 + 4.0 / np.maximum(number, 1)))


def _wider(array: npt.NDArray[Any], more: int, empty: object) -> npt.NDArray[Any]:
    return np.hstack([array, np.full((len(array), more), empty, dtype=array.dtype)])
