"""What an incident of slowness carries beside its votes: numbers, and what took a rank's time from it.

A step of length T whose rank waits the share r of the time for a CPU loses r T. If steps have grown by T' - T, and the
time that the first suspect loses by r' T' - r T, that explains the quotient of the two (as of hosts, `detectors.pace`).
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from detectors.job.window import Window
from detectors.verdict.evidence import slowness
from trainwarden.records import IncidentRecord

QUEUED: Final = "rank_run_queue_wait_ratio"
LEVEL_S: Final = 60.0  # before the onset, and of late: over which a level is taken
LEAST_TICKS: Final = 3  # a share of one second says little
EXPLAINED: Final = 0.4  # of the time that steps have grown by, as `detectors.pace.contention` has it
GROWN: Final = 0.01  # the share itself must have: who waits as long as ever is slow for another reason


def evidenced(record: IncidentRecord, window: Window) -> IncidentRecord:
    """`record` of slowness with what is measured now and, once that is known, why its first rank is slow."""
    evidence = slowness(window, record.onset_step)
    told = msgspec.structs.replace(record, evidence=evidence)
    if QUEUED in record.metrics or not (why := _queued(record, window, evidence)):
        return told
    return msgspec.structs.replace(told, reason=f"{record.reason}; {why}", metrics=(*record.metrics, QUEUED))


def _queued(record: IncidentRecord, window: Window, evidence: dict[str, Any]) -> str:
    """How much longer the first suspect has waited for a CPU; empty if that does not explain it, or is not known."""
    rank = next((suspect.rank for suspect in record.suspects if suspect.rank is not None), None)
    before_s, now_s = (float(evidence.get(name, np.nan)) for name in ("healthy_iteration_s", "iteration_s"))
    onset_s = record.onset_s
    if record.kind != "slow_compute" or rank is None or onset_s is None:
        return ""
    times_s, shares = window.board.of_rank("rank", QUEUED, rank)
    usual = shares[(times_s <= onset_s) & (times_s > onset_s - LEVEL_S)]
    late = shares[times_s > max(onset_s, window.now_s - LEVEL_S)]
    if min(usual.size, late.size) < LEAST_TICKS:
        return ""
    before, now = float(np.median(usual)), float(np.median(late))
    if now < before + GROWN or not now * now_s - before * before_s >= EXPLAINED * (now_s - before_s) > 0.0:
        return ""
    return f"rank {rank} waited for a CPU {now:.0%} of the time, {before:.0%} before"
