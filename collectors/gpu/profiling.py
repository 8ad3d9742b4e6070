"""What a GPU's units really did: NVML's GPU performance monitoring (GPM), on Hopper and newer.

A metric is the difference of two samples, so it is the mean over all the time between them, however long. Unlike the
counters behind DCGM on older GPUs these are shared by any number of readers, profilers too (NVIDIA/DCGM issue 62).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec
import pynvml as nvml

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
