"""What needs no statistics in what exporters say: new Xids, links that went down, GPUs that fell silent beside others.

A series that ends while its siblings go on is evidence; an exporter that answers no more is none.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.prometheus.events import SILENT_INTERVALS, SILENT_S, UP, link_event, lost_event, xid_event
from trainwarden.prometheus.fleet import FamilyRange
from trainwarden.records import EventRecord

MAX_EVENTS: Final = 10_000


def facts_of(ranges: dict[str, FamilyRange], job: str) -> list[EventRecord]:
    """Events of `job` in the order of their time."""
    found: list[EventRecord] = []
    if (gpus := ranges.get("gpu")) is not None:
        found += _xids(gpus, job)
        found += [_lost(gpus, place, job) for place in fallen_silent(gpus)]
    if (ports := ranges.get("nic")) is not None:
        for name, up in UP.items():
            found += _links(ports, name, up, job)
    return sorted(found, key=lambda event: event.time_s)[:MAX_EVENTS]


def fallen_silent(gpus: FamilyRange) -> list[int]:
    """Rows of GPUs of which nothing has come for long while others of their node went on."""
    nodes: dict[str, list[int]] = {}
    for place, one in enumerate(gpus.rows):
        nodes.setdefault(one.node, []).append(place)
    patience_s = max(SILENT_S, SILENT_INTERVALS * gpus.interval_s)
    lost = []
    for places in nodes.values():
        newest_s = max(float(gpus.last_s[place]) for place in places)
        lost += [place for place in places if newest_s - gpus.last_s[place] > patience_s]
    return lost


def silent_nodes(ranges: dict[str, FamilyRange]) -> list[str]:
    """Sentences on exporters that answer no more, which accuses nobody."""
    found = []
    for per, family in ranges.items():
        newest_s: dict[str, float] = {}
        for one, last_s in zip(family.rows, family.last_s.tolist(), strict=True):
            newest_s[one.node] = max(newest_s.get(one.node, -np.inf), last_s)
        patience_s = max(SILENT_S, SILENT_INTERVALS * family.interval_s)
        end_s = max(newest_s.values(), default=0.0)
        told = sorted(node for node, last_s in newest_s.items() if end_s - last_s > patience_s)
        if told:
            more = f" and {len(told) - 8} more" if len(told) > 8 else ""
            found.append(f"exporters that answer no more ({per}): {', '.join(told[:8])}{more}")
    return found


# -- internals -------------------------------------------------------------------------------------------------


def _lost(gpus: FamilyRange, place: int, job: str) -> EventRecord:
    return lost_event(gpus.rows[place], float(gpus.last_s[place]) + gpus.interval_s, job)


def _xids(gpus: FamilyRange, job: str) -> list[EventRecord]:
    """Changed values; a first value that comes later than the GPU itself is a change, too (none is shown before)."""
    codes = gpus.of("gpu_xid_state")
    if codes is None:
        return []
    found = []
    for row in np.flatnonzero((np.nan_to_num(codes) > 0).any(axis=1)).tolist():
        known = np.flatnonzero(np.isfinite(codes[row]))
        values = codes[row, known]
        begun = np.searchsorted(gpus.column_s, gpus.first_s[row] + 2.0 * gpus.interval_s)
        before: float = 0.0 if known[0] > begun else float(values[0])
        for column, value in zip(known.tolist(), values.tolist(), strict=True):
            if value != before and value > 0:
                found.append(xid_event(gpus.rows[row], int(value), float(gpus.column_s[column]), job))
            before = value
    return found


def _links(ports: FamilyRange, name: str, up: float, job: str) -> list[EventRecord]:
    states = ports.of(name)
    if states is None:
        return []
    found = []
    for row in np.flatnonzero((np.nan_to_num(states, nan=up) != up).any(axis=1)).tolist():
        known = np.flatnonzero(np.isfinite(states[row]))
        works: npt.NDArray[np.bool_] = states[row, known] == up
        if not works.any():
            continue  # never up: perhaps there is no cable at all
        # From the first time that it was seen up, as the agent's collector has it.
        for place in range(int(np.argmax(works)) + 1, works.size):
            if works[place] != works[place - 1]:
                time_s = float(ports.column_s[known[place]])
                found.append(link_event(ports.rows[row], bool(works[place]), time_s, job))
    return found
