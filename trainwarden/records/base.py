"""Words with fixed spelling, and the root of all records."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

SCHEMA_VERSION = 1
MAX_LINE_CHARS = 8_192  # a log line is cut here by the collector

Rank = Annotated[int, msgspec.Meta(ge=0, lt=1_000_000)]
Ratio = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]

IncidentKind = Literal[
    "crash", "exception", "hang", "slow_compute", "slow_link", "slow_job", "node_lost", "gpu_lost",
    "gpu_memory_error", "gpu_throttle", "nvlink_error", "pcie_error", "nic_down", "nic_error", "congestion",
    "host_contention", "memory_leak", "out_of_memory", "cuda_out_of_memory", "storage", "data_stall", "checkpoint",
    "collective_mismatch", "silent_corruption", "log_storm", "user_error", "restart_loop", "metric_anomaly",
    "data_quality", "pipeline",
]  # fmt: skip
Severity = Literal["sev1", "sev2", "sev3"]
ActionKind = Literal[
    "ignore", "rebalance", "move_topology", "restart_process", "restart_job", "evict_node", "reconfigure", "stop_job",
    "cordon_node", "uncordon_node", "checkpoint_job", "validate",
]  # fmt: skip
Outcome = Literal["proposed", "started", "done", "failed", "skipped"]
Opinion = Literal["anomalous", "normal", "abstain"]
EventKind = Literal[
    "job_start", "job_end", "process_begun", "process_start", "process_exit", "exception", "fatal_signal", "xid",
    "link_down", "link_up", "device_lost", "heartbeat_lost", "checkpoint", "phase", "microbatch_plan", "restart",
    "collector_unsupported", "clock_step", "flight_recorder", "model", "fabric_down", "fabric_up", "device_back",
    "parallel_layout", "stack", "operation", "transition",
]  # fmt: skip
EVENT_KINDS: frozenset[str] = frozenset(get_args(EventKind))
EVENT_NAME = r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*"  # held of what plug-ins declare; on the wire it costs half a decode
EventName = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
# What survivors of a lost rank spend time on (`trainwarden.transition.step.Transition`).
TRANSITION_PHASES = ("members", "group", "state", "again")
Phase = Literal["start", "compute", "wait", "checkpoint", "data", "evaluation", "exit", "compile"]


def basis_said(basis: str, accelerator: str) -> str:
    """Where times of steps come from, in words; `accelerator` is what the ranks compute on behind the host's back.

    Examples
    --------
    >>> basis_said("host", ""), basis_said("device_step", "cuda")
    ('as the host sees them', 'measured on the device (cuda)')
    >>> basis_said("host", "cuda")
    'as the host launches them: on cuda it does not wait, so who computes and who waits is not known'
    """
    device = accelerator[:40] if accelerator.isprintable() else "a device"  # it came over the bus
    known = {"collectives": "by the stamps of collective calls", "log": "as logged"}
    if basis == "device_step":
        return f"measured on the device ({device})" if device else "measured on the device"
    if basis in known:
        return known[basis]
    if device:
        return f"as the host launches them: on {device} it does not wait, so who computes and who waits is not known"
    return "between marks of the script" if basis == "marks" else "as the host sees them"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of all records; `schema_version` is the version of the writer."""

    schema_version: int = SCHEMA_VERSION
