"""The series of one job in which changes are looked for: its step duration, and each metric of each family."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
import pandas as pd

from trainwarden.catalogue import lookup
from trainwarden.detectors.recorded.grids import metric_grids
from trainwarden.recorded.job import IterationTable, RecordedJob
from trainwarden.trainer_offline.suggest.change_points import TOO_LARGE, Floats, Ints

STEP: Final = "step duration"
MOST_ROWS: Final = 2_000_000  # of ranks that step together: 9 s, and their median hardly moves with more of them


class Series(NamedTuple):
    """Samples in order of time.

    Attributes
    ----------
    name : str
        ``step duration``, or family and metric: ``gpu/gpu_power_watts``.
    unit : str
        Of the values; empty if nobody says.
    times_s : float array [n]
        Since when each sample's value holds: of a step, when it began.
    values : float array [n]
    steps : int array [n] or None
        Number of each step.
    """

    name: str
    unit: str
    times_s: Floats
    values: Floats
    steps: Ints | None = None


def series_of(job: RecordedJob) -> Iterator[Series]:
    """The step duration over all ranks first, then every metric over all entities of its family, as medians.

    One entity that differs from its peers moves no median: that is for the detectors that compare peers.
    """
    if job.iterations is not None:
        yield step_durations(job.iterations)
    for grid in [] if job.metrics is None else metric_grids(job.metrics):
        for column, name in enumerate(grid.names):
            known = lookup(name)
            label = f"{grid.family}/{name}" if grid.family else name
            unit = "" if known is None else known.unit + ("/s" if known.kind == "counter" else "")
            yield Series(label, unit, grid.column_s, _median(grid.values[:, column]))


def step_durations(table: IterationTable) -> Series:
    """Median over ranks (evenly chosen ones where there are very many rows); a step that ran again is another one.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from trainwarden.recorded.iterations import read_iterations
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "iterations.csv")
    ...     _ = path.write_text("step,rank,duration_s\\n0,0,1\\n0,1,1\\n0,2,1\\n1,0,2\\n1,1,4\\n1,2,3\\n")
    ...     found = step_durations(read_iterations(path, path.name))
    >>> found.values.tolist()
    [1.0, 3.0]
    """
    ranks = min(len(table.ranks), max(1, -(-MOST_ROWS // max(1, table.step.size // len(table.ranks)))))
    chosen = np.isin(table.rank, np.linspace(0, len(table.ranks) - 1, ranks).astype(np.int64))
    lanes = {"rank": table.rank, "step": table.step, "end_s": table.end_s, "value": table.duration_s}
    rows = pd.DataFrame({name: lane[chosen] for name, lane in lanes.items()})
    rows["life"] = rows.groupby(["rank", "step"]).cumcount()
    steps = rows.groupby(["life", "step"])[["end_s", "value"]].median().reset_index().sort_values("end_s")
    values = steps["value"].to_numpy()
    return Series(STEP, "s", steps["end_s"].to_numpy() - values, values, steps["step"].to_numpy())


def _median(values: Floats) -> Floats:
    """Over entities ``[r, n]``; NaN where nobody has a value."""
    out = np.full(values.shape[1], np.nan)
    usable = np.where(np.abs(values) < TOO_LARGE, values, np.nan)
    there = ~np.isnan(usable).all(axis=0)
    out[there] = np.nanmedian(usable[:, there], axis=0)
    return out
