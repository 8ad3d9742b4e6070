"""What the scorer remembers of one family's entities: their scales and newest z-scores, by the board's rows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.baseline_freeze import BaselineFreeze
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.bundle.scale import Scale
from trainwarden.detectors.metrics.models.rows import Floats

Rows = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
SCALE: Final = ("count", "mean", "squares")


class Shown:
    """The z-scores that scores of new samples came from, of whoever is asked what was to blame.

    Each sample is kept once, with its past for who comes first: where few come at a time most of what is scored is old.
    """

    def __init__(self, window_samples: int) -> None:
        self._window = window_samples
        self._parts: list[tuple[Rows, Rows, Floats]] = []
        self._seen: set[int] = set()

    def add(self, rows: Rows, samples: Rows, joined: Floats) -> None:
        """What led to the scores of `samples` ``[k]`` of `rows` ``[r]``: ``joined [r, d, window - 1 + k]``."""
        if self._seen.issuperset(new := rows.tolist()):
            joined = joined[:, :, joined.shape[2] - samples.size :].copy()
        self._seen.update(new)
        self._parts.append((rows, samples, joined))

    def before(self, row: int, sample: int) -> Floats | None:
        """z-scores ``[1, d, window]`` that decided the score of a sample; None where it has none."""
        found: list[Floats] = []
        for rows, samples, joined in reversed(self._parts):
            place, end = int(np.searchsorted(rows, row)), int(np.searchsorted(samples, sample, side="right"))
            if not end or place == rows.size or rows[place] != row:
                continue
            if not found and samples[end - 1] != sample:
                return None
            found.insert(0, joined[place : place + 1, :, : joined.shape[2] - samples.size + end])
            if sum(one.shape[2] for one in found) >= self._window:
                break
        return np.concatenate(found, axis=2)[:, :, -self._window :] if found else None


@dataclass(slots=True)
class EntityHistory:
    """What is remembered of one family's entities, by the board's rows."""

    vote: MetricVote
    known: npt.NDArray[np.bool_] = field(init=False)
    count: Floats = field(init=False)
    mean: Floats = field(init=False)
    squares: Floats = field(init=False)
    history: Floats = field(init=False)  # z-scores [e, d, window - 1], newest last
    age: Rows = field(init=False)  # samples since the last comparison with others
    raw: Floats = field(init=False)  # what that comparison found
    times_s: Floats = field(init=False)  # of the z-scores [e, window - 1]
    last_s: Floats = field(init=False)
    every_s: Floats = field(init=False)
    lead_s: Floats = field(init=False)  # how far its newest sample was before the time at which it came
    roles: list[str] = field(default_factory=list)
    holding: BaselineFreeze = field(default_factory=BaselineFreeze)

    def __post_init__(self) -> None:
        metrics = len(self.vote.preparation.names)
        self.known = np.zeros(0, dtype=np.bool_)
        self.count, self.mean, self.squares = (np.zeros((0, metrics)) for _ in range(3))
        self.history = np.zeros((0, metrics, self.vote.window_samples - 1))
        self.age = np.zeros(0, dtype=np.int64)
        self.times_s = np.zeros((0, self.vote.window_samples - 1))
        self.raw, self.last_s, self.every_s, self.lead_s = (np.zeros(0) for _ in range(4))

    def resize(self, size: int) -> None:
        """Room for `size` entities; those not seen before start on the scale of training, without a past."""
        have = self.known.size
        if size <= have:
            return
        new = max(size, have + have // 2) - have
        start = self.vote.start(new)
        self.known = np.append(self.known, np.zeros(new, dtype=np.bool_))
        self.count, self.mean = np.concatenate([self.count, start.count]), np.concatenate([self.mean, start.mean])
        self.squares = np.concatenate([self.squares, start.squares])
        self.history = np.concatenate([self.history, np.full((new, *self.history.shape[1:]), np.nan)])
        self.times_s = np.concatenate([self.times_s, np.full((new, self.times_s.shape[1]), np.nan)])
        # Due at once: the first sample is compared.
        self.age = np.append(self.age, np.full(new, self.vote.config.dtw_stride))
        self.raw, self.last_s, self.every_s, self.lead_s = (
            np.append(one, np.full(new, np.nan)) for one in (self.raw, self.last_s, self.every_s, self.lead_s)
        )
        self.roles.extend([""] * new)
        self.holding.resize(new)

    def moved_to(self, vote: MetricVote) -> EntityHistory:
        """The own scales of all entities for another vote, metric by metric; everything else anew."""
        other = EntityHistory(vote)
        other.resize(self.known.size)
        have = {metric: column for column, metric in enumerate(self.vote.preparation.names)}
        for column, metric in enumerate(vote.preparation.names):
            if metric in have:
                for part in SCALE:
                    getattr(other, part)[:, column] = getattr(self, part)[:, have[metric]]
        return other

    def waited(self) -> int:
        """Samples of the entity that has shown most of its own scale."""
        return int(self.count.max(axis=1, initial=0.0)[self.known].max(initial=0.0))

    def follow(self, rows: Rows, values: Floats, times_s: Floats, learns: Flags) -> tuple[Floats, Floats]:
        """New ``values [r, d_all, k]`` of `rows` as z-scores after their history, ``[r, d, window - 1 + k]``, and the
        times of all.

        Whoever does not learn ``[r]`` is measured on its scale as it stands.
        """
        scaled, after = self.vote.follow(values, self._scale(rows))
        if not learns.all():
            scaled[~learns] = self._scale(rows[~learns]).apply(self.vote.preparation.values(values[~learns]))
        taught = rows[learns]
        for part in SCALE:
            getattr(self, part)[taught] = getattr(after, part)[learns]
        return self._keep(rows, scaled, times_s)

    def kept(self, rows: Rows) -> dict[str, npt.NDArray[Any]]:
        """What scoring of `rows` changes; `put_back` undoes it."""
        return {part: getattr(self, part)[rows] for part in (*SCALE, "history", "times_s", "age", "raw")}

    def put_back(self, rows: Rows, kept: dict[str, npt.NDArray[Any]]) -> None:
        """Forget what has come since `kept` was taken."""
        for part, values in kept.items():
            getattr(self, part)[rows] = values

    def _keep(self, rows: Rows, scaled: Floats, times_s: Floats) -> tuple[Floats, Floats]:
        """The history of `rows` and what has come, the newest of which is the history from now on."""
        joined = np.concatenate([self.history[rows], scaled], axis=2)
        joined_s = np.concatenate([self.times_s[rows], times_s], axis=1)
        past = self.times_s.shape[1]
        self.history[rows] = joined[:, :, joined.shape[2] - past :]
        self.times_s[rows] = joined_s[:, joined_s.shape[1] - past :]
        return joined, joined_s

    def remember(self, rows: Rows, values: Floats, past_s: Floats | None) -> None:
        """Older samples of entities that are new to the models; own scales that were kept have seen them before."""
        times_s = np.full((len(rows), values.shape[2]), np.nan) if past_s is None else past_s
        kept = (self.count[rows] > self.vote.preparation.scale.count).any(axis=1)
        learns = np.ones(np.count_nonzero(~kept), dtype=np.bool_)
        self.follow(rows[~kept], values[~kept], times_s[~kept], learns)
        if kept.any():
            scaled = self._scale(rows[kept]).apply(self.vote.preparation.values(values[kept]))
            self._keep(rows[kept], scaled, times_s[kept])

    def _scale(self, rows: Rows) -> Scale:
        start = self.vote.preparation.scale
        return replace(start, count=self.count[rows], mean=self.mean[rows], squares=self.squares[rows])

    def observe(self, rows: Rows, times_s: Floats, now_s: float) -> None:
        """The newest samples of `rows` were taken at `times_s` by their own clocks, and came at `now_s`."""
        self.resize(int(rows.max()) + 1)
        self.lead_s[rows] = times_s - now_s

    def apart(self, every_s: float) -> Flags:
        """Whose samples come more than an interval earlier or later than is usual here, by their times.

        Their clocks are wrong, or they come late, and nobody can tell which: what they did when is not known.
        """
        known = ~np.isnan(self.lead_s)
        found = np.zeros(self.lead_s.size, dtype=np.bool_)
        if known.any():
            found[known] = np.abs(self.lead_s[known] - np.median(self.lead_s[known])) > every_s
        return found

    def others(self, rows: Rows, first_s: float, stride: int) -> tuple[Rows, Floats]:
        """Entities that are heard of but have nothing new at `first_s`, and until when their newest sample is not
        stale.
        """
        until_s = self.last_s + stride * self.every_s
        fits = self.known & (self.every_s > 0.0) & (until_s >= first_s)
        fits[rows] = False
        found = np.flatnonzero(fits)
        return found, until_s[found]
