"""Detectors, the ensemble and the detection service. CATALOG is the table of what there is and runs by default."""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "log_window": "trainwarden.detectors.logs.log_window:LogWindow",
    "template_burst": "trainwarden.detectors.logs.template_burst:TemplateBurst",
    "loss_watch": "trainwarden.detectors.logs.loss_watch:LossWatch",
    "hard_event": "trainwarden.detectors.facts.hard_event:HardEvent",
    "device_limits": "trainwarden.detectors.devices.device_limits:DeviceLimits",
    "device_peers": "trainwarden.detectors.devices.device_peers:DevicePeers",
    "memory_leak": "trainwarden.detectors.devices.memory_leak:MemoryLeak",
    "metric_peers": "trainwarden.detectors.devices.metric_peers:MetricPeers",
    "iteration_threshold": "trainwarden.detectors.pace.iteration_threshold:IterationThreshold",
    "phase_stalls": "trainwarden.detectors.pace.phase_stalls:PhaseStalls",
    "change_point": "trainwarden.detectors.pace.change_point:ChangePoint",
    "peer_deviation": "trainwarden.detectors.peers.peer_deviation:PeerDeviation",
    "cpu_time": "trainwarden.detectors.peers.cpu_time:CpuTime",
    "collective_waits": "trainwarden.detectors.transfers.collective_waits:CollectiveWaits",
    "collective_links": "trainwarden.detectors.transfers.collective_links:CollectiveLinks",
    "lof": "trainwarden.detectors.metrics.votes:LofVote",
    "neighbor_profile": "trainwarden.detectors.metrics.votes:NeighborProfileVote",
    "dtw": "trainwarden.detectors.metrics.votes:DtwVote",
    "pca": "trainwarden.detectors.metrics.votes:PcaVote",
    "kmeans": "trainwarden.detectors.metrics.votes:KmeansVote",
    "nearest": "trainwarden.detectors.metrics.votes:NearestVote",
    "zlength": "trainwarden.detectors.metrics.votes:ZlengthVote",
    "metric_change": "trainwarden.detectors.metrics.votes:MetricChangeVote",
    "forecast": "trainwarden.detectors.metrics.votes:ForecastVote",
    "still_metrics": "trainwarden.detectors.metrics.still_metrics:StillMetrics",
    "metric_mean": "trainwarden.detectors.metrics.votes:MetricMeanVote",
}
ENTRY_POINTS: Final = "trainwarden.detectors"
