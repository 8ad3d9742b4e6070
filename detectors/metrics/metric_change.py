"""Vote by change: metrics that have just left the level of their last thirty samples."""

from __future__ import annotations

from typing import ClassVar

from detectors.metrics.vote import ModelVote


class MetricChangeVote(ModelVote):
    """Length of the three-sample mean less the thirty-sample mean of all z-scores (`models.zlength` on differences).

    References
    ----------
    Shewhart, 1931 (z-scores), on differences of moving means (Page, Biometrika 41, 1954, on changes of level).

    Examples
    --------
    >>> from detectors.job.state import JobState
    >>> window = JobState("job").window(now_s=0.0)
    >>> vote = MetricChangeVote(MetricChangeVote.Config()); vote.update(window); vote.score(window).reason
    'no model is loaded: run trainwarden train'
    """

    member: ClassVar[str] = "metric_change"
