"""The node agent and one file per source. CATALOG is the table of what there is."""

from __future__ import annotations

from typing import Final

from trainwarden.plugins import OptIn

CATALOG: Final[dict[str, str]] = {
    "host": "trainwarden.collectors.host.collector:HostCollector",
    "processes": "trainwarden.collectors.processes.collector:ProcessesCollector",
    "logs": "trainwarden.collectors.logs.collector:LogsCollector",
    "iterations": "trainwarden.collectors.iterations.collector:IterationsCollector",
    "gpu": "trainwarden.collectors.gpu.collector:GpuCollector",
    "nic": "trainwarden.collectors.nic.collector:NicCollector",
    "collective_dumps": "trainwarden.collectors.collectives.dumps:CollectiveDumpsCollector",
    "stacks": "trainwarden.collectors.stacks.collector:StacksCollector",
    "nccl_ras": "trainwarden.collectors.collectives.ras:NcclRasCollector",
    "nccl_calls": "trainwarden.collectors.nccl_profiler.collector:NcclCallsCollector",
    "nccl_inspector": "trainwarden.collectors.nccl_inspector.collector:NcclInspectorCollector",
    "parallel_layout": "trainwarden.collectors.parallel_layout.collector:ParallelLayoutCollector",
    "prometheus": OptIn("trainwarden.collectors.prometheus.collector:PrometheusCollector"),
}
ENTRY_POINTS: Final = "trainwarden.collectors"
