"""What is read from NVML for one GPU: a table of small readings, each of which may be missing on a given GPU.

Every reading is a function of an NVML handle that gives (catalogue name, value) pairs or raises `NVMLError`.
Names, units and bits are those of the NVML API reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import pynvml as nvml

Pairs = Iterable[tuple[str, float]]

_KIB = 1_024
_ALL_LINKS = 0xFFFFFFFF  # scope of a field value: the sum over all NVLinks
_THERMAL = nvml.nvmlClocksEventReasonSwThermalSlowdown | nvml.nvmlClocksEventReasonHwThermalSlowdown
_POWER = nvml.nvmlClocksEventReasonSwPowerCap | nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
_VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by nvmlValueType_t


class Reading(msgspec.Struct, frozen=True):
    """One call, or few that belong together, to NVML; `slow` ones are made every few ticks, GPU after GPU."""

    name: str
    read: Callable[[Any], Pairs]
    slow: bool = False


def _utilization(handle: Any) -> Pairs:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return (
        ("gpu_utilization_ratio", rates.gpu / 100),
        ("gpu_memory_copy_utilization_ratio", rates.memory / 100),
    )


def _memory(handle: Any) -> Pairs:
    """Version 2 tells apart what the driver reserves; drivers before 510 have version 1 alone."""
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_ArgumentVersionMismatch):
        info = nvml.nvmlDeviceGetMemoryInfo(handle)
    pairs = (
        ("gpu_memory_used_bytes", float(info.used)),
        ("gpu_memory_free_bytes", float(info.free)),
        ("gpu_memory_total_bytes", float(info.total)),
    )
    return (*pairs, ("gpu_memory_reserved_bytes", float(info.reserved))) if hasattr(info, "reserved") else pairs


def _clock_events(handle: Any) -> Pairs:
    """Reasons that hold the clocks down, as the mask and as three states."""
    try:
        mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except nvml.NVMLError_FunctionNotFound:  # the name before driver 535
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return (
        ("gpu_clock_event_reasons_state", float(mask)),
        ("gpu_throttle_thermal_state", float(bool(mask & _THERMAL))),
        ("gpu_throttle_power_state", float(bool(mask & _POWER))),
        ("gpu_throttle_hardware_state", float(bool(mask & nvml.nvmlClocksEventReasonHwSlowdown))),
    )


def _performance_state(handle: Any) -> Pairs:
    state = nvml.nvmlDeviceGetPerformanceState(handle)
    return (("gpu_performance_state", float(state)),) if state < 32 else ()  # 32 is "unknown"


def _bar1(handle: Any) -> Pairs:
    return (("gpu_bar1_used_bytes", float(nvml.nvmlDeviceGetBAR1MemoryInfo(handle).bar1Used)),)


def _retired_pages(handle: Any) -> Pairs:
    multiple, double = (
        len(nvml.nvmlDeviceGetRetiredPages(handle, cause))
        for cause in (
            nvml.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            nvml.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        )
    )
    return (
        ("gpu_retired_pages_correctable_count", float(multiple)),
        ("gpu_retired_pages_uncorrectable_count", float(double)),
    )


def _remapped_rows(handle: Any) -> Pairs:
    correctable, uncorrectable, pending, failure = nvml.nvmlDeviceGetRemappedRows(handle)
    return (
        ("gpu_remapped_rows_correctable_count", float(correctable)),
        ("gpu_remapped_rows_uncorrectable_count", float(uncorrectable)),
        ("gpu_row_remap_pending_state", float(bool(pending))),
        ("gpu_row_remap_failure_state", float(bool(failure))),
    )


def _links(handle: Any) -> Pairs:
    """NVLinks that are up and down; a GPU without NVLink has no first link."""
    states: list[int] = []
    for link in range(int(nvml.NVML_NVLINK_MAX_LINKS)):
        try:
            states.append(nvml.nvmlDeviceGetNvLinkState(handle, link))
        except (nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported):
            break
    if not states:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return (
        ("gpu_nvlink_active_links_count", float(sum(states))),
        ("gpu_nvlink_inactive_links_count", float(len(states) - sum(states))),
    )


def _number(name: str, function: str, *arguments: Any, scale: float = 1.0, slow: bool = False) -> Reading:
    """A reading of one number (the first, where NVML gives a pair with the sampling period)."""

    def read(handle: Any) -> Pairs:
        value = getattr(nvml, function)(handle, *arguments)
        return ((name, (value[0] if isinstance(value, list) else value) * scale),)

    return Reading(name, read, slow)


def _ecc(name: str, error: int, counter: int) -> Reading:
    return _number(f"gpu_ecc_{name}_count", "nvmlDeviceGetTotalEccErrors", error, counter, slow=True)


def _violation(name: str, policy: int) -> Reading:
    """Time spent below the wanted clocks, nanoseconds."""

    def read(handle: Any) -> Pairs:
        time_ns = nvml.nvmlDeviceGetViolationStatus(handle, policy).violationTime
        return ((f"gpu_{name}_violation_seconds", time_ns / 1e9),)

    return Reading(f"gpu_{name}_violation_seconds", read, slow=True)


def _fields(name: str, wanted: dict[str, tuple[int, int, float]], *, slow: bool) -> Reading:
    """Many field values (id, scope, scale) by one call; each has its own return code."""
    names = tuple(wanted)
    ids = [(field, scope) for field, scope, _ in wanted.values()]
    scales = [scale for _, _, scale in wanted.values()]

    def read(handle: Any) -> Pairs:
        values = nvml.nvmlDeviceGetFieldValues(handle, ids)
        pairs = [
            (field, float(getattr(value.value, _VALUE_FIELDS[value.valueType])) * scale)
            for field, value, scale in zip(names, values, scales, strict=True)
            if value.nvmlReturn == nvml.NVML_SUCCESS and value.valueType < len(_VALUE_FIELDS)
        ]
        if not pairs:
            lost = any(value.nvmlReturn == nvml.NVML_ERROR_GPU_IS_LOST for value in values)
            raise nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST if lost else nvml.NVML_ERROR_NO_DATA)
        return pairs

    return Reading(name, read, slow)


INSTANCE_READINGS: tuple[Reading, ...] = (Reading("memory", _memory),)
"""What is read of a MIG instance; the rest belongs to its GPU."""

_GPU_SENSOR = nvml.NVML_TEMPERATURE_GPU
_PCIE_SENT, _PCIE_RECEIVED = nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES

READINGS: tuple[Reading, ...] = (
    Reading("utilization", _utilization),
    _number("gpu_sm_clock_hertz", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM, scale=1e6),
    _number("gpu_memory_clock_hertz", "nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM, scale=1e6),
    Reading("clock_events", _clock_events),
    _number("gpu_temperature_celsius", "nvmlDeviceGetTemperature", _GPU_SENSOR),
    _number("gpu_power_watts", "nvmlDeviceGetPowerUsage", scale=1e-3),
    _number("gpu_energy_joules", "nvmlDeviceGetTotalEnergyConsumption", scale=1e-3),
    Reading("memory", _memory),
    Reading("performance_state", _performance_state),
    _number("gpu_pcie_replay_count", "nvmlDeviceGetPcieReplayCounter"),
    _fields("hbm", {"gpu_memory_temperature_celsius": (nvml.NVML_FI_DEV_MEMORY_TEMP, 0, 1.0)}, slow=False),
    # From here on GPU after GPU: these take long (PCIe throughput is measured over 20 ms each) or change rarely.
    _number("gpu_sm_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM, scale=1e6, slow=True),
    _number("gpu_encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", scale=0.01, slow=True),
    _number("gpu_decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", scale=0.01, slow=True),
    _number("gpu_temperature_slowdown_celsius", "nvmlDeviceGetTemperatureThreshold", 1, slow=True),
    _number("gpu_temperature_shutdown_celsius", "nvmlDeviceGetTemperatureThreshold", 0, slow=True),
    _number("gpu_fan_speed_ratio", "nvmlDeviceGetFanSpeed", scale=0.01, slow=True),
    _number("gpu_power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", scale=1e-3, slow=True),
    _violation("power", nvml.NVML_PERF_POLICY_POWER),
    _violation("thermal", nvml.NVML_PERF_POLICY_THERMAL),
    _violation("sync_boost", nvml.NVML_PERF_POLICY_SYNC_BOOST),
    _violation("board_limit", nvml.NVML_PERF_POLICY_BOARD_LIMIT),
    _violation("low_utilization", nvml.NVML_PERF_POLICY_LOW_UTILIZATION),
    _violation("reliability", nvml.NVML_PERF_POLICY_RELIABILITY),
    Reading("bar1", _bar1, slow=True),
    _ecc("correctable_volatile", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_VOLATILE_ECC),
    _ecc("uncorrectable_volatile", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
    _ecc("correctable_aggregate", nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_AGGREGATE_ECC),
    _ecc("uncorrectable_aggregate", nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_AGGREGATE_ECC),
    Reading("retired_pages", _retired_pages, slow=True),
    _number("gpu_retired_pages_pending_state", "nvmlDeviceGetRetiredPagesPendingStatus", slow=True),
    Reading("remapped_rows", _remapped_rows, slow=True),
    _number("gpu_pcie_transmit_bytes_per_second", "nvmlDeviceGetPcieThroughput", _PCIE_SENT, scale=_KIB, slow=True),
    _number("gpu_pcie_receive_bytes_per_second", "nvmlDeviceGetPcieThroughput", _PCIE_RECEIVED, scale=_KIB, slow=True),
    _number("gpu_pcie_link_generation_version", "nvmlDeviceGetCurrPcieLinkGeneration", slow=True),
    _number("gpu_pcie_link_generation_max_version", "nvmlDeviceGetMaxPcieLinkGeneration", slow=True),
    _number("gpu_pcie_link_width_count", "nvmlDeviceGetCurrPcieLinkWidth", slow=True),
    _number("gpu_pcie_link_width_max_count", "nvmlDeviceGetMaxPcieLinkWidth", slow=True),
    Reading("nvlinks", _links, slow=True),
    _fields(
        "fields",
        {
            "gpu_nvlink_crc_flit_errors_count": (nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, 0, 1.0),
            "gpu_nvlink_crc_data_errors_count": (nvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, 0, 1.0),
            "gpu_nvlink_replay_errors_count": (nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, 0, 1.0),
            "gpu_nvlink_recovery_errors_count": (nvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, 0, 1.0),
            "gpu_nvlink_transmit_bytes": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS, float(_KIB)),
            "gpu_nvlink_receive_bytes": (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS, float(_KIB)),
            "gpu_pcie_correctable_errors_count": (nvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, 0, 1.0),
            "gpu_pcie_fatal_errors_count": (nvml.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR, 0, 1.0),
            "gpu_recovery_action_state": (nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, 0, 1.0),
        },
        slow=True,
    ),
)  # fmt: skip
