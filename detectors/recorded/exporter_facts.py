"""Links that went down and GPUs that are told of no more, from a recording's metrics: what agents tell as events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import lookup
from trainwarden.prometheus.cards import lost_cards
from trainwarden.prometheus.events import SILENT_INTERVALS, SILENT_S, UP, link_event, lost_event
from trainwarden.prometheus.exporters import Who, is_virtual
from trainwarden.recorded.job import Floats, MetricTable, RecordedJob
from trainwarden.records import EventRecord

Flags = npt.NDArray[np.bool_]
MAX_EVENTS: Final = 10_000
BESIDE_S: Final = 180.0  # an event of the same kind and device that the recording has itself is the same one


def exporter_events(job: RecordedJob, known: Iterable[EventRecord] = ()) -> list[EventRecord]:
    """Events of `job` that its metrics tell of, in the order of their time.

    Parameters
    ----------
    known : iterable of EventRecord
        What else the recording tells; what is among them is not told twice.
    """
    table = job.metrics
    if table is None:
        return []
    told: dict[tuple[str, str, str | None], list[float]] = {}
    for event in known:
        told.setdefault((event.kind, event.node, event.device), []).append(event.time_s)
    found = [*_links(table, job.name), *_lost(table, job.name)]
    new = [one for one in found if not _beside(told.get((one.kind, one.node, one.device), ()), one.time_s)]
    return sorted(new, key=lambda event: event.time_s)[:MAX_EVENTS]


def _beside(times_s: Iterable[float], time_s: float) -> bool:
    return any(abs(time_s - other_s) <= BESIDE_S for other_s in times_s)


def _links(table: MetricTable, job: str) -> Iterator[EventRecord]:
    """Changes of each port from the first time that it was seen up; one that never was may have no cable at all."""
    for name, up in UP.items():
        if name not in table.names:
            continue
        states = table.values[:, table.names.index(name)]
        changed = np.unique(table.entity[np.isfinite(states) & (states != up)])
        for entity, every_row in table.rows_of(changed):
            who = Who(table.nodes[entity] or "", table.devices[entity] or "")
            rows = every_row[np.isfinite(states[every_row])]
            works: Flags = np.asarray(states[rows] == up)
            if is_virtual(who.device) or not works.any():
                continue
            for place in np.flatnonzero(works[1:] != works[:-1]) + 1:
                if place > np.argmax(works):
                    event = link_event(who, bool(works[place]), float(table.times_s[rows[place]]), job)
                    yield msgspec.structs.replace(event, device=table.devices[entity])


def _lost(table: MetricTable, job: str) -> Iterator[EventRecord]:
    """GPUs of which nothing has come for long while others of their node went on, told when that is long enough."""
    columns = [place for place, name in enumerate(table.names) if (m := lookup(name)) and m.per == "gpu"]
    there: Flags = np.asarray(np.isfinite(table.values[:, columns]).any(axis=1))
    cards = np.array([place for place, device in enumerate(table.devices) if device], dtype=np.int64)
    nodes: dict[str, list[tuple[Who, Floats]]] = {}
    ranks: dict[Who, int | None] = {}
    for entity, rows in table.rows_of(cards):
        if (times_s := table.times_s[rows[there[rows]]]).size:
            who = Who(table.nodes[entity] or "", table.devices[entity] or "")
            nodes.setdefault(who.node, []).append((who, times_s))
            ranks[who] = table.ranks[entity]
    for told in nodes.values():
        every_s = max(float(np.median(np.diff(times_s))) if times_s.size > 1 else 0.0 for _, times_s in told)
        patience_s = max(SILENT_S, SILENT_INTERVALS * every_s)
        for who, last_s in lost_cards([(who, float(one[0]), float(one[-1])) for who, one in told], patience_s):
            event, since = lost_event(who, last_s + patience_s, job), {"since_s": last_s + every_s}
            yield msgspec.structs.replace(event, rank=ranks.get(who), fields={**event.fields, **since})
