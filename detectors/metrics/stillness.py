"""How long metrics have stood still on all entities of a family, and which of them move now.

Evidence is what never moved in normal time, on no entity. How rare that is follows from the past alone: after n minutes
in which k such movements were told, the next minute brings one with a chance of (k + 1) / (n + 1) (Laplace's rule of
succession, 1814). Minutes are the family's, not summed over its entities: of twice as many one moves twice as often.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.last_seen import absent_after, interval_after
from trainwarden.detectors.job.samples import Entity, FamilySamples, Floats
from trainwarden.detectors.metrics.hysteresis import BURST_S, EXPIRE_S

Flags = npt.NDArray[np.bool_]
CALM: Final = 15  # samples back where it stood, after which a movement is over: as the models' votes close
RARE: Final = np.log(31.0)  # nats: what has stood for less than half an hour is no evidence
SAME: Final = 1e-9  # of its size: what differs by less is the same but for rounding
GAP_S: Final = 600.0  # a longer silence counts as so much time at most
_CELLS: Final = ("level", "value", "level_s", "seen_s", "every_s", "since_s", "away_s", "nats", "calm", "recent")
_METRICS: Final = ("minutes", "moves", "told")
_LASTS: Final = np.array([bin(bits).count("1") >= 3 for bits in range(32)])  # of the newest five samples


@dataclass(slots=True)
class StillFamily:
    """Entities of one family, and their metrics.

    Attributes
    ----------
    minutes, moves, told : float arrays [metrics]
        Minutes watched, how often the metric moved in normal time, and how often it was told to have moved.
    heard_s : float array [rows]
        When an entity was heard of last.
    level, level_s : float arrays [metrics, rows]
        The value at which a metric stands, and since when; NaN if it was never measured.
    value, seen_s : float arrays [metrics, rows]
        Its newest value off the level, and when it was measured last, by the node's own clock.
    every_s : float array [metrics, rows]
        Seconds between two samples of it.
    since_s, away_s, nats : float arrays [metrics, rows]
        Since when it has left a level that it never left before (NaN if it has not), when it was last seen off it, and
        how rare that is.
    calm, recent : float arrays [metrics, rows]
        Samples in a row that were back at the level; the newest five, as bits, that were not.
    """

    names: list[str] = field(default_factory=list)
    entities: dict[int, Entity] = field(default_factory=dict)
    minutes: Floats = field(default_factory=lambda: np.zeros(0))
    moves: Floats = field(default_factory=lambda: np.zeros(0))
    told: Floats = field(default_factory=lambda: np.zeros(0))
    heard_s: Floats = field(default_factory=lambda: np.zeros(0))
    level: Floats = field(init=False)
    value: Floats = field(init=False)
    level_s: Floats = field(init=False)
    seen_s: Floats = field(init=False)
    every_s: Floats = field(init=False)
    since_s: Floats = field(init=False)
    away_s: Floats = field(init=False)
    nats: Floats = field(init=False)
    calm: Floats = field(init=False)
    recent: Floats = field(init=False)

    def __post_init__(self) -> None:
        for name in _CELLS:
            setattr(self, name, np.zeros((0, 0)))

    def observe(self, samples: FamilySamples, heard_s: float, quiet: bool) -> None:
        """New samples; while it is `quiet` a movement is nothing strange."""
        self.entities.update(zip(samples.rows.tolist(), samples.entities, strict=True))
        known = set(self.names)
        self._room(int(samples.rows.max(initial=-1)) + 1, [name for name in samples.names if name not in known])
        self.heard_s[samples.rows] = heard_s
        places = {name: place for place, name in enumerate(self.names)}
        past = samples.values.shape[2] - samples.fresh
        for column, name in enumerate(samples.names):
            self._follow(places[name], samples.rows, samples.values[:, column, past:], samples.times_s, quiet)

    def moving(self, now_s: float) -> tuple[Flags, Flags]:
        """Cells that have left their level [metrics, rows], and those of them that were away in three of five samples.

        Of what a fifth of the entities does, two at least, nothing is said: that is other work.
        """
        every_s = np.fmin.reduce(self.every_s, axis=0, initial=np.inf)
        there = now_s - self.heard_s < absent_after(np.where(np.isinf(every_s), np.nan, every_s))
        # By the node's own clock: a metric may be lost while others of the same device come.
        silent_s = np.fmax.reduce(self.seen_s, axis=0, initial=-np.inf) - self.seen_s
        there = there & ~(silent_s > absent_after(self.every_s))
        away = np.isfinite(self.since_s) & there & (self.recent > 0.0)
        many = (np.isfinite(self.level) & there).sum(axis=1)
        common = (many > 1) & (away.sum(axis=1) > np.maximum(1, 0.2 * many))
        away &= ~common[:, None]
        return away, away & _LASTS[self.recent.astype(np.int64)]

    # -- internals -------------------------------------------------------------------------------------------

    def _follow(self, metric: int, rows: npt.NDArray[np.int64], values: Floats, times_s: Floats, quiet: bool) -> None:
        """New samples of one metric: ``values [n, k]`` at ``times_s [n, k]``."""
        place = 0
        while place < values.shape[1]:
            open_ = bool(np.isfinite(self.since_s[metric]).any())
            if self.moves[metric] and not open_:
                return  # what moves in normal time is no evidence any more, and costs nothing
            still = 0 if open_ else self._still(metric, rows, values[:, place:], times_s[:, place:])
            if not still:
                self._step(metric, rows, values[:, place], times_s[:, place], quiet)
            place += max(1, still)

    def _still(self, metric: int, rows: npt.NDArray[np.int64], values: Floats, times_s: Floats) -> int:
        """Apply at once the samples before the first that has left its level or has none yet: how many there are."""
        level, known = self.level[metric, rows][:, None], np.isfinite(values)
        odd = (known & (np.isnan(level) | _differ(values, level))).any(axis=0)
        end = int(odd.argmax()) if odd.any() else odd.size
        # Time since the sample before, of those that were measured and are not late.
        at_s = np.where(known, times_s, np.nan)[:, :end]
        before = np.concatenate([self.seen_s[metric, rows][:, None], at_s], axis=1)
        newest = np.fmax.accumulate(before, axis=1)
        elapsed_s = np.clip(newest[:, 1:] - newest[:, :-1], 0.0, GAP_S)
        self.minutes[metric] += np.nansum(elapsed_s) / 60.0 / max(1, np.isfinite(self.level[metric]).sum())
        self.seen_s[metric, rows] = newest[:, -1]
        apart_s = np.fmax.reduce(np.where(np.isnan(at_s), np.nan, newest[:, 1:] - newest[:, :-1]), axis=1, initial=0.0)
        self._paced(metric, rows, apart_s)
        return end

    def _step(self, metric: int, rows: npt.NDArray[np.int64], values: Floats, at_s: Floats, quiet: bool) -> None:
        """One sample of each of `rows`: ``values [n]`` at ``at_s [n]``."""
        known = np.isfinite(values) & ~(at_s <= self.seen_s[metric, rows])
        rows, values, at_s = rows[known], values[known], at_s[known]
        level = self.level[metric, rows]
        first = np.isnan(level)
        self.level[metric, rows[first]], self.level_s[metric, rows[first]] = values[first], at_s[first]
        away = _differ(values, level)
        inside = np.isfinite(self.since_s[metric, rows])
        if away.any() or inside.any():
            self._moved(metric, (rows, values, at_s), away, quiet)
        self._paced(metric, rows, at_s - self.seen_s[metric, rows])
        elapsed_s = np.clip(at_s - self.seen_s[metric, rows], 0.0, GAP_S)[~first & ~inside]
        self.minutes[metric] += elapsed_s.sum() / 60.0 / max(1, np.isfinite(self.level[metric]).sum())
        self.seen_s[metric, rows] = at_s

    def _paced(self, metric: int, rows: npt.NDArray[np.int64], elapsed_s: Floats) -> None:
        """A metric of `rows` came so long after its sample before; 0 or NaN where there was none."""
        apart_s = np.where(elapsed_s > 0.0, elapsed_s, np.nan)
        self.every_s[metric, rows] = interval_after(self.every_s[metric, rows], apart_s)

    def _moved(
        self, metric: int, sample: tuple[npt.NDArray[np.int64], Floats, Floats], away: Flags, quiet: bool
    ) -> None:
        """The same where one at least is `away` from its level, or was."""
        rows, values, at_s = sample
        since_s = self.since_s[metric, rows]
        nats = float(np.log((self.minutes[metric] + 1.0) / (self.told[metric] + 1.0)))
        begins = away & np.isnan(since_s) & (not quiet and not self.moves[metric] and nats >= RARE)
        follows = away & np.isnan(since_s) & ~begins
        self.nats[metric, rows[begins]] = nats
        since_s = np.where(begins, at_s, since_s)
        inside = np.isfinite(since_s)
        recent = np.where(inside, np.mod(2 * self.recent[metric, rows], 32) + away, 0.0)
        calm = np.where(inside & ~away, self.calm[metric, rows] + 1.0, 0.0)
        relief, expired = inside & (calm >= CALM), inside & (at_s - since_s > EXPIRE_S)
        # What has come and gone by itself may come again. A long spell teaches nothing, until it is over with.
        away_s = np.where(away, at_s, self.away_s[metric, rows])
        self.away_s[metric, rows] = away_s
        self.told[metric] += (relief & (away_s - since_s < BURST_S)).sum()
        self.moves[metric] += (follows | expired).sum()
        over, anew = relief | expired, rows[follows | expired]
        self.level[metric, anew], self.level_s[metric, anew] = values[follows | expired], at_s[follows | expired]
        self.since_s[metric, rows] = np.where(over, np.nan, since_s)
        self.recent[metric, rows], self.calm[metric, rows] = np.where(over, 0.0, recent), np.where(over, 0.0, calm)
        self.value[metric, rows] = values

    def _room(self, rows: int, new: list[str]) -> None:
        self.names += new
        more, wider = max(0, rows - self.heard_s.size), len(new)
        if more or wider:
            self.heard_s = np.append(self.heard_s, np.full(more, -np.inf))
            for name in _METRICS:
                setattr(self, name, np.append(getattr(self, name), np.zeros(wider)))
            for name in _CELLS:
                fill = 0.0 if name in ("calm", "recent") else np.nan
                setattr(self, name, np.pad(getattr(self, name), ((0, wider), (0, more)), constant_values=fill))


def _differ(values: Floats, level: Floats) -> Flags:
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(values - level) > SAME * np.maximum(np.abs(values), np.abs(level)))
