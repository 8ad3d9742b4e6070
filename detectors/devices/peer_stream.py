"""Metrics of eight ranks as their agents would send them: alike up to noise, or with one that has changed."""

from __future__ import annotations

import numpy as np

from trainwarden.records import MetricsRecord

START_S = 1_000_000.0
NODES, RANKS, TICKS = 2, 4, 100
SICK_RANK, SICK_TICK = 6, 45
_NAMES = ("rank_cpu_ratio", "rank_run_queue_wait_ratio", "rank_resident_memory_bytes")


def peer_records(sick: bool) -> list[tuple[float, MetricsRecord]]:
    """Pairs of (time sent, record); if `sick` rank 6 loses half of its processor to others from the 46th second on.

    The second node's clock is 40 s behind, and rank 0 has always had more memory.
    """
    rng = np.random.default_rng(0)
    records = []
    for tick in range(TICKS):
        for node in range(NODES):
            ranks = tuple(range(RANKS * node, RANKS * (node + 1)))
            lost = np.array([0.5 if sick and rank == SICK_RANK and tick >= SICK_TICK else 0.0 for rank in ranks])
            rows = (
                1.6 * (1.0 - lost) + rng.normal(0.0, 0.03, RANKS),
                np.clip(0.1 + lost + rng.normal(0.0, 0.02, RANKS), 0.0, 1.0),
                1.2e9 + np.where(np.array(ranks) == 0, 2e9, 0.0) + rng.normal(0.0, 1e6, RANKS),
            )
            sent_s = START_S + tick + 0.1 * node
            record = MetricsRecord(
                job="job", node=f"node{node}", time_s=sent_s - 40.0 * node, names=_NAMES, ranks=ranks,
                devices=tuple(f"rank-{rank}" for rank in ranks),
                values=tuple(tuple(float(one) for one in row) for row in rows),
            )  # fmt: skip
            records.append((sent_s, record))
    return records
