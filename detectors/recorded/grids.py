"""The metrics of a recorded folder by family, the entities of each on one grid of samples: so they can be compared.

Clocks of entities that are sampled equally often may have any phase.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import lookup
from trainwarden.detectors.job.board import HISTORY
from trainwarden.detectors.job.family import family_of_row, role_of
from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.peers.roles import roles
from trainwarden.recorded.job import MetricTable, RecordedJob

Floats = npt.NDArray[np.float64]
FIRST_MOVES: Final = 64  # of a metric, that are looked at when they come; what moves more often does so normally
AFTER: Final = np.array([0, 1, 2, 3, 4, 15])  # samples by which a movement is known to last, or to be over


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
    models : tuple of str, one entry for each entity
        What its maker calls it; empty if nobody says.
    """

    family: str
    names: tuple[str, ...]
    entities: tuple[Entity, ...]
    values: Floats
    times_s: Floats
    column_s: Floats
    place: npt.NDArray[np.int64]
    models: tuple[str, ...]

    def samples(self, first: int, new: int, end: int, roles_of: Mapping[int, str]) -> FamilySamples:
        """Samples ``first <= index < end``, of which those from `new` on are new."""
        return FamilySamples(
            family=self.family,
            names=self.names,
            rows=np.arange(len(self.entities)),
            entities=self.entities,
            roles=tuple(
                role_of("" if one.rank is None else roles_of.get(one.rank, ""), model)
                for one, model in zip(self.entities, self.models, strict=True)
            ),
            values=self.values[:, :, first:end],
            times_s=np.where(np.isnan(self.times_s), self.column_s, self.times_s)[:, new:end],
            past_s=self.times_s[:, first:new],
        )

    def before(self, until_s: float) -> MetricGrid:
        """The same grid without the samples from `until_s` on."""
        return self.first(int(np.searchsorted(self.column_s, until_s, side="left")))

    def first(self, samples: int) -> MetricGrid:
        """The same grid with its first `samples` alone."""
        return replace(
            self, values=self.values[:, :, :samples], times_s=self.times_s[:, :samples],
            column_s=self.column_s[:samples], place=self.place[:, :samples],
        )  # fmt: skip


class RecordedSamples:
    """Stands where a live job has its board of metrics: hands out samples up to a time, each once.

    Attributes
    ----------
    times_s : float array
        When there is something new.
    until_s : float
        The time up to which `pop_new` hands out.
    """

    def __init__(
        self,
        grids: Sequence[MetricGrid],
        whole: Sequence[bool],
        roles_of: Mapping[int, str],
        normal_until_s: float | None = None,
    ) -> None:
        self._grids = grids
        self._normal_until_s = -np.inf if normal_until_s is None else normal_until_s
        self._roles = roles_of
        self._places = [0] * len(grids)
        turns = [grid.column_s if read else first_moves_s(grid) for grid, read in zip(grids, whole, strict=True)]
        self.times_s: Floats = np.unique(np.concatenate([np.zeros(0), *turns]))
        self.until_s = -np.inf

    @classmethod
    def of(
        cls,
        job: RecordedJob,
        wanted: Collection[str] | None = None,
        *,
        others: bool = False,
        normal_until_s: float | None = None,
    ) -> Self:
        """The metrics of `job`, shown at all times, of families that have any of the `wanted` ones (default: all).

        With `others` the samples of the other families are shown, too, when something in them moves for the first time.
        """
        table = job.metrics
        if table is None or not table.times_s.size or not (others or wanted is None or set(wanted) & set(table.names)):
            return cls([], [], {})
        grids = metric_grids(table)
        whole = [wanted is None or bool(set(wanted) & set(grid.names)) for grid in grids]
        kept = [grid for grid, read in zip(grids, whole, strict=True) if read or others]
        return cls(kept, whole if others else [True] * len(kept), roles_by_rank(job), normal_until_s)

    def pop_new(self) -> tuple[FamilySamples, ...]:
        """What is new since the last call, with as much before it as live samples have."""
        found = []
        for place, grid in enumerate(self._grids):
            new, end = self._places[place], int(np.searchsorted(grid.column_s, self.until_s, side="right"))
            split = min(end, max(new, int(np.searchsorted(grid.column_s, self._normal_until_s, side="left"))))
            for first, last in ((new, split), (split, end)):
                if last > first:
                    part = grid.samples(max(0, first - HISTORY), first, last, self._roles)
                    found.append(replace(part, normal=first < split))
            self._places[place] = end
        return tuple(found)


def first_moves_s(grid: MetricGrid) -> Floats:
    """When a metric moves that had stood still on all entities, and the samples after, which tell whether it lasts.

    Examples
    --------
    >>> level = np.where(np.arange(40) < 20, 7.0, 8.0)[None, None]
    >>> times_s = np.arange(40.0)
    >>> place = np.zeros((1, 40), dtype=np.int64)
    >>> grid = MetricGrid("", ("m",), (Entity(),), level, times_s[None], times_s, place, ("",))
    >>> first_moves_s(grid).tolist()
    [20.0, 21.0, 22.0, 23.0, 24.0, 35.0, 39.0]
    """
    end, found = grid.column_s.size, np.zeros(0, dtype=np.int64)
    for column in range(len(grid.names)):
        values = grid.values[:, column]
        first = np.where(np.isfinite(values).any(axis=1), np.isfinite(values).argmax(axis=1), 0)
        level = values[np.arange(len(values)), first][:, None]
        away = (np.isfinite(values) & (values != level)).any(axis=0)
        moves = np.flatnonzero(np.diff(away, prepend=False))[:FIRST_MOVES]
        found = np.append(found, (moves[:, None] + AFTER).ravel())
    turns = np.unique(np.append(np.minimum(found, end - 1), end - 1))
    return np.asarray(grid.column_s[turns])


def roles_by_rank(job: RecordedJob) -> dict[int, str]:
    """The role of every rank that metrics are about."""
    ranks = sorted({one for one in job.metrics.ranks if one is not None}) if job.metrics is not None else []
    return dict(zip(ranks, roles(ranks, job.parallel, job.roles), strict=True))


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
    values = held(_rates(values, times_s, names), there)
    entities = tuple(Entity(table.nodes[one], table.devices[one], table.ranks[one]) for one in places)
    column_s = np.maximum.accumulate(np.nanmax(times_s, axis=0))
    models = tuple(table.models[one] if table.models else "" for one in places)
    return MetricGrid(family, names, entities, values.transpose(0, 2, 1), times_s, column_s, place, models)


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


def held(values: Floats, there: npt.NDArray[np.bool_]) -> Floats:
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
