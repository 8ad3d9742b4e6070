"""Which samples the models are shown: at the interval that they were trained on, whatever the entity is sampled at.

An entity that is sampled more often shows every so-manieth sample, a counter's rate as the mean since the one before.
One that is sampled less often cannot be judged: a lag of one sample is another stretch of time there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import lookup
from trainwarden.detectors.job.samples import FamilySamples
from trainwarden.detectors.metrics.bundle.sampling_interval import FACTOR, SamplingInterval
from trainwarden.detectors.metrics.models.rows import Floats
from trainwarden.errors import DetectorError

Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

STEPS: Final = 61  # an entity's interval is the median of so many, so that jitter and missing samples do not count
LEAST_STEPS: Final = 2  # an entity is called too slow after so many at least
PARTS: Final = ("steps", "last_s", "taken_s", "sums", "counts")


@dataclass(frozen=True, slots=True)
class _Block:
    """New samples ``[r, k]`` of all entities; `rows` says which of them are to be thinned."""

    rows: Rows
    values: Floats
    times_s: Floats
    steps: Floats
    fast: Flags
    out: Flags


@dataclass(slots=True)
class Downsampler:
    """What is remembered of the sampling of one family's entities, by the board's rows."""

    steps: Floats = field(default_factory=lambda: np.zeros((0, STEPS)))  # seconds between samples, newest last
    last_s: Floats = field(default_factory=lambda: np.zeros(0))
    taken_s: Floats = field(default_factory=lambda: np.zeros(0))
    sums: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # [e, d] of what came after the last one taken
    counts: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    slow_s: float | None = None  # interval of an entity that was too slow just now
    thins: bool = False  # whether an entity was too fast just now

    @classmethod
    def of(cls, parts: Mapping[str, npt.NDArray[Any]]) -> Self:
        """From `PARTS` as they were kept; raises DetectorError where they do not fit."""
        found = {name: np.asarray(parts[name], dtype=np.float64) for name in PARTS}
        size, metrics = found["last_s"].size, found["sums"].shape[-1]
        shapes = {"steps": (size, STEPS), "last_s": (size,), "taken_s": (size,)}
        for name, part in found.items():
            if part.shape != shapes.get(name, (size, metrics)):
                raise DetectorError(f"state of the scorer is damaged: {name} has shape {part.shape}")
        return cls(found["steps"], found["last_s"], found["taken_s"], found["sums"], found["counts"])

    def forget(self) -> None:
        """Other models take over: what was summed up for means is in the order of the ones before."""
        self.sums, self.counts = np.zeros((self.last_s.size, 0)), np.zeros((self.last_s.size, 0))

    def resize(self, size: int, metrics: int) -> None:
        """Room for `size` entities; what was summed up is lost when other metrics are asked for."""
        have = self.last_s.size
        if self.sums.shape[1] != metrics:
            self.sums, self.counts = np.zeros((have, metrics)), np.zeros((have, metrics))
        if size <= have:
            return
        new = max(size, have + have // 2) - have
        self.steps = np.concatenate([self.steps, np.full((new, STEPS), np.nan)])
        self.last_s, self.taken_s = (np.append(one, np.full(new, np.nan)) for one in (self.last_s, self.taken_s))
        self.sums, self.counts = (np.concatenate([one, np.zeros((new, metrics))]) for one in (self.sums, self.counts))

    def select(
        self, rows: Rows, values: Floats, times_s: Floats, names: Sequence[str], pace: SamplingInterval
    ) -> Flags:
        """Which of new ``values [r, d, k]`` of `times_s` ``[r, k]`` the models see; of those taken means are put in."""
        self.resize(int(rows.max()) + 1, len(names))
        measured: Flags = np.asarray(~np.isnan(values).all(axis=1), dtype=np.bool_)
        new = times_s.shape[1]
        steps, self.slow_s, self.thins = self._steps(rows, times_s, measured), None, False
        out = np.ones(times_s.shape, dtype=np.bool_)
        short, long = steps < pace.fastest_s / FACTOR, steps > pace.slowest_s * FACTOR
        if short.any() or long.any():
            known = _newest(~np.isnan(steps), new)
            slow = (2 * _newest(long, new) > known) & (known >= LEAST_STEPS)
            fast = 2 * _newest(short, new) > known
            out = ~slow & (measured | ~fast)
            if slow[:, -1].any():
                self.slow_s = float(np.nanmedian(steps[slow[:, -1], -STEPS:]))
            thin = np.flatnonzero(fast.any(axis=1))
            self.thins = bool(thin.size)
            if self.thins:
                means = np.array([pace.averaged or is_counter(name) for name in names])
                self._thin(rows[thin], _Block(thin, values, times_s, steps, fast & measured, out), means, pace)
        newest_s = np.fmax.reduce(np.where(out & measured, times_s, np.nan), axis=1)
        self.taken_s[rows] = np.fmax(self.taken_s[rows], newest_s)
        return out

    def learn(self, rows: Rows, past_s: Floats | None, metrics: int) -> None:
        """Intervals of entities of which no sample was seen yet, from the times of older ones."""
        if past_s is None or past_s.shape[1] < LEAST_STEPS:
            return
        self.resize(int(rows.max()) + 1, metrics)
        new = np.isnan(self.last_s[rows])
        if new.any():
            elapsed_s = np.diff(past_s[new, -STEPS - 1 :], axis=1)
            self.steps[rows[new], STEPS - elapsed_s.shape[1] :] = np.where(elapsed_s > 0.0, elapsed_s, np.nan)
            self.last_s[rows[new]] = np.fmax.reduce(past_s[new], axis=1)

    def _steps(self, rows: Rows, times_s: Floats, measured: Flags) -> Floats:
        """Seconds since the sample before ``[r, STEPS + k]``, NaN where there is no sample, kept for the next time."""
        there_s = np.concatenate([self.last_s[rows, None], np.where(measured, times_s, np.nan)], axis=1)
        before_s = np.fmax.accumulate(there_s, axis=1)
        elapsed_s = there_s[:, 1:] - before_s[:, :-1]
        elapsed_s[~(elapsed_s > 0.0)] = np.nan
        steps = np.concatenate([self.steps[rows], elapsed_s], axis=1)
        self.steps[rows], self.last_s[rows] = steps[:, -STEPS:], before_s[:, -1]
        return steps

    def _thin(self, rows: Rows, block: _Block, means: Flags, pace: SamplingInterval) -> None:
        """Sample by sample: leave out what is not due, and remember it for the mean."""
        for sample in range(block.times_s.shape[1]):
            fast = block.fast[block.rows, sample]
            calm, now, who = rows[~fast], block.rows[fast], rows[fast]
            # Not too often any more: all is taken as it is.
            self.taken_s[calm] = np.fmax(self.taken_s[calm], self._taken_at(block, block.rows[~fast], sample))
            self.sums[calm], self.counts[calm] = 0.0, 0.0
            if not now.size:
                continue
            at_s, values = block.times_s[now, sample], block.values[now, :, sample]
            self.sums[who] += np.nan_to_num(values)
            self.counts[who] += ~np.isnan(values)
            every_s = np.nanmedian(block.steps[now, sample + 1 : sample + 1 + STEPS], axis=1)
            due_s = (np.maximum(np.round(pace.fastest_s / every_s), 2.0) - 0.5) * every_s
            taken = ~(at_s - self.taken_s[who] < due_s)
            block.out[now, sample] &= taken
            counts = self.counts[who]
            mean = np.where(counts > 0.0, self.sums[who] / np.maximum(counts, 1.0), np.nan)
            block.values[now, :, sample] = np.where(means, mean, values)
            self.taken_s[who[taken]] = at_s[taken]
            self.sums[who[taken]], self.counts[who[taken]] = 0.0, 0.0

    @staticmethod
    def _taken_at(block: _Block, rows: Rows, sample: int) -> Floats:
        """Times of what is taken of `rows` at a sample, NaN of what is not."""
        there = block.out[rows, sample] & ~np.isnan(block.values[rows, :, sample]).all(axis=1)
        return np.where(there, block.times_s[rows, sample], np.nan)


def _newest(flags: Flags, samples: int) -> npt.NDArray[np.int64]:
    """How many of the newest `STEPS` flags are set at each of the last `samples` of ``flags [r, STEPS + samples]``."""
    sums = np.cumsum(np.pad(flags, ((0, 0), (1, 0))), axis=1, dtype=np.int64)
    return np.asarray(sums[:, STEPS + 1 :] - sums[:, 1 : samples + 1], dtype=np.int64)


def is_counter(name: str) -> bool:
    """Whether a metric is a counter, seen as its rate.

    Examples
    --------
    >>> is_counter("gpu_energy_joules"), is_counter("gpu_power_watts")
    (True, False)
    """
    metric = lookup(name)
    return metric is not None and metric.kind == "counter"


def stretches(taken: Flags) -> list[tuple[Rows, Rows]]:
    """Entities and samples of ``taken [r, k]``, cut in time where samples begin to be taken of other entities.

    So who is compared with whom does not depend on how many samples come at once.

    Examples
    --------
    >>> taken = np.array([[True, True, False, True], [True, True, False, False]])
    >>> [(rows.tolist(), samples.tolist()) for rows, samples in stretches(taken)]
    [([0, 1], [0, 1]), ([0], [3])]
    """
    samples = np.flatnonzero(taken.any(axis=0))
    seen = taken[:, samples]
    turns = 1 + np.flatnonzero((seen[:, 1:] != seen[:, :-1]).any(axis=0))
    return [(np.flatnonzero(taken[:, part[0]]), part) for part in np.split(samples, turns) if part.size]


def thinned(one: FamilySamples, rows: Rows, samples: Rows) -> FamilySamples:
    """The new `samples` of the entities at `rows`, and all older ones."""
    if (rows.size, samples.size) == one.times_s.shape:
        return one
    older = one.values.shape[2] - one.fresh
    seen = np.concatenate([np.arange(older), older + samples])
    return replace(
        one,
        rows=one.rows[rows],
        entities=tuple(one.entities[row] for row in rows.tolist()),
        roles=tuple(one.roles[row] for row in rows.tolist()),
        values=one.values[np.ix_(rows, np.arange(len(one.names)), seen)],
        times_s=one.times_s[np.ix_(rows, samples)],
        past_s=None if one.past_s is None else one.past_s[rows],
    )
