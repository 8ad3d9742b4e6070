"""What the agent costs: eight simulated GPUs, four ranks that train under the hook and write logs, ten steps a second.

With every collector at one-second intervals, which the bars are for, and at the intervals that it has by itself.

Run: ``python -m tests.benchmarks.bench_agent`` (about 140 s).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.servers.agent import AgentProcess
from tests.servers.fake_nvml import FakeNvml
from trainwarden.topics import METRICS

NAMES = ("agent_cpu_ratio", "agent_rss_bytes", "agent_default_intervals_cpu_ratio")
CPU_BAR = 0.01  # of one core
RSS_BAR = 100 * 1024 * 1024
ROUNDS = 3
ROUND_S = 20.0
WARM_UP_S = 2.0  # after the first metrics, which come after imports and the first look at everything
RANKS = 4
COLLECTORS = ("host", "gpu", "nic", "processes", "logs", "iterations")
# A rank as the collectors see it: a process that makes ten steps a second and writes a line at each.
RANK = """
import os, sys, time
run_dir, rank = sys.argv[1], sys.argv[2]
os.environ.update(RANK=rank, WORLD_SIZE="4", TRAINWARDEN_HOOK_DIR=run_dir + "/hook")
from trainwarden import hook
with open(f"{run_dir}/logs/rank-{rank}.log", "a", buffering=1) as log:
    for step in range(1_000_000):
        hook.iteration()
        print(f"step {step} loss {1 / (step + 1):.4f}", file=log)
        time.sleep(0.1)
"""


@contextmanager
def ranks(run_dir: Path) -> Iterator[list[int]]:
    """Processes that stand for the ranks of a job."""
    started = [subprocess.Popen([sys.executable, "-c", RANK, str(run_dir), str(rank)]) for rank in range(RANKS)]
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


def cpu_s(pid: int) -> float:
    """Processor time of the threads of `pid` so far, to the nanosecond (psutil: hundredths of a second)."""
    return sum(int(path.read_text().split()[0]) for path in Path("/proc", str(pid), "task").glob("*/schedstat")) / 1e9


def one_round(folder: Path, config: str) -> tuple[float, float]:
    """CPU ratio and resident bytes over `ROUND_S` seconds of an agent whose collectors have `config`, after warm-up."""
    nvml = FakeNvml(folder, 8)
    agent = AgentProcess(folder, f"{{{', '.join(f'{name} = {config}' for name in COLLECTORS)}}}", nvml.environ())
    with ranks(agent.run_dir) as pids:
        for gpu, pid in enumerate(pids):
            nvml.set(gpu, pid_0=pid)
        agent.start()
        try:
            agent.wait_for("the first GPU, host and NIC metrics", METRICS, 5, timeout_s=60.0)
            time.sleep(WARM_UP_S)
            assert agent.process is not None
            process = psutil.Process(agent.process.pid)
            before_s, start_s = cpu_s(process.pid), time.monotonic()
            rss = 0
            while time.monotonic() < start_s + ROUND_S:
                time.sleep(0.5)
                rss = max(rss, process.memory_info().rss)
            return (cpu_s(process.pid) - before_s) / (time.monotonic() - start_s), float(rss)
        finally:
            agent.kill()


def benchmarks() -> list[dict[str, Any]]:
    """CPU and memory of the agent; medians over rounds."""
    rounds: dict[str, list[tuple[float, float]]] = {"{interval_s = 1.0}": [], "{}": []}
    for _ in range(ROUNDS):
        for config, found in rounds.items():
            with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
                found.append(one_round(Path(folder), config))
    barred, by_itself = rounds.values()
    rows = []
    for name, values, unit, bar in (
        (NAMES[0], [cpu for cpu, _ in barred], "ratio", CPU_BAR),
        (NAMES[1], [rss for _, rss in barred], "bytes", float(RSS_BAR)),
        (NAMES[2], [cpu for cpu, _ in by_itself], "ratio", None),
    ):
        value = statistics.median(values)
        row = {"name": name, "value": round(value, 5), "unit": unit, "rounds": ROUNDS}
        row |= {"spread": round(max(values) - min(values), 5), "peer": None, "ratio": None, "bar": bar}
        rows.append({**row, "holds": None if bar is None else value <= bar})
    return rows


if __name__ == "__main__":
    print(json.dumps(benchmarks(), indent=2))
