"""Clocks that node_exporter's timex collector calls off or not synchronised, beside those of other hosts."""

from __future__ import annotations

from typing import Final

import numpy as np

from trainwarden.formats.verdicts import Verdict, line_of
from trainwarden.recorded.job import Floats, LogTable, MetricTable

OFFSET: Final = "host_clock_offset_seconds"
SYNCHRONISED: Final = "host_clock_synchronised_state"
MOST_OFF_S: Final = 0.05  # awesome-prometheus-alerts, HostClockSkew
LEAST_OTHERS: Final = 3  # that are synchronised, before one that is not stands apart
MOST_SHOWN: Final = 16


def clocks_off(table: MetricTable | None) -> list[LogTable]:
    """Lines about hosts whose newest looks all find the clock off, or, among others that are not so, unsynchronised."""
    if table is None or not {OFFSET, SYNCHRONISED} & set(table.names):
        return []
    offsets, synchronised = _newest(table, OFFSET), _newest(table, SYNCHRONISED)
    off = {key: float(np.median(own)) for key, own in offsets.items() if (np.abs(own) > MOST_OFF_S).all()}
    well = sum(bool((own > 0.5).all()) for own in synchronised.values())
    lost = [key for key, own in synchronised.items() if (own < 0.5).all()] if well >= LEAST_OTHERS else []
    found = []
    for key in sorted({*off, *lost})[:MOST_SHOWN]:
        words = [f"its clock is {off[key]:+.3g} s off"] if key in off else []
        words += [f"it is not synchronised, {well} others are"] if key in lost else []
        rows = np.flatnonzero(table.entity == key)
        node = table.nodes[key]
        line = line_of(Verdict(node or "host", "clock", "; ".join(words)))
        found.append(LogTable("clocks", table.times_s[rows[-1:]].copy(), (node,), (None,), [line]))
    return found


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
