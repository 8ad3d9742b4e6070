"""Vote across ranks: metrics that move unlike those of the entity's peers."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from detectors.metrics.vote import ModelVote, ModelVoteConfig


class DtwVoteConfig(ModelVoteConfig, frozen=True, kw_only=True):
    """As `ModelVoteConfig`; a comparison stands for five samples, so that 8 of 15 are two comparisons at least."""

    open_samples: Annotated[int, msgspec.Meta(ge=1, le=16)] = 8


class DtwVote(ModelVote):
    """Distance to the group's median series under banded time warping (`models.dtw`).

    References
    ----------
    Sakoe, Chiba, IEEE Trans. ASSP 26 (1978), section II; as a vote: TRANSOM (2023), section IV-B.

    Examples
    --------
    >>> from detectors.job.state import JobState
    >>> window = JobState("job").window(now_s=0.0)
    >>> vote = DtwVote(DtwVote.Config()); vote.update(window); vote.score(window).reason
    'no model is loaded: run trainwarden train'
    """

    Config = DtwVoteConfig
    member: ClassVar[str] = "dtw"
    silence: ClassVar[str] = "too few ranks, or too few samples yet, to compare"
