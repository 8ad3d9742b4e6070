"""How much of a slow rank's damage a rebalance takes away, in whole jobs: detection, engine, launcher, training loop.

Four data-parallel groups of a rank each, and two replicas of two ranks whose layout is read from Megatron's arguments;
rank 1 becomes twice as slow. Iteration times are medians of one run; a row is the median of the rounds.

Run: ``trainwarden bench rebalance`` (about ten minutes).
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.places import ROOT
from trainwarden.actions.planners.microbatches import finish_s, solve

NAMES = (
    "rebalance_removed_ratio",
    "rebalance_of_best_split_ratio",
    "rebalance_replicas_removed_ratio",
    "rebalance_replicas_of_best_split_ratio",
)
BARS = (0.75, 0.9, None, 0.9)
ROUNDS = 3
SLOW_FROM, FACTOR = 40, 2.0
WARM_UP_STEPS, SETTLING_STEPS = 10, 3
JOBS: tuple[tuple[int, int, tuple[str, ...]], ...] = (  # data-parallel groups, micro-batches, arguments
    (4, 24, ()),
    (2, 12, ("--tensor-model-parallel-size", "2", "--calculate-per-token-loss")),
)


def removed(total: int, more: tuple[str, ...], folder: Path) -> float:
    """Share of the slowdown that one job lost again; 0 if nothing was rebalanced."""
    job = [sys.executable, str(ROOT / "tests" / "benchmarks" / "paced_job.py"), "--micro-batches", str(total), *more]
    run = "from trainwarden.cli.main import run; run()"
    command = [sys.executable, "-c", run, "launch", "--nproc", "4", "--mode", "auto", "--job", "paced", "--", *job]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder)}
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=400, check=False)
    rows = [(int(s), float(t), c) for s, t, c in re.findall(r"paced (\d+) ([\d.]+) ([\d,]+)", done.stdout)]
    if not rows:
        raise RuntimeError(f"the job did not train: {done.stderr[-500:]}")
    even = rows[0][2]
    healthy = statistics.median(seconds for step, seconds, _ in rows if WARM_UP_STEPS <= step < SLOW_FROM)
    slow = statistics.median(seconds for step, seconds, counts in rows if step >= SLOW_FROM and counts == even)
    after = [seconds for _, seconds, counts in rows if counts != even][SETTLING_STEPS:]
    return (slow - statistics.median(after)) / (slow - healthy) if after else 0.0


def best_removed(groups: int, total: int) -> float:
    """The same for the best integer split, where micro-batches were all that takes time.

    Examples
    --------
    >>> round(best_removed(4, 24), 3), round(best_removed(2, 12), 3)
    (0.833, 0.667)
    """
    seconds = [FACTOR] + [1.0] * (groups - 1)
    each = total // groups
    return (each * FACTOR - finish_s(seconds, solve(seconds, total))) / (each * FACTOR - each)


def benchmarks() -> list[dict[str, Any]]:
    """Two rows for each job: what was removed, and the share of what the best split could."""
    rows = []
    for place, (groups, total, more) in enumerate(JOBS):
        found = []
        for _ in range(ROUNDS):
            with tempfile.TemporaryDirectory() as folder:
                found.append(removed(total, more, Path(folder)))
        best = best_removed(groups, total)
        for name, values, bar in zip(
            NAMES[2 * place :], (found, [one / best for one in found]), BARS[2 * place :], strict=False
        ):
            value = statistics.median(values)
            rows.append(
                {
                    "name": name, "value": round(value, 3), "unit": "ratio", "rounds": ROUNDS,
                    "spread": round(max(values) - min(values), 3), "peer": None, "ratio": None, "bar": bar,
                    "holds": None if bar is None else value >= bar,
                }
            )  # fmt: skip
    return rows


if __name__ == "__main__":
    print(json.dumps(benchmarks(), indent=2))
