"""One recorded job, read and made ready: domain list, initialisation phase, grid, marks, thinning.

Where a recorded job has left its initialisation behind; read backwards, where its end has begun.
"""

from __future__ import annotations

import fnmatch
import hashlib
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np

from trainwarden.catalogue import Metric, add, added, lookup
from trainwarden.detectors.peers.roles import roles
from trainwarden.detectors.recorded.grids import MetricGrid, metric_grids
from trainwarden.errors import DataError
from trainwarden.recorded.folder import read_metrics_of
from trainwarden.recorded.job import RecordedJob
from trainwarden.recorded.part import ReadLimit
from trainwarden.trainer_offline.archive.export_metrics import export_part
from trainwarden.trainer_offline.archive.layout import job_folder
from trainwarden.trainer_offline.data.annotation_rows import Culprit
from trainwarden.trainer_offline.data.grids import (
    Flags,
    Floats,
    JobGrid,
    PrepareConfig,
    Span,
    inside,
    interval_of,
    on_grid,
    thinned,
)

UNSETTLED_METRICS: Final = 0.2  # of the metrics measured at the start, so many have to be off their later range
MARGIN: Final = 0.25  # of the later range: outside it by more is another level
SETTLED_SAMPLES: Final = 5  # settled once nothing is off for so many samples,
SETTLED_S: Final = 300.0  # and for so long: what so many are on servers sampled once a minute (`opening.REFERENCE_S`)
START_SAMPLES: Final = 3  # an initialisation begins with the recording: with these samples,
START_S: Final = 180.0  # or within this time, the same there
LOOKED_SHARE: Final = 0.5  # of the part that is looked through either may take: a recording of minutes starts, too
LEAST_SAMPLES: Final = 40  # of fewer, whatever their interval, nothing can be said about levels


def settled_index(values: Floats, start_share: float, every_s: float) -> int:
    """How many first samples of ``values [d, n]`` belong to an initialisation phase; 0 if there is none.

    A job initialises while several metrics stand at levels that they never see again: outside the range of the rest of
    the recording. It has settled when nothing is off for five minutes of samples, one every `every_s` seconds. What is
    not settled after `start_share` of the recording is no initialisation.

    Examples
    --------
    >>> power = np.concatenate([np.full(20, 80.0), np.random.default_rng(0).normal(400.0, 5.0, 280)])
    >>> settled_index(power[None], 0.2, 60.0), settled_index(power[None, 20:], 0.2, 60.0)
    (20, 0)
    """
    return _phase(values, start_share, every_s)[0]


def ending_index(values: Floats, end_share: float, every_s: float) -> int:
    """How many last samples of ``values [d, n]`` belong to the job's end, by the same rule read backwards.

    Examples
    --------
    >>> power = np.concatenate([np.random.default_rng(0).normal(400.0, 5.0, 280), np.full(20, 80.0)])
    >>> ending_index(power[None], 0.2, 1.0), ending_index(power[None, :280], 0.2, 1.0)
    (20, 0)
    """
    found, off = _phase(values[:, ::-1], end_share, every_s)
    return found if 2 * off >= found >= START_SAMPLES else 0  # a wild value or two near the end are none


def _phase(values: Floats, share: float, every_s: float) -> tuple[int, int]:
    """How many first samples are a phase, and at how many of them several metrics are off."""
    samples = values.shape[1]
    limit = int(samples * share)
    if samples < LEAST_SAMPLES or limit < START_SAMPLES:
        return 0, 0
    start, rest = values[:, :limit], values[:, limit:]
    there = np.isfinite(start).any(axis=1) & np.isfinite(rest).any(axis=1)
    if not there.any():
        return 0, 0
    start, rest = start[there], rest[there]
    low, high = np.nanquantile(rest, (0.005, 0.995), axis=1)
    margin = MARGIN * (high - low) + 1e-9 * np.maximum(np.abs(low), np.abs(high))
    with np.errstate(invalid="ignore"):
        off = (start < (low - margin)[:, None]) | (start > (high + margin)[:, None])
    least = max(1.0, UNSETTLED_METRICS * there.sum())
    places = np.flatnonzero(off.sum(axis=0) >= least)
    settled, begins = (
        max(few, min(round(seconds / every_s), int(LOOKED_SHARE * limit)))
        for few, seconds in ((SETTLED_SAMPLES, SETTLED_S), (START_SAMPLES, START_S))
    )
    if not places.size or places[0] >= begins:
        return 0, 0
    breaks = np.flatnonzero(np.diff(places) > settled)
    last = int(places[breaks[0]] if breaks.size else places[-1])
    return (0, 0) if last + 1 + settled > limit else (last + 1, int((places <= last).sum()))


