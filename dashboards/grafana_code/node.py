"""One node: is it heard, is it suspected, and how are its GPUs."""

from __future__ import annotations

from typing import Final

from trainwarden.dashboards.grafana_code.frame import NODE, Line, framed
from trainwarden.dashboards.grafana_code.panels import graph, number, rows, states

_NODE = '{node=~"$node"}'


def _gpu(name: str, renamed: str | None = None, factor: str = "") -> tuple[str, str]:
    """A GPU's value from our agent or dcgm-exporter, which wrote ``Hostname`` before 4.6 and other names since 4.9.

    What is `renamed` is brought into the old unit by `factor`.
    """
    asked = [f'{name}{{{label}=~"$node"}}' for label in ("hostname", "Hostname")]
    if renamed is not None:
        asked.append(f'{renamed}{{hostname=~"$node"}}{factor}')
    return " or ".join(asked), "GPU {{gpu}}"


_LINES: Final[list[Line]] = [
    (
        4,
        [
            number("Nodes", "none", f"count(count by (node) (trainwarden_node_seen_timestamp_seconds{_NODE}))"),
            number(
                "Longest silence",
                "s",
                f"time() - min(trainwarden_node_seen_timestamp_seconds{_NODE})",
                bad_from=60,
            ),
            number("Suspicion", "percentunit", f"max(trainwarden_suspect_score{_NODE}) or vector(0)", bad_from=0.5),
        ],
    ),
    (
        8,
        [
            graph(
                "Since the last heartbeat",
                "s",
                (
                    f"time() - max by (node, training_job) (trainwarden_node_seen_timestamp_seconds{_NODE})",
                    "{{node}} in {{training_job}}",
                ),
            ),
            rows("Suspects of it", "percentunit", f"sort_desc(trainwarden_suspect_score{_NODE})"),
        ],
    ),
    (
        8,
        [
            graph("GPU use", "percent", _gpu("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO", " * 100")),
            graph("SM clock (MHz)", "none", _gpu("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_SM_CLOCK_HERTZ", " / 1e6")),
            graph("Power", "watt", _gpu("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS")),
        ],
    ),
    (
        8,
        [
            graph("Temperature", "celsius", _gpu("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS")),
            graph("Memory in use", "mbytes", _gpu("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES", " / 1048576")),
            graph("Last Xid", "none", _gpu("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR")),
        ],
    ),
    (
        8,
        [
            graph("Uncorrectable memory errors", "none", _gpu("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL")),
            graph("PCIe replays", "none", _gpu("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL")),
            states(
                "Row remap failed",
                _gpu("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"),
                good="no",
                bad="yes",
            ),
        ],
    ),
]


def node() -> str:
    """The dashboard as JSON."""
    return framed(
        "node",
        "trainwarden / node",
        "Is a node heard, is it suspected, and how are its GPUs.",
        [NODE],
        _LINES,
    )
