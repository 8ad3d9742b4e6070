"""Peers of one family compared metric by metric, round by round: who is away from the others, and for how long.

A round is over when somebody speaks a second time and at least half of those heard of late have spoken: rounds follow
the sampling interval by themselves, and no clocks of nodes have to agree.

What a comparison of peers keeps for each metric of each entity, and with whom an entity is compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import lookup
from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.samples import MOST, Entity, FamilySamples
from trainwarden.detectors.metrics.hysteresis import EXPIRE_S
from trainwarden.detectors.metrics.models.dtw import banded_dtw


def compared_as(family: str, entity: Entity, role: str) -> str:
    """Who is compared with whom: entities of one role; ports, disks and mounts of one name besides.

    Examples
    --------
    >>> compared_as("gpu", Entity("n", "0"), "tp0"), compared_as("nic", Entity("n", "mlx5_0"), "")
    ('tp0', ' mlx5_0')
    """
    return f"{role} {entity.device}" if family == "nic" or family.startswith("host:") else role


def kind_of(name: str) -> type[np.generic]:
    """Rounds are kept as bits, all else as numbers."""
    return np.uint32 if name in {"high", "low"} else np.float64


def empty(name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Cells of which nothing is known."""
    unknown = np.nan if name in {"away_s", "middle", "now"} else 0
    return np.full(shape, unknown, dtype=kind_of(name))


Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]
# A sample size, whatever the interval: chosen on peers sampled each second and every other (`likeness`, in benchmarks).
ROUNDS: Final = 30  # in a window: half a minute at one sample a second
ENOUGH: Final = 20  # of them a metric must be away in, always on one side,
ENOUGH_S: Final = 19.0  # and for as long as so many take there: samples that come faster are no more independent
LEAST: Final = 3  # of a role: of two nobody can say which is the odd one
WIDTHS: Final = 2.0  # robust standard deviations of the peers that count as away,
OWN_WIDTHS: Final = 1.5  # or mean distances of its own
ODD_SHARE: Final = 0.2  # what more than these do is other work
SLOW: Final = 1.0 / 600.0  # per round: how fast usual distances follow while nothing is away
BAND: Final = 5  # rounds by which a peer may lag behind the others, or be ahead
WARPED: Final = 4_096  # cells at most, in some 0.04 s of a processor
SILENT: Final = 10  # rounds without a word after which nobody waits for an entity, nor speaks of it (`job.silence`)
_CELLS: Final = ("usual", "own", "seen", "high", "low", "away_s", "width", "middle", "now")
_BITS: Final = np.uint32((1 << ROUNDS) - 1)


