"""Vote by memory: far from every normal sample that is remembered."""

from __future__ import annotations

from typing import ClassVar

from detectors.metrics.vote import ModelVote


class NearestVote(ModelVote):
    """Distance of five-sample means to the nearest normal one (`models.nearest`).

    References
    ----------
    Ramaswamy, Rastogi, Shim, SIGMOD 2000, section 2.

    Examples
    --------
    >>> from detectors.job.state import JobState
    >>> window = JobState("job").window(now_s=0.0)
    >>> vote = NearestVote(NearestVote.Config()); vote.update(window); vote.score(window).reason
    'no model is loaded: run trainwarden train'
    """

    member: ClassVar[str] = "nearest"
