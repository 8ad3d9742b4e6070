"""A stretch of time of a recorded job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from trainwarden.recorded.job import CollectiveTable, Floats, Ints, IterationTable, LogTable, MetricTable, RecordedJob

T = TypeVar("T")


def between(job: RecordedJob, start_s: float, end_s: float) -> RecordedJob:
    """What of `job` was from `start_s` to `end_s`; flight-recorder dumps, which have no time, are kept.

    Examples
    --------
    >>> from pathlib import Path
    >>> between(RecordedJob("j", Path()), 0.0, 1.0).span_s is None
    True
    """
    iterations = None if job.iterations is None else _iterations(job.iterations, start_s, end_s)
    return replace(
        job,
        metrics=None if job.metrics is None else _metrics(job.metrics, start_s, end_s),
        iterations=iterations,
        collectives=None if job.collectives is None else _collectives(job.collectives, iterations),
        logs=tuple(log for log in (_log(one, start_s, end_s) for one in job.logs) if log.lines),
    )


def _rows(times_s: Floats, start_s: float, end_s: float) -> Ints:
    return np.flatnonzero((times_s >= start_s) & (times_s <= end_s))


def _picked(values: Sequence[T], places: Ints) -> tuple[T, ...]:
    return tuple(values[place] for place in places.tolist())


def _metrics(table: MetricTable, start_s: float, end_s: float) -> MetricTable | None:
    rows = _rows(table.times_s, start_s, end_s)
    if not rows.size:
        return None
    used, entity = np.unique(table.entity[rows], return_inverse=True)
    return replace(
        table, times_s=table.times_s[rows], entity=entity, values=table.values[rows],
        nodes=_picked(table.nodes, used), ranks=_picked(table.ranks, used), devices=_picked(table.devices, used),
        models=_picked(table.models, used) if table.models else (),
    )  # fmt: skip


def _iterations(table: IterationTable, start_s: float, end_s: float) -> IterationTable | None:
    rows = _rows(table.end_s, start_s, end_s)
    if not rows.size:
        return None
    used, rank = np.unique(table.rank[rows], return_inverse=True)
    lanes = ("step", "end_s", "duration_s", "compute_s", "wait_s", "pause_s", "micro_batches", "steps")
    return replace(
        table, rank=rank, ranks=_picked(table.ranks, used), nodes=_picked(table.nodes, used),
        incarnation=_picked(table.incarnation, rows) if table.incarnation else (),
        basis=_picked(table.basis, rows) if table.basis else (),
        **{lane: getattr(table, lane)[rows] for lane in lanes},
    )  # fmt: skip


def _collectives(table: CollectiveTable, iterations: IterationTable | None) -> CollectiveTable | None:
    """Calls have no times of their own: those of the steps that are left, as far as these are known."""
    rows = np.flatnonzero(np.isin(table.step, iterations.step)) if iterations is not None else np.zeros(0, np.int64)
    if not rows.size:
        return None
    lanes = ("step", "rank", "comm", "function", "seq", "call_bytes", "device_s", "enqueued_s", "peer")
    return replace(table, **{lane: getattr(table, lane)[rows] for lane in lanes})


def _log(log: LogTable, start_s: float, end_s: float) -> LogTable:
    """A line without a stamp is as old as the last stamped one before it."""
    place = np.maximum.accumulate(np.where(np.isfinite(log.times_s), np.arange(log.times_s.size), -1))
    stamped = np.where(place >= 0, log.times_s[np.maximum(place, 0)], np.nan)
    rows = _rows(stamped, start_s, end_s)
    return replace(
        log, times_s=log.times_s[rows], nodes=_picked(log.nodes, rows), ranks=_picked(log.ranks, rows),
        lines=list(_picked(log.lines, rows)),
    )  # fmt: skip
