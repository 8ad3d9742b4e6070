"""Lines of a trainer that prints its loss: as it should be, or not a number from the middle on."""

from __future__ import annotations

import numpy as np

from trainwarden.records import LogRecord

START_S = 1_000_000.0
_LINES = 60


def loss_records(sick: bool) -> list[tuple[float, LogRecord]]:
    """Pairs of (time sent, record): a line a second; if `sick` the loss is NaN from the 40th line on."""
    rng = np.random.default_rng(0)
    records = []
    for step in range(_LINES):
        time_s = START_S + step
        loss = "nan" if sick and step >= 40 else f"{4.0 - 0.01 * step + rng.normal(0.0, 0.02):.4f}"
        line = f"step {step} | loss: {loss} | grad_norm: {rng.uniform(0.8, 1.2):.3f}"
        record = LogRecord(
            job="job",
            node="node0",
            source="rank-0.log",
            rank=0,
            ends=(80 * (step + 1),),
            lines=(line,),
            times_s=(time_s,),
        )
        records.append((time_s, record))
    return records
