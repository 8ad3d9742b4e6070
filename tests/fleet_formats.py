"""The same fleet of GPUs, healthy or with one that the hardware slows down, written as each tool would write it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

T0: Final = 1_790_000_000
GPUS: Final = 8
SAMPLES: Final = 60
EVERY_S: Final = 10


class Sample(NamedTuple):
    """One GPU at one moment."""

    time_s: int
    gpu: int
    clock_mhz: int
    watts: float
    celsius: int
    busy: int
    reasons: int


def fleet(faulty: int | None, every_s: int = EVERY_S, samples: int = SAMPLES) -> Iterator[Sample]:
    """Samples by time; GPU `faulty` brakes from the second third on."""
    for moment in range(samples):
        for gpu in range(GPUS):
            slow = gpu == faulty and moment >= samples // 3
            yield Sample(
                T0 + every_s * moment, gpu, 345 if slow else 1605, 180.4 if slow else 690.3 + gpu,
                (95 if slow else 60) + (moment + gpu) % 3, 100, 0x88 if slow else 0x4,
            )  # fmt: skip


def stamp(time_s: float, form: str) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime(form)


def _smi_csv(samples: list[Sample]) -> str:
    lines = ["timestamp, index, name, pstate, clocks.current.sm [MHz], power.draw [W], temperature.gpu, "
             "utilization.gpu [%], ecc.errors.uncorrected.volatile.total, clocks_event_reasons.active"]  # fmt: skip
    for one in samples:
        when = stamp(one.time_s, "%Y/%m/%d %H:%M:%S.000")
        lines.append(f"{when}, {one.gpu}, NVIDIA H100, P0, {one.clock_mhz} MHz, {one.watts:.2f} W, {one.celsius}, "
                     f"{one.busy} %, [N/A], 0x{one.reasons:016x}")  # fmt: skip
    return "\n".join(lines) + "\n"


def _smi_bare(samples: list[Sample]) -> str:
    """As `-l 1` writes it where `timestamp` is not among the fields."""
    lines = ["index, uuid, clocks.current.sm [MHz], power.draw [W], temperature.gpu, utilization.gpu [%], "
             "clocks_throttle_reasons.active"]  # fmt: skip
    lines += [f"{one.gpu}, GPU-0{one.gpu}, {one.clock_mhz} MHz, {one.watts:.2f} W, {one.celsius}, {one.busy} %, "
              f"0x{one.reasons:016x}" for one in samples]  # fmt: skip
    return "\n".join(lines) + "\n"


def _german(samples: list[Sample]) -> str:
    lines = ["Zeit;timestamp;gpu;power.draw [W];clocks.sm [MHz];temperature.gpu;utilization.gpu [%]"]
    for one in samples:
        when = stamp(one.time_s, "%d.%m.%Y %H:%M:%S")
        watts = f"{one.watts:.2f}".replace(".", ",")
        lines.append(f"x;{when};{one.gpu};{watts};{one.clock_mhz};{one.celsius};{one.busy}")
    return "\n".join(lines) + "\n"


def _dmon(samples: list[Sample]) -> str:
    header = ("#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk \n"
              "#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz \n")  # fmt: skip
    text = ""
    for place, one in enumerate(samples):
        text += header if place % 40 == 0 else ""
        when = stamp(one.time_s, "%Y%m%d   %H:%M:%S")
        text += f" {when} {one.gpu:6d} {one.watts:6.0f} {one.celsius:6d}      - {one.busy:6d}     40   2619 "
        text += f"{one.clock_mhz:6d} \n"
    return text


def _dcgmi(samples: list[Sample]) -> str:
    text = ""
    for place, one in enumerate(samples):
        if place % (GPUS * 10) == 0:
            text += "#Entity   SMCLK          TMPTR          POWER          GPUTL\n"
            text += "ID                      C              W\n"
        text += f"GPU {one.gpu}     {one.clock_mhz}           {one.celsius}        {one.watts:.3f}       {one.busy}\n"
    return text


def _pages(samples: list[Sample]) -> str:
    text, last = "", None
    for one in samples:
        if one.time_s != last:
            when = stamp(one.time_s, "%a %b %d %H:%M:%S %Y")
            text += f"\n==============NVSMI LOG==============\n\nTimestamp                      : {when}\n"
            text += "Driver Version                 : 570.86.10\nAttached GPUs                  : 8\n"
            last = one.time_s
        power = "Active" if one.reasons & 0x80 else "Not Active"
        cap = "Active" if one.reasons & 0x4 else "Not Active"
        text += f"""GPU 00000000:{0x18 + one.gpu:02X}:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Minor Number                          : {one.gpu}
    Performance State                     : P0
    Clocks Event Reasons
        SW Power Cap                      : {cap}
        HW Slowdown                       : {power}
            HW Thermal Slowdown           : Not Active
            HW Power Brake Slowdown       : {power}
    FB Memory Usage
        Total                             : 81559 MiB
        Used                              : 70000 MiB
    Utilization
        GPU                               : {one.busy} %
        Memory                            : 40 %
    Temperature
        GPU Current Temp                  : {one.celsius} C
    GPU Power Readings
        Average Power Draw                : N/A
        Instantaneous Power Draw          : {one.watts:.2f} W
    Clocks
        Graphics                          : {one.clock_mhz} MHz
        SM                                : {one.clock_mhz} MHz
    Max Clocks
        SM                                : 1980 MHz
