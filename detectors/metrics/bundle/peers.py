"""The comparison of ranks with one another: made every few samples, held in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from detectors.metrics.bundle.members import VoteConfig
from detectors.metrics.bundle.preparation import Preparation
from detectors.metrics.models.dtw import Dtw
from detectors.metrics.models.rows import Floats

PEER_WINDOW_SHARE: Final = 0.5
"""Ranks are compared once their window is half full: of fewer samples chance decides who is farthest."""


@dataclass(frozen=True, slots=True)
class Held:
    """The last comparison across ranks: its raw scores ``[r]``, and how many samples before the newest it was made."""

    raw: Floats
    age: int


@dataclass(frozen=True, slots=True)
class Beside:
    """What ranks are compared with.

    Attributes
    ----------
    groups : array of int [r + o], optional
        Roles; only ranks of one role are compared.
    held : Held, optional
        From the previous block. Ranks are compared every `dtw_stride` samples and the score stands in between;
        without `held` the first of the newest samples is compared.
    others : float array [o, d, m'], optional
        Newest z-scores of ranks that have no new sample now; the first comparison takes them along.
    behind : int
        How many samples the others end before the first new one here: so far back the comparison is made.
    """

    groups: npt.ArrayLike | None = None
    held: Held | None = None
    others: Floats | None = None
    behind: int = 0


ALONE: Final = Beside()


class RankComparison:
    """Ranks compared with one another by `model`, on what `preparation` makes of their metrics."""

    def __init__(self, model: Dtw, preparation: Preparation, config: VoteConfig) -> None:
        self._model, self._preparation, self._config = model, preparation, config

    def scores(self, scaled: Floats, newest: int, beside: Beside) -> tuple[Floats, Held]:
        """Raw scores ``[r, newest]`` of z-scores ``[r, d, m]``, and the comparison that stands now."""
        stride, window = self._config.dtw_stride, self._config.dtw_samples
        count, _, samples = scaled.shape
        held = beside.held or Held(np.full(count, np.nan), stride)
        standing, age = held.raw, held.age + newest
        raw = np.repeat(standing[:, None], newest, axis=1)
        due = max(0, stride - held.age - 1)
        median_rows = self._preparation.config.median_rows - 1
        others = None
        if beside.others is not None and len(beside.others) and due < newest:
            others = self._preparation.steadied(beside.others[:, :, -window - median_rows :])[:, :, -window:]
        labels = None if beside.groups is None else np.asarray(beside.groups)
        for at in range(due, newest, stride):
            end = samples - newest + at + 1 - (0 if others is None else min(beside.behind + at, samples - newest + at))
            steady = self._preparation.steadied(scaled[:, :, max(0, end - window - median_rows) : end])[:, :, -window:]
            together = steady if others is None else np.concatenate([_padded(steady, window), _padded(others, window)])
            now = self._model.score(together, None if labels is None else labels[: len(together)])[:count]
            others = None
            measured = (~np.isnan(steady).all(axis=1)).sum(axis=1)
            standing = np.where(measured >= PEER_WINDOW_SHARE * window, now, np.nan)
            raw[:, at:] = standing[:, None]
            age = newest - 1 - at
        return raw, Held(standing, age)


def _padded(steady: Floats, samples: int) -> Floats:
    """``[r, d, m]`` with missing samples in front where m is less than `samples`."""
    short = samples - steady.shape[2]
    return steady if short <= 0 else np.pad(steady, ((0, 0), (0, 0), (short, 0)), constant_values=np.nan)
