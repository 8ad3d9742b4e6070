"""Vote by shape: the newest stretch of a metric runs unlike any normal stretch."""

from __future__ import annotations

from typing import ClassVar

from detectors.metrics.vote import ModelVote


class NeighborProfileVote(ModelVote):
    """Bagged nearest-neighbour distance of the newest 16 samples of each metric (`models.neighbor_profile`).

    References
    ----------
    He, Chu, Wang: Neighbor Profile, ICDE 2020; as a vote: TRANSOM (2023), section IV-B.

    Examples
    --------
    >>> from detectors.job.state import JobState
    >>> window = JobState("job").window(now_s=0.0)
    >>> vote = NeighborProfileVote(NeighborProfileVote.Config()); vote.update(window); vote.score(window).reason
    'no model is loaded: run trainwarden train'
    """

    member: ClassVar[str] = "neighbor_profile"
    silence: ClassVar[str] = "warm-up: no whole subsequence without gaps yet"
