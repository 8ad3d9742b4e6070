"""Vote by joint movement: what the usual common movements of the metrics do not explain."""

from __future__ import annotations

from typing import ClassVar

from detectors.metrics.vote import ModelVote


class PcaVote(ModelVote):
    """Length of the PCA residual of 15-sample means (`models.pca`).

    References
    ----------
    Shyu, Chen, Sarinnapakorn, Chang, ICDM 2003; Jackson, Mudholkar, Technometrics 21 (1979), section 2.

    Examples
    --------
    >>> from detectors.job.state import JobState
    >>> window = JobState("job").window(now_s=0.0)
    >>> vote = PcaVote(PcaVote.Config()); vote.update(window); vote.score(window).reason
    'no model is loaded: run trainwarden train'
    """

    member: ClassVar[str] = "pca"
