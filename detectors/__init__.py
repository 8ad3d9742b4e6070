"""One file per detector, the ensemble and the detection service. CATALOG is the table of what there is."""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "log_window": "detectors.log_window:LogWindow",
    "template_burst": "detectors.template_burst:TemplateBurst",
    "hard_event": "detectors.hard_event:HardEvent",
    "iteration_threshold": "detectors.iteration_threshold:IterationThreshold",
    "change_point": "detectors.change_point:ChangePoint",
    "peer_deviation": "detectors.peer_deviation:PeerDeviation",
    "lof": "detectors.lof:LofVote",
    "neighbor_profile": "detectors.neighbor_profile:NeighborProfileVote",
    "dtw": "detectors.dtw:DtwVote",
    "pca": "detectors.pca:PcaVote",
    "kmeans": "detectors.kmeans:KMeansVote",
    "nearest": "detectors.nearest:NearestVote",
    "zlength": "detectors.zlength:ZLengthVote",
    "metric_change": "detectors.metric_change:MetricChangeVote",
    "metric_mean": "detectors.metric_mean:MetricMeanVote",
}
ENTRY_POINTS: Final = "trainwarden.detectors"
