"""Uncorrectable memory errors that a single look at GPUs shows: nothing grows, and a reset would have cleared them.

Each becomes a line ``health check: DEVICE memory failed: words``, as those of `trainwarden.formats.gpu.health_reports`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trainwarden.recorded.job import LogTable, MetricTable

COUNT: Final = "gpu_ecc_uncorrectable_volatile_count"


def kept_errors(table: MetricTable | None) -> list[LogTable]:
    """Lines about devices with errors, of a table with one row for each device."""
    if table is None or COUNT not in table.names or np.unique(table.entity).size < table.entity.size:
        return []
    counts = table.values[:, table.names.index(COUNT)]
    rows = np.flatnonzero(counts > 0.0)
    if not rows.size:
        return []
    owners = table.entity[rows].tolist()
    lines = [
        f"health check: {table.devices[one] or 'gpu'} memory failed: {count:.0f} uncorrectable errors since its reset"
        for one, count in zip(owners, counts[rows].tolist(), strict=True)
    ]
    nodes, ranks = tuple(table.nodes[one] for one in owners), tuple(table.ranks[one] for one in owners)
    return [LogTable("memory errors", table.times_s[rows].copy(), nodes, ranks, lines)]
