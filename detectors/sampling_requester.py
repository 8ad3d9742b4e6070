"""Decides when to sample a job's collective calls more densely: something is slow and no rank is named.

Stragglers and slow links are told by calls of sampled steps, one step in 64 or so; of a job that has become slow the
first verdict would take minutes. So the agents are asked, once in a while and for a few steps that lie ahead, to have
the calls of every step stamped, the same steps in all ranks (`trainwarden.records.SamplingRecord`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.records import SamplingRecord, Vote

STEPS: Final = 32  # sampled in a row; the detectors of calls need three at least, and dozens where much varies
EVERY_S: Final = 600.0  # between two requests: with 32 steps of 1 s, a twentieth of all
LEAD_S: Final = 5.0  # until every agent has heard of it: a window, the bus, and a second each to listen and to look
_LEAST_LEAD: Final = 3  # steps
_RECENT: Final = 16  # steps whose usual time counts
_SLOW: Final = frozenset({"slow_job", "slow_compute", "slow_link", "congestion"})
_NOT_YET: Final = frozenset({"start", "restart", "ended"})


class SamplingRequester:
    """Asks for denser samples of one job.

    Parameters
    ----------
    job : str
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._asked_s = float("-inf")

    def ask(self, window: Window, votes: Mapping[str, Vote]) -> SamplingRecord | None:
        """A request, if these votes call for one and none was made lately."""
        slow = [vote for vote in votes.values() if vote.opinion == "anomalous" and vote.kind in _SLOW]
        named = any(vote.verified and vote.suspects for vote in slow)
        lately = 0.0 <= window.now_s - self._asked_s < EVERY_S
        if not slow or named or lately or window.phase in _NOT_YET:
            return None
        if window.counts is None or not window.counts.comm.size or not len(window.steps):
            return None  # no rank tells of calls
        step_s = float(quiet_median(job_duration_s(window, slice(-_RECENT, None))))
        if not np.isfinite(step_s) or step_s <= 0.0:
            return None
        self._asked_s = window.now_s
        first = int(window.steps[-1]) + max(_LEAST_LEAD, 1 + math.ceil(LEAD_S / step_s))
        return SamplingRecord(
            job=self._job, time_s=window.now_s, from_step=first, until_step=first + STEPS, why=slow[0].reason
        )
