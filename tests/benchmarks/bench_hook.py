"""What the hook costs the training thread: per step record, per collective call, per backward pass.

Two processes do the same work in turn, one with the hook and one without, so that a machine that gets slower or
faster meanwhile favours neither; each value is the median of the differences between neighbouring rounds. The
time is the processor time of the training thread, and the collectives are those of torch's fake backend, which
take the whole way through Python and C++ but end at once (backward passes: DDP under no_sync): whether a real wait
sleeps for a moment or not is chance, and costs more than what is measured here.

Run: ``python -m tests.benchmarks.bench_hook`` (about half a minute).
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

NAMES = ("hook_step_record_us", "hook_collective_us", "hook_backward_us")
BARS = {"hook_step_record_us": 1.0, "hook_collective_us": 10.0, "hook_backward_us": 30.0}
ROUNDS = 41
CALLS = {"step": 2000, "collective": 300, "backward": 300}

_WORKER = """
import os, sys, time
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
tensor = torch.ones(16)
model = DistributedDataParallel(torch.nn.Linear(4, 4))  # with it, the hook asks the engine for a callback
inputs = torch.ones(4, 4)
hook = vars(sys).get("_trainwarden_hook")
tally, ends = (hook.tally, hook.ends) if hook is not None else (None, None)

def collective():
    dist.all_reduce(tensor)

def backward():
    with model.no_sync():
        model(inputs).sum().backward()

def step():
    if ends is not None:
        tally.backwards += 1
        ends.optimizer_stepped()

for _ in range(200):
    collective(), backward(), step()
print("ready", flush=True)
for line in sys.stdin:
    name, calls = line.split()
    work, rounds = globals()[name], range(int(calls))
    began = time.thread_time()
    for _ in rounds:
        work()
    print(time.thread_time() - began, flush=True)
"""


class Worker:
    """A process that does one kind of work on request and says how long it took."""

    def __init__(self, hook_dir: Path | None) -> None:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TRAINWARDEN_")}
        if hook_dir is not None:
            hook_dir.mkdir()
            environ["TRAINWARDEN_HOOK_DIR"] = str(hook_dir)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WORKER],
            env={**environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._line() != "ready":
            raise RuntimeError("the benchmark's worker did not start")
        if hook_dir is not None and not list(hook_dir.glob("rank-*.hook")):
            raise RuntimeError("the hook did not come in, so there is nothing to measure")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def call_us(self, work: str) -> float:
        """Processor microseconds of the training thread for one call of `work`, over many."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{work} {CALLS[work]}\n")
        self._process.stdin.flush()
        return float(self._line()) / CALLS[work] * 1e6

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def benchmarks() -> list[dict[str, Any]]:
    """One row per cost: the median added time of a call, in microseconds."""
    rows = []
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder,
        Worker(None) as plain,
        Worker(Path(folder) / "hook") as hooked,
    ):
        for name in NAMES:
            work = name.removeprefix("hook_").removesuffix("_us").removesuffix("_record")
            added = []
            for number in range(ROUNDS):
                order = (plain, hooked) if number % 2 else (hooked, plain)
                took_us = {worker: worker.call_us(work) for worker in order}
                added.append(took_us[hooked] - took_us[plain])
            quarters = statistics.quantiles(added, n=4)
            value = statistics.median(added)
            rows.append(
                {
                    "name": name,
                    "value": round(value, 3),
                    "unit": "us",
                    "rounds": ROUNDS,
                    "spread": round(quarters[2] - quarters[0], 3),
                    "peer": None,
                    "ratio": None,
                    "bar": BARS[name],
                    "holds": value <= BARS[name],
                }
            )
    return rows


if __name__ == "__main__":
    print(json.dumps(benchmarks(), indent=2))
