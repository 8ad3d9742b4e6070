"""What dcgm-exporter and node_exporter call things: names, factors, blanks, and who a series is about.

Both generations of dcgm-exporter are known (4.9 renamed 23 fields, 11 of them with another unit); clusters mix them.
The names themselves stand in the catalogue, as aliases.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from trainwarden.catalogue import ALIASES, CATALOGUE

MAX_LABEL_CHARS: Final = 256
REASONS: Final = "gpu_clock_event_reasons_state"
# nvmlClocksEventReason (NVML API reference): heat, the hardware's own doing, and the power cap or brake.
REASON_BITS: Final = {
    "gpu_throttle_thermal_state": 0x20 | 0x40, "gpu_throttle_hardware_state": 0x08 | 0x40 | 0x80,
    "gpu_throttle_power_state": 0x04 | 0x80,
}  # fmt: skip
BLANKS: Final = ((2147483632.0, 2147483635.0), (140737488355328.0, 140737488355331.0))
MOST: Final = 9.2e18  # and what is larger, 64-bit blanks and the like
_PERCENT: Final = "_UTIL_RATIO"
_FROM: Final = ("DCGM_", "node_")
# Interfaces without a cable of their own, as the agent's collector leaves them out.
_VIRTUAL: Final = (
    "lo", "veth*", "docker*", "br-*", "virbr*", "cni*", "flannel*", "cali*", "cilium*", "lxc*", "tunl*", "kube-*",
    "nodelocaldns", "dummy*", "ifb*", "tap*", "vnet*", "bond*", "vlan*", "wlan*",
)  # fmt: skip
_HOSTS: Final = ("hostname", "Hostname", "nodename")
_MODELS: Final = ("modelName", "model_name")
_NUMBER: Final = re.compile(r"[0-9]+")


class Who(NamedTuple):
    """Who a series is about; `uuid` is the GPU's, with the number of its MIG instance where it has any."""

    node: str
    device: str
    uuid: str = ""

    @property
    def card(self) -> Who:
        """The whole GPU of a MIG instance, which may be divided otherwise tomorrow.

        Examples
        --------
        >>> Who("gpu-7", "3/11", "GPU-ab/11").card
        Who(node='gpu-7', device='3', uuid='GPU-ab')
        """
        return Who(self.node, self.device.partition("/")[0], self.uuid.partition("/")[0])


def spellings(wanted: Collection[str] | None = None) -> dict[str, str]:
    """Exporters' names and the catalogue's for each, of the metrics `wanted` (default all that exporters have).

    Examples
    --------
    >>> sorted(spellings({"gpu_sm_clock_hertz"}))
    ['DCGM_FI_DEV_SM_CLOCK', 'DCGM_FI_DEV_SM_CLOCK_HERTZ']
    """
    names = {alias: name for alias, name in ALIASES.items() if alias.startswith(_FROM)}
    return names if wanted is None else {alias: name for alias, name in names.items() if name in wanted}


def factor(alias: str) -> float:
    """What a value under an exporter's name is to be multiplied by."""
    return CATALOGUE[ALIASES[alias]].scale_of(alias)


def is_blank(value: float) -> bool:
    """Whether a value is DCGM's mark for "not supported" and the like, or not finite.

    Examples
    --------
    >>> [is_blank(one) for one in (61.0, 2147483632.0, 140737488355330.0, 9.3e18, float("nan"))]
    [False, True, True, True, True]
    """
    size = abs(value)
    return not size < MOST or any(low <= size <= high for low, high in BLANKS)


def is_percent(alias: str, largest: float) -> bool:
    """Whether a field that is called a ratio holds percents, as DCGM 4.6 has it: no ratio is above 1.

    Examples
    --------
    >>> is_percent("DCGM_FI_DEV_GPU_UTIL_RATIO", 97.0), is_percent("DCGM_FI_DEV_GPU_UTIL_RATIO", 1.0)
    (True, False)
    """
    return alias.endswith(_PERCENT) and largest > 1.0


