"""Clocks by node_exporter's timex collector, compared as those of `chronyc` are."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainwarden.formats.host.clocks import Clock, clocks_compared
from trainwarden.recorded.job import Floats, LogTable, MetricTable

OFFSET: Final = "host_clock_offset_seconds"
SYNCHRONISED: Final = "host_clock_synchronised_state"


def clocks_off(table: MetricTable | None) -> list[LogTable]:
    """Lines about hosts whose newest looks all find the clock off, or not synchronised among others that are."""
    if table is None or not {OFFSET, SYNCHRONISED} & set(table.names):
        return []
    offsets, synchronised = _newest(table, OFFSET), _newest(table, SYNCHRONISED)
    clocks = []
    for key in sorted({*offsets, *synchronised}):
        off_s, synced = offsets.get(key), synchronised.get(key)
        clocks.append(Clock(
            table.nodes[key], float(table.times_s[table.entity == key][-1]),
            None if off_s is None else float(np.abs(off_s).min()),
            None if synced is None else not bool((synced < 0.5).all()),
        ))  # fmt: skip
    return clocks_compared(clocks)[0]


def _newest(table: MetricTable, name: str, most: int = 3) -> dict[int, Floats]:
    """The newest values of a metric by host."""
    if name not in table.names:
        return {}
    column = table.values[:, table.names.index(name)]
    found: dict[int, Floats] = {}
    for entity in np.unique(table.entity).tolist():
        own = column[(table.entity == entity) & np.isfinite(column)]
        if own.size:
            found[entity] = own[-most:]
    return found
