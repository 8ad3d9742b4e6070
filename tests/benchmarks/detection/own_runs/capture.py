"""Capturing the runs of `plan.py` under our own launcher, several at a time, and packing them small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.detection.own_runs.outside import Outside
from tests.benchmarks.detection.own_runs.packing import pack
from tests.benchmarks.detection.own_runs.plan import Run, runs
from tests.places import ROOT

JOB: Final = "tests/benchmarks/detection/own_runs/job.py"
CONFIG: Final = 'node = "node0"\n[runs]\npage = false\n'
NICE: Final = 5


@dataclass(frozen=True, slots=True)
class Place:
    """Where one run is captured."""

    work: Path
    run: Run

    @property
    def raw(self) -> Path:
        return self.work / self.run.name

    @property
    def pids(self) -> Path:
        return self.work / f"{self.run.name}.pids"


def capture(folder: Path, minutes: float | None, lanes: int, names: Sequence[str] = ()) -> None:
    """Capture all runs (or those named) into `folder`, `lanes` at once, each `minutes` long."""
    wanted = [one if minutes is None else replace(one, minutes=minutes) for one in runs()]
    wanted = [one for one in wanted if not names or one.name in names]
    work = folder / "raw"
    work.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(lanes) as pool:
        for name in pool.map(lambda run: _captured(Place(work, run), folder), wanted):
            print(f"captured {name}", flush=True)


def _captured(place: Place, folder: Path) -> str:
    """Capture and pack one run; what was packed before is left alone."""
    run = place.run
    if not (folder / run.name / "labels.json").exists():
        labels = _watched(place)
        pack(place.raw, folder / run.name, labels)
    return run.name


def _watched(place: Place) -> dict[str, Any]:
    """Run the job to its end; what was done to it, and when."""
    run = place.run
    place.pids.mkdir(parents=True, exist_ok=True)
    config = place.work / "own_runs.toml"
    config.write_text(CONFIG, encoding="utf-8")
    begun_s = time.time()
    orders = [
        {"kind": one.kind, "rank": one.rank, "from_s": begun_s + one.start_s,
         "to_s": begun_s + one.start_s + one.length_s} for one in run.spells
    ]  # fmt: skip
    command = [sys.executable, "-m", "trainwarden", "launch", "--nproc", str(run.ranks), "--mode", "observe"]
    command += ["--config", str(config), "--job", run.name, "--keep", str(place.raw), "--"]
    command += [sys.executable, JOB, run.script, *run.arguments]
    environ = {
        **os.environ, "OWN_RUN_ORDERS": json.dumps(orders), "OWN_RUN_PIDS": str(place.pids), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    with (place.work / f"{run.name}.log").open("wb") as log:
        child = subprocess.Popen(
            ["nice", "-n", str(NICE), *command], cwd=ROOT, env=environ, stdout=log, stderr=subprocess.STDOUT
        )
        done = threading.Event()
        outside = Outside(place.pids, orders)
        thread = threading.Thread(target=outside.run, args=(done,), daemon=True)
        thread.start()
        code = child.wait()
        done.set()
        thread.join()
    return {
        "name": run.name, "half": run.half, "script": run.script, "ranks": run.ranks, "seed": run.seed,
        "exit_code": code, "faults": orders,
    }  # fmt: skip