@dataclass(slots=True)
class PeerRounds:
    """Entities of one family, and the metrics that are compared.

    Attributes
    ----------
    usual, own : float arrays [metrics, rows]
        Usual distance from the peers' median, in units of the metric, and mean distance from that.
    seen, away_s : float arrays [metrics, rows]
        Rounds in which a metric was there, and since when, by the node's clock, it is away; NaN if it is not.
    high, low : unsigned arrays [metrics, rows]
        Newest rounds, as bits, in which it was above or below.
    width, middle : float arrays [metrics, rows]
        Least distance that counts, and the peers' median, at the newest round.
    now : float array [metrics, rows]
        What was said in this round; NaN where nothing was.
    apart : float array [ROUNDS, metrics, rows]
        Distances of the newest rounds; `medians` are the peers'. Both are rings: round n lies in n % ROUNDS.
    heard, said_s : float arrays [rows]
        Round and time of an entity's newest word.
    """

    names: list[str] = field(default_factory=list)
    least: Floats = field(default_factory=lambda: np.zeros((3, 0)))  # apart, apart_share, alike [3, metrics]
    entities: list[Entity] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    number: int = 0
    heard: Floats = field(default_factory=lambda: np.zeros(0))
    said_s: Floats = field(default_factory=lambda: np.zeros(0))
    spread: dict[str, Floats] = field(default_factory=dict)  # by role [metrics]
    cells: dict[str, npt.NDArray[Any]] = field(default_factory=lambda: {name: empty(name, (0, 0)) for name in _CELLS})
    groups: dict[str, Rows] | None = None  # rows by role; None: to be found anew
    apart: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((ROUNDS, 0, 0), dtype=np.float32))
    medians: npt.NDArray[np.float32] = field(default_factory=lambda: np.zeros((ROUNDS, 0, 0), dtype=np.float32))

    def observe(self, samples: FamilySamples, place: int, *, quiet: bool) -> None:
        """Sample number `place` of those that are new; while it is `quiet` rounds are neither judged nor learnt."""
        rows, column = samples.rows, samples.values.shape[2] - samples.fresh + place
        columns = self._columns(samples)
        if not columns or not rows.size:
            return
        there = np.isfinite(samples.times_s[:, place])
        self._room(int(rows.max()) + 1)
        for row, entity, role in zip(rows.tolist(), samples.entities, samples.roles, strict=True):
            self.entities[row] = entity
            if self.roles[row] != (own := compared_as(samples.family, entity, role)):
                self.roles[row], self.groups = own, None
        spoken = self.heard == self.number
        waited = self.heard > self.number - SILENT
        if (spoken[rows] & there).any() and 2 * spoken.sum() >= waited.sum():
            self._close(quiet)
        values = samples.values[:, [own for own, _ in columns], column].T
        mine = np.array([place for _, place in columns])
        now = self.cells["now"]
        now[np.ix_(mine, rows[there])] = np.where(np.abs(values) < MOST, values, np.nan)[:, there]
        self.heard[rows[there]] = self.number
        self.said_s[rows[there]] = samples.times_s[there, place]

    def outlying(self) -> Rows:
        """Cells ``[n, 2]`` that are away for long enough, but for what many do and for mere lags."""
        cells, found = self.cells, np.zeros(self.cells["now"].shape, dtype=np.bool_)
        heard = self.heard > self.number - SILENT
        for members in self._members().values():
            counts = np.maximum(np.bitwise_count(cells["high"][:, members]), np.bitwise_count(cells["low"][:, members]))
            lasted_s = self.said_s[members] - cells["away_s"][:, members]
            away = (counts >= ENOUGH) & (lasted_s >= ENOUGH_S) & heard[members]
            many = away.sum(axis=1) > np.maximum(1, ODD_SHARE * members.size)
            found[:, members] = away & ~many[:, None]
        lagging = self._lagging(np.argwhere(found))
        found[tuple(lagging.T)] = False
        return np.argwhere(found)

    def times_away(self, found: Rows) -> Floats:
        """How many times the least distance that counts the cells ``[n, 2]`` are away, over the window."""
        metric, row = found.T
        usual = np.where(self.least[2][metric] > 0.0, 0.0, self.cells["usual"][metric, row])
        middle = quiet_median(self.apart[:, metric, row].astype(np.float64))
        return np.asarray(np.abs(middle - usual) / np.maximum(self.cells["width"][metric, row], 1e-300))

    def newest(self, metric: int, row: int) -> float:
        """The value of the newest round in which there was one."""
        turn = (self.number - 1 - np.arange(ROUNDS)) % ROUNDS
        values = (self.medians + self.apart)[turn, metric, row]
        return float(values[np.isfinite(values).argmax()])

    def why_not(self) -> str:
        """Why nobody can be judged; empty if somebody can."""
        members = self._members()
        if not members:
            most = max((self.roles.count(role) for role in set(self.roles)), default=0)
            return f"{most} of a role, and of fewer than {LEAST} nobody can say which is the odd one"
        seen = max(int(self.cells["seen"][:, rows].max(initial=0.0)) for rows in members.values())
        return "" if seen >= ROUNDS else f"warm-up: {seen} of {ROUNDS} rounds of samples"

    def peers_of(self, row: int) -> int:
        """With how many others an entity is compared."""
        return self.roles.count(self.roles[row]) - 1

    def forget(self) -> None:
        """Nobody is heard any more: who was away then is not away for that when all come back."""
        self.cells["high"][:], self.cells["low"][:], self.cells["away_s"][:] = 0, 0, np.nan

    def restart(self) -> None:
        """Ranks begin anew, perhaps elsewhere: nothing is usual yet."""
        self.cells = {name: empty(name, self.cells["now"].shape) for name in _CELLS}
        self.spread = {}

    # -- state -----------------------------------------------------------------------------------------------

    # -- internals -------------------------------------------------------------------------------------------

    def _columns(self, samples: FamilySamples) -> list[tuple[int, int]]:
        """Columns of `samples` that are compared, and their places here."""
        known = {name: place for place, name in enumerate(self.names)}
        found = []
        for column, name in enumerate(samples.names):
            if name not in known:
                metric = lookup(name)
                if metric is None or (metric.apart is None and metric.apart_share is None):
                    continue
                known[name] = len(self.names)
                self.names.append(name)
                row = ((metric.apart or 0.0) / metric.scale_of(name), metric.apart_share or 0.0, float(metric.alike))
                self.least = np.column_stack([self.least, row])
            found.append((column, known[name]))
        return found

    def _members(self) -> dict[str, Rows]:
        """Rows of each role that has enough of them."""
        if self.groups is None:
            places: dict[str, list[int]] = {}
            for row, role in enumerate(self.roles):
                places.setdefault(role, []).append(row)
            self.groups = {role: np.array(rows) for role, rows in places.items() if len(rows) >= LEAST}
        return self.groups

    def _close(self, quiet: bool) -> None:
        """A round is over."""
        slot = self.number % ROUNDS
        self.apart[slot], self.medians[slot] = np.nan, np.nan
        if not quiet:
            for role, members in self._members().items():
                self._compare(role, members, slot)
        self.cells["now"][:] = np.nan
        self.number += 1

    def _compare(self, role: str, members: Rows, slot: int) -> None:
        """One round of one role."""
        part = {name: self.cells[name][:, members] for name in _CELLS}
        values, alike = part["now"], self.least[2][:, None] > 0.0
        known = np.isfinite(values)
        known &= known.sum(axis=1, keepdims=True) >= LEAST
        middle = quiet_median(values.T)[:, None]
        apart = np.where(known, values - middle, np.nan)
        self.apart[slot][:, members], self.medians[slot][:, members] = apart, np.where(known, middle, np.nan)
        part["seen"] = part["seen"] + known
        first = known & (part["seen"] == ROUNDS)
        if first.any():
            self._begin(part, first, members)
        off = np.where(alike, apart, apart - part["usual"])
        spread = self._spread(role, 1.4826 * quiet_median(np.abs(off).T))[:, None]
        least = np.fmax(self.least[0][:, None], self.least[1][:, None] * np.abs(middle))
        width = np.fmax(least, np.fmax(WIDTHS * np.nan_to_num(spread), OWN_WIDTHS * part["own"]))
        judged = known & (part["seen"] >= ROUNDS)
        with np.errstate(invalid="ignore"):
            beyond = judged & (np.abs(off) > width)
        for side, name in ((1.0, "high"), (-1.0, "low")):
            bits = ((part[name] << np.uint32(1)) | (beyond & (side * off > 0.0))) & _BITS
            part[name] = np.where(judged, bits, part[name])
        gone = ~known & ((part["high"] | part["low"]) > 0)
        if gone.any():  # what has been silent for long is forgotten, as entities are
            newest = (self.number - np.arange(SILENT)) % ROUNDS
            gone &= ~np.isfinite(self.apart[newest][:, :, members]).any(axis=0)
            part["high"][gone], part["low"][gone] = 0, 0
        part["middle"], part["width"] = np.where(known, middle, part["middle"]), np.where(judged, width, part["width"])
        self._learn(part, apart, beyond, self.said_s[members])
        for name in _CELLS:
            self.cells[name][:, members] = part[name]

    def _begin(self, part: dict[str, npt.NDArray[Any]], first: Flags, members: Rows) -> None:
        """The first full window of some cells: what is usual for them."""
        window = self.apart[:, :, members].astype(np.float64)
        usual = quiet_median(window)
        part["usual"] = np.where(first, usual, part["usual"])
        part["own"] = np.where(first, quiet_median(np.abs(window - usual)), part["own"])

    def _spread(self, role: str, now: Floats) -> Floats:
        """The peers' spread, smoothed over a window: of few peers that of one round is chance."""
        before = self.spread.get(role, now)
        before = np.append(before, np.full(now.size - before.size, np.nan))
        mean = np.where(np.isnan(before), now, before + (now - before) / ROUNDS)
        self.spread[role] = np.where(np.isnan(now), before, mean)
        return np.fmax(now, self.spread[role])

    def _learn(self, part: dict[str, npt.NDArray[Any]], apart: Floats, beyond: Flags, now_s: Floats) -> None:
        """What is usual follows slowly while nothing is away, and gives in after a day; `alike` has none."""
        off, calm = apart - part["usual"], np.isfinite(apart) & (part["seen"] >= ROUNDS) & ~beyond
        part["usual"] = np.where(calm, part["usual"] + SLOW * off, part["usual"])
        part["own"] = np.where(calm, part["own"] + SLOW * (np.abs(off) - part["own"]), part["own"])
        part["away_s"] = np.where(beyond & np.isnan(part["away_s"]), now_s, part["away_s"])
        over = beyond & (now_s - part["away_s"] > EXPIRE_S) & (self.least[2][:, None] == 0.0)
        part["usual"] = np.where(over, apart, part["usual"])
        part["high"][over] = part["low"][over] = 0
        part["away_s"] = np.where((part["high"] | part["low"]) == 0, np.nan, part["away_s"])

    def _lagging(self, found: Rows) -> Rows:
        """Which of the cells ``[n, 2]`` do what their peers do, a few rounds earlier or later."""
        if not len(found):
            return found
        few, turn = found[:WARPED], (self.number + np.arange(ROUNDS)) % ROUNDS
        metric, row = few.T
        usual = np.where(self.least[2][metric] > 0.0, 0.0, self.cells["usual"][metric, row])[:, None]
        middle = self.medians[turn[:, None], metric, row].T.astype(np.float64)
        off = self.apart[turn[:, None], metric, row].T - usual
        own, middle = np.nan_to_num(middle + off), np.nan_to_num(middle)
        near = banded_dtw(own[:, None], middle[:, None], BAND) / np.sqrt(ROUNDS)
        return np.asarray(few[near < self.cells["width"][metric, row]])

    def _room(self, size: int) -> None:
        metrics, rows = len(self.names), max(size, len(self.entities))
        have = self.cells["now"].shape
        if have == (metrics, rows):
            return
        more = rows - len(self.entities)
        self.entities += [Entity()] * more
        self.roles += [""] * more
        self.heard, self.said_s = (np.append(one, np.full(more, -np.inf)) for one in (self.heard, self.said_s))
        for name in _CELLS:
            wide = empty(name, (metrics, rows))
            wide[: have[0], : have[1]] = self.cells[name]
            self.cells[name] = wide
        by = (0, 0), (0, metrics - have[0]), (0, rows - have[1])
        self.apart, self.medians = (np.pad(one, by, constant_values=np.nan) for one in (self.apart, self.medians))