_READ = ("metrics.", "job.toml")


@dataclass(slots=True)
class PreparedJob:
    """One job's grids, and what was done to them."""

    name: str
    grids: list[JobGrid]
    initialisation_s: float = 0.0
    ending_s: float = 0.0
    dropped: dict[str, str] = field(default_factory=dict)
    measured: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: int = 0
    hours: float = 0.0
    digest: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Task:
    """One job as it is sent to a worker process."""

    folder: Path
    name: str | None
    until_s: float | None
    keep_start: bool
    spans: Mapping[str, list[Span]]
    budget: int
    config: PrepareConfig
    seed: int
    judged: bool = True  # also what is not normal is needed, for the gate
    named: tuple[Culprit, ...] = ()  # suspects of its annotated faults
    archived: bool = False  # `folder` is an archive that holds the job `name`
    metrics: tuple[Metric, ...] = field(default_factory=added)  # that plug-ins have brought

    @property
    def label(self) -> str:
        """What the job is called in messages."""
        return self.name or self.folder.name


def files_of(task: Task) -> list[Path]:
    """What a worker has to see to prepare the job."""
    if task.archived:
        return [task.folder / "metrics" / job_folder(task.label)]
    try:
        return [task.folder, *(path for path in sorted(task.folder.iterdir()) if path.name.startswith(_READ))]
    except OSError:
        return [task.folder]  # the job itself will say what is wrong with it


def _read(task: Task, out: PreparedJob) -> RecordedJob:
    """The job's metrics, of a large job the part that fits into memory; a note says which."""
    spans = tuple(task.spans.get("fault", ())) if task.judged else ()
    named = tuple((one.node, None if one.rank is None else str(one.rank), one.device) for one in task.named)
    limit = ReadLimit(task.config.max_cells, task.config.max_entities, task.seed, spans, named)
    if not task.archived:
        job = read_metrics_of(task.folder, task.name, limit)
        share = 1.0 if job.metrics is None else job.metrics.share
    else:
        with tempfile.TemporaryDirectory(prefix="trainwarden-prepare-") as temporary:
            folder = Path(temporary)
            part, survey = export_part(task.folder, task.label, folder / "metrics.parquet", limit)
            job = read_metrics_of(folder, task.label)
            share = 1.0 if part is None else part.share
            if part is not None:
                out.digest = hashlib.sha256(str(survey.cells).encode()).hexdigest()
    if share < 1.0:
        out.notes.append(f"{job.name}: {share:.2%} of its values were read (trainer.prepare.max_cells)")
    return job


def prepare_job(task: Task) -> PreparedJob:
    """One job: read, cut, laid on a grid, marked and thinned.

    Raises
    ------
    DataError
        If it cannot be read or has no normal rows.
    """
    out = PreparedJob("", [])
    add(task.metrics)
    job = _read(task, out)
    out.name = job.name
    if job.metrics is None or not job.metrics.times_s.size:
        raise DataError("there are no metrics")
    # Pipeline stages follow from the highest rank, which may not be among those that were read.
    ranks = sorted({one for one in (*job.metrics.ranks, job.metrics.last_rank) if one is not None})
    role_of = dict(zip(ranks, roles(ranks, job.parallel, job.roles), strict=True))
    until_s = job.normal_until_s if job.normal_until_s is not None else task.until_s
    grids = [_selected(grid, task.config, out) for grid in metric_grids(job.metrics)]
    between_s = (_start_s(grids, until_s, task, out), _end_s(grids, until_s, task, out))
    laid = [_laid_out(grid, role_of, until_s, between_s, task) for grid in grids if grid.names]
    cells = sum(len(grid.entities) * grid.times_s.size for grid in laid)
    for grid in laid:
        _count(grid, out)
        wanted = grid if task.judged else grid.part(grid.normal)
        share = len(grid.entities) * grid.times_s.size / max(cells, 1)
        out.grids.append(thinned(wanted, int(task.budget * share), task.config, task.seed, task.named))
    if not out.rows:
        before = "" if until_s is None else f" before {until_s:g} s"
        raise DataError(f"no row of metrics{before} is normal")
    return out


def _selected(grid: MetricGrid, config: PrepareConfig, out: PreparedJob) -> MetricGrid:
    """The grid without the metrics that the domain list leaves out."""
    keep = []
    for place, name in enumerate(grid.names):
        pattern = next((one for one in config.leave_out if lookup(name) and fnmatch.fnmatchcase(name, one)), None)
        if pattern is None:
            keep.append(place)
        else:
            out.dropped[name] = f"domain list: '{pattern}' says what a device is, not how it does"
    return replace(grid, names=tuple(grid.names[one] for one in keep), values=grid.values[:, keep])


