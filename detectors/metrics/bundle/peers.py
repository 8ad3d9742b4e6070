"""The comparison of ranks with one another: made every few samples, held in between."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.metrics.bundle.lined_up import TOGETHER, interval_s, lined_up, taken_together
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.bundle.preparation import Preparation
from trainwarden.detectors.metrics.models.dtw import Dtw
from trainwarden.detectors.metrics.models.rows import Floats

PEER_WINDOW_SHARE: Final = 0.5
"""Ranks are compared once their window is half full: of fewer samples chance decides who is farthest."""
SLACK: Final = 1
"""Samples by which peers may do something earlier or later where they were not sampled together: each is half an
interval from its place at most, so two are one apart."""


@dataclass(frozen=True, slots=True)
class CachedComparison:
    """The last comparison across ranks: its raw scores ``[r]``, and how many samples before the newest it was made."""

    raw: Floats
    age: int


@dataclass(frozen=True, slots=True)
class PeerContext:
    """What ranks are compared with.

    Attributes
    ----------
    groups : array of int [r + o], optional
        Roles; only ranks of one role are compared.
    held : Held, optional
        From the previous block. Ranks are compared every `dtw_stride` samples and the score stands in between;
        without `held` the first of the newest samples is compared.
    times_s : float array [r, m + k], optional
        When the samples were taken; without it those of one place were taken together.
    others : float array [o, d, m'], optional
        Newest z-scores of ranks that have no new sample now, taken at `others_s` ``[o, m']``.
    until_s : float array [o], optional
        Until when each of them is not stale: it is compared no longer.
    apart : bool array [r + o], optional
        Whose times say nothing about when they are beside those of the others: they are not compared.
    """

    groups: npt.ArrayLike | None = None
    held: CachedComparison | None = None
    times_s: Floats | None = None
    others: Floats | None = None
    others_s: Floats | None = None
    until_s: Floats | None = None
    apart: npt.NDArray[np.bool_] | None = None

    def at(self, now_s: float) -> PeerContext:
        """Without the others that are stale `now_s`."""
        if self.until_s is None or self.others is None or self.others_s is None or (self.until_s >= now_s).all():
            return self
        there = self.until_s >= now_s
        labels = [
            None if one is None else one[np.append(np.ones(len(one) - there.size, dtype=np.bool_), there)]
            for one in (None if self.groups is None else np.asarray(self.groups), self.apart)
        ]
        return replace(
            self, groups=labels[0], apart=labels[1],
            others=self.others[there], others_s=self.others_s[there], until_s=self.until_s[there],
        )  # fmt: skip


ALONE: Final = PeerContext()


class RankComparison:
    """Ranks compared with one another by `model`, on what `preparation` makes of their metrics."""

    def __init__(self, model: Dtw, preparation: Preparation, config: VoteConfig) -> None:
        self._model, self._preparation, self._config = model, preparation, config

    def scores(self, scaled: Floats, newest: int, beside: PeerContext) -> tuple[Floats, CachedComparison]:
        """Raw scores ``[r, newest]`` of z-scores ``[r, d, m]``, and the comparison that stands now."""
        stride = self._config.dtw_stride
        count, _, samples = scaled.shape
        held = beside.held or CachedComparison(np.full(count, np.nan), stride)
        standing, age = held.raw, held.age + newest
        raw = np.repeat(standing[:, None], newest, axis=1)
        for at in range(max(0, stride - held.age - 1), newest, stride):
            end = samples - newest + at + 1
            times_s = None if beside.times_s is None else beside.times_s[:, :end]
            now = beside if times_s is None else beside.at(float(times_s[:, -1].min()))
            standing = self._compared(scaled[:, :, :end], times_s, now)
            raw[:, at:] = standing[:, None]
            age = newest - 1 - at
        return raw, CachedComparison(standing, age)

    def _compared(self, scaled: Floats, times_s: Floats | None, beside: PeerContext) -> Floats:
        """Raw scores ``[r]`` at the newest sample of ``scaled [r, d, m]``."""
        window, more = self._config.dtw_samples, self._preparation.config.median_rows - 1
        labels = None if beside.groups is None else np.asarray(beside.groups)
        scaled = scaled[:, :, max(0, scaled.shape[2] - window - more) :]
        if times_s is not None:
            times_s = times_s[:, times_s.shape[1] - scaled.shape[2] :]
            others_s = np.zeros((0, 0)) if beside.others_s is None else beside.others_s
            every_s = interval_s((times_s, others_s))
            if len(others_s) or (every_s > 0.0 and not taken_together(times_s, every_s)):
                return self._beside(scaled, times_s, beside, every_s)
        full = self._full(scaled[:, :, -window:])
        if not full.any():  # as after a swap, when all begin anew
            return np.full(len(scaled), np.nan)
        steady = [one[:, -window:] for one in self._preparation.steadied_each(scaled)]
        now = self._model.score_each(steady, None if labels is None else labels[: len(scaled)])
        return np.where(full, now, np.nan)

    def _beside(self, scaled: Floats, times_s: Floats, beside: PeerContext, every_s: float) -> Floats:
        """`_compared` by time, of ranks that were not sampled together."""
        count, window = len(scaled), self._config.dtw_samples
        apart = np.zeros(count, dtype=np.bool_) if beside.apart is None else beside.apart[:count]
        ends_s = times_s[~apart, -1]
        if not (every_s > 0.0 and np.isfinite(ends_s).any()):
            return np.full(count, np.nan)
        end_s, places = float(np.nanmedian(ends_s)), window + self._preparation.config.median_rows - 1
        parts = [lined_up(scaled, times_s, end_s, every_s, places)]
        if beside.others is not None and beside.others_s is not None and len(beside.others):
            parts.append(lined_up(beside.others, beside.others_s, end_s, every_s, places))
        steady = self._preparation.steadied(np.concatenate([values for values, _ in parts]))[:, :, -window:]
        off = np.concatenate([off for _, off in parts])
        kept = ~np.isnan(off) if beside.apart is None else ~np.isnan(off) & ~beside.apart
        labels = None if beside.groups is None else np.asarray(beside.groups)[kept]
        found = np.full(len(steady), np.nan)
        slack = SLACK if (off[kept] > TOGETHER).any() else 0
        found[kept] = self._model.score(steady[kept], labels, slack)
        return np.where(self._full(steady), found, np.nan)[:count]

    def _full(self, steady: Floats) -> npt.NDArray[np.bool_]:
        """Who has enough samples to be compared."""
        measured = (~np.isnan(steady).all(axis=1)).sum(axis=1)
        return np.asarray(measured >= PEER_WINDOW_SHARE * self._config.dtw_samples, dtype=np.bool_)
