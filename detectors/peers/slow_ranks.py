"""How a vote names ranks that have become slow, and which time of a rank is its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.window import Window
from trainwarden.records import Suspect, Vote


def own_s(window: Window, rows: slice) -> npt.NDArray[np.float64]:
    """Every rank's own time [rows, ranks]: compute, or in rows where nobody's is known the duration without pauses.

    Unknown where that is the time between launches on an asynchronous device.
    """
    work = window.work_s(rows)
    unknown = ~np.isfinite(work).any(axis=1, keepdims=True)
    return np.where(unknown, np.where(window.asynchronous, np.nan, window.busy_s(rows)), work)


def step_of(window: Window, seq: int) -> int:
    """The job's own number of the step in row `seq`, or of the nearest row that is still kept."""
    return int(window.steps[min(max(seq - window.first_seq, 0), len(window.steps) - 1)])


def slow_vote(slow: list[tuple[int, float, int]], window: Window, what: str) -> Vote:
    """The vote that names slow ranks; `slow` are (column, ratio, onset sequence number), worst first."""
    suspects = []
    worst = np.log(slow[0][1])
    for column, ratio, _ in slow:
        reason = f"computes {ratio:.2f} times as long as it did, relative to the other ranks"
        rank, node = int(window.ranks[column]), window.nodes[column]
        suspects.append(Suspect(score=min(1.0, float(np.log(ratio) / worst)), reason=reason, rank=rank, node=node))
    onset = min(entry[2] for entry in slow)
    excess = float(worst / np.log(1.15))
    return Vote(
        opinion="anomalous",
        score=excess / (1.0 + excess),
        reason=f"rank {suspects[0].rank}: {what} {slow[0][1]:.2f} times",
        kind="slow_compute",
        severity="sev3",
        suspects=tuple(suspects),
        onset_s=float(window.ends_s[min(max(0, onset - window.first_seq), len(window.steps) - 1)]),
        onset_step=step_of(window, onset),
        at_step=int(window.steps[-1]),
        verified=True,
        metrics=("iteration_compute_seconds",),
    )
