"""Vote of all trained models together: their weighted, calibrated mean."""

from __future__ import annotations

from typing import ClassVar

from detectors.job.samples import Floats, ScoredSamples
from detectors.metrics.vote import ModelVote


class MetricMeanVote(ModelVote):
    """The weighted mean of the members' rarity, calibrated on its own normal values (`models.vote.MetricVote`).

    A mean of many opinions that are each a little strange ranks faults better than any one of them, and better than a
    count of those that are strange enough. What is usual for an entity (`ModelVoteConfig.usual_share`) keeps it from
    reporting machines that are only differently normal.

    References
    ----------
    Aggarwal and Sathe, SIGKDD Explorations 17 (2015), section 4: averaging of outlier scores.

    Examples
    --------
    >>> from detectors.job.state import JobState
    >>> window = JobState("job").window(now_s=0.0)
    >>> vote = MetricMeanVote(MetricMeanVote.Config()); vote.update(window); vote.score(window).reason
    'no model is loaded: run trainwarden train'
    """

    member: ClassVar[str] = "metric_mean"

    def scores_of(self, scored: ScoredSamples) -> Floats | None:
        """The whole vote's scores."""
        return scored.ensemble
