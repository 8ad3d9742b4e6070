"""Metrics of a few nodes whose error counters stand still for two hours: until one moves, or for good."""

from __future__ import annotations

import numpy as np

from trainwarden.records import MetricsRecord

START_S = 1_000_000.0
NODES, EVERY_S, TICKS = 4, 60.0, 140
_NAMES = ("host_cpu_utilization_ratio", "nic_rdma_responder_cqe_errors_count", "gpu_retired_pages_correctable_count")


def still_records(sick: bool) -> list[tuple[float, MetricsRecord]]:
    """Pairs of (time sent, record); if `sick` the last node's counter grows from the 121st minute on."""
    rng = np.random.default_rng(0)
    records = []
    for tick in range(TICKS):
        time_s = START_S + EVERY_S * tick
        for node in range(NODES):
            grown = float(max(0, tick - 120)) if sick and node == NODES - 1 else 0.0
            row = (rng.uniform(0.4, 0.6), 7.0 + grown, 0.0)
            values = tuple((value,) for value in row)
            record = MetricsRecord(
                job="job", node=f"node{node}", time_s=time_s, devices=("GPU-0",), names=_NAMES, values=values
            )
            records.append((time_s, record))
    return records
