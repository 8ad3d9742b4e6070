"""A seeded archive of any size, written as the archive writes it, in bounded memory; and a command within a limit."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from trainwarden.detectors.recorded.processes import processes
from trainwarden.trainer_offline.archive.data_file import Footer, Part, write_file
from trainwarden.trainer_offline.archive.layout import job_folder
from trainwarden.trainer_offline.archive.schema import SCHEMAS

DAY_S = 86_400
FIRST_DAY = 20_000  # 2024-10-04
DEVICES = ("", *(f"gpu{number}" for number in range(8)))
HOST_METRICS = ("host_cpu_busy_ratio", "host_memory_used_bytes", "host_load_1m")
GPU_METRICS = (
    "gpu_power_watts", "gpu_temperature_celsius", "gpu_utilization_ratio", "gpu_clock_sm_hertz",
    "gpu_memory_used_bytes", "gpu_memory_utilization_ratio", "gpu_clock_memory_hertz", "gpu_energy_rate_watts",
    "gpu_pcie_tx_bytes_per_s", "gpu_pcie_rx_bytes_per_s",
)  # fmt: skip
NAMES = (*HOST_METRICS, *GPU_METRICS)
CHUNK_ROWS = 1_000_000


@dataclass(frozen=True)
class JobSize:
    """One job: `nodes` hosts of eight GPUs each, one record every `every_s`."""

    name: str
    nodes: int
    days: int
    every_s: int = 10


def write_archive(root: Path, jobs: Sequence[JobSize], seed: int = 0, workers: int = 2) -> tuple[int, int]:
    """Bytes on disk and rows of an archive with `jobs` under `root`."""
    days = [(root, job, day, seed + 1000 * number + day) for number, job in enumerate(jobs) for day in range(job.days)]
    with processes(workers) as pool:
        sizes = list(pool.map(_write_day, days))
    return sum(size for size, _ in sizes), sum(rows for _, rows in sizes)


def _write_day(task: tuple[Path, JobSize, int, int]) -> tuple[int, int]:
    root, job, number, seed = task
    day = (np.datetime64(FIRST_DAY, "D") + number).item().isoformat()
    folder = root / "metrics" / job_folder(job.name) / f"day={day}"
    folder.mkdir(parents=True)
    samples = DAY_S // job.every_s
    start_s = float((FIRST_DAY + number) * DAY_S)
    records = samples * job.nodes
    footer = Footer(
        topic="metrics", job=job.name, day=day, written_from_s=start_s + 0.5, written_to_s=start_s + DAY_S,
        from_s=start_s, to_s=start_s + (samples - 1) * job.every_s,
    )  # fmt: skip
    path = folder / Part(0, number * records, (number + 1) * records - 1).name
    rows = len(HOST_METRICS) + 8 * len(GPU_METRICS)
    step = max(1, CHUNK_ROWS // (job.nodes * rows))
    random = np.random.default_rng(seed)
    chunks = (
        _chunk(job, start_s, first, min(first + step, samples), number * records, random)
        for first in range(0, samples, step)
    )
    write_file(path, chunks, SCHEMAS["metrics"], footer)
    return path.stat().st_size, records * rows


def _chunk(job: JobSize, start_s: float, first: int, last: int, offset: int, random: np.random.Generator) -> pa.Table:
    """Rows in the order record, name, device, as on the bus; every value has the noise of all its bits."""
    device = np.array([0] * len(HOST_METRICS) + [1 + gpu for _ in GPU_METRICS for gpu in range(8)], np.int32)
    name = np.array(
        [*range(len(HOST_METRICS)), *(len(HOST_METRICS) + one for one in range(len(GPU_METRICS)) for _ in range(8))],
        np.int32,
    )
    samples, width = last - first, len(device)
    records = samples * job.nodes
    times = start_s + job.every_s * np.repeat(np.arange(first, last), job.nodes)
    level = 10.0 + 5.0 * name
    wave = np.sin(times / 600.0)[:, None]
    values = level * (1.0 + 0.02 * wave + 0.01 * random.standard_normal((records, width)))
    words = [
        (np.repeat(np.tile(np.arange(job.nodes, dtype=np.int32), samples), width), [f"n{n}" for n in range(job.nodes)]),
        (np.tile(device, records), DEVICES),
        (np.tile(name, records), NAMES),
    ]
    node, devices, names = (pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(text)) for codes, text in words)
    numbers = offset + first * job.nodes + np.arange(records)
    columns = [
        pa.array(np.repeat(times, width)), node, devices, pa.nulls(records * width, pa.int32()), names,
        pa.array(values.ravel()), pa.nulls(records * width, SCHEMAS["metrics"].field("model").type),
        pa.array(np.repeat(times + 0.5, width)),
        pa.array(np.zeros(records * width, np.int32)), pa.array(np.repeat(numbers, width)),
    ]  # fmt: skip
    return pa.Table.from_arrays(columns, schema=SCHEMAS["metrics"])


# -- a command within a limit --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limited:
    """How a command ended; `peak_bytes` is of all its processes together."""

    code: int
    peak_bytes: int
    wall_s: float
    how: str
    output: str


def run_limited(command: Sequence[str], limit_bytes: int, log: Path, timeout_s: float, cwd: Path) -> Limited:
    """Run `command`, which is killed if its processes together take more than `limit_bytes`.

    In a control group (cgroup v2, ``memory.max`` without swap) where this process may make one: the kernel enforces it.
    Else every process gets the limit as RLIMIT_DATA, and the sum of their resident memory is looked at ten times a
    second; the peak is then the sum of every process' own high-water mark, which is more than they ever had at once.
    """
    group = _control_group(limit_bytes)
    began_s = time.monotonic()
    try:
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, cwd=cwd, start_new_session=True)
        try:
            # Before it has loaded a library, let alone begun processes of its own: those inherit it.
            if group is not None:
                (group / "cgroup.procs").write_text(str(process.pid))
            else:
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
            peak, over = _watched(process, limit_bytes, began_s + timeout_s)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        wall_s = time.monotonic() - began_s
        if group is not None:
            peak = int((group / "memory.peak").read_text())
    finally:
        if group is not None:
            group.rmdir()
    how = "RLIMIT_DATA and watched resident memory" if group is None else "cgroup v2 memory.max"
    text = log.read_text(errors="replace")
    return Limited(process.returncode, peak, wall_s, how + (": exceeded, killed" if over else ""), text)


def _watched(process: subprocess.Popen[bytes], limit_bytes: int, until_s: float) -> tuple[int, bool]:
    marks: dict[int, int] = {}
    over = False
    while process.poll() is None and time.monotonic() < until_s and not over:
        now = 0
        try:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        for one in family:
            resident, mark = _resident(one.pid)
            now += resident
            marks[one.pid] = max(marks.get(one.pid, 0), mark)
        over = now > limit_bytes
        time.sleep(0.1)
    return sum(marks.values()), over


def _resident(pid: int) -> tuple[int, int]:
    """Resident memory of a process and the most that it ever had, in bytes; zeros once it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    found = {line.partition(":")[0]: line for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    if len(found) < 2:  # it has ended and waits to be reaped
        return 0, 0
    return int(found["VmRSS"].split()[1]) * 1024, int(found["VmHWM"].split()[1]) * 1024


def _control_group(limit_bytes: int) -> Path | None:
    """A new control group with the limit; None where cgroup v2 does not have the memory controller for us."""
    root = Path("/sys/fs/cgroup")
    try:
        if "memory" not in (root / "cgroup.subtree_control").read_text().split():
            return None
        group = root / f"trainwarden-bench-{os.getpid()}"
        group.mkdir()
    except OSError:
        return None
    try:
        (group / "memory.max").write_text(str(limit_bytes))
        (group / "memory.peak").read_text()
        if (group / "memory.swap.max").exists():
            (group / "memory.swap.max").write_text("0")
    except OSError:
        group.rmdir()
        return None
    return group
