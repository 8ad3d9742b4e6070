"""Make-believe dcgm-exporter and node_exporter: what they serve, now or for a stretch of time, with faults in it.

The text is what the real ones write, in both generations of dcgm-exporter's names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

Fault = Callable[[float], float]
"""Seconds since the fault began -> value, in the units of the generation before 4.9."""

# Field -> usual value (by the older names and units), and the newer name with its factor.
GPU_FIELDS: dict[str, tuple[float, str, float]] = {
    "DCGM_FI_DEV_SM_CLOCK": (1980.0, "DCGM_FI_DEV_SM_CLOCK_HERTZ", 1e6),
    "DCGM_FI_DEV_MEM_CLOCK": (2619.0, "DCGM_FI_DEV_MEMORY_CLOCK_HERTZ", 1e6),
    "DCGM_FI_DEV_MEMORY_TEMP": (70.0, "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS", 1.0),
    "DCGM_FI_DEV_GPU_TEMP": (62.0, "DCGM_FI_DEV_GPU_TEMP_CELSIUS", 1.0),
    "DCGM_FI_DEV_POWER_USAGE": (640.0, "DCGM_FI_DEV_BOARD_POWER_WATTS", 1.0),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": (5e9, "DCGM_FI_DEV_GPU_ENERGY_JOULES_TOTAL", 1e-3),
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": (3.0, "DCGM_FI_DEV_PCIE_REPLAY_TOTAL", 1.0),
    "DCGM_FI_DEV_GPU_UTIL": (98.0, "DCGM_FI_DEV_GPU_UTIL_RATIO", 0.01),
    "DCGM_FI_DEV_MEM_COPY_UTIL": (55.0, "DCGM_FI_DEV_MEMORY_UTIL_RATIO", 0.01),
    "DCGM_FI_DEV_XID_ERRORS": (0.0, "DCGM_FI_DEV_XID_ERROR", 1.0),
    "DCGM_FI_DEV_FB_FREE": (8000.0, "DCGM_FI_DEV_FB_FREE_BYTES", 1048576.0),
    "DCGM_FI_DEV_FB_USED": (73000.0, "DCGM_FI_DEV_FB_USED_BYTES", 1048576.0),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": (0.0, "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL", 1.0),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": (0.0, "DCGM_FI_DEV_ROW_REMAP_CORRECTABLE_TOTAL", 1.0),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": (0.0, "DCGM_FI_DEV_ROW_REMAP_FAILED", 1.0),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": (0.97, "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO", 1.0),
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": (0.42, "DCGM_FI_PROF_TENSOR_UTIL_RATIO", 1.0),
    "DCGM_FI_PROF_DRAM_ACTIVE": (0.31, "DCGM_FI_PROF_DRAM_UTIL_RATIO", 1.0),
    # Not among the defaults, but often switched on.
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": (0.0, "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 1.0),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": (0.0, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1.0),
}
NOISY = frozenset(
    {"DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_MEMORY_TEMP"}
)
PORT_FIELDS: dict[str, float] = {
    "node_infiniband_state_id": 4.0,
    "node_infiniband_physical_state_id": 5.0,
    "node_infiniband_rate_bytes_per_second": 5e10,
    "node_infiniband_symbol_error_total": 0.0,
    "node_infiniband_link_downed_total": 1.0,
    "node_infiniband_link_error_recovery_total": 0.0,
    "node_infiniband_local_ack_timeout_errors_total": 2.0,
    "node_infiniband_port_errors_received_total": 0.0,
    "node_infiniband_port_discards_transmitted_total": 12.0,
}
HOST_FIELDS: dict[str, float] = {"node_load1": 12.0, "node_network_up": 1.0}


@dataclass
class Cluster:
    """Nodes with GPUs and ports, healthy unless told otherwise.

    Attributes
    ----------
    renamed : collection of int
        Nodes with a dcgm-exporter of 4.9 or newer.
    faults : dict
        By (node, device, field by its older name); a device is a GPU's index or a port's name.
    since_s : float
        When faults begin.
    gone : dict
        When a device's series end, or with device None those of the whole dcgm-exporter.
    labels : callable
        Further labels of a GPU.
    """

    nodes: int = 4
    gpus: int = 8
    ports: int = 2
    renamed: frozenset[int] = frozenset()
    fields: dict[str, tuple[float, str, float]] = field(default_factory=lambda: dict(GPU_FIELDS))
    faults: dict[tuple[int, str, str], Fault] = field(default_factory=dict)
    since_s: float = 0.0
    gone: dict[tuple[int, str | None], float] = field(default_factory=dict)
    labels: Callable[[int, int], dict[str, str]] = lambda node, gpu: {}
    seed: int = 0

    def uuid(self, node: int, gpu: int) -> str:
        return f"GPU-{node:08x}-0000-4000-8000-{gpu:012x}"

    def dcgm(self, node: int, time_s: float) -> Iterator[tuple[str, dict[str, str], float]]:
        """Name, labels and value of every sample of a node's dcgm-exporter."""
        renamed = node in self.renamed
        if time_s >= self.gone.get((node, None), float("inf")):
            return
        for name, (usual, newer, scale) in self.fields.items():
            for gpu in range(self.gpus):
                if time_s >= self.gone.get((node, str(gpu)), float("inf")):
                    continue
                value = self._value(node, str(gpu), name, usual, time_s)
                labels = {
                    "gpu": str(gpu), "UUID": self.uuid(node, gpu), "pci_bus_id": f"00000000:{gpu:02X}:00.0",
                    "device": f"nvidia{gpu}", "modelName": "NVIDIA H100 80GB HBM3",
                    ("hostname" if renamed else "Hostname"): f"gpu-{node:04d}", **self.labels(node, gpu),
                }  # fmt: skip
                if name == "DCGM_FI_DEV_XID_ERRORS" and value:
                    labels |= {"err_code": f"{value:.0f}", "err_msg": "as the driver says it"}
                yield (newer, labels, value * scale) if renamed else (name, labels, value)

    def node(self, node: int, time_s: float) -> Iterator[tuple[str, dict[str, str], float]]:
        """The same of its node_exporter."""
        yield "node_uname_info", {"nodename": f"gpu-{node:04d}", "sysname": "Linux"}, 1.0
        for name, usual in PORT_FIELDS.items():
            for port in range(self.ports):
                device = f"mlx5_{port}"
                if time_s < self.gone.get((node, device), float("inf")):
                    yield name, {"device": device, "port": "1"}, self._value(node, device, name, usual, time_s)
        yield "node_load1", {}, 12.0
        yield "node_network_up", {"device": "lo"}, 1.0
        yield "node_network_up", {"device": "eth0"}, self._value(node, "eth0", "node_network_up", 1.0, time_s)

    def text(self, kind: str, node: int, time_s: float) -> str:
        """What an exporter serves at `time_s`."""
        lines, last = [], ""
        for name, labels, value in (self.dcgm if kind == "dcgm" else self.node)(node, time_s):
            if name != last:
                what = "counter" if name.endswith("_total") or "COUNTER" in name else "gauge"
                lines += [f"# HELP {name} As it says.", f"# TYPE {name} {what}"]
                last = name
            lines.append(f"{_series(name, labels)} {value:.10g}")
        return "\n".join(lines) + "\n"

    def history(self, start_s: float, end_s: float, every_s: float = 15.0) -> Iterable[str]:
        """OpenMetrics lines of all exporters as a Prometheus would have scraped them, metric by metric."""
        samples: dict[str, dict[str, list[str]]] = {}
        for node in range(self.nodes):
            for kind, port, phase in (("dcgm", 9400, 0.37), ("node", 9100, 0.71)):
                tell = self.dcgm if kind == "dcgm" else self.node
                time_s = start_s + ((node * phase) % 1.0) * every_s
                while time_s < end_s:
                    for name, labels, value in tell(node, time_s):
                        series = _series(
                            name, labels | {"instance": f"10.0.{node >> 8}.{node & 255}:{port}", "job": kind}
                        )
                        samples.setdefault(name, {}).setdefault(series, []).append(f"{value:.10g} {time_s:.3f}")
                    time_s += every_s
        for name in sorted(samples):
            yield f"# TYPE {name} unknown\n"
            for series, values in samples[name].items():
                yield "".join(f"{series} {value}\n" for value in values)
        yield "# EOF\n"

    def write_history(self, path: Path, start_s: float, end_s: float, every_s: float = 15.0) -> None:
        """The same as a file."""
        with path.open("w") as file:
            file.writelines(self.history(start_s, end_s, every_s))

    def _value(self, node: int, device: str, name: str, usual: float, time_s: float) -> float:
        fault = self.faults.get((node, device, name))
        if fault is not None and time_s >= self.since_s:
            return fault(time_s - self.since_s)
        if name == "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION":
            return usual + 640_000.0 * (time_s - self.since_s + 86_400.0)
        if name in NOISY:
            noise = random.Random(hash((self.seed, node, device, name, round(time_s * 1000)))).gauss(0.0, 0.01)
            return round(usual * (1.0 + noise), 1)
        return usual


def _series(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name
