"""Each rank's (or device's) own series of one job, thinned to a few points, as roles are told by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.recorded.grids import MetricGrid, metric_grids
from trainwarden.recorded.job import IterationTable, RecordedJob

Floats = npt.NDArray[np.float64]

POINTS: Final = 16  # of each series: medians of so many blocks of the recording
SPLIT: Final = ("compute_s", "wait_s")
TOLD_APART: Final = 0.5  # of a lane's variance: less is between entities than within each, which tells nobody apart


class EntitySeries(NamedTuple):
    """Series of entities that may have roles.

    Attributes
    ----------
    entities : tuple of Entity, length r
    names : tuple of str, length d
        Columns of iterations, or metrics.
    values : float array [r, p, d]
        Medians of `p` blocks of the recording, in the unit of each; everything is finite.
    """

    entities: tuple[Entity, ...]
    names: tuple[str, ...]
    values: Floats

    @property
    def scaled(self) -> Floats:
        """The lanes by which entities differ lastingly, each in units of its spread; perhaps none."""
        own, kept = self._own()
        return np.asarray(own[:, :, kept] / own.std(axis=(0, 1))[kept])

    @property
    def names_of_lanes(self) -> tuple[str, ...]:
        """Names of the lanes of `scaled`."""
        return tuple(name for name, kept in zip(self.names, self._own()[1].tolist(), strict=True) if kept)

    def levels(self, who: npt.NDArray[np.bool_]) -> dict[str, float]:
        """Median of each lane over the entities `who`, in its own unit."""
        return dict(zip(self.names, np.median(self.values[who], axis=(0, 1)).tolist(), strict=True))

    def _own(self) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Without what all do together (a warm-up, a long batch), and which lanes tell entities apart."""
        own = self.values - np.median(self.values, axis=0, keepdims=True)
        size = np.abs(own).max(axis=(0, 1))
        # What a float cannot hold of a large level is no difference.
        moves = size > np.abs(self.values).max(axis=(0, 1)) * 1e-9
        own = own / np.where(moves, size, 1.0)
        return own, moves & (own.mean(axis=1).var(axis=0) >= TOLD_APART * own.var(axis=(0, 1)))


def entity_series(job: RecordedJob) -> EntitySeries | None:
    """Of the ranks' iterations where there are several ranks, else of the metrics of one family; None without either.

    Of the families the one whose entities have ranks, of several the one with most entities.
    """
    found = None if job.iterations is None else of_iterations(job.iterations)
    if found is not None:
        return found
    grids = [] if job.metrics is None else [grid for grid in metric_grids(job.metrics) if len(grid.entities) > 1]
    grids.sort(key=lambda grid: (any(one.rank is None for one in grid.entities), -len(grid.entities)))
    return next((series for grid in grids if (series := _of_metrics(grid)) is not None), None)


def of_iterations(table: IterationTable) -> EntitySeries | None:
    """Compute and waiting time of each rank, of a job that has neither the step duration.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from trainwarden.recorded.iterations import read_iterations
    >>> rows = "".join(f"{step},{rank},{rank + 1}\\n" for step in range(32) for rank in range(2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "iterations.csv")
    ...     _ = path.write_text(f"step,rank,duration_s\\n{rows}")
    ...     found = of_iterations(read_iterations(path, path.name))
    >>> found.names, found.values.shape, found.values[:, 0, 0].tolist()
    (('duration_s',), (2, 16, 1), [1.0, 2.0])
    """
    split = [name for name in SPLIT if np.isfinite(getattr(table, name)).any()]
    names = tuple(split or ["duration_s"])
    known = np.array([rank is not None for rank in table.ranks])[table.rank]
    if not known.any():  # the iterations are the whole job's
        return None
    number, place = np.unique(table.step, return_inverse=True)
    points = min(POINTS, number.size)
    rows = pd.DataFrame({name: getattr(table, name) for name in names})
    rows["rank"], rows["block"] = table.rank, place * points // number.size
    blocks = rows[known].groupby(["rank", "block"]).median().unstack("block")
    values = blocks.to_numpy().reshape(len(blocks), len(names), -1).transpose(0, 2, 1)
    entities = [Entity(table.nodes[one], rank=table.ranks[one]) for one in blocks.index]
    return _whole(entities, names, values)


def _of_metrics(grid: MetricGrid) -> EntitySeries | None:
    blocks = np.array_split(grid.values, min(POINTS, grid.column_s.size), axis=2)
    values = np.stack([_medians(block) for block in blocks], axis=1)
    seen = np.isfinite(values).any(axis=(0, 1))
    return _whole(grid.entities, tuple(np.array(grid.names)[seen].tolist()), values[:, :, seen])


def _medians(block: Floats) -> Floats:
    """Over time ``[r, d, n]``; NaN where nothing was measured."""
    out = np.full(block.shape[:2], np.nan)
    there = np.isfinite(block).any(axis=2)
    out[there] = np.nanmedian(np.where(np.isfinite(block[there]), block[there], np.nan), axis=1)
    return out


def _whole(entities: Sequence[Entity], names: tuple[str, ...], values: Floats) -> EntitySeries | None:
    """Gaps filled by the entity's own median; without entities that lack a lane."""
    own = _medians(values.transpose(0, 2, 1))
    filled = np.where(np.isfinite(values), values, own[:, None, :])
    kept = np.flatnonzero(np.isfinite(own).all(axis=1))
    if kept.size < 2 or not names:
        return None
    return EntitySeries(tuple(entities[place] for place in kept.tolist()), names, filled[kept])