def _start_s(grids: Sequence[MetricGrid], until_s: float | None, task: Task, out: PreparedJob) -> float:
    """When the job had settled; an annotated initialisation goes before the detected one."""
    if task.spans.get("initialisation"):
        ends = [to_s for _, to_s in task.spans["initialisation"]]
        out.notes.append(f"{out.name}: initialisation as annotated")
        return -math.inf if task.keep_start or math.inf in ends else min(ends)
    found_s = -math.inf
    if task.keep_start:
        return found_s
    for grid in grids:
        before = grid.column_s < (math.inf if until_s is None else until_s)
        if before.sum() and grid.names:
            with np.errstate(invalid="ignore"):
                values = _median(grid.values[:, :, before])
            index = settled_index(values, task.config.start_share, interval_of(grid.column_s[before]))
            if index:
                found_s = max(found_s, float(grid.column_s[before][index]))
                first_s = float(grid.column_s[0])
                out.initialisation_s = max(out.initialisation_s, found_s - first_s)
    return found_s


def _end_s(grids: Sequence[MetricGrid], until_s: float | None, task: Task, out: PreparedJob) -> float:
    """When the job began to end, unless somebody has said what is normal: ranks leave as they came, and as live, that
    is no anomaly. Every job has one, so that many short ones would be as many false alarms."""
    found_s = math.inf
    if task.keep_start or until_s is not None or task.spans.get("normal"):
        return found_s
    for grid in grids:
        if grid.names and grid.column_s.size:
            every_s = interval_of(grid.column_s)
            if index := ending_index(_median(grid.values), task.config.start_share, every_s):
                found_s = min(found_s, float(grid.column_s[-index]))
                out.ending_s = max(out.ending_s, float(grid.column_s[-1]) - found_s)
    return found_s


def _median(values: Floats) -> Floats:
    """Median over entities ``[r, d, n]`` to ``[d, n]``, NaN where none has a value."""
    if len(values) == 1:
        return np.asarray(values[0], dtype=np.float64)
    there = ~np.isnan(values).all(axis=0)
    out = np.full(values.shape[1:], np.nan)
    out[there] = np.nanmedian(values[:, there], axis=0)
    return out


def _laid_out(
    grid: MetricGrid, role_of: Mapping[int, str], until_s: float | None, between_s: Span, task: Task
) -> JobGrid:
    """The grid with its marks: normal is what is before T or annotated so, and nothing else is said of it."""
    times_s, values, every_s = on_grid(grid, task.config.every_s, task.config.fill_samples)
    spans = task.spans
    normal: Flags = np.full(times_s.size, until_s is None) | (times_s < (until_s if until_s is not None else -math.inf))
    fault = inside(times_s, spans.get("fault", []))
    ignored = inside(times_s, spans.get("ignore", [])) | inside(times_s, spans.get("initialisation", []))
    normal |= inside(times_s, spans.get("normal", []))
    usable = ~ignored & (times_s >= between_s[0]) & (times_s < between_s[1])
    return JobGrid(
        family=grid.family,
        names=grid.names,
        entities=grid.entities,
        roles=tuple("" if one.rank is None else role_of.get(one.rank, "") for one in grid.entities),
        every_s=every_s,
        times_s=times_s,
        values=values,
        normal=normal & ~fault & usable,
        # Whoever marks faults has looked at the whole job: what is not marked is quiet, though not learnt from.
        quiet=~fault & usable & (normal | bool(spans.get("fault"))),
        fault=fault & ~ignored,
    )


def _count(grid: JobGrid, out: PreparedJob) -> None:
    out.rows += grid.normal_rows
    if grid.normal.any():
        spans = grid.times_s[grid.normal]
        out.hours = max(out.hours, float(spans[-1] - spans[0]) / 3600.0)
    measured = (~np.isnan(grid.values[:, :, grid.normal])).sum(axis=(0, 2))
    total = len(grid.entities) * int(grid.normal.sum())
    for name, count in zip(grid.names, measured.tolist(), strict=True):
        key = f"{grid.family}/{name}" if grid.family else name
        before = out.measured.get(key, (0, 0))
        out.measured[key] = (before[0] + count, before[1] + total)
    out.digest = hashlib.sha256((out.digest + grid.digest()).encode()).hexdigest()
