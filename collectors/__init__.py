"""The node agent and one file per source. CATALOG is the table of what there is."""

from __future__ import annotations

from typing import Final

from trainwarden.plugins import OptIn

CATALOG: Final[dict[str, str]] = {
    "host": "collectors.host.collector:HostCollector",
    "processes": "collectors.processes.collector:ProcessesCollector",
    "logs": "collectors.logs.collector:LogsCollector",
    "iterations": "collectors.iterations.collector:IterationsCollector",
    "gpu": "collectors.gpu.collector:GpuCollector",
    "nic": "collectors.nic.collector:NicCollector",
    "collective_dumps": "collectors.collectives.dumps:CollectiveDumpsCollector",
    "stacks": "collectors.stacks.collector:StacksCollector",
    "nccl_ras": "collectors.collectives.ras:NcclRasCollector",
    "nccl_calls": "collectors.nccl_profiler.collector:NcclCallsCollector",
    "nccl_inspector": "collectors.nccl_inspector.collector:NcclInspectorCollector",
    "parallel_layout": "collectors.parallel_layout.collector:ParallelLayoutCollector",
    "prometheus": OptIn("collectors.prometheus.collector:PrometheusCollector"),
}
ENTRY_POINTS: Final = "trainwarden.collectors"
