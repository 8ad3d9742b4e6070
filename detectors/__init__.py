"""One file per detector, the ensemble and the detection service. CATALOG is the table of what there is."""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "log_window": "detectors.logs.log_window:LogWindow",
    "template_burst": "detectors.logs.template_burst:TemplateBurst",
    "hard_event": "detectors.facts.hard_event:HardEvent",
    "iteration_threshold": "detectors.pace.iteration_threshold:IterationThreshold",
    "change_point": "detectors.pace.change_point:ChangePoint",
    "peer_deviation": "detectors.peers.peer_deviation:PeerDeviation",
    "lof": "detectors.metrics.lof:LofVote",
    "neighbor_profile": "detectors.metrics.neighbor_profile:NeighborProfileVote",
    "dtw": "detectors.metrics.dtw:DtwVote",
    "pca": "detectors.metrics.pca:PcaVote",
    "kmeans": "detectors.metrics.kmeans:KMeansVote",
    "nearest": "detectors.metrics.nearest:NearestVote",
    "zlength": "detectors.metrics.zlength:ZLengthVote",
    "metric_change": "detectors.metrics.metric_change:MetricChangeVote",
    "metric_mean": "detectors.metrics.metric_mean:MetricMeanVote",
}
ENTRY_POINTS: Final = "trainwarden.detectors"