"""
    return text


_DCGM: Final[dict[str, Callable[[Sample], float]]] = {
    "DCGM_FI_DEV_SM_CLOCK": lambda one: one.clock_mhz, "DCGM_FI_DEV_POWER_USAGE": lambda one: one.watts,
    "DCGM_FI_DEV_GPU_TEMP": lambda one: one.celsius, "DCGM_FI_DEV_GPU_UTIL": lambda one: one.busy,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": lambda one: one.reasons,
}  # fmt: skip


def _labels(gpu: int) -> dict[str, str]:
    return {"gpu": str(gpu), "UUID": f"GPU-0{gpu}", "device": f"nvidia{gpu}", "Hostname": "a1", "modelName": "H100"}


def _scrapes(samples: list[Sample]) -> str:
    text = ""
    for moment in sorted({one.time_s for one in samples}):
        now = [one for one in samples if one.time_s == moment]
        text += f"# scraped {moment}\n"
        for name, value in _DCGM.items():
            text += f"# HELP {name} x\n# TYPE {name} gauge\n"
            for one in now:
                labels = ",".join(f'{key}="{word}"' for key, word in _labels(one.gpu).items())
                text += f"{name}{{{labels}}} {value(one):g}\n"
    return text


_EXPORTED: Final[dict[str, Callable[[Sample], float]]] = {
    "nvidia_smi_clocks_current_sm_clock_hz": lambda one: one.clock_mhz * 1e6,
    "nvidia_smi_power_draw_watts": lambda one: one.watts, "nvidia_smi_temperature_gpu": lambda one: one.celsius,
    "nvidia_smi_utilization_gpu_ratio": lambda one: one.busy / 100,
    "nvidia_smi_clocks_event_reasons_active": lambda one: one.reasons,
}  # fmt: skip


def _exporter_of_smi(samples: list[Sample]) -> str:
    """nvidia_gpu_exporter: series name UUIDs, of which another one tells the index."""
    text = ""
    for moment in sorted({one.time_s for one in samples}):
        now = [one for one in samples if one.time_s == moment]
        text += f"# {moment}\n# TYPE nvidia_smi_gpu_info gauge\n"
        text += "".join(f'nvidia_smi_gpu_info{{index="{one.gpu}",uuid="ab-0{one.gpu}"}} 1\n' for one in now)
        for name, value in _EXPORTED.items():
            text += f"# HELP {name} x\n# TYPE {name} gauge\n"
            text += "".join(f'{name}{{uuid="ab-0{one.gpu}"}} {value(one):g}\n' for one in now)
    return text


def _query_range(samples: list[Sample]) -> str:
    result = [
        {"metric": {"__name__": name, **_labels(gpu), "instance": "10.0.0.1:9400"},
         "values": [[one.time_s, f"{value(one):g}"] for one in samples if one.gpu == gpu]}
        for name, value in _DCGM.items() for gpu in range(GPUS)
    ]  # fmt: skip
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def _grafana_long(samples: list[Sample]) -> str:
    lines = ['"Series";"Time";"Value"']
    for name, value in _DCGM.items():
        for one in samples:
            labels = ", ".join(f'{key}=""{word}""' for key, word in _labels(one.gpu).items())
            lines.append(f'"{name}{{{labels}}}";{stamp(one.time_s, "%Y-%m-%d %H:%M:%S")};{value(one):g}')
    return "\n".join(lines) + "\n"


def _grafana_wide(samples: list[Sample]) -> str:
    series = [(name, gpu) for name in _DCGM for gpu in range(GPUS)]
    header = ['"Time"']
    for name, gpu in series:
        labels = ", ".join(f'{key}=""{word}""' for key, word in _labels(gpu).items())
        header.append(f'"{name}{{{labels}}}"')
    lines = [",".join(header)]
    for moment in sorted({one.time_s for one in samples}):
        now = {one.gpu: one for one in samples if one.time_s == moment}
        cells = [f"{_DCGM[name](now[gpu]):g}" for name, gpu in series]
        lines.append(",".join([str(moment * 1000), *cells]))
    return "\n".join(lines) + "\n"


def _wandb(samples: list[Sample]) -> str:
    lines = []
    for moment in sorted({one.time_s for one in samples}):
        row: dict[str, object] = {"_timestamp": moment + 0.25, "_runtime": moment - T0}
        for one in samples:
            if one.time_s == moment:
                row |= {f"system.gpu.{one.gpu}.temp": one.celsius, f"system.gpu.{one.gpu}.powerWatts": one.watts,
                        f"system.gpu.{one.gpu}.smClock": one.clock_mhz,
                        f"system.gpu.{one.gpu}.gpu": one.busy}  # fmt: skip
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"


def _lower_case(samples: list[Sample]) -> str:
    lines = ["time_ms,hostname,gpu_id," + ",".join(name.lower() for name in _DCGM)]
    for one in samples:
        values = ",".join(f"{value(one):g}" for value in _DCGM.values())
        lines.append(f"{one.time_s * 1000},a1,{one.gpu},{values}")
    return "\n".join(lines) + "\n"


def _amd_gpu(one: Sample) -> dict[str, object]:
    return {
        "gpu": one.gpu,
        "usage": {"gfx_activity": {"value": one.busy, "unit": "%"}, "umc_activity": {"value": 30, "unit": "%"}},
        "power": {"socket_power": {"value": one.watts, "unit": "W"}},
        "clock": {"gfx_0": {"clk": {"value": one.clock_mhz, "unit": "MHz"}}},
        "temperature": {"edge": "N/A", "hotspot": {"value": one.celsius, "unit": "C"}},
    }


def _amd_json(samples: list[Sample]) -> str:
    moments = sorted({one.time_s for one in samples})
    answers = [{"timestamp": moment, "gpu_data": [_amd_gpu(one) for one in samples if one.time_s == moment]}
               for moment in moments]  # fmt: skip
    return "".join(json.dumps(answer) + "\n" for answer in answers)


def _amd_csv(samples: list[Sample]) -> str:
    lines = ["timestamp,gpu,gfx_activity,umc_activity,socket_power,hotspot,gfx_0_clk"]
    lines += [f"{one.time_s},{one.gpu},{one.busy},30,{one.watts:.0f},{one.celsius},{one.clock_mhz}" for one in samples]
    return "\n".join(lines) + "\n"


def _annotated(samples: list[Sample]) -> str:
    """InfluxDB's export of what telegraf's nvidia_smi input has written; its lines end as in Windows."""
    lines = ["#group,false,false,true,false,false,true,true,true", "#datatype,string,long,dateTime:RFC3339,"
             "dateTime:RFC3339,double,string,string,string", "#default,_result,,,,,,,",
             ",result,table,_start,_time,_value,_field,host,index"]  # fmt: skip
    for field, value in _TELEGRAF.items():
        for one in samples:
            when = stamp(one.time_s, "%Y-%m-%dT%H:%M:%SZ")
            lines.append(f",,{one.gpu},2026-09-21T00:00:00Z,{when},{value(one)},{field},a1,{one.gpu}")
    return "\r\n".join(lines) + "\r\n"


_TELEGRAF: Final[dict[str, Callable[[Sample], float]]] = {
    "temperature_gpu": lambda one: one.celsius, "power_draw": lambda one: one.watts,
    "clocks_current_sm": lambda one: one.clock_mhz, "utilization_gpu": lambda one: one.busy,
}  # fmt: skip


def _telegraf_json(samples: list[Sample]) -> str:
    lines = [{"fields": {field: value(one) for field, value in _TELEGRAF.items()}, "name": "nvidia_smi",
              "tags": {"host": "a1", "index": str(one.gpu)}, "timestamp": one.time_s} for one in samples]  # fmt: skip
    return "".join(json.dumps(line) + "\n" for line in lines)


def _promtool_query(samples: list[Sample]) -> str:
    text = ""
    for name, value in _DCGM.items():
        for gpu in range(GPUS):
            labels = ", ".join(f'{key}="{word}"' for key, word in _labels(gpu).items())
            points = [f"{value(one):g} @[{one.time_s}]\n" for one in samples if one.gpu == gpu]
            text += f"{name}{{{labels}}} =>\n" + "".join(points)
    return text


def _zoned(samples: list[Sample]) -> str:
    return _grafana_wide(samples).replace('"Time"', '"Time (UTC+02:00)"', 1)


def _dmon_csv(samples: list[Sample]) -> str:
    lines = ["#Date, Time, gpu, pwr, gtemp, mtemp, sm, mclk, pclk", "#YYYYMMDD, HH:MM:SS, Idx, W, C, C, %, MHz, MHz"]
    for one in samples:
        when = stamp(one.time_s, "%Y%m%d, %H:%M:%S")
        lines.append(f"{when}, {one.gpu}, {one.watts:.0f}, {one.celsius}, -, {one.busy}, 2619, {one.clock_mhz}")
    return "\n".join(lines) + "\n"


def _rocm_csv(samples: list[Sample]) -> str:
    header = "device,Temperature (Sensor junction) (C),sclk clock speed:,Average Graphics Package Power (W),GPU use (%)"
    lines = []
    for place, one in enumerate(samples):
        lines += ["", header] if place % GPUS == 0 else []
        lines.append(f"card{one.gpu},{one.celsius}.0,({one.clock_mhz}Mhz),{one.watts:.1f},{one.busy}")
    return "\n".join(lines) + "\n"


def _spelled_out(samples: list[Sample]) -> str:
    lines = ["Timestamp,GPU Index,SM Clock (MHz),Temperature (C),GPU Utilization (%)"]
    for one in samples:
        when = stamp(one.time_s, "%m/%d/%Y %I:%M:%S %p")
        lines.append(f"{when},{one.gpu},{one.clock_mhz},{one.celsius},{one.busy}")
    return "\n".join(lines) + "\n"


_SERVED: Final[dict[str, Callable[[Sample], float]]] = {
    "temperature": lambda one: one.celsius, "power_usage": lambda one: one.watts,
    "sm_clock": lambda one: one.clock_mhz, "utilization": lambda one: one.busy,
}  # fmt: skip


def _datadog(samples: list[Sample]) -> str:
    """Datadog's answer to a query of series (API v1)."""
    series = [
        {"metric": f"dcgm.{name}", "scope": f"gpu:{gpu},host:a1", "tag_set": [f"gpu:{gpu}", "host:a1"],
         "pointlist": [[one.time_s * 1000.0, value(one)] for one in samples if one.gpu == gpu]}
        for name, value in _SERVED.items() for gpu in range(GPUS)
    ]  # fmt: skip
    return json.dumps({"status": "ok", "series": series})


