"""Vote by state: far from every typical state of normal training."""

from __future__ import annotations

from typing import ClassVar

from detectors.metrics.vote import ModelVote


class KMeansVote(ModelVote):
    """Distance of 15-sample means to the nearest centre (`models.kmeans`).

    References
    ----------
    Lloyd, IEEE Trans. Inf. Theory 28 (1982); Arthur, Vassilvitskii, SODA 2007, section 2.2.

    Examples
    --------
    >>> from detectors.job.state import JobState
    >>> window = JobState("job").window(now_s=0.0)
    >>> vote = KMeansVote(KMeansVote.Config()); vote.update(window); vote.score(window).reason
    'no model is loaded: run trainwarden train'
    """

    member: ClassVar[str] = "kmeans"
