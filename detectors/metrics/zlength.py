"""Vote by size: all metrics together far from their means; the baseline to beat."""

from __future__ import annotations

from typing import ClassVar

from detectors.metrics.vote import ModelVote


class ZLengthVote(ModelVote):
    """Length of the z-score vector (`models.zlength`).

    References
    ----------
    Shewhart, 1931; Hotelling, Annals of Mathematical Statistics 2 (1931), diagonal.

    Examples
    --------
    >>> from detectors.job.state import JobState
    >>> window = JobState("job").window(now_s=0.0)
    >>> vote = ZLengthVote(ZLengthVote.Config()); vote.update(window); vote.score(window).reason
    'no model is loaded: run trainwarden train'
    """

    member: ClassVar[str] = "zlength"
