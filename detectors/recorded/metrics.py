"""The metrics of a recorded folder scored by the trained models: what live windows do sample by sample, in one go.

Entities of one family are laid on one grid of samples, whatever their clocks' phase, so that they can be compared.
Every score depends on what came before it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from detectors.job.board import family_of_row
from detectors.job.samples import Entity, FamilySamples, ScoredSamples
from detectors.metrics.bundle.bundle import ModelBundle
from detectors.metrics.bundle.members import VoteConfig
from detectors.metrics.scores import MetricScorer
from detectors.peers.roles import roles
from trainwarden.catalogue import lookup
from trainwarden.errors import DataError, DetectorError
from trainwarden.recorded.job import MetricTable, RecordedJob

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MetricGrid:
    """Rows of one family as arrays.

    Attributes
    ----------
    values : float array [r, d, n]
        Counters already as rates; NaN = not measured.
    times_s : float array [r, n]
        Each entity's own time of the sample, NaN where it has none.
    column_s : float array [n]
        When everybody's sample was there.
    place : int array [r, n]
        Row of the table, -1 where there is none.
    """

    family: str
    names: tuple[str, ...]
    entities: tuple[Entity, ...]
    values: Floats
    times_s: Floats
    column_s: Floats
    place: npt.NDArray[np.int64]

    def samples(self, first: int, new: int, end: int, roles_of: Mapping[int, str]) -> FamilySamples:
        """Samples ``first <= index < end``, of which those from `new` on are new."""
        return FamilySamples(
            family=self.family,
            names=self.names,
            rows=np.arange(len(self.entities)),
            entities=self.entities,
            roles=tuple("" if one.rank is None else roles_of.get(one.rank, "") for one in self.entities),
            values=self.values[:, :, first:end],
            times_s=np.where(np.isnan(self.times_s), self.column_s, self.times_s)[:, new:end],
        )


@dataclass(frozen=True, slots=True)
class ScoredGrid:
    """Scores of a grid, and when each of its samples was there ``[k]``."""

    scored: ScoredSamples
    column_s: Floats


@dataclass(frozen=True, slots=True)
class MetricScores:
    """Scores of a whole recording.

    Attributes
    ----------
    scored : tuple of ScoredGrid
        What may open incidents: all but training rows.
    abstained : dict of str
        Families without scores, with the reason.
    """

    table: MetricTable
    bundle: ModelBundle
    scored: tuple[ScoredGrid, ...]
    abstained: dict[str, str]
    training: npt.NDArray[np.bool_]
    by_model: dict[str, Floats] = field(default_factory=dict)
    ensemble: Floats = field(default_factory=lambda: np.zeros(0))

    def columns(self, names: Sequence[str]) -> dict[str, Any]:
        """Columns of the file of scores, one row for each row of the table."""
        import pandas as pd

        table, entity = self.table, self.table.entity
        nodes = np.array(table.nodes, dtype=object)[entity]
        ranks = pd.array([table.ranks[place] for place in entity.tolist()], dtype="Int64")
        devices = np.array(table.devices, dtype=object)[entity]
        columns: dict[str, Any] = {"time_s": table.times_s, "node": nodes, "rank": ranks, "device": devices}
        columns["training"] = self.training.astype(np.int64)
        columns |= {name: self.by_model[name] for name in self.by_model if name in names}
        return columns | {"ensemble": self.ensemble}


def score_recorded(
    job: RecordedJob,
    bundle: ModelBundle | None = None,
    normal_until_s: float | None = None,
    config: VoteConfig | None = None,
    seed: int = 0,
) -> MetricScores | None:
    """Score every row of metrics by `bundle`, or by models trained on the job's own normal rows.

    Parameters
    ----------
    bundle : ModelBundle, optional
        Trained before; goes before training.
    normal_until_s : float, optional
        Rows before it are normal; the job's own `normal_until_s` goes before it.
    config : VoteConfig, optional
        How models are trained.

    Returns
    -------
    MetricScores or None
        None where there are no metrics, or nothing says what is normal.

    Raises
    ------
    DataError
        If there is no normal row to train on.
    """
    if job.metrics is None or not job.metrics.times_s.size:
        return None
    until_s = job.normal_until_s if job.normal_until_s is not None else normal_until_s
    grids = metric_grids(job.metrics)
    if bundle is not None:
        return _score(job, grids, bundle, None)
    if until_s is None:
        return None
    if not (job.metrics.times_s < until_s).any():
        raise DataError(f"no row of metrics is before {until_s:g} s, so there is nothing normal to train on")
    own = fit_bundle([_before(grid, until_s) for grid in grids], config or VoteConfig(), seed)
    return _score(job, grids, own, until_s)


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


def metric_grids(table: MetricTable) -> list[MetricGrid]:
    """The table by family, the entities of each on one grid of samples."""
    measured = np.zeros((len(table.nodes), len(table.names)), dtype=np.bool_)
    np.logical_or.at(measured, table.entity, np.isfinite(table.values))
    families: dict[str, list[int]] = {}
    for place, device in enumerate(table.devices):
        own = tuple(name for name, there in zip(table.names, measured[place], strict=True) if there)
        family = family_of_row(device or "", own)
        if family is not None:
            families.setdefault(family, []).append(place)
    return [_grid(table, family, places, measured) for family, places in families.items()]


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


def _score(job: RecordedJob, grids: Sequence[MetricGrid], bundle: ModelBundle, until_s: float | None) -> MetricScores:
    assert job.metrics is not None
    rows = job.metrics.times_s.size
    training = np.zeros(rows, dtype=np.bool_)
    scores = MetricScores(job.metrics, bundle, (), {}, training, {}, np.full(rows, np.nan))
    if until_s is not None:
        training[:] = job.metrics.times_s < until_s
    ranks = sorted({one for one in job.metrics.ranks if one is not None})
    roles_of = dict(zip(ranks, roles(ranks, job.parallel), strict=True))
    kept: list[ScoredGrid] = []
    for grid in grids:
        split = 0 if until_s is None else int(np.searchsorted(grid.column_s, until_s, side="left"))
        vote = bundle.votes.get(grid.family)
        reach = 0 if vote is None else vote.window_samples
        if vote is not None and vote.preparation.warm_up:
            reach = split  # the entity's own scale is all that it has shown so far
        for first, new, end in ((0, 0, split), (max(0, split - reach), split, grid.column_s.size)):
            if new == end:
                continue
            scorer = MetricScorer(bundle)
            for part in scorer.score((grid.samples(first, new, end, roles_of),)):
                _spread(scores, grid, part, new, end)
                if new == split:
                    kept.append(ScoredGrid(part, grid.column_s[new:end]))
            scores.abstained.update(scorer.abstained)
    return replace(scores, scored=tuple(kept))


def _spread(scores: MetricScores, grid: MetricGrid, part: ScoredSamples, new: int, end: int) -> None:
    """Put the scores of a grid back to the rows of the table."""
    place = grid.place[:, new:end]
    there = place >= 0
    for name, values in part.scores.items():
        column = scores.by_model.setdefault(name, np.full(scores.ensemble.size, np.nan))
        column[place[there]] = values[there]
    scores.ensemble[place[there]] = part.ensemble[there]


def _before(grid: MetricGrid, until_s: float) -> MetricGrid:
    end = int(np.searchsorted(grid.column_s, until_s, side="left"))
    return MetricGrid(
        grid.family, grid.names, grid.entities, grid.values[:, :, :end], grid.times_s[:, :end], grid.column_s[:end],
        grid.place[:, :end],
    )  # fmt: skip


def _grid(table: MetricTable, family: str, places: Sequence[int], measured: npt.NDArray[np.bool_]) -> MetricGrid:
    order = np.argsort(table.entity, kind="stable")
    ends = np.searchsorted(table.entity[order], np.arange(len(table.nodes) + 1))
    rows = [order[ends[place] : ends[place + 1]] for place in places]
    bins = _bins([table.times_s[own] for own in rows])
    occupied = np.unique(np.concatenate(bins))
    columns = np.flatnonzero(measured[list(places)].any(axis=0))
    names = tuple(table.names[column] for column in columns)
    place = np.full((len(places), occupied.size), -1, dtype=np.int64)
    for entity, (own, bin_of) in enumerate(zip(rows, bins, strict=True)):
        place[entity, np.searchsorted(occupied, bin_of)] = own
    there = place >= 0
    values = np.full((len(places), occupied.size, columns.size), np.nan)
    values[there] = table.values[place[there]][:, columns]
    times_s = np.where(there, table.times_s[place], np.nan)
    values = _held(_rates(values, times_s, names), there)
    entities = tuple(Entity(table.nodes[one], table.devices[one], table.ranks[one]) for one in places)
    column_s = np.maximum.accumulate(np.nanmax(times_s, axis=0))
    return MetricGrid(family, names, entities, values.transpose(0, 2, 1), times_s, column_s, place)


def _bins(times: Sequence[Floats]) -> list[npt.NDArray[np.int64]]:
    """Number of the common sample that each time of each entity belongs to; no two times of one entity share one."""
    if len(times) == 1:
        return [np.arange(times[0].size)]
    start_s = min(float(own[0]) for own in times)
    every_s = min((_every_s(own) for own in times if own.size > 1), default=1.0)
    bins = []
    for own in times:
        # From the entity's own first sample: its phase must not lie where a little jitter changes the number.
        number = np.round((own - own[0]) / every_s) + np.round((own[0] - start_s) / every_s)
        place = np.arange(own.size)
        bins.append((np.maximum.accumulate(number - place) + place).astype(np.int64))
    return bins


def _every_s(times_s: Floats) -> float:
    """Mean time between two samples, longer pauses left out.

    Examples
    --------
    >>> round(_every_s(np.array([0.0, 2.0, 4.2, 100.0, 102.1])), 3)
    2.1
    """
    steps = np.diff(times_s)
    return float(steps[steps <= 1.5 * np.median(steps)].mean())


def _held(values: Floats, there: npt.NDArray[np.bool_]) -> Floats:
    """``values [r, n, d]`` where one sample of an entity is missing taken from the one before, so that it compares."""
    out = values.copy()
    gap = ~there[:, 1:] & there[:, :-1]
    out[:, 1:][gap] = values[:, :-1][gap]
    return out


def _rates(values: Floats, times_s: Floats, names: Sequence[str]) -> Floats:
    """``values [r, n, d]`` with counters as growth per second since the sample before."""
    known = [lookup(name) for name in names]
    counters = [column for column, metric in enumerate(known) if metric is not None and metric.kind == "counter"]
    if not counters:
        return values
    out = values.copy()
    part = values[:, :, counters]
    growth = np.full_like(part, np.nan)
    elapsed_s = np.diff(times_s, axis=1)[:, :, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        step = np.diff(part, axis=1)
        growth[:, 1:] = np.where((step >= 0) & (elapsed_s > 0), step / elapsed_s, np.nan)
    out[:, :, counters] = growth
    return out