def who(labels: Mapping[str, str], per: str, nodes: Mapping[str, str] | None = None) -> Who | None:
    """Node and device of a series; None if it is about nothing that is watched.

    Parameters
    ----------
    labels : mapping
        Of the series. ``job`` is the scrape job and says nothing.
    per : str
        The catalogue's `per` of its metric.
    nodes : mapping, optional
        Names of hosts by ``instance`` without its port, for exporters that do not tell theirs.

    Examples
    --------
    >>> who({"instance": "10.0.0.7:9400", "Hostname": "gpu-7", "gpu": "3", "UUID": "GPU-ab", "job": "dcgm"}, "gpu")
    Who(node='gpu-7', device='3', uuid='GPU-ab')
    >>> who({"instance": "10.0.0.7:9100", "device": "mlx5_0", "port": "1"}, "nic", {"10.0.0.7": "gpu-7"})
    Who(node='gpu-7', device='mlx5_0:1', uuid='')
    """
    node = _host(labels, nodes or {})
    if not node:
        return None
    if per == "gpu":
        return _gpu(labels, node)
    device = labels.get("device", "")[:MAX_LABEL_CHARS]
    if per == "nic":
        if not device or is_virtual(device):
            return None
        port = labels.get("port", "")[:MAX_LABEL_CHARS]
        return Who(node, f"{device}:{port}" if port else device)
    return None if device or "mountpoint" in labels else Who(node, "host")


def _gpu(labels: Mapping[str, str], node: str) -> Who | None:
    uuid = (labels.get("UUID") or labels.get("gpu_uuid") or labels.get("uuid") or "")[:MAX_LABEL_CHARS]
    index = (labels.get("gpu") or labels.get("gpu_id") or labels.get("card") or "")[:MAX_LABEL_CHARS]
    if not index:
        digits = _NUMBER.findall(labels.get("device", "")[:MAX_LABEL_CHARS])
        index = digits[-1] if digits else uuid
    if not index:
        return None
    instance = labels.get("GPU_I_ID", "")[:MAX_LABEL_CHARS]
    return Who(node, f"{index}/{instance}" if instance else index, f"{uuid}/{instance}" if instance else uuid)


def _host(labels: Mapping[str, str], nodes: Mapping[str, str]) -> str:
    """The exporter's own word, unless it is the name that every machine has for itself."""
    host = without_port(labels.get("instance", ""))
    for label in _HOSTS:
        said = labels.get(label, "")
        if said and not said.startswith("localhost"):
            return said[:MAX_LABEL_CHARS]
    return nodes.get(host, host)[:MAX_LABEL_CHARS]


def is_virtual(device: str) -> bool:
    """Whether an interface has no cable of its own.

    Examples
    --------
    >>> is_virtual("docker0"), is_virtual("eth0"), is_virtual("mlx5_0:1")
    (True, False, False)
    """
    return any(fnmatchcase(device, pattern) for pattern in _VIRTUAL)


def model_of(labels: Mapping[str, str]) -> str:
    """What an exporter calls the kind of device; empty if it says nothing."""
    return next((labels[key][:MAX_LABEL_CHARS] for key in _MODELS if key in labels), "")


def without_port(instance: str) -> str:
    """An ``instance`` without its port.

    Examples
    --------
    >>> [without_port(one) for one in ("n7:9100", "[fd00::7]:9100", "http://n7:9400/metrics", "fd00::7")]
    ['n7', 'fd00::7', 'n7', 'fd00::7']
    """
    rest = instance.partition("://")[2] or instance
    rest = rest.partition("/")[0]
    if rest.startswith("["):
        return rest[1:].partition("]")[0]
    return rest.partition(":")[0] if rest.count(":") == 1 else rest


def one_name_each(names: Collection[str]) -> dict[str, str]:
    """For hosts that are called both by their full and their short name: the short one, by the full one.

    Examples
    --------
    >>> one_name_each({"gpu-7.example.org", "gpu-7", "gpu-8.example.org", "10.0.0.1"})
    {'gpu-7.example.org': 'gpu-7'}
    """
    short = {name: name.partition(".")[0] for name in names if "." in name and not _is_address(name)}
    known = set(names)
    return {name: first for name, first in short.items() if first in known}


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
