"""Files of other tools, read as they are. CATALOG is the table of formats.

Read `trainwarden.formats.protocol` first.
"""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "recorded table": "trainwarden.formats.tables.ours:OurTable",
    "parquet table": "trainwarden.formats.tables.parquet:ParquetTable",
    "excel table": "trainwarden.formats.tables.excel:ExcelTable",
    "mlflow database": "trainwarden.formats.trackers.mlflow_database:MlflowDatabase",
    "flight recorder": "trainwarden.formats.dumps.flight_recorder:FlightRecorder",
    "process stacks": "trainwarden.formats.dumps.stacks:ProcessStacks",
    "health report": "trainwarden.formats.gpu.health_reports:HealthReport",
    "gpud states": "trainwarden.formats.gpu.gpud_states:GpudStates",
    "gpu records": "trainwarden.formats.gpu.gpu_records:GpuRecords",
    "nvidia-smi csv": "trainwarden.formats.gpu.smi_csv:NvidiaSmiCsv",
    "nvidia-smi text": "trainwarden.formats.gpu.smi_text:NvidiaSmiText",
    "amd-smi json": "trainwarden.formats.gpu.amd_json:AmdJson",
    "amd-smi text": "trainwarden.formats.gpu.amd_text:AmdText",
    "accelerator table": "trainwarden.formats.gpu.accelerator_tables:AcceleratorTable",
    "neuron-monitor": "trainwarden.formats.gpu.neuron_monitor:NeuronMonitor",
    "nccl ras": "trainwarden.formats.dumps.ras:RasAnswer",
    "nccl inspector": "trainwarden.formats.dumps.inspector:Inspector",
    "kineto trace": "trainwarden.formats.dumps.kineto:Kineto",
    "kernel sums": "trainwarden.formats.dumps.kernel_sums:KernelTable",
    "port counters": "trainwarden.formats.fabric.ports:Ports",
    "port settings": "trainwarden.formats.fabric.ethtool:Ethtool",
    "fabric errors": "trainwarden.formats.fabric.ib_errors:FabricErrors",
    "fabric links": "trainwarden.formats.fabric.link_map:LinkMap",
    "fabric counters": "trainwarden.formats.fabric.ibdiagnet:Ibdiagnet",
    "socket list": "trainwarden.formats.fabric.sockets:Sockets",
    "nccl tests": "trainwarden.formats.fabric.nccl_tests:NcclTests",
    "pair matrix": "trainwarden.formats.fabric.pair_matrix:PairTable",
    "interface list": "trainwarden.formats.fabric.interfaces:Interfaces",
    "pci list": "trainwarden.formats.host.pci:PciList",
    "sar report": "trainwarden.formats.host.sar:SarReport",
    "sadf report": "trainwarden.formats.host.sadf:Sadf",
    "iostat report": "trainwarden.formats.host.iostat:Iostat",
    "drive report": "trainwarden.formats.host.drives:Drives",
    "clock report": "trainwarden.formats.host.clocks:Clocks",
    "board sensors": "trainwarden.formats.host.board_sensors:BoardSensors",
    "disk report": "trainwarden.formats.host.disks:Disks",
    "kubernetes objects": "trainwarden.formats.scheduler.pods:Pods",
    "slurm table": "trainwarden.formats.scheduler.slurm:SlurmTable",
    "dmon": "trainwarden.formats.gpu.monitors:Monitor",
    "exporter text": "trainwarden.formats.exporters.exposition:Exposition",
    "prometheus json": "trainwarden.formats.exporters.query_range:QueryRange",
    "service json": "trainwarden.formats.exporters.service_json:ServiceJson",
    "sample lines": "trainwarden.formats.exporters.sample_lines:SampleLines",
    "tensorboard events": "trainwarden.formats.trackers.event_file:EventFile",
    "annotated csv": "trainwarden.formats.exporters.annotated:AnnotatedCsv",
    "one series": "trainwarden.formats.trackers.one_series:OneSeries",
    "json records": "trainwarden.formats.trackers.records:JsonRecords",
    "log records": "trainwarden.formats.text.log_records:LogRecords",
    "table": "trainwarden.formats.tables.plain:PlainTable",
    "log text": "trainwarden.formats.text.log_text:LogText",
}
"""Name of each format, and its class; of formats that are equally certain of a file the first one reads it."""
