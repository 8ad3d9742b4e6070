"""The GPUs that NVML lists, and the MIG instances that they are divided into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pynvml as nvml

from trainwarden.collectors.gpu.fabric import Fabric

# Errors that will not go away by asking again.
NEVER = (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission)
# The device cannot be used before it has been reset, or the machine restarted.
LOST = (nvml.NVMLError_GpuIsLost, nvml.NVMLError_GpuNotFound, nvml.NVMLError_ResetRequired)

# The driver has been unloaded or replaced under us: start over.
OVER = (nvml.NVMLError_Uninitialized, nvml.NVMLError_DriverNotLoaded, nvml.NVMLError_LibRmVersionMismatch)


class Instance(msgspec.Struct):
    """One MIG instance of a GPU; made anew under the same number it has another `uuid`."""

    gpu: str
    number: int
    uuid: str
    handle: Any
    missing: set[str] = msgspec.field(default_factory=set)
    rank: int | None = None
    processes: int | None = None
    model: str = ""

    @property
    def name(self) -> str:
        """The GPU's UUID and the instance's number: the identity that dcgm-exporter's labels give."""
        return f"{self.gpu}/{self.number}"


class Gpu(msgspec.Struct):
    """One GPU; `index` is NVML's number for it, and `missing` names the readings that it does not have.

    `silent` counts the ticks without any answer, `fabric` is news for whoever asked.
    """

    uuid: str
    handle: Any
    pci: str
    index: int | None = None
    missing: set[str] = msgspec.field(default_factory=set)
    rank: int | None = None
    lost: bool = False
    silent: int = 0
    xid: int | None = None
    xids: int | None = None
    processes: int | None = None
    fabric: Fabric | None = None
    divided: bool = False
    instances: list[Instance] = msgspec.field(default_factory=list)
    model: str = ""

    @property
    def name(self) -> str:
        return self.uuid


def find_gpus(known: Mapping[str, Gpu]) -> list[Gpu]:
    """The GPUs that say their names; what is `known` of one from before NVML was opened again is kept.

    Raises
    ------
    NVMLError
        If they cannot be counted, or one of `OVER`.
    """
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            bus = nvml.nvmlDeviceGetPciInfo(handle).busId
            uuid = nvml.nvmlDeviceGetUUID(handle)
        except OVER:
            raise
        except nvml.NVMLError:
            continue  # it does not even say its name: missed by the collector if it has been known
        gpu = Gpu(uuid, handle, bus.decode() if isinstance(bus, bytes) else bus, index, model=_model(handle))
        if uuid in known:
            old = known[uuid]
            gpu.rank, gpu.xid, gpu.xids = old.rank, old.xid, old.xids
        found.append(gpu)
    return found


def find_instances(gpu: Gpu) -> None:
    """Bring `gpu.instances` up to date; they come and go while the driver runs."""
    if gpu.lost or "mig" in gpu.missing:
        return
    try:
        divided = nvml.nvmlDeviceGetMigMode(gpu.handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        places = nvml.nvmlDeviceGetMaxMigDeviceCount(gpu.handle) if divided else 0
    except NEVER:
        gpu.missing.add("mig")
        return
    except nvml.NVMLError:
        return
    if divided != gpu.divided:
        gpu.divided = divided
        gpu.missing.clear()  # a divided GPU lacks other readings than a whole one
    known = {one.uuid: one for one in gpu.instances}
    found: dict[int, Instance] = {}
    for place in range(places):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu.handle, place)
            number, uuid = nvml.nvmlDeviceGetGpuInstanceId(handle), nvml.nvmlDeviceGetUUID(handle)
        except nvml.NVMLError:
            continue  # an empty place
        # Compute instances that share a GPU instance share its memory and its counters.
        one = known.get(uuid) or Instance(gpu.uuid, number, uuid, handle, model=_model(handle))
        one.handle = handle
        found.setdefault(number, one)
    gpu.instances = [found[number] for number in sorted(found)]


def _model(handle: Any) -> str:
    """What its maker calls a device, of an instance with its share; empty if it does not say."""
    try:
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError:
        return ""
    return str(name.decode("ascii", "replace") if isinstance(name, bytes) else name)


def find_processes(gpu: Gpu, ranks: dict[int, int]) -> None:
    """Which rank uses the GPU and each instance, by the process ids of both in this namespace."""
    if gpu.lost or "processes" in gpu.missing:
        return
    try:
        running = _running(gpu.handle)
    except NEVER:
        gpu.missing.add("processes")
        return
    except nvml.NVMLError:
        return
    _take(gpu, [process.pid for process in running], ranks)
    for one in gpu.instances:
        _take(one, [process.pid for process in running if process.gpuInstanceId == one.number], ranks)


def _running(handle: Any) -> list[Any]:
    """Drivers before 510 have version 2, for which the binding's name without a version raises no error of NVML's."""
    try:
        return list(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle))
    except nvml.NVMLError_FunctionNotFound:
        return list(nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle))


def _take(device: Gpu | Instance, pids: list[int], ranks: dict[int, int]) -> None:
    users = {ranks[pid] for pid in pids if pid in ranks}
    device.processes = len(pids)
    # Between two runs of a rank its GPU stays its GPU.
    device.rank = users.pop() if len(users) == 1 else (None if users else device.rank)
