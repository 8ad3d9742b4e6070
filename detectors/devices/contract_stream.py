"""Metrics of a few nodes as their agents would send them: healthy, or with a GPU and a port that are not."""

from __future__ import annotations

import numpy as np

from trainwarden.records import MetricsRecord

START_S = 1_000_000.0
NODES, GPUS, EVERY_S, TICKS = 6, 2, 15.0, 24
_NAMES = (
    "gpu_utilization_ratio", "gpu_sm_clock_hertz", "gpu_power_watts", "gpu_temperature_celsius",
    "gpu_pcie_replay_count",
)  # fmt: skip


def device_records(sick: bool) -> list[tuple[float, MetricsRecord]]:
    """Pairs of (time sent, record): six nodes with two GPUs; if `sick` the last GPU is hot, slow and replays."""
    rng = np.random.default_rng(0)
    records = []
    for tick in range(TICKS):
        time_s = START_S + EVERY_S * tick
        for node in range(NODES):
            rows = []
            for gpu in range(GPUS):
                bad = sick and node == NODES - 1 and gpu == GPUS - 1
                row = [
                    0.98,
                    1.98e9 * rng.normal(1.0, 0.002),
                    640 * rng.normal(1.0, 0.01),
                    61 + rng.normal(0.0, 1.0),
                    0.0,
                ]
                rows.append([0.98, 1.2e9, 400.0, 93.0, 40.0 * tick] if bad else row)
            values = tuple(tuple(float(row[name]) for row in rows) for name in range(len(_NAMES)))
            devices = tuple(f"GPU-{node}-{gpu}" for gpu in range(GPUS))
            record = MetricsRecord(
                job="job", node=f"node{node}", time_s=time_s, devices=devices, names=_NAMES, values=values
            )
            records.append((time_s, record))
    return records
