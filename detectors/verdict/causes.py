"""What an incident carries beside its votes: of slowness numbers and what took a rank's time, of standstills stacks.

The numbers that an incident carries, so that whoever acts need not look them up again.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.detectors.peers.cpu_wait import LEAST_TICKS, LEVEL_S, QUEUED, most_explaining, said
from trainwarden.detectors.verdict.ensemble import family_of
from trainwarden.detectors.verdict.stacks import with_stacks
from trainwarden.detectors.verdict.transfers import transfers
from trainwarden.records import IncidentRecord

RECENT: Final = 10  # steps that a level is taken over


def slowness(window: Window, onset_step: int | None) -> dict[str, Any]:
    """Healthy and present step time, and every rank's recent compute time as measured.

    Returns
    -------
    dict
        ``healthy_iteration_s``, ``iteration_s``, ``slow_iterations``, ``ranks``, ``compute_s`` (not normalised),
        ``micro_batches`` (absent if not declared), ``ratio``, ``basis`` and ``accelerator`` of most ranks, ``layout``,
        ``transfers`` between nodes; unknown values are left out.
    """
    if len(window.steps) == 0:
        return {}
    # Steps may be numbered again after a restart, so the onset is looked for from the end.
    before = np.flatnonzero(window.steps < onset_step) if onset_step is not None else np.zeros(0, dtype=np.intp)
    split = int(before[-1]) + 1 if before.size else 0
    split = min(split, len(window.steps) - 1)
    duration = job_duration_s(window, slice(None))
    healthy = duration[:split][~window.quiet_rows[:split]][-3 * RECENT :]
    slow = duration[split:]
    out: dict[str, Any] = {"slow_iterations": len(slow)}
    out |= _known("healthy_iteration_s", float(quiet_median(healthy)))
    recent = slow[-RECENT:]
    out |= _known("iteration_s", float(quiet_median(recent)))
    if out.get("healthy_iteration_s") and out.get("iteration_s"):
        out["ratio"] = out["iteration_s"] / out["healthy_iteration_s"]
    rows = slice(max(split, len(window.steps) - RECENT), None)
    return out | _basis(window) | _layout(window) | _per_rank(window, rows) | transfers(window, onset_step)


def _basis(window: Window) -> dict[str, Any]:
    """Where the times of most ranks come from, and what they compute on."""
    said = Counter(pair for pair in window.bases if pair[0])
    if not said:
        return {}
    basis, accelerator = said.most_common(1)[0][0]
    return {"basis": basis} | ({"accelerator": accelerator} if accelerator else {})


def _layout(window: Window) -> dict[str, Any]:
    return {} if window.layout is None else {"layout": msgspec.to_builtins(window.layout)}


def _per_rank(window: Window, rows: slice) -> dict[str, Any]:
    compute = window.compute_s[rows].astype(np.float64)
    known = np.flatnonzero(np.isfinite(compute).any(axis=0) & window.live)
    if known.size == 0:
        return {}
    order = known[np.argsort(window.ranks[known])]
    shares = window.micro_batches[rows].astype(np.float64)
    newest = shares[-1, order]
    if np.isfinite(newest).all():
        # Only steps with the present plan: compute of another share is no measure of this one.
        same = (shares[:, order] == newest).all(axis=1)
        compute = compute[same]
    level = quiet_median(compute[:, order])
    if not np.isfinite(level).all():
        level = quiet_median(window.compute_s[rows].astype(np.float64)[:, order])
    out: dict[str, Any] = {
        "ranks": [int(rank) for rank in window.ranks[order]],
        "compute_s": [round(float(value), 6) for value in level],
    }
    if np.isfinite(newest).all():
        out["micro_batches"] = [int(share) for share in newest]
    return out


def _known(name: str, value: float) -> dict[str, Any]:
    return {name: value} if np.isfinite(value) else {}


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
