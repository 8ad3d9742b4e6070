"""The table of the trained models' votes: one row for each, and the detector that is made of it.

They differ in little: which model it is, what its silence means, what it weighs among the votes that need company, and
how many samples it takes to open. Weights were chosen on SMD machines 1-2, 1-4, 1-6 and the odd ASD servers
(see docs/metric_models.md): models that look at the level of metrics in nearly the same way have half a voice
each; some did not earn one. They are what votes weigh until a gate has measured it
(`trainwarden.trainer_offline.fit.weights`).
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from trainwarden.detectors.metrics.hysteresis import ModelVoteConfig
from trainwarden.detectors.metrics.vote import ModelVote
from trainwarden.detectors.protocol import Role


class DtwVoteConfig(ModelVoteConfig, frozen=True, kw_only=True):
    """As `ModelVoteConfig`; a comparison stands for five samples, so that 8 of 15 are two comparisons at least.

    That counts comparisons, not time: samples come at the interval that the model was trained at (`pacing`).
    """

    open_samples: Annotated[int, msgspec.Meta(ge=1, le=16)] = 8


def _vote(
    member: str, says: str, source: str, *, weight: float = 1.0, transom: bool = False, **differs: Any
) -> type[ModelVote]:
    """The detector of one row.

    Examples
    --------
    >>> from trainwarden.detectors.job.state import JobState
    >>> window = JobState("job").window(now_s=0.0)
    >>> vote = LofVote(LofVote.Config()); vote.update(window); vote.score(window).reason
    'no model is loaded: run trainwarden train'
    """
    name = "".join(word.capitalize() for word in member.split("_")) + "Vote"
    doc = f"{says}\n\nReferences\n----------\n{source}\n"
    role = Role(reads="scores", weight=weight, transom=transom)
    return type(name, (ModelVote,), {"__doc__": doc, "__module__": __name__, "member": member, "role": role, **differs})


LofVote: Final = _vote(
    "lof",
    "Local density: five-sample means in a sparser place than their normal neighbours are (`models.lof`).",
    "Breunig, Kriegel, Ng, Sander: LOF, SIGMOD 2000; as a vote: TRANSOM (2023), section IV-B.",
    weight=0.0,
    transom=True,
)
NeighborProfileVote: Final = _vote(
    "neighbor_profile",
    "Shape: the newest 16 samples of a metric run unlike any normal stretch (`models.neighbor_profile`).",
    "He, Chu, Wang: Neighbor Profile, ICDE 2020; as a vote: TRANSOM (2023), section IV-B.",
    weight=0.5,  # it is behind the simple baselines
    transom=True,
    silence="warm-up: no whole subsequence without gaps yet",
)
DtwVote: Final = _vote(
    "dtw",
    "Across ranks: metrics that move unlike those of the entity's peers, under banded time warping (`models.dtw`).",
    "Sakoe, Chiba, IEEE Trans. ASSP 26 (1978), section II; as a vote: TRANSOM (2023), section IV-B.",
    transom=True,
    Config=DtwVoteConfig,
    silence="too few ranks, or too few samples yet, to compare",
)
PcaVote: Final = _vote(
    "pca",
    "Joint movement: what the usual common movements of 15-sample means do not explain (`models.pca`).",
    "Shyu, Chen, Sarinnapakorn, Chang, ICDM 2003; Jackson, Mudholkar, Technometrics 21 (1979), section 2.",
    weight=0.5,
)
KmeansVote: Final = _vote(
    "kmeans",
    "State: 15-sample means far from every typical state of normal training (`models.kmeans`).",
    "Lloyd, IEEE Trans. Inf. Theory 28 (1982); Arthur, Vassilvitskii, SODA 2007, section 2.2.",
    weight=0.5,
)
NearestVote: Final = _vote(
    "nearest",
    "Memory: five-sample means far from every normal sample that is remembered (`models.nearest`).",
    "Ramaswamy, Rastogi, Shim, SIGMOD 2000, section 2.",
    weight=0.5,
)
ZlengthVote: Final = _vote(
    "zlength",
    "Size: all metrics together far from their means; the baseline to beat (`models.zlength`).",
    "Shewhart, 1931; Hotelling, Annals of Mathematical Statistics 2 (1931), diagonal.",
    weight=0.0,
)
MetricChangeVote: Final = _vote(
    "metric_change",
    "Change: three-sample means that have just left the last thirty samples (`models.zlength` on differences).",
    "Shewhart, 1931 (z-scores), on differences of moving means (Page, Biometrika 41, 1954, on changes of level).",
)
ForecastVote: Final = _vote(
    "forecast",
    "Course: the mean of the newest ten samples is not what a linear model expects after the thirty before\n"
    "(`models.forecast`).",
    "Luetkepohl: New Introduction to Multiple Time Series Analysis, 2005, section 2.2.",
    silence="warm-up: too few samples yet to forecast from",
)
MetricMeanVote: Final = _vote(
    "metric_mean",
    "All models together: the weighted mean of their rarity, calibrated on its own normal values. A mean of many\n"
    "opinions that are each a little strange ranks faults better than any one of them, and better than a count of\n"
    "those that are strange enough; so it may open an incident by itself.",
    "Aggarwal and Sathe, SIGKDD Explorations 17 (2015), section 4: averaging of outlier scores.",
    weight=2.0,
    whole=True,
)
VOTES: Final[dict[str, type[ModelVote]]] = {
    one.member: one
    for one in (
        LofVote,
        NeighborProfileVote,
        DtwVote,
        PcaVote,
        KmeansVote,
        NearestVote,
        ZlengthVote,
        MetricChangeVote,
        ForecastVote,
    )
}
"""By the name that a model has among versions."""
