"""The node agent and one file per source. CATALOG is the table of what there is."""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "host": "collectors.host:HostCollector",
    "processes": "collectors.processes:ProcessesCollector",
    "logs": "collectors.logs:LogsCollector",
    "iterations": "collectors.iterations:IterationsCollector",
    "gpu": "collectors.gpu:GpuCollector",
    "nic": "collectors.nic:NicCollector",
    "collective_dumps": "collectors.collective_dumps:CollectiveDumpsCollector",
    "nccl_ras": "collectors.nccl_ras:NcclRasCollector",
}
ENTRY_POINTS: Final = "trainwarden.collectors"
