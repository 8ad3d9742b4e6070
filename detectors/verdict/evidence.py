"""The numbers that an incident carries, so that whoever acts need not look them up again."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.detectors.verdict.transfers import transfers

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