def _grafana_frames(samples: list[Sample]) -> str:
    """Grafana's answer to a panel's query, a frame for each series."""
    frames = [
        {"schema": {"fields": [{"name": "Time", "type": "time"}, {"name": "Value", "type": "number",
                                                                  "labels": {"__name__": name, **_labels(gpu)}}]},
         "data": {"values": [[one.time_s * 1000 for one in samples if one.gpu == gpu],
                             [value(one) for one in samples if one.gpu == gpu]]}}
        for name, value in _DCGM.items() for gpu in range(GPUS)
    ]  # fmt: skip
    return json.dumps({"results": {"A": {"status": 200, "frames": frames}}})


def _otlp(samples: list[Sample]) -> str:
    """As OpenTelemetry's file exporter writes a batch a line."""
    host = {"attributes": [{"key": "host.name", "value": {"stringValue": "a1"}}]}
    lines = []
    for moment in sorted({one.time_s for one in samples}):
        now = [one for one in samples if one.time_s == moment]
        told = [{"name": f"hw.gpu.{name}", "gauge": {"dataPoints": [
            {"asDouble": value(one), "timeUnixNano": str(one.time_s * 10**9),
             "attributes": [{"key": "gpu", "value": {"stringValue": str(one.gpu)}}]} for one in now]}}
            for name, value in _SERVED.items()]  # fmt: skip
        lines.append(json.dumps({"resourceMetrics": [{"resource": host, "scopeMetrics": [{"metrics": told}]}]}))
    return "\n".join(lines) + "\n"


