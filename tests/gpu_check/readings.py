"""Our GPU collector beside nvidia-smi, at nearly the same time."""

from __future__ import annotations

import subprocess
from pathlib import Path

from trainwarden.clock import SystemClock
from trainwarden.protocols import Scope
from trainwarden.records import MetricsRecord

# Our name, nvidia-smi's, and what one of its units is in ours.
PAIRS = {
    "temperature": ("gpu_temperature_celsius", "temperature.gpu", 1.0),
    "power": ("gpu_power_watts", "power.draw", 1.0),
    "sm_clock": ("gpu_sm_clock_hertz", "clocks.sm", 1e6),
    "memory_used": ("gpu_memory_used_bytes", "memory.used", 1024.0**2),
}


def differences(folder: Path) -> dict[str, float | str]:
    """By name the largest difference of all GPUs, as a share of what nvidia-smi says; else why there is none."""
    query = ",".join(["uuid", *(theirs for _, theirs, _ in PAIRS.values())])
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return dict.fromkeys(PAIRS, f"nvidia-smi does not answer ({error})")
    ours = collected(folder)
    theirs = {row[0]: row[1:] for row in parsed(said)}
    found: dict[str, float | str] = {}
    for place, (name, (metric, _, unit)) in enumerate(PAIRS.items()):
        apart = []
        for uuid, cells in theirs.items():
            mine, cell = ours.get((uuid, metric)), cells[place]
            if mine is not None and cell is not None and cell > 0.0:
                apart.append(abs(mine / (cell * unit) - 1.0))
        found[name] = max(apart) if apart else "no GPU has a value on both sides"
    return found


def parsed(said: str) -> list[tuple[str, *tuple[float | None, ...]]]:
    """Lines of nvidia-smi's: a name, then numbers, None for what it does not know.

    Examples
    --------
    >>> parsed("GPU-1, 31, 70.5, [N/A], 4\\n")
    [('GPU-1', 31.0, 70.5, None, 4.0)]
    """
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.strip()]
    return [(row[0], *(number(cell) for cell in row[1:])) for row in rows]


def number(cell: str) -> float | None:
    """`cell` as a number, None for words."""
    try:
        return float(cell)
    except ValueError:
        return None


def collected(folder: Path) -> dict[tuple[str, str], float]:
    """By GPU and name what the collector reads; empty where it finds no GPU."""
    from trainwarden.collectors.gpu.collector import GpuCollector

    clock = SystemClock()
    collector = GpuCollector(GpuCollector.Config(), Scope(job="gpu-check", node="here", run_dir=str(folder)), clock)
    if collector.supported() is not None:
        return {}
    found: dict[tuple[str, str], float] = {}
    try:
        for record in collector.collect(clock.now_s()):
            if isinstance(record, MetricsRecord):
                for name, row in zip(record.names, record.values, strict=True):
                    for device, value in zip(record.devices, row, strict=True):
                        if value is not None:
                            found[device, name] = value
    finally:
        collector.close()
    return found
