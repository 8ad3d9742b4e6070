"""The NVLink fabric that a fabric manager builds over switches: whether each GPU is part of it, and how well.

States are those of NVML's nvmlGpuFabricState_t, and one more: where the registration has ended in an error, NVML
says "completed" and gives the error, for which dcgm-exporter has a state of its own.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

import msgspec
import pynvml as nvml

NOT_SUPPORTED: Final = 0
COMPLETED: Final = 3
FAILED: Final = 4
PATIENCE_S: Final = 300.0  # links are trained while a machine starts, and when its fabric manager is started again
_STATES: Final = {NOT_SUPPORTED: "is not supported any more", 1: "is not started", 2: "is still being set up"}
# FabricInfo.mask: each entry's lowest bit, its mask, the values that are trouble, and what they mean.
# What is only being recovered is no trouble yet.
_HEALTH: Final = (
    (0, 0x3, range(1, 2), "its bandwidth is degraded"),
    (4, 0x3, range(1, 2), "a route is unhealthy"),
    (8, 0xF, range(2, 16), "it is wrongly configured"),
)
_SUMMARY: Final = {2: "it is unhealthy", 3: "its capacity is limited"}
_VERSIONS: Final = (0x03000028, 0x02000024)  # nvmlGpuFabricInfo_v3 and _v2: the newest that the driver knows


class FabricInfo(ctypes.Structure):
    """nvmlGpuFabricInfo_v3_t; the second version has no `summary`, the first neither `mask` nor `version`.

    Ours, as those of NVIDIA's binding have other names in other releases, and before 13 a wrong size for the first.
    """

    _fields_ = (
        ("version", ctypes.c_uint),
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_int),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_uint),
        ("mask", ctypes.c_uint),
        ("summary", ctypes.c_ubyte),
    )


class Fabric(msgspec.Struct, frozen=True):
    """One GPU's word on the fabric: `state`, and what is wrong with it if anything is."""

    state: int
    trouble: str | None

    @property
    def passing(self) -> bool:
        """Whether this may be no more than the fabric being set up."""
        return self.state not in {COMPLETED, FAILED}


def read_fabric(handle: Any) -> Fabric:
    """What a GPU says of its fabric.

    Raises
    ------
    NVMLError
        If there is no fabric, or the driver cannot say.
    """
    info = _info(handle)
    state = int(info.state)
    if state == COMPLETED and info.status != nvml.NVML_SUCCESS:
        return Fabric(FAILED, f"the fabric manager could not set it up (NVML error {info.status})")
    if state != COMPLETED:
        return Fabric(state, f"it {_STATES.get(state, f'is in state {state}')}")
    troubles = [says for shift, width, bad, says in _HEALTH if (info.mask >> shift) & width in bad]
    summary = _SUMMARY.get(info.summary)
    if summary is not None and not troubles:
        troubles.append(summary)
    return Fabric(state, " and ".join(troubles) or None)


def _info(handle: Any) -> FabricInfo:
    for version in _VERSIONS:
        info = FabricInfo(version=version)
        try:
            nvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        except (nvml.NVMLError_ArgumentVersionMismatch, nvml.NVMLError_InvalidArgument):
            continue
        except nvml.NVMLError_FunctionNotFound:
            break
        return info
    info = FabricInfo()
    nvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info, FabricInfo.cluster.offset))
    return info


class FabricWatch:
    """Which GPUs have been part of a fabric, and which of these are in trouble now.

    A machine that never had one (or whose fabric manager nobody runs) is left alone.
    """

    def __init__(self) -> None:
        self._changes: dict[str, int] = {}  # by GPU that has been part of one; odd while it is in trouble
        self._since_s: dict[str, float] = {}

    def change(self, gpu: str, fabric: Fabric, now_s: float) -> bool | None:
        """True if the GPU is well again at monotonic time `now_s`, False if it has come into trouble, else None."""
        told = self._changes.get(gpu)
        if fabric.trouble is None:
            self._since_s.pop(gpu, None)
            self._changes[gpu] = (told or 0) + (told or 0) % 2
            return True if told is not None and told % 2 else None
        if told is None or told % 2:
            return None
        since_s = self._since_s.setdefault(gpu, now_s)
        if fabric.passing and now_s - since_s < PATIENCE_S:
            return None
        self._changes[gpu] = told + 1
        return False

    def changes(self, gpu: str) -> int:
        """How often the GPU came into trouble or out of it."""
        return self._changes.get(gpu, 0)

    def position(self) -> dict[str, int]:
        return dict(self._changes)

    def restore(self, position: dict[str, int]) -> None:
        """Go on from `position`: what a machine had, it is to have after a reboot too."""
        self._changes = dict(position)