def _open_metrics(samples: list[Sample]) -> str:
    """With exemplars behind the samples."""
    text = ""
    for name, value in _DCGM.items():
        text += f"# TYPE {name} gauge\n"
        for one in samples:
            labels = ",".join(f'{key}="{word}"' for key, word in _labels(one.gpu).items())
            text += f'{name}{{{labels}}} {value(one):g} {one.time_s}.5 # {{trace_id="ab{one.gpu}"}} 0.67\n'
    return text + "# EOF\n"


def _kibana(samples: list[Sample]) -> str:
    lines = ['"@timestamp","host.name","gpu.index","gpu.temperature","gpu.power","gpu.utilization","gpu.sm_clock"']
    for one in samples:
        when = stamp(one.time_s, "%b %d, %Y @ %H:%M:%S.000")
        lines.append(f'"{when}",a1,{one.gpu},{one.celsius},{one.watts},{one.busy},{one.clock_mhz}')
    return "\n".join(lines) + "\n"


WRITERS: Final[dict[str, tuple[str, Callable[[list[Sample]], str]]]] = {
    "nvidia-smi csv": ("gpu.csv", _smi_csv),
    "nvidia-smi csv without times": ("smi.csv", _smi_bare),
    "nvidia_gpu_exporter": ("metrics.txt", _exporter_of_smi),
    "nvidia-smi csv, German": ("smi.csv", _german),
    "nvidia-smi -q": ("smi.txt", _pages),
    "nvidia-smi dmon": ("dmon.log", _dmon),
    "dcgmi dmon": ("dcgmi.txt", _dcgmi),
    "dcgm-exporter": ("metrics.prom", _scrapes),
    "query_range": ("answer.json", _query_range),
    "grafana long": ("panel.csv", _grafana_long),
    "grafana wide": ("panel-data.csv", _grafana_wide),
    "wandb": ("wandb-events.jsonl", _wandb),
    "amd-smi json": ("amd.json", _amd_json),
    "amd-smi csv": ("amd.csv", _amd_csv),
    "InfluxDB's annotated csv": ("query.csv", _annotated),
    "telegraf's json": ("metrics.json", _telegraf_json),
    "promtool query": ("answer.txt", _promtool_query),
    "grafana wide, zone named": ("panel-data.csv", _zoned),
    "nvidia-smi dmon --format csv": ("dmon.csv", _dmon_csv),
    "rocm-smi csv": ("rocm.csv", _rocm_csv),
    "names spelled out": ("fleet.csv", _spelled_out),
    "datadog": ("query.json", _datadog),
    "grafana frames": ("panel.json", _grafana_frames),
    "otlp": ("otlp.json", _otlp),
    "openmetrics with exemplars": ("metrics.txt", _open_metrics),
    "kibana": ("discover.csv", _kibana),
    "own table": ("fleet.csv", _lower_case),
}
"""By name: the file's name, and how it is written."""


TIMELESS: Final = ("dcgmi dmon", "nvidia-smi csv without times", "rocm-smi csv")


def write(folder: Path, name: str, faulty: int | None) -> Path:
    """The fleet in one format."""
    file, writer = WRITERS[name]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file
    # What carries no times is taken for a sample a second.
    samples = list(fleet(faulty, 1, 10 * SAMPLES) if name in TIMELESS else fleet(faulty))
    path.write_text(writer(samples), encoding="utf-8")
    return path
