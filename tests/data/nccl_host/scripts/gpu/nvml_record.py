"""Every NVML call the GPU collector makes, and what GPM gives, once a second from idle to load to idle.

    python nvml_record.py OUT.json.gz [--ticks 30] [--load-from 10] [--load-to 20]

For every call and tick the value, or the error's number and name, and how long the call took. Beside it what
`nvidia-smi` says in the same second. Names of the machine (UUID, serial, PCI address) are replaced before anything is
written. Apache-2.0, the trainwarden project.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pynvml as n

LOAD = """
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16); b = torch.randn_like(a); c = torch.empty_like(a)
big = torch.empty(1 << 30, device="cuda", dtype=torch.uint8); host = torch.empty(1 << 26, dtype=torch.uint8).pin_memory()
print("ready", flush=True)
until = time.time() + {seconds}
while time.time() < until:
    for _ in range(20): torch.matmul(a, b, out=c)
    big[: 1 << 29].copy_(big[1 << 29 :]); big[: 1 << 26].copy_(host, non_blocking=True)
    torch.cuda.synchronize()
"""
SMI = ("timestamp,pstate,clocks.sm,clocks.mem,clocks.gr,temperature.gpu,temperature.memory,power.draw,power.draw.instant,power.limit,"
       "utilization.gpu,utilization.memory,memory.used,memory.reserved,memory.free,memory.total,"
       "ecc.errors.corrected.volatile.total,ecc.errors.uncorrected.volatile.total,pcie.link.gen.current,pcie.link.width.current,"
       "clocks_event_reasons.active,mig.mode.current")  # fmt: skip


def plain(value: Any) -> Any:
    """Anything pynvml gives, as JSON."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (int, float, str, bool)) or value is None:
        return value
    if isinstance(value, (list, tuple, ctypes.Array)):
        return [plain(one) for one in value]
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_ if name != "device"}
    if isinstance(value, ctypes.Union):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_ if name == "ullVal"}
    return str(value)


