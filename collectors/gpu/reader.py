"""Reads the values of one GPU and of its MIG instances; what a device does not have is never asked for again.

What a GPU's units really did: NVML's GPU performance monitoring (GPM), on Hopper and newer.

A metric is the difference of two samples, so it is the mean over all the time between them, however long. Unlike the
counters behind DCGM on older GPUs these are shared by any number of readers, profilers too (NVIDIA/DCGM issue 62).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
import pynvml as nvml

from trainwarden.collectors.gpu.devices import LOST, NEVER, OVER, Gpu, Instance
from trainwarden.collectors.gpu.fabric import COMPLETED, NOT_SUPPORTED, read_fabric
from trainwarden.collectors.gpu.fields import INSTANCE_READINGS, READINGS, Reading

LEAST_S: Final = 0.1  # samples nearer to each other are of the same moment: the driver refreshes them so often
MOST_S: Final = 120.0  # a mean over longer is no word about now
_MIB: Final = 1_048_576.0

# Metric, our name, and the factor to our unit (NVML gives percent and MiB/s).
_WANTED: Final = (
    (nvml.NVML_GPM_METRIC_GRAPHICS_UTIL, "gpu_engine_active_ratio", 0.01),
    (nvml.NVML_GPM_METRIC_SM_UTIL, "gpu_sm_active_ratio", 0.01),
    (nvml.NVML_GPM_METRIC_SM_OCCUPANCY, "gpu_sm_occupancy_ratio", 0.01),
    (nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL, "gpu_tensor_active_ratio", 0.01),
    (nvml.NVML_GPM_METRIC_DRAM_BW_UTIL, "gpu_dram_active_ratio", 0.01),
    (nvml.NVML_GPM_METRIC_FP64_UTIL, "gpu_fp64_active_ratio", 0.01),
    (nvml.NVML_GPM_METRIC_FP32_UTIL, "gpu_fp32_active_ratio", 0.01),
    (nvml.NVML_GPM_METRIC_FP16_UTIL, "gpu_fp16_active_ratio", 0.01),
    (nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC, "gpu_pcie_transmit_bytes_per_second", _MIB),
    (nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC, "gpu_pcie_receive_bytes_per_second", _MIB),
    (nvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, "gpu_nvlink_transmit_bytes_per_second", _MIB),
    (nvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, "gpu_nvlink_receive_bytes_per_second", _MIB),
)
Take = Callable[[Any], Any]
"""Fills a sample: of a GPU or of one of its instances."""


class _Pair(msgspec.Struct):
    """Two samples of a device: the last one, and room for the next."""

    last: Any
    room: Any
    taken_s: float | None = None


class Profiling:
    """The samples of all devices of a node: allocated once for each, freed by `close`."""

    def __init__(self) -> None:
        self._pairs: dict[str, _Pair] = {}
        self._request = nvml.c_nvmlGpmMetricsGet_t(
            version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(_WANTED)
        )  # 19 kB, so one for all

    @staticmethod
    def supports(handle: Any) -> bool:
        """Whether a GPU has these counters at all."""
        return bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)

    def read(self, device: str, take: Take, now_s: float) -> dict[str, float]:
        """Means since the last call for `device`, by metric; empty the first time, and after a long pause.

        Raises
        ------
        NVMLError
            If there is no sample to be had; the next one begins anew.
        """
        pair = self._pairs.get(device)
        if pair is None:
            pair = self._pairs[device] = _Pair(*self._allocate())
        since_s = math.inf if pair.taken_s is None else now_s - pair.taken_s
        if since_s < LEAST_S:
            return {}
        pair.taken_s = None
        take(pair.room)
        pair.last, pair.room, pair.taken_s = pair.room, pair.last, now_s
        return self._means(pair) if since_s <= MOST_S else {}

    def keep_only(self, devices: Collection[str]) -> None:
        """Free the samples of devices that are no more."""
        for device in [device for device in self._pairs if device not in devices]:
            _free(self._pairs.pop(device))

    def close(self) -> None:
        self.keep_only(())

    @staticmethod
    def _allocate() -> tuple[Any, Any]:
        first = nvml.nvmlGpmSampleAlloc()
        try:
            return first, nvml.nvmlGpmSampleAlloc()
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(first)
            raise

    def _means(self, pair: _Pair) -> dict[str, float]:
        """Between the sample before (which is where the next will go) and the last."""
        request = self._request
        request.sample1, request.sample2 = pair.room, pair.last
        for place, (metric, _, _) in enumerate(_WANTED):
            request.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(request)
        values = {}
        for place, (_, name, factor) in enumerate(_WANTED):
            answer = request.metrics[place]
            if answer.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(answer.value):
                value = answer.value * factor
                values[name] = min(value, 1.0) if factor < 1.0 and value < 1.01 else value  # rounding
        return values


def _free(pair: _Pair) -> None:
    for sample in (pair.last, pair.room):
        try:
            nvml.nvmlGpmSampleFree(sample)
        except nvml.NVMLError:
            continue  # the driver has gone first


_OFTEN = tuple(reading for reading in READINGS if not reading.slow)
_SILENT_TICKS = 3  # a GPU that answers nothing at all so often is lost, whatever it calls it


class Row(NamedTuple):
    """The values of one device at one tick."""

    device: str
    rank: int | None
    values: dict[str, float]
    model: str


class Reader:
    """Reads devices.

    Parameters
    ----------
    profiling : bool
        Whether to ask for the counters of `trainwarden.collectors.gpu.reader`.
    """

    def __init__(self, *, profiling: bool) -> None:
        self._profiling = Profiling() if profiling else None

    def rows(self, gpu: Gpu, *, slow: bool, now_s: float) -> Iterator[Row]:
        """The GPU's row and those of its instances; none if it is lost, which is noted in `gpu`.

        Raises
        ------
        NVMLError
            One of `OVER`.
        """
        if gpu.lost:
            return
        try:
            rows = [Row(gpu.name, gpu.rank, self._of_gpu(gpu, slow=slow, now_s=now_s), gpu.model)]
            rows += (
                Row(one.name, one.rank, self._of_instance(gpu, one, slow, now_s), one.model) for one in gpu.instances
            )
        except LOST:
            gpu.lost = True
            return
        gpu.silent = 0 if rows[0].values else gpu.silent + 1
        gpu.lost = gpu.silent >= _SILENT_TICKS
        yield from (row for row in rows if row.values)

    def keep_only(self, gpus: list[Gpu]) -> None:
        """Let go of what belongs to instances that are no more."""
        if self._profiling is not None:
            keys = {key for gpu in gpus for key in (gpu.name, *(_key(one) for one in gpu.instances))}
            self._profiling.keep_only(keys)

    def close(self) -> None:
        if self._profiling is not None:
            self._profiling.close()

    def _of_gpu(self, gpu: Gpu, *, slow: bool, now_s: float) -> dict[str, float]:
        values: dict[str, float] = {}
        if slow:
            self._ask_for_profiling(gpu)
            if "gpm" not in gpu.missing:
                self._profile(gpu, partial(nvml.nvmlGpmSampleGet, gpu.handle), now_s, values)
            self._fabric(gpu, values)
        for reading in READINGS if slow else _OFTEN:
            if reading.name not in values:  # profiling may have given it already
                self._read(gpu, reading, values)
        if not values:
            return {}
        counts = {
            "gpu_xid_state": gpu.xid,
            "gpu_xid_events_count": gpu.xids,
            "gpu_processes_count": gpu.processes,
        }
        return values | {name: float(count) for name, count in counts.items() if count is not None}

    def _of_instance(self, gpu: Gpu, one: Instance, slow: bool, now_s: float) -> dict[str, float]:
        values: dict[str, float] = {}
        if slow and "gpm" not in gpu.missing:
            self._profile(one, partial(nvml.nvmlGpmMigSampleGet, gpu.handle, one.number), now_s, values)
        for reading in INSTANCE_READINGS:
            self._read(one, reading, values)
        if values and one.processes is not None:
            values["gpu_processes_count"] = float(one.processes)
        return values

    def _read(self, device: Gpu | Instance, reading: Reading, values: dict[str, float]) -> None:
        if reading.name in device.missing:
            return
        try:
            values.update(reading.read(device.handle))
        except nvml.NVMLError as error:
            _refused(error, device, reading.name)

    def _profile(self, device: Gpu | Instance, take: Take, now_s: float, values: dict[str, float]) -> None:
        if self._profiling is None or "profiling" in device.missing:
            return
        key = device.name if isinstance(device, Gpu) else _key(device)
        try:
            values.update(self._profiling.read(key, take, now_s))
        except nvml.NVMLError as error:
            _refused(error, device, "profiling")

    def _ask_for_profiling(self, gpu: Gpu) -> None:
        if self._profiling is not None and "gpm" not in gpu.missing:
            try:
                if not self._profiling.supports(gpu.handle):
                    gpu.missing.add("gpm")
            except nvml.NVMLError as error:
                _refused(error, gpu, "gpm")

    def _fabric(self, gpu: Gpu, values: dict[str, float]) -> None:
        if "fabric" in gpu.missing:
            return
        try:
            gpu.fabric = fabric = read_fabric(gpu.handle)
        except nvml.NVMLError as error:
            _refused(error, gpu, "fabric")
            return
        if fabric.state != NOT_SUPPORTED:
            values["gpu_fabric_state"] = float(fabric.state)
        if fabric.state == COMPLETED:
            values["gpu_fabric_degraded_state"] = float(fabric.trouble is not None)


def _refused(error: nvml.NVMLError, device: Gpu | Instance, name: str) -> None:
    """What NVML says instead of an answer: never again, over, lost, or just not measured this time."""
    if isinstance(error, NEVER):
        device.missing.add(name)
    elif isinstance(error, OVER) or (isinstance(error, LOST) and isinstance(device, Gpu)):
        raise error  # an instance that is gone is no lost GPU


def _key(one: Instance) -> str:
    """An instance made anew under the same number begins with samples of its own."""
    return f"{one.name} {one.uuid}"
