"""Vote by local density: samples in a sparser place than their normal neighbours are."""

from __future__ import annotations

from typing import ClassVar

from detectors.metrics.vote import ModelVote


class LofVote(ModelVote):
    """Local outlier factor of five-sample means (`models.lof`).

    References
    ----------
    Breunig, Kriegel, Ng, Sander: LOF, SIGMOD 2000; as a vote: TRANSOM (2023), section IV-B.

    Examples
    --------
    >>> from detectors.job.state import JobState
    >>> window = JobState("job").window(now_s=0.0)
    >>> vote = LofVote(LofVote.Config()); vote.update(window); vote.score(window).reason
    'no model is loaded: run trainwarden train'
    """

    member: ClassVar[str] = "lof"
