"""Names of metrics in the tables of nvidia-smi, amd-smi, dcgmi and dashboards, and the catalogue's for each."""

from __future__ import annotations

from typing import Final

_MIB: Final = 1024.0**2
_MHZ: Final = 1e6
# Name in lower case: the catalogue's, and the factor of a value that is written without a unit. Sources: `nvidia-smi
# --help-query-gpu`, `dcgmi dmon -l`, `nvidia-smi dmon -h`, `amd-smi metric --help`, `rocm-smi --help`.
SPELLINGS: Final[dict[str, tuple[str, float]]] = {
    # telegraf's inputs cpu, disk, mem and swap, with the measurement before the field as CloudWatch's agent has them
    "cpu_usage_steal": ("host_cpu_steal_ratio", 0.01), "cpu_usage_iowait": ("host_cpu_iowait_ratio", 0.01),
    "cpu_usage_system": ("host_cpu_system_ratio", 0.01), "disk_used_percent": ("host_filesystem_used_ratio", 0.01),
    "mem_used_percent": ("host_memory_used_ratio", 0.01), "mem_available": ("host_memory_available_bytes", 1.0),
    "memavailable": ("host_memory_available_bytes", 1024.0), "memtotal": ("host_memory_total_bytes", 1024.0),
    "mem_total": ("host_memory_total_bytes", 1.0), "swap_used": ("host_swap_used_bytes", 1.0),
    # Datadog's agent, sar, own scripts; percents
    "system.cpu.stolen": ("host_cpu_steal_ratio", 0.01), "system_cpu_stolen": ("host_cpu_steal_ratio", 0.01),
    "cpu_stolen": ("host_cpu_steal_ratio", 0.01), "cpu_steal": ("host_cpu_steal_ratio", 0.01),
    "cpu_steal_percent": ("host_cpu_steal_ratio", 0.01), "steal_pct": ("host_cpu_steal_ratio", 0.01),
    "%steal": ("host_cpu_steal_ratio", 0.01), "steal": ("host_cpu_steal_ratio", 0.01),
    "system.cpu.iowait": ("host_cpu_iowait_ratio", 0.01), "system.cpu.system": ("host_cpu_system_ratio", 0.01),
    # nvidia-smi --query-gpu
    "clocks.current.sm": ("gpu_sm_clock_hertz", _MHZ), "clocks.sm": ("gpu_sm_clock_hertz", _MHZ),
    "clocks.current.graphics": ("gpu_sm_clock_hertz", _MHZ), "clocks.gr": ("gpu_sm_clock_hertz", _MHZ),
    "clocks.max.sm": ("gpu_sm_clock_max_hertz", _MHZ), "clocks.max.graphics": ("gpu_sm_clock_max_hertz", _MHZ),
    "clocks.current.memory": ("gpu_memory_clock_hertz", _MHZ), "clocks.mem": ("gpu_memory_clock_hertz", _MHZ),
    "pstate": ("gpu_performance_state", 1.0),
    "power.draw": ("gpu_power_watts", 1.0), "power.draw.instant": ("gpu_power_watts", 1.0),
    "power.draw.average": ("gpu_power_watts", 1.0), "power.limit": ("gpu_power_limit_watts", 1.0),
    "enforced.power.limit": ("gpu_power_limit_watts", 1.0),
    "temperature.gpu": ("gpu_temperature_celsius", 1.0), "temperature.memory": ("gpu_memory_temperature_celsius", 1.0),
    "utilization.gpu": ("gpu_utilization_ratio", 0.01),
    "utilization.memory": ("gpu_memory_copy_utilization_ratio", 0.01),
    "utilization.encoder": ("gpu_encoder_utilization_ratio", 0.01),
    "utilization.decoder": ("gpu_decoder_utilization_ratio", 0.01), "fan.speed": ("gpu_fan_speed_ratio", 0.01),
    "memory.used": ("gpu_memory_used_bytes", _MIB), "memory.free": ("gpu_memory_free_bytes", _MIB),
    "memory.total": ("gpu_memory_total_bytes", _MIB), "memory.reserved": ("gpu_memory_reserved_bytes", _MIB),
    "clocks_event_reasons.active": ("gpu_clock_event_reasons_state", 1.0),
    "clocks_throttle_reasons.active": ("gpu_clock_event_reasons_state", 1.0),
    "ecc.errors.corrected.volatile.total": ("gpu_ecc_correctable_volatile_count", 1.0),
    "ecc.errors.corrected.aggregate.total": ("gpu_ecc_correctable_aggregate_count", 1.0),
    "ecc.errors.uncorrected.volatile.total": ("gpu_ecc_uncorrectable_volatile_count", 1.0),
    "ecc.errors.uncorrected.aggregate.total": ("gpu_ecc_uncorrectable_aggregate_count", 1.0),
    "retired_pages.single_bit_ecc.count": ("gpu_retired_pages_correctable_count", 1.0),
    "retired_pages.sbe": ("gpu_retired_pages_correctable_count", 1.0),
    "retired_pages.double_bit.count": ("gpu_retired_pages_uncorrectable_count", 1.0),
    "retired_pages.dbe": ("gpu_retired_pages_uncorrectable_count", 1.0),
    "retired_pages.pending": ("gpu_retired_pages_pending_state", 1.0),
    "remapped_rows.correctable": ("gpu_remapped_rows_correctable_count", 1.0),
    "remapped_rows.uncorrectable": ("gpu_remapped_rows_uncorrectable_count", 1.0),
    "remapped_rows.pending": ("gpu_row_remap_pending_state", 1.0),
    "remapped_rows.failure": ("gpu_row_remap_failure_state", 1.0),
    "pcie.link.gen.current": ("gpu_pcie_link_generation_version", 1.0),
    "pcie.link.gen.gpucurrent": ("gpu_pcie_link_generation_version", 1.0),
    "pcie.link.gen.max": ("gpu_pcie_link_generation_max_version", 1.0),
    "pcie.link.gen.gpumax": ("gpu_pcie_link_generation_max_version", 1.0),
    "pcie.link.width.current": ("gpu_pcie_link_width_count", 1.0),
    "pcie.link.width.max": ("gpu_pcie_link_width_max_count", 1.0),
    # dcgmi dmon
    "gputl": ("gpu_utilization_ratio", 0.01), "mcutl": ("gpu_memory_copy_utilization_ratio", 0.01),
    "smclk": ("gpu_sm_clock_hertz", _MHZ), "mmclk": ("gpu_memory_clock_hertz", _MHZ),
    "tmptr": ("gpu_temperature_celsius", 1.0), "mmtmp": ("gpu_memory_temperature_celsius", 1.0),
    "power": ("gpu_power_watts", 1.0), "totec": ("gpu_energy_joules", 1e-3), "fbusd": ("gpu_memory_used_bytes", _MIB),
    "fbfre": ("gpu_memory_free_bytes", _MIB), "gract": ("gpu_engine_active_ratio", 1.0),
    "smact": ("gpu_sm_active_ratio", 1.0), "smocc": ("gpu_sm_occupancy_ratio", 1.0),
    "tenso": ("gpu_tensor_active_ratio", 1.0), "drama": ("gpu_dram_active_ratio", 1.0),
    "fp64a": ("gpu_fp64_active_ratio", 1.0), "fp32a": ("gpu_fp32_active_ratio", 1.0),
    "fp16a": ("gpu_fp16_active_ratio", 1.0), "pcitx": ("gpu_pcie_transmit_bytes_per_second", 1.0),
    "pcirx": ("gpu_pcie_receive_bytes_per_second", 1.0), "nvltx": ("gpu_nvlink_transmit_bytes_per_second", 1.0),
    "nvlrx": ("gpu_nvlink_receive_bytes_per_second", 1.0), "dvccter": ("gpu_clock_event_reasons_state", 1.0),
    "dvcctr": ("gpu_clock_event_reasons_state", 1.0), "xider": ("gpu_xid_state", 1.0), "esvtl": (
        "gpu_ecc_correctable_volatile_count", 1.0), "edvtl": ("gpu_ecc_uncorrectable_volatile_count", 1.0),
    "replay": ("gpu_pcie_replay_count", 1.0), "rrpnd": ("gpu_row_remap_pending_state", 1.0),
    # and of its links, as DCGM shortens them (dcgm_fields.cpp)
    "nfelt": ("gpu_nvlink_crc_flit_errors_count", 1.0), "ndelt": ("gpu_nvlink_crc_data_errors_count", 1.0),
    "nrelt": ("gpu_nvlink_replay_errors_count", 1.0), "nrclt": ("gpu_nvlink_recovery_errors_count", 1.0),
    "nlmalp": ("gpu_nvlink_malformed_packets_count", 1.0), "nlbufo": ("gpu_nvlink_buffer_overruns_count", 1.0),
    "nlllie": ("gpu_nvlink_integrity_errors_count", 1.0), "nllrf": ("gpu_nvlink_recovery_errors_count", 1.0),
    "nlsyme": ("gpu_nvlink_symbol_errors_count", 1.0), "nlsymbf": ("gpu_nvlink_symbol_bit_error_ratio", 1.0),
    "nlefbf": ("gpu_nvlink_effective_bit_error_ratio", 1.0), "nlefe": ("gpu_nvlink_effective_errors_count", 1.0),
    "pcilg": ("gpu_pcie_link_generation_version", 1.0), "pcimg": ("gpu_pcie_link_generation_max_version", 1.0),
    "pcilw": ("gpu_pcie_link_width_count", 1.0), "pcimw": ("gpu_pcie_link_width_max_count", 1.0),
    "rpctr": ("gpu_pcie_replay_count", 1.0), "urmps": ("gpu_remapped_rows_uncorrectable_count", 1.0),
    "crmps": ("gpu_remapped_rows_correctable_count", 1.0), "rrf": ("gpu_row_remap_failure_state", 1.0),
    "rrp": ("gpu_row_remap_pending_state", 1.0), "rpsbe": ("gpu_retired_pages_correctable_count", 1.0),
    "rpdbe": ("gpu_retired_pages_uncorrectable_count", 1.0), "rppen": ("gpu_retired_pages_pending_state", 1.0),
    "icvld": ("gpu_inforom_valid_state", 1.0),
    "esatl": ("gpu_ecc_correctable_aggregate_count", 1.0), "edatl": ("gpu_ecc_uncorrectable_aggregate_count", 1.0),
    # nvidia-smi dmon
    "pwr": ("gpu_power_watts", 1.0), "gtemp": ("gpu_temperature_celsius", 1.0),
    "mtemp": ("gpu_memory_temperature_celsius", 1.0), "pclk": ("gpu_sm_clock_hertz", _MHZ),
    "mclk": ("gpu_memory_clock_hertz", _MHZ), "sm": ("gpu_utilization_ratio", 0.01),
    "rxpci": ("gpu_pcie_receive_bytes_per_second", 1e6), "txpci": ("gpu_pcie_transmit_bytes_per_second", 1e6),
    "fb": ("gpu_memory_used_bytes", _MIB), "sbecc": ("gpu_ecc_correctable_volatile_count", 1.0),
    "dbecc": ("gpu_ecc_uncorrectable_volatile_count", 1.0), "pci": ("gpu_pcie_replay_count", 1.0),
    "tviol": ("gpu_throttle_thermal_state", 1.0),
    "mem": ("gpu_memory_copy_utilization_ratio", 0.01), "enc": ("gpu_encoder_utilization_ratio", 0.01),
    "dec": ("gpu_decoder_utilization_ratio", 0.01),
    # amd-smi metric --csv
    "gfx_activity": ("gpu_utilization_ratio", 0.01), "gfx": ("gpu_utilization_ratio", 0.01),
    "umc_activity": ("gpu_memory_copy_utilization_ratio", 0.01), "socket_power": ("gpu_power_watts", 1.0),
    "average_socket_power": ("gpu_power_watts", 1.0), "current_socket_power": ("gpu_power_watts", 1.0),
    "hotspot": ("gpu_temperature_celsius", 1.0), "hotspot_temperature": ("gpu_temperature_celsius", 1.0),
    "junction": ("gpu_temperature_celsius", 1.0),
    "mem_temperature": ("gpu_memory_temperature_celsius", 1.0), "gfx_0_clk": ("gpu_sm_clock_hertz", _MHZ),
    "gfx_clk": ("gpu_sm_clock_hertz", _MHZ), "gfx_clock": ("gpu_sm_clock_hertz", _MHZ),
    "mem_0_clk": ("gpu_memory_clock_hertz", _MHZ), "mem_clk": ("gpu_memory_clock_hertz", _MHZ),
    "power_usage": ("gpu_power_watts", 1.0), "hotspot_temp": ("gpu_temperature_celsius", 1.0),
    "memory_temp": ("gpu_memory_temperature_celsius", 1.0),
    "total_correctable_count": ("gpu_ecc_correctable_volatile_count", 1.0),
    "total_uncorrectable_count": ("gpu_ecc_uncorrectable_volatile_count", 1.0),
    "used_vram": ("gpu_memory_used_bytes", _MIB), "free_vram": ("gpu_memory_free_bytes", _MIB),
    "total_vram": ("gpu_memory_total_bytes", _MIB), "vram_used": ("gpu_memory_used_bytes", _MIB),
    "vram_total": ("gpu_memory_total_bytes", _MIB), "replay_count": ("gpu_pcie_replay_count", 1.0),
    "width": ("gpu_pcie_link_width_count", 1.0),
    # AMD's device-metrics-exporter, with its prefix of 1.4 and without; its counts of blocks: names.block_of
    "gpu_ecc_uncorrect_total": ("gpu_ecc_uncorrectable_volatile_count", 1.0),
    "amd_gpu_ecc_uncorrect_total": ("gpu_ecc_uncorrectable_volatile_count", 1.0),
    "gpu_ecc_correct_total": ("gpu_ecc_correctable_volatile_count", 1.0),
    "amd_gpu_ecc_correct_total": ("gpu_ecc_correctable_volatile_count", 1.0),
    # rocm-smi --csv
    "temperature (sensor junction) (c)": ("gpu_temperature_celsius", 1.0),
    "temperature (sensor memory) (c)": ("gpu_memory_temperature_celsius", 1.0),
    "temperature (sensor junction)": ("gpu_temperature_celsius", 1.0),
    "temperature (sensor memory)": ("gpu_memory_temperature_celsius", 1.0),
    "gpu use": ("gpu_utilization_ratio", 0.01), "gpu use (%)": ("gpu_utilization_ratio", 0.01),
    "average graphics package power": ("gpu_power_watts", 1.0),
    "current socket graphics package power": ("gpu_power_watts", 1.0),
    "average graphics package power (w)": ("gpu_power_watts", 1.0),
    "current socket graphics package power (w)": ("gpu_power_watts", 1.0),
    "sclk clock speed:": ("gpu_sm_clock_hertz", _MHZ), "mclk clock speed:": ("gpu_memory_clock_hertz", _MHZ),
    "vram total memory (b)": ("gpu_memory_total_bytes", 1.0), "vram total memory": ("gpu_memory_total_bytes", 1.0),
    "vram total used memory (b)": ("gpu_memory_used_bytes", 1.0),
    "vram total used memory": ("gpu_memory_used_bytes", 1.0),
    # hl-smi -Q
    "temperature.aip": ("gpu_temperature_celsius", 1.0), "utilization.aip": ("gpu_utilization_ratio", 0.01),
    # xpu-smi dump
    "gpu frequency": ("gpu_sm_clock_hertz", _MHZ), "gpu core temperature": ("gpu_temperature_celsius", 1.0),
    "gpu memory temperature": ("gpu_memory_temperature_celsius", 1.0),
    "gpu memory used": ("gpu_memory_used_bytes", _MIB),
    # dashboards, own scripts
    "gpu_temp": ("gpu_temperature_celsius", 1.0), "gpu_temperature": ("gpu_temperature_celsius", 1.0),
    "temp": ("gpu_temperature_celsius", 1.0), "gpu_util": ("gpu_utilization_ratio", 0.01),
    "temperature": ("gpu_temperature_celsius", 1.0), "gpu temperature": ("gpu_temperature_celsius", 1.0),
    "gpu_utilization": ("gpu_utilization_ratio", 0.01), "gpu utilization": ("gpu_utilization_ratio", 0.01),
    "utilization": ("gpu_utilization_ratio", 0.01), "util": ("gpu_utilization_ratio", 0.01),
    "gpu_power": ("gpu_power_watts", 1.0), "power_draw": ("gpu_power_watts", 1.0), "gpu power": (
        "gpu_power_watts", 1.0), "power_w": ("gpu_power_watts", 1.0), "gpu power usage": ("gpu_power_watts", 1.0),
    "sm_clock": ("gpu_sm_clock_hertz", _MHZ), "clock_sm": ("gpu_sm_clock_hertz", _MHZ),
    "gpu_clock": ("gpu_sm_clock_hertz", _MHZ), "sm clock": ("gpu_sm_clock_hertz", _MHZ),
    "gpu sm clock": ("gpu_sm_clock_hertz", _MHZ), "gpu sm clocks": ("gpu_sm_clock_hertz", _MHZ),
    "mem_clock": ("gpu_memory_clock_hertz", _MHZ), "memory_clock": ("gpu_memory_clock_hertz", _MHZ),
    "memory_used": ("gpu_memory_used_bytes", _MIB), "gpu_mem_used": ("gpu_memory_used_bytes", _MIB),
}  # fmt: skip
# Numbers of DCGM's fields (dcgm_fields.h), as tables that were made with `dcgmi dmon -e` name their columns.
FIELDS: Final[dict[str, str]] = {
    "84": "DEV_INFOROM_CONFIG_VALID",
    "100": "DEV_SM_CLOCK", "101": "DEV_MEM_CLOCK", "112": "DEV_CLOCKS_EVENT_REASONS", "140": "DEV_MEMORY_TEMP",
    "150": "DEV_GPU_TEMP", "155": "DEV_POWER_USAGE", "156": "DEV_TOTAL_ENERGY_CONSUMPTION", "202":
    "DEV_PCIE_REPLAY_COUNTER", "203": "DEV_GPU_UTIL", "204": "DEV_MEM_COPY_UTIL", "206": "DEV_ENC_UTIL", "207":
    "DEV_DEC_UTIL", "230": "DEV_XID_ERRORS", "235": "DEV_PCIE_MAX_LINK_GEN", "236": "DEV_PCIE_MAX_LINK_WIDTH",
    "237": "DEV_PCIE_LINK_GEN", "238": "DEV_PCIE_LINK_WIDTH", "240": "DEV_POWER_VIOLATION", "241":
    "DEV_THERMAL_VIOLATION", "250": "DEV_FB_TOTAL", "251": "DEV_FB_FREE", "252": "DEV_FB_USED", "310":
    "DEV_ECC_SBE_VOL_TOTAL", "311": "DEV_ECC_DBE_VOL_TOTAL", "312": "DEV_ECC_SBE_AGG_TOTAL", "313":
    "DEV_ECC_DBE_AGG_TOTAL", "390": "DEV_RETIRED_SBE", "391": "DEV_RETIRED_DBE", "392": "DEV_RETIRED_PENDING",
    "393": "DEV_UNCORRECTABLE_REMAPPED_ROWS", "394": "DEV_CORRECTABLE_REMAPPED_ROWS", "395":
    "DEV_ROW_REMAP_FAILURE", "409": "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "419":
    "DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "429": "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "439":
    "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "1001": "PROF_GR_ENGINE_ACTIVE", "1002": "PROF_SM_ACTIVE", "1003":
    "PROF_SM_OCCUPANCY", "1004": "PROF_PIPE_TENSOR_ACTIVE", "1005": "PROF_DRAM_ACTIVE", "1009":
    "PROF_PCIE_TX_BYTES", "1010": "PROF_PCIE_RX_BYTES", "1011": "PROF_NVLINK_TX_BYTES", "1012":
    "PROF_NVLINK_RX_BYTES", "1204": "DEV_NVLINK_COUNT_RX_MALFORMED_PACKET_ERRORS", "1205":
    "DEV_NVLINK_COUNT_RX_BUFFER_OVERRUN_ERRORS", "1209": "DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS", "1212":
    "DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "1214": "DEV_NVLINK_COUNT_RX_SYMBOL_ERRORS", "1216":
    "DEV_NVLINK_COUNT_SYMBOL_BER_FLOAT", "1218": "DEV_NVLINK_COUNT_EFFECTIVE_BER_FLOAT", "1219":
    "DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
}  # fmt: skip
# Names so short that they mean a GPU's metric only where the table says that its rows are of GPUs.
SHORT: Final = frozenset({
    "temp", "temperature", "util", "utilization", "power", "power_w", "power_usage", "pwr", "sm", "mem", "fb", "pci",
    "enc", "dec", "width", "replay", "gfx", "hotspot", "junction", "memory_used", "memory_temp", "mem_temperature",
    "mem_clock", "memory_clock", "mclk", "pclk", "tviol", "replay_count", "socket_power", "mem_clk",
    *FIELDS,
})  # fmt: skip
