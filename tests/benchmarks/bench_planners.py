"""The planners' speed: micro-batch splits of 512 and of 100,000 data-parallel groups."""

from __future__ import annotations

import random
import statistics
import time
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from actions.planners.microbatches import solve

NAMES = ("microbatch_solve_512_ms", "microbatch_solve_100k_s")
MICRO_BATCHES_PER_GROUP = 8
PEER_ROUNDS = 3


def benchmarks() -> list[dict[str, Any]]:
    """One object a benchmark, as `trainwarden bench` prints them."""
    small = _measure("microbatch_solve_512_ms", groups=512, rounds=50, per_second=1e3, unit="ms")
    if find_spec("cvxpy") is not None:
        peer_ms = statistics.median(_quadratic_programme_s(_cluster(512, seed)) * 1e3 for seed in range(PEER_ROUNDS))
        small["peer"] = {"name": "cvxpy, relaxed", "version": version("cvxpy"), "value": peer_ms}
        small["ratio"] = peer_ms / small["value"]
    return [small, _measure("microbatch_solve_100k_s", groups=100_000, rounds=5, per_second=1.0, unit="s")]


def _cluster(groups: int, seed: int) -> list[float]:
    """Seconds per micro-batch, a tenth of the groups slow."""
    rng = random.Random(seed)
    return [rng.gauss(0.1, 0.002) * (rng.uniform(1.2, 3.0) if rng.random() < 0.1 else 1.0) for _ in range(groups)]


def _quadratic_programme_s(seconds: list[float]) -> float:
    """Time of Falcon's equation 1 by cvxpy, counts not even required to be whole, which only makes it easier."""
    import cvxpy
    import numpy as np

    counts = cvxpy.Variable(len(seconds))
    finish = cvxpy.multiply(np.array(seconds), counts)
    spread = cvxpy.sum_squares(finish - cvxpy.sum(finish) / len(seconds))
    total = len(seconds) * MICRO_BATCHES_PER_GROUP
    problem = cvxpy.Problem(cvxpy.Minimize(spread), [counts >= 1, cvxpy.sum(counts) == total])
    began_s = time.perf_counter()
    problem.solve()
    return time.perf_counter() - began_s


def _measure(name: str, *, groups: int, rounds: int, per_second: float, unit: str, bar: float = 1.0) -> dict[str, Any]:
    """Median time of `solve` over `rounds` seeded clusters."""
    values = []
    for seed in range(rounds):
        seconds = _cluster(groups, seed)
        began_s = time.perf_counter()
        solve(seconds, groups * MICRO_BATCHES_PER_GROUP)
        values.append((time.perf_counter() - began_s) * per_second)
    value = statistics.median(values)
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "rounds": rounds,
        "spread": max(values) - min(values),
        "peer": None,
        "ratio": None,
        "bar": bar,
        "holds": value < bar,
    }


if __name__ == "__main__":
    for result in benchmarks():
        print(result)
