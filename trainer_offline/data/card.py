"""What a run was trained and judged on, as it travels with every model version."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.trainer_offline.data.prepare_job import PreparedJob

BY_TIME: Final = "time blocks"  # how the split of a single job begins
DIGEST: Final = 12  # hexadecimal digits: two of a million jobs share them by chance once in 500 runs


class DataCard(msgspec.Struct, kw_only=True):
    """What a run was trained and judged on; travels with every model version."""

    hash: str
    jobs: int
    rows: int
    hours: float
    train_jobs: list[str]
    test_jobs: list[str]
    split: str
    train_rows: int
    test_rows: int
    coverage: dict[str, float] = msgspec.field(default_factory=dict)
    metrics_kept: list[str] = msgspec.field(default_factory=list)
    metrics_dropped: list[dict[str, str]] = msgspec.field(default_factory=list)
    initialisation_s: dict[str, float] = msgspec.field(default_factory=dict)
    ending_s: dict[str, float] = msgspec.field(default_factory=dict)
    every_s: dict[str, float] = msgspec.field(default_factory=dict)
    scales: dict[str, str] = msgspec.field(default_factory=dict)
    train_digests: list[str] = msgspec.field(default_factory=list)
    train_until_s: dict[str, float] = msgspec.field(default_factory=dict)  # by job: the last time learnt from
    notes: list[str] = msgspec.field(default_factory=list)
    weights: dict[str, dict[str, float]] = msgspec.field(default_factory=dict)  # by detector and family


def card_of(
    jobs: Sequence[PreparedJob],
    learnt: Sequence[PreparedJob],
    tested: Sequence[PreparedJob],
    split: str,
    notes: list[str],
) -> DataCard:
    measured: dict[str, Any] = {}
    for job in jobs:
        for key, (count, total) in job.measured.items():
            measured[key] = np.add(measured.get(key, (0, 0)), (count, total))
    return DataCard(
        hash=hashlib.sha256("".join(sorted(job.digest for job in jobs)).encode()).hexdigest(),
        jobs=len(jobs),
        rows=sum(job.rows for job in jobs),
        hours=round(sum(job.hours for job in jobs), 3),
        train_jobs=[job.name for job in learnt],
        test_jobs=[job.name for job in tested],
        train_digests=[job.digest[:DIGEST] for job in learnt],
        train_until_s=_until_s(learnt),
        split=split,
        train_rows=sum(grid.normal_rows for job in learnt for grid in job.grids),
        test_rows=sum(grid.normal_rows for job in tested for grid in job.grids),
        coverage={key: round(float(count / max(total, 1)), 4) for key, (count, total) in sorted(measured.items())},
        metrics_dropped=[
            {"name": name, "why": why} for name, why in {k: v for job in jobs for k, v in job.dropped.items()}.items()
        ],
        initialisation_s={job.name: round(job.initialisation_s, 3) for job in jobs if job.initialisation_s},
        ending_s={job.name: round(job.ending_s, 3) for job in jobs if job.ending_s},
        every_s={grid.family or "rows without device": grid.every_s for job in jobs for grid in job.grids},
        notes=[*notes, *(note for job in jobs for note in job.notes)],
    )


def _until_s(learnt: Sequence[PreparedJob]) -> dict[str, float]:
    found: dict[str, float] = {}
    for job in learnt:
        ends = [float(grid.times_s[grid.normal][-1]) for grid in job.grids if grid.normal.any()]
        if ends:
            found[job.name] = max(*ends, found.get(job.name, ends[0]))
    return found
