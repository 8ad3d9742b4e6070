"""What an incident carries beside its votes: of slowness numbers and what took a rank's time, of standstills stacks."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.detectors.job.window import Window
from trainwarden.detectors.peers.cpu_wait import LEAST_TICKS, LEVEL_S, QUEUED, most_explaining, said
from trainwarden.detectors.verdict.ensemble import family_of
from trainwarden.detectors.verdict.evidence import slowness
from trainwarden.detectors.verdict.stacks import with_stacks
from trainwarden.records import IncidentRecord

_HANGS: Final = frozenset({"hang", "collective_mismatch", "data_stall", "checkpoint"})


def evidenced(record: IncidentRecord, window: Window) -> IncidentRecord:
    """`record` with what is measured now and, once that is known, why its first rank is slow or where it stands."""
    if record.kind in _HANGS:
        return with_stacks(record, window.stacks)
    if family_of(record.kind) != "slow":
        return record
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
    late = shares[times_s > max(onset_s, times_s.max(initial=0.0) - LEVEL_S)]
    if min(usual.size, late.size) < LEAST_TICKS:
        return ""
    before, now = float(np.median(usual)), float(np.median(late))
    explained = most_explaining(np.array([before]), np.array([now]), before_s, now_s) is not None
    return f"rank {rank} {said(before, now)}" if explained else ""
