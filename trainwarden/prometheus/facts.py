"""What needs no statistics in what exporters say: new Xids, links that went down, GPUs that fell silent beside others.

A series that ends while its siblings go on is evidence; an exporter that answers no more is none.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.prometheus.cards import lost_cards
from trainwarden.prometheus.events import SILENT_INTERVALS, SILENT_S, UP, link_event, lost_event, xid_event
from trainwarden.prometheus.exporters import Who
from trainwarden.prometheus.fleet import FamilyRange
from trainwarden.records import EventRecord

MAX_EVENTS: Final = 10_000


def facts_of(ranges: dict[str, FamilyRange], job: str) -> list[EventRecord]:
    """Events of `job` in the order of their time."""
    found: list[EventRecord] = []
    if (gpus := ranges.get("gpu")) is not None:
        found += _xids(gpus, job)
        found += [lost_event(who, since_s, job) for who, since_s in fallen_silent(gpus)]
    if (ports := ranges.get("nic")) is not None:
        for name, up in UP.items():
            found += _links(ports, name, up, job)
    return sorted(found, key=lambda event: event.time_s)[:MAX_EVENTS]


def fallen_silent(gpus: FamilyRange) -> list[tuple[Who, float]]:
    """GPUs of which nothing has come for long while others of their node went on, and since when."""
    nodes: dict[str, list[int]] = {}
    for place, one in enumerate(gpus.rows):
        nodes.setdefault(one.node, []).append(place)
    lost = []
    for places in nodes.values():
        told = [(gpus.rows[place], float(gpus.first_s[place]), float(gpus.last_s[place])) for place in places]
        lost += lost_cards(told, max(_patience_s(gpus, place) for place in places))
    return [(who, last_s + gpus.interval_s) for who, last_s in lost]


def silent_nodes(ranges: dict[str, FamilyRange]) -> list[str]:
    """Sentences on exporters that answer no more, which accuses nobody."""
    found = []
    for per, family in ranges.items():
        until_s: dict[str, float] = {}  # so far the patience with each node reaches
        for place, one in enumerate(family.rows):
            own_s = float(family.last_s[place]) + _patience_s(family, place)
            until_s[one.node] = max(until_s.get(one.node, -np.inf), own_s)
        end_s = float(family.last_s.max(initial=0.0))
        told = sorted(node for node, own_s in until_s.items() if end_s > own_s)
        if told:
            more = f" and {len(told) - 8} more" if len(told) > 8 else ""
            found.append(f"exporters that answer no more ({per}): {', '.join(told[:8])}{more}")
    return found


# -- internals -------------------------------------------------------------------------------------------------


def _patience_s(family: FamilyRange, place: int) -> float:
    return max(SILENT_S, SILENT_INTERVALS * float(family.every_s[place]))


def _xids(gpus: FamilyRange, job: str) -> list[EventRecord]:
    """Changed values; a first value that comes later than the row itself is a change, too (none is shown before).

    What is there when a job gets the GPU is of the one before.
    """
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
