"""Detectors, the ensemble and the detection service. CATALOG is the table of what there is and runs by default."""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "log_window": "detectors.logs.log_window:LogWindow",
    "template_burst": "detectors.logs.template_burst:TemplateBurst",
    "loss_watch": "detectors.logs.loss_watch:LossWatch",
    "hard_event": "detectors.facts.hard_event:HardEvent",
    "device_limits": "detectors.devices.device_limits:DeviceLimits",
    "device_peers": "detectors.devices.device_peers:DevicePeers",
    "memory_leak": "detectors.devices.memory_leak:MemoryLeak",
    "metric_peers": "detectors.devices.metric_peers:MetricPeers",
    "iteration_threshold": "detectors.pace.iteration_threshold:IterationThreshold",
    "phase_stalls": "detectors.pace.phase_stalls:PhaseStalls",
    "change_point": "detectors.pace.change_point:ChangePoint",
    "peer_deviation": "detectors.peers.peer_deviation:PeerDeviation",
    "collective_waits": "detectors.transfers.collective_waits:CollectiveWaits",
    "collective_links": "detectors.transfers.collective_links:CollectiveLinks",
    "lof": "detectors.metrics.votes:LofVote",
    "neighbor_profile": "detectors.metrics.votes:NeighborProfileVote",
    "dtw": "detectors.metrics.votes:DtwVote",
    "pca": "detectors.metrics.votes:PcaVote",
    "kmeans": "detectors.metrics.votes:KmeansVote",
    "nearest": "detectors.metrics.votes:NearestVote",
    "zlength": "detectors.metrics.votes:ZlengthVote",
    "metric_change": "detectors.metrics.votes:MetricChangeVote",
    "forecast": "detectors.metrics.votes:ForecastVote",
    "still_metrics": "detectors.metrics.still_metrics:StillMetrics",
    "metric_mean": "detectors.metrics.votes:MetricMeanVote",
}
ENTRY_POINTS: Final = "trainwarden.detectors"
