"""Capturing jobs beside busy loops, a minute each.

python -m tests.benchmarks.detection.own_runs.busy_host DIR [NAME ...]
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.benchmarks.detection.own_runs.packing import pack
from tests.places import ROOT

JOB: Final = "tests/benchmarks/detection/own_runs/busy_job.py"
CONFIG: Final = 'node = "node0"\n[runs]\npage = false\n'
FROM_S, UNTIL_S = 28.0, 62.0
STARTED_S: Final = 6.0  # ranks take so long to come up
LOOPS_LATE_S: Final = 25.0
LOOPS: Final = 4
SPIN: Final = "import time\nwhile time.time() < {0}: time.sleep(0.2)\nwhile time.time() < {1}: pass"


class Plan(NamedTuple):
    """One job: what its ranks do, how many there are, how much more the last one does, and how much work a step is."""

    kind: str
    ranks: int
    times: float
    work: float
    late: bool = False  # the loops begin in the middle


PLANS: Final = {
    f"{half}-{name}": plan
    for half, plans in (
        ("choose", {
            "slow-1": Plan("cpu", 2, 1.5, 300), "slow-2": Plan("cpu", 2, 1.5, 120), "slow-4": Plan("cpu", 4, 1.5, 150),
            "sleep-1": Plan("sleep", 2, 1.5, 0.1), "healthy-1": Plan("cpu", 2, 1.0, 300),
            "healthy-2": Plan("sleep", 3, 1.0, 0.1), "onset": Plan("cpu", 2, 1.0, 300, late=True),
        }),
        ("report", {
            "slow-1": Plan("cpu", 2, 1.5, 300), "slow-2": Plan("cpu", 2, 1.5, 120), "slow-3": Plan("cpu", 3, 1.5, 200),
            "slow-4": Plan("cpu", 4, 1.5, 150), "sleep-1": Plan("sleep", 2, 1.5, 0.1),
            "sleep-4": Plan("sleep", 4, 1.5, 0.15), "healthy-1": Plan("cpu", 2, 1.0, 200),
            "healthy-2": Plan("cpu", 4, 1.0, 120), "onset": Plan("cpu", 2, 1.0, 300, late=True),
        }),
    )
    for name, plan in plans.items()
}  # fmt: skip


def capture(folder: Path, name: str) -> None:
    """Run one job to its end beside its loops, and pack what was kept."""
    plan, raw = PLANS[name], folder / "raw" / name
    raw.parent.mkdir(parents=True, exist_ok=True)
    config = raw.parent / "busy_host.toml"
    config.write_text(CONFIG, encoding="utf-8")
    begun_s = time.time() + STARTED_S
    loops = SPIN.format(begun_s + (LOOPS_LATE_S if plan.late else 0.0), begun_s + UNTIL_S + 15.0)
    command = [sys.executable, "-m", "trainwarden", "launch", "--nproc", str(plan.ranks), "--mode", "observe"]
    command += ["--config", str(config), "--job", name, "--keep", str(raw), "--", sys.executable]
    command += [JOB, plan.kind, str(plan.times), str(FROM_S), str(UNTIL_S), str(plan.work)]
    environ = {**os.environ, "BUSY_BEGUN": str(begun_s), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    busy = [subprocess.Popen([sys.executable, "-c", loops]) for _ in range(LOOPS)]
    try:
        with (raw.parent / f"{name}.log").open("wb") as log:
            code = subprocess.call(command, cwd=ROOT, env=environ, stdout=log, stderr=subprocess.STDOUT, timeout=300)
    finally:
        for one in busy:
            one.kill()
            one.wait()
    fault = {"kind": "slow", "rank": plan.ranks - 1, "from_s": begun_s + FROM_S, "to_s": begun_s + UNTIL_S}
    pack(raw, folder / name, {
        "name": name, "half": name.partition("-")[0], "script": plan.kind, "ranks": plan.ranks, "seed": 0,
        "exit_code": code, "faults": [fault] if plan.times > 1.0 else [],
    })  # fmt: skip


def main() -> None:
    """All of them, or those that are named."""
    for name in sys.argv[2:] or PLANS:
        capture(Path(sys.argv[1]), name)
        print(f"captured {name}", flush=True)


if __name__ == "__main__":
    main()