def calls() -> dict[str, Callable[[Any], Any]]:
    """By name: what is asked of a handle every tick."""
    out: dict[str, Callable[[Any], Any]] = {}

    def add(function: str, *arguments: Any, label: str = "") -> None:
        out[function + (f"[{label}]" if label else "")] = lambda handle: getattr(n, function)(handle, *arguments)

    for function in ("nvmlDeviceGetUtilizationRates", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedClocksEventReasons",
                     "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPerformanceState",
                     "nvmlDeviceGetPcieReplayCounter", "nvmlDeviceGetEncoderUtilization", "nvmlDeviceGetDecoderUtilization",
                     "nvmlDeviceGetFanSpeed", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetBAR1MemoryInfo",
                     "nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetCurrPcieLinkGeneration",
                     "nvmlDeviceGetMaxPcieLinkGeneration", "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetMaxPcieLinkWidth",
                     "nvmlDeviceGetMigMode", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetEccMode",
                     "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetRowRemapperHistogram"):  # fmt: skip
        add(function)
    add("nvmlDeviceGetMemoryInfo", n.nvmlMemory_v2, label="v2")
    for clock in ("SM", "MEM", "GRAPHICS"):
        add("nvmlDeviceGetClockInfo", getattr(n, f"NVML_CLOCK_{clock}"), label=clock)
        add("nvmlDeviceGetMaxClockInfo", getattr(n, f"NVML_CLOCK_{clock}"), label=clock)
    add("nvmlDeviceGetTemperature", n.NVML_TEMPERATURE_GPU, label="GPU")
    for place, name in enumerate(("SHUTDOWN", "SLOWDOWN", "MEM_MAX", "GPU_MAX")):
        add("nvmlDeviceGetTemperatureThreshold", place, label=name)
    for policy in ("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "LOW_UTILIZATION", "RELIABILITY"):
        add("nvmlDeviceGetViolationStatus", getattr(n, f"NVML_PERF_POLICY_{policy}"), label=policy)
    for error in ("CORRECTED", "UNCORRECTED"):
        for counter in ("VOLATILE", "AGGREGATE"):
            add("nvmlDeviceGetTotalEccErrors", getattr(n, f"NVML_MEMORY_ERROR_TYPE_{error}"), getattr(n, f"NVML_{counter}_ECC"), label=f"{error} {counter}")
    for cause in ("MULTIPLE_SINGLE_BIT_ECC_ERRORS", "DOUBLE_BIT_ECC_ERROR"):
        add("nvmlDeviceGetRetiredPages", getattr(n, f"NVML_PAGE_RETIREMENT_CAUSE_{cause}"), label=cause)
    for way in ("TX", "RX"):
        add("nvmlDeviceGetPcieThroughput", getattr(n, f"NVML_PCIE_UTIL_{way}_BYTES"), label=way)
    out["processes"] = lambda handle: [process.usedGpuMemory for process in n.nvmlDeviceGetComputeRunningProcesses(handle)]
    for link in range(int(n.NVML_NVLINK_MAX_LINKS)):
        add("nvmlDeviceGetNvLinkState", link, label=str(link))
    for counter in range(4):
        add("nvmlDeviceGetNvLinkErrorCounter", 0, counter, label=f"0 {counter}")

    def fabric(handle: Any) -> Any:
        info = n.c_nvmlGpuFabricInfoV_t()
        found = n.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return {"returned": plain(found), "state": info.state, "status": info.status, "healthMask": getattr(info, "healthMask", None)}

    out["nvmlDeviceGetGpuFabricInfoV"] = fabric
    ids = {name: getattr(n, name) for name in dir(n) if re.fullmatch(r"NVML_FI_DEV_(MEMORY_TEMP|NVLINK_\w*TOTAL|NVLINK_THROUGHPUT\w*|PCIE_\w+|POWER_\w+|GET_GPU_RECOVERY_ACTION|C2C\w*|RESET_STATUS|DRAIN\w*|ECC_\w*TOTAL|REMAPPED\w*)", name)}

    def fields(handle: Any) -> Any:
        asked = [(number, 0xFFFFFFFF if "THROUGHPUT" in name else 0) for name, number in ids.items()]
        answers = []
        for start in range(0, len(asked), 64):
            answers += list(n.nvmlDeviceGetFieldValues(handle, asked[start : start + 64]))
        return {name: [one.nvmlReturn, one.valueType, one.value.ullVal if one.valueType != 0 else one.value.dVal] for name, one in zip(ids, answers)}

    out["nvmlDeviceGetFieldValues"] = fields
    return out


class Gpm:
    """The GPU's performance monitor: metrics are differences of two samples."""

    def __init__(self, handle: Any) -> None:
        self.metrics = {name[16:]: getattr(n, name) for name in dir(n) if name.startswith("NVML_GPM_METRIC_") and name[16:] != "MAX"}
        self.two = [n.nvmlGpmSampleAlloc(), n.nvmlGpmSampleAlloc()]
        n.nvmlGpmSampleGet(handle, self.two[0])

    def read(self, handle: Any) -> dict[str, Any]:
        n.nvmlGpmSampleGet(handle, self.two[1])
        names = list(self.metrics)
        out: dict[str, Any] = {}
        for start in range(0, len(names), 32):
            part = names[start : start + 32]
            get = n.c_nvmlGpmMetricsGet_t(version=n.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(part), sample1=self.two[0], sample2=self.two[1])
            for place, name in enumerate(part):
                get.metrics[place].metricId = self.metrics[name]
            n.nvmlGpmMetricsGet(get)
            for place, name in enumerate(part):
                metric = get.metrics[place]
                out[name] = [metric.nvmlReturn, metric.value if metric.nvmlReturn == 0 else None]
        self.two.reverse()
        return out


def tried(function: Callable[[], Any]) -> dict[str, Any]:
    begun = time.perf_counter_ns()
    try:
        out = {"value": plain(function())}
    except n.NVMLError as error:
        out = {"error": error.value, "name": type(error).__name__}
    except Exception as error:  # noqa: BLE001 - a call that this pynvml does not have
        out = {"failed": f"{type(error).__name__}: {error}"}
    return out | {"us": (time.perf_counter_ns() - begun) // 1000}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out")
    parser.add_argument("--ticks", type=int, default=30)
    parser.add_argument("--load-from", type=int, default=10)
    parser.add_argument("--load-to", type=int, default=20)
    options = parser.parse_args()
    n.nvmlInit()
    handle = n.nvmlDeviceGetHandleByIndex(0)
    record: dict[str, Any] = {"about": {"driver": tried(n.nvmlSystemGetDriverVersion), "nvml": tried(n.nvmlSystemGetNVMLVersion),
                                        "gpu": tried(lambda: n.nvmlDeviceGetName(handle)), "pynvml": getattr(n, "__version__", "")},
                              "gpm_supported": tried(lambda: n.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice), "ticks": []}  # fmt: skip
    gpm: Gpm | None = None
    try:
        gpm = Gpm(handle)
    except Exception as error:  # noqa: BLE001 - not on every GPU
        record["gpm_failed"] = f"{type(error).__name__}: {error}"
    load = None
    for tick in range(options.ticks):
        due = time.monotonic() + 1.0
        if tick == options.load_from:
            load = subprocess.Popen([sys.executable, "-c", LOAD.format(seconds=options.load_to - options.load_from)],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        row: dict[str, Any] = {"tick": tick, "loaded": load is not None and load.poll() is None}
        row["nvml"] = {name: tried(lambda call=call: call(handle)) for name, call in calls().items()}
        if gpm is not None:
            row["gpm"] = tried(lambda: gpm.read(handle))
        smi = subprocess.run(["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=20, check=False) if has_smi() else None
        row["smi"] = dict(zip(SMI.split(","), smi.stdout.strip().split(", "))) if smi else None
        record["ticks"].append(row)
        time.sleep(max(0.0, due - time.monotonic()))
    if load is not None:
        load.wait()
    text = json.dumps(record)
    for told in ("nvmlDeviceGetUUID", "nvmlDeviceGetSerial"):
        said = tried(lambda told=told: getattr(n, told)(handle)).get("value")
        if said:
            text = text.replace(str(said), "GPU-00000000-0000-0000-0000-000000000000")
    with gzip.open(options.out, "wt") as file:
        file.write(text)
    row = record["ticks"][-1]["nvml"]
    print(len(row), "calls;", sum("value" in one for one in row.values()), "answered;",
          sorted({f"{one.get('name') or one.get('failed')}" for one in row.values() if "value" not in one}))  # fmt: skip
    return 0


def has_smi() -> bool:
    import shutil

    return shutil.which("nvidia-smi") is not None


if __name__ == "__main__":
    sys.exit(main())
