"""Xids that a recording's metrics tell of: exporters keep the code of the last one as a metric, and no log says it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from trainwarden.recorded.job import Floats, MetricTable, RecordedJob
from trainwarden.records import EventRecord

XID: Final = "gpu_xid_state"
MAX_EVENTS: Final = 10_000
MAX_CODE: Final = 9_999  # the kernel's have three digits
BESIDE_S: Final = 180.0  # an event of the same node and code that the recording has itself is the same one
_INTERVALS: Final = 2.0


def xid_events(job: RecordedJob, known: Iterable[EventRecord] = ()) -> list[EventRecord]:
    """Events of `job` where the code of a GPU's last Xid changed, in the order of their time.

    A code that is there when a GPU's rows begin is of the job before; one that begins later than its other metrics is
    new. The same code twice in a row cannot be seen. What is no code (a fraction, less than 1) says nothing.

    Parameters
    ----------
    known : iterable of EventRecord
        What else the recording tells; an Xid that is among them is not told twice.
    """
    table = job.metrics
    if table is None or XID not in table.names:
        return []
    told: dict[tuple[str, int], list[float]] = {}
    for event in known:
        code = event.fields.get("xid", event.fields.get("code"))
        if event.kind == "xid" and isinstance(code, int | float):
            told.setdefault((event.node, int(code)), []).append(event.time_s)
    found = [
        _event(table, entity, code, time_s, job.name)
        for entity, code, time_s in _changes(table)
        if not _beside(told.get((table.nodes[entity] or "", code), ()), time_s)
    ]
    return sorted(found, key=lambda event: event.time_s)[:MAX_EVENTS]


def _beside(times_s: Iterable[float], time_s: float) -> bool:
    return any(abs(time_s - other_s) <= BESIDE_S for other_s in times_s)


def _changes(table: MetricTable) -> Iterator[tuple[int, int, float]]:
    """Entity, code and time (s) of each new Xid; entities that never had one cost nothing."""
    codes = table.values[:, table.names.index(XID)]
    codes = np.where((codes >= 0) & (codes <= MAX_CODE) & (codes == np.floor(codes)), codes, np.nan)
    for entity, rows in table.rows_of(np.unique(table.entity[np.nan_to_num(codes) > 0])):
        rows_s = table.times_s[rows]
        there = np.isfinite(codes[rows])
        values, times_s = codes[rows[there]], rows_s[there]
        before = np.concatenate(([0.0 if _begins_late(rows_s, times_s) else values[0]], values[:-1]))
        for place in np.flatnonzero((values != before) & (values > 0)).tolist():
            yield entity, int(values[place]), float(times_s[place])


def _begins_late(rows_s: Floats, times_s: Floats) -> bool:
    """Whether the code's own times begin well after the rows, as fast as either of them comes."""
    spans_s = [float(np.median(np.diff(one))) for one in (rows_s, times_s) if one.size > 1]
    return float(times_s[0] - rows_s[0]) > _INTERVALS * max(spans_s, default=0.0)


def _event(table: MetricTable, entity: int, code: int, time_s: float, job: str) -> EventRecord:
    node, device = table.nodes[entity] or "", table.devices[entity]
    return EventRecord(
        id=f"xid/{node}/{device}/{code}/t{time_s * 1000:.0f}", job=job, node=node, time_s=time_s, kind="xid",
        rank=table.ranks[entity], device=device, message=f"Xid {code} on GPU {device or ''}".strip(),
        fields={"xid": code},
    )  # fmt: skip
