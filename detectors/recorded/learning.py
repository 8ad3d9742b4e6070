"""Models that learn from recordings: from what is normal, and where that is little from what was judged since.

Half a day of one machine has not shown what it does in a week, and what was not seen is strange. So whenever a family
of entities has shown twice as much, its models learn from all of it but what they found strange, until that is enough
for as many metrics. Nothing at a time depends on what comes later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.family_memory import FamilyMemory
from trainwarden.detectors.metrics.hysteresis import EXPIRE_S, ModelVoteConfig
from trainwarden.detectors.recorded.grids import MetricGrid, metric_grids
from trainwarden.errors import DataError, DetectorError
from trainwarden.recorded.job import RecordedJob

Floats = npt.NDArray[np.float64]
OBSERVATIONS: Final = 10
"""For each coefficient of a regression; with fewer they are unsure and biased (Peduzzi et al., J. Clin. Epidemiol. 49,
1996, of logistic ones)."""
AROUND: Final = 5
"""Samples before and after an anomalous one that teach nothing either: as many as are looked at for one to open."""


def bundle_of(normal: RecordedJob, config: VoteConfig | None = None, seed: int = 0) -> ModelBundle:
    """Models trained on a recording that is normal throughout.

    Raises
    ------
    DataError
        If there is nothing in it to learn from.
    """
    if normal.metrics is None or not normal.metrics.times_s.size:
        raise DataError(f"the normal recording '{normal.folder}' has no metrics to train on")
    return fit_bundle(metric_grids(normal.metrics), config or VoteConfig(), seed)


def fit_bundle(grids: Sequence[MetricGrid], config: VoteConfig, seed: int) -> ModelBundle:
    """Models of every family that has something to learn from.

    Raises
    ------
    DataError
        If no family can be learnt, with the reason of the first.
    """
    series: dict[str, list[tuple[Entity, Floats, Floats]]] = {}
    names: dict[str, tuple[str, ...]] = {}
    for grid in grids:
        for row, entity in enumerate(grid.entities):
            # On the grid's own times, so that entities that are sampled together count as peers.
            series.setdefault(grid.family, []).append((entity, grid.column_s, grid.values[row].T))
        names[grid.family] = grid.names
    try:
        return ModelBundle.fit(series, names, config, seed)
    except DetectorError as error:
        raise DataError(f"nothing can be learnt from the normal rows: {error}") from error


@dataclass(frozen=True, slots=True)
class LearningOn:
    """How models of a recording go on to learn.

    Attributes
    ----------
    config : VoteConfig
        How they were trained, and are again.
    seed : int
    """

    config: VoteConfig
    seed: int

    def enough_rows(self, metrics: int) -> int:
        """Normal rows from which on models of so many metrics stay as they are.

        The forecast has most to learn: a coefficient for each of its means of each metric; a mean is one observation.

        Examples
        --------
        >>> LearningOn(VoteConfig(), seed=0).enough_rows(metrics=20)
        6000
        """
        forecast = self.config.forecast
        return OBSERVATIONS * forecast.mean_samples * forecast.lags * metrics

    def turn_of(self, grid: MetricGrid, seen: int) -> int:
        """The sample from which on models are used that have learnt more than the first `seen` samples of `grid`.

        The number of its samples where there are none, as there was enough.
        """
        samples, rows = grid.column_s.size, int((grid.place[:, :seen] >= 0).sum())
        return min(2 * seen, samples) if 0 < rows < self.enough_rows(len(grid.names)) else samples

    def anew(self, bundle: ModelBundle, grid: MetricGrid, scores: Floats, known: int) -> ModelBundle:
        """Models of the family of `grid` that have learnt from as many samples as there are ``scores [r, seen]``.

        Parameters
        ----------
        bundle : ModelBundle
            What is used so far; it stays where nothing can be learnt.
        scores : float array [r, seen]
            The calibrated mean of the models; what is anomalous by it teaches nothing (`calm`).
        known : int
            So many samples are known to be normal, and teach whatever their scores.
        """
        try:
            return fit_bundle([calm(grid, scores, known)], self.config, self.seed)
        except DataError:
            return bundle


def calm(grid: MetricGrid, scores: Floats, known: int) -> MetricGrid:
    """The samples of `grid` that have ``scores [r, seen]``, those missing that nothing is to be learnt from.

    That is what is anomalous by them, as votes are, and what lies next to it. What has been so for a day teaches again,
    as of scales: a machine may change for good.

    Examples
    --------
    >>> times_s, place = np.arange(60.0), np.arange(60)[None]
    >>> grid = MetricGrid("", ("m",), (Entity(),), np.ones((1, 1, 60)), times_s[None], times_s, place, ("",))
    >>> scores = np.zeros((1, 50)); scores[0, 30:33] = 0.99
    >>> values = calm(replace(grid, column_s=60.0 * times_s), scores, known=20).values[0, 0]
    >>> missing = np.flatnonzero(np.isnan(values))
    >>> values.size, missing[0].item(), missing[-1].item()
    (50, 27, 49)
    """
    seen, config = scores.shape[1], ModelVoteConfig()
    every_s = FamilyMemory().keep_pace(grid.column_s[None, :seen], np.full(1, np.nan))
    found = config.opened(scores, config.thresholds_of(len(scores), every_s), every_s)
    near = np.pad(found, ((0, 0), (AROUND, AROUND)))
    views = np.lib.stride_tricks.sliding_window_view(near, 2 * AROUND + 1, axis=1)
    spoilt = np.asarray(views.any(axis=2), dtype=np.bool_)
    spoilt[:, :known] = False
    past = grid.first(seen)
    begins = np.diff(spoilt, axis=1, prepend=False) & spoilt
    since_s = np.maximum.accumulate(np.where(begins, past.column_s, -np.inf), axis=1)
    spoilt &= past.column_s - since_s <= EXPIRE_S
    return replace(past, values=np.where(spoilt[:, None], np.nan, past.values))
