"""Step times of many ranks as a detector sees them: windows made from arrays, in blocks of any size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.peers.peer_deviation import Episode, PeerDeviation
from trainwarden.parallelism.claim import Claim, event_fields
from trainwarden.records import EventRecord, IterationRecord

Floats = npt.NDArray[np.float64]
STEP_S = 1.0


def healthy(seed: int, rows: int, ranks: int, noise: float = 0.03) -> Floats:
    """Work of equal ranks in seconds [rows, ranks]."""
    return np.asarray(0.5 * np.exp(np.random.default_rng(seed).normal(0.0, noise, (rows, ranks))))


def layout_event(claim: Claim) -> EventRecord:
    """`claim` as rank 0 tells it."""
    fields = event_fields(claim)
    return EventRecord(id="e", job="job", node="n0", time_s=0.5, kind="parallel_layout", rank=0, fields=fields)


def windows(
    work_s: Floats,
    block: int = 8,
    roles: Sequence[str] = (),
    lanes: str = "duration",
    ids: Sequence[int] = (),
    claim: Claim | None = None,
) -> list[Window]:
    """Windows of `block` new steps each; `lanes`: ``duration`` (no waits), ``compute`` or ``wait`` (all in step)."""
    state, out = JobState("job", rows=2048), []
    state._steps.quiet_left = 0
    if claim is not None:
        state.feed(layout_event(claim))
    whole = np.nanmax(work_s, axis=1) + 0.1
    for start in range(0, len(work_s), block):
        for column in range(work_s.shape[1]):
            rank = ids[column] if ids else column
            rows = [r for r in range(start, min(start + block, len(work_s))) if np.isfinite(work_s[r, column])]
            took = tuple(float(work_s[row, column] if lanes == "duration" else whole[row]) for row in rows)
            split = tuple(float(work_s[row, column]) for row in rows)
            waits = tuple(float(whole[row] - work_s[row, column]) for row in rows)
            state.feed(
                IterationRecord(
                    job="job", node=f"n{rank}", rank=rank, incarnation=f"{rank}-0", steps=tuple(rows),
                    end_s=tuple(STEP_S * (row + 1) for row in rows), duration_s=took,
                    compute_s=split if lanes == "compute" else (), wait_s=waits if lanes != "duration" else (),
                    role=roles[column] if roles else "",
                )
            )  # fmt: skip
        out.append(state.window(STEP_S * (start + block)))
    return out


def watched(work_s: Floats, block: int = 8, **more: object) -> list[Episode]:
    """What the detector finds in `work_s`; windows are shown as they come."""
    detector = PeerDeviation(PeerDeviation.Config())
    state_windows = windows(work_s, block, **more)  # type: ignore[arg-type]
    for window in state_windows:
        detector.update(window)
    return detector.episodes
