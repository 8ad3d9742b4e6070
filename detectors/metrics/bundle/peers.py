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


def compared(
    model: Dtw,
    preparation: Preparation,
    config: VoteConfig,
    scaled: Floats,
    newest: int,
    groups: npt.ArrayLike | None,
    held: Held | None,
    others: Floats | None,
    behind: int,
) -> tuple[Floats, Held]:
    """Raw dtw ``[r, newest]`` of z-scores ``[r, d, m]``; parameters as those of `MetricVote.score_block`."""
    stride, window = config.dtw_stride, config.dtw_samples
    count, _, samples = scaled.shape
    held = held or Held(np.full(count, np.nan), stride)
    standing, age = held.raw, held.age + newest
    raw = np.repeat(standing[:, None], newest, axis=1)
    due = max(0, stride - held.age - 1)
    median_rows = preparation.config.median_rows - 1
    beside = None
    if others is not None and len(others) and due < newest:
        beside = preparation.steadied(others[:, :, -window - median_rows :])[:, :, -window:]
    labels = None if groups is None else np.asarray(groups)
    for at in range(due, newest, stride):
        end = samples - newest + at + 1 - (0 if beside is None else min(behind + at, samples - newest + at))
        steady = preparation.steadied(scaled[:, :, max(0, end - window - median_rows) : end])[:, :, -window:]
        together = steady if beside is None else np.concatenate([_padded(steady, window), _padded(beside, window)])
        now = model.score(together, None if labels is None else labels[: len(together)])[:count]
        beside = None
        measured = (~np.isnan(steady).all(axis=1)).sum(axis=1)
        standing = np.where(measured >= PEER_WINDOW_SHARE * window, now, np.nan)
        raw[:, at:] = standing[:, None]
        age = newest - 1 - at
    return raw, Held(standing, age)


def _padded(steady: Floats, samples: int) -> Floats:
    """``[r, d, m]`` with missing samples in front where m is less than `samples`."""
    short = samples - steady.shape[2]
    return steady if short <= 0 else np.pad(steady, ((0, 0), (0, 0), (short, 0)), constant_values=np.nan)
