"""A captured run through the path of live jobs: records as agents sent them, a window every half second.

A folder's `detect --data` has no models of the job's own start; a live job has. Here they are learnt at once where the
service learns them beside itself, within seconds to minutes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tests.benchmarks.detection.own_runs.reading import Captured
from trainwarden.detectors.configured_detectors import chosen, rule
from trainwarden.detectors.job.samples import FamilySamples
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.own_models.learner import learnt
from trainwarden.detectors.recorded.stream import ReplayStream
from trainwarden.errors import DetectorError
from trainwarden.recorded.job import MetricTable
from trainwarden.records import EventRecord, IncidentRecord, MetricsRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings

WINDOW_S: Final = 0.5  # as the service looks


def judged(
    run: Captured, bundle: ModelBundle | None = None, settings: DetectionSettings | None = None
) -> list[IncidentRecord]:
    """Incidents of a run, newest revision of each, by opening; with `bundle`, or models of the job's own start."""
    settings = settings or DetectionSettings()
    detectors = {name: one.made() for name, one in chosen(settings, None).items()}
    learn = at_once if bundle is None else None
    watch = JobMonitor(run.name, detectors, rule(settings), SelfMetrics("replay"), bundle, learn=learn)
    assert run.job.metrics is not None
    metrics = _records(run.name, run.job.metrics)
    first_s, last_s = run.span_s
    ticks = np.arange(first_s, last_s + WINDOW_S, WINDOW_S)
    stream = ReplayStream(replace(run.job, metrics=None), run.facts, ticks)
    newest: dict[str, IncidentRecord] = {}
    now_s = next_s = first_s
    waiting = next(metrics, None)
    for now_s, records in stream.windows():
        while waiting is not None and waiting.time_s <= now_s:
            watch.state.feed(waiting)
            waiting = next(metrics, None)
        for record in records:
            watch.state.feed(record)
        if now_s >= next_s or any(isinstance(record, EventRecord) for record in records):  # facts are looked at at once
            next_s = now_s + WINDOW_S
            newest |= {one.id: one for one in watch.score(now_s) if isinstance(one, IncidentRecord)}
    newest |= {one.id: one for one in watch.score(now_s, last=True) if isinstance(one, IncidentRecord)}
    return sorted(newest.values(), key=lambda one: one.opened_at_s)


def at_once(samples: Sequence[FamilySamples]) -> Future[ModelBundle]:
    """Models of a job's own start without a process beside."""
    found: Future[ModelBundle] = Future()
    try:
        found.set_result(learnt(samples))
    except DetectorError as error:
        found.set_exception(error)
    return found


def _records(job: str, table: MetricTable) -> Iterator[MetricsRecord]:
    """The table's rows as the records they were sent in: one for each time, node and kind of device."""
    sent: defaultdict[tuple[float, str, tuple[int, ...]], list[int]] = defaultdict(list)
    measured: npt.NDArray[np.bool_] = ~np.isnan(table.values)
    for row, time_s in enumerate(table.times_s.tolist()):
        names = tuple(np.flatnonzero(measured[row]).tolist())
        sent[(time_s, table.nodes[table.entity[row]] or "", names)].append(row)
    for (time_s, node, names), rows in sent.items():
        owners = table.entity[rows].tolist()
        yield MetricsRecord(
            job=job, node=node, time_s=time_s, names=tuple(table.names[one] for one in names),
            devices=tuple(table.devices[one] or "" for one in owners), ranks=tuple(table.ranks[one] for one in owners),
            values=tuple(tuple(table.values[rows, one].tolist()) for one in names),
        )  # fmt: skip
