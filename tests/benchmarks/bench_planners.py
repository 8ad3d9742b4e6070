"""The planners' speed: splits of micro-batches, GPUs of a cluster's tasks, placements of ranks."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

import numpy as np

from trainwarden.actions.planners.microbatches import solve
from trainwarden.actions.planners.questions.cluster import Cluster, ClusterQuestion, Task
from trainwarden.actions.planners.questions.topology import Exchanged, Topology, TopologyQuestion

NAMES = (
    "microbatch_solve_512_ms",
    "microbatch_solve_100k_s",
    "cluster_plan_10k_gpus_ms",
    "cluster_plan_10k_gpus_by_8_ms",
    "cluster_table_decision_ms",
    "topology_plan_1024_ranks_s",
)
GPUS, TASKS = 10_000, 6
MICRO_BATCHES_PER_GROUP = 8
PEER_ROUNDS = 3


def benchmarks() -> list[dict[str, Any]]:
    """One object a benchmark, as `trainwarden bench` prints them."""
    small = _measure("microbatch_solve_512_ms", groups=512, rounds=50, per_second=1e3, unit="ms")
    if find_spec("cvxpy") is not None:
        peer_ms = statistics.median(_quadratic_programme_s(_cluster(512, seed)) * 1e3 for seed in range(PEER_ROUNDS))
        small["peer"] = {"name": "cvxpy, relaxed", "version": version("cvxpy"), "value": peer_ms}
        small["ratio"] = peer_ms / small["value"]
    large = _measure("microbatch_solve_100k_s", groups=100_000, rounds=5, per_second=1.0, unit="s", bar=0.1)
    return [small, large, *_clusters(), _topology()]


def _question(step: int, seed: int) -> ClusterQuestion:
    """Six tasks that flatten at different sizes, with noise and dips; one of them has just lost a GPU."""
    rng = np.random.default_rng(seed)
    gpus = np.arange(GPUS + 9)
    tasks = []
    for place, (size, weight) in enumerate(zip((1.3, 1.3, 7, 7, 13, 70), (2.0, 1.7, 1.4, 1.1, 0.8, 0.5), strict=True)):
        curve = 150e12 * gpus / (1 + gpus / (400 * size)) * (1 + 0.03 * rng.standard_normal(len(gpus)))
        curve *= np.where(gpus % 8 == 0, 1.0, 0.93)
        now = int(rng.integers(GPUS // 8 // TASKS)) * 8
        minimum = min(now, 8 * int(size))
        tasks.append(Task(f"t{place}", np.maximum(curve, 0).tolist(), weight, minimum, now, faulted=place == 2))
    return ClusterQuestion(GPUS, 86_400.0, 120.0, tasks, step=8 if step == 8 else 1)


def _clusters() -> list[dict[str, Any]]:
    """The plan and its whole table of 13 events, beside one plain dynamic programme without a table; a look-up."""
    rows, decided = [], []
    for step, name, bar in ((1, NAMES[2], 500.0), (8, NAMES[3], 20.0)):
        ours, plain = [], []
        for seed in range(5):
            question = _question(step, seed)
            answer, seconds = _timed(lambda question=question: Cluster().answer(question))
            ours.append(seconds * 1e3)
            curves = [np.array(task.throughput[: GPUS + 1 : step]) * task.weight for task in question.tasks]
            plain.append(_timed(lambda curves=curves: _plain_programme(curves))[1] * 1e3)
            events = [f"lost:t{task}" for task in range(TASKS)] * 100
            decided.append(_timed(lambda a=answer, e=events: [a.table[one] for one in e])[1] * 1e3 / len(events))
        row, peer = _row(name, ours, "ms", bar), statistics.median(plain)
        row["peer"] = {"name": "plain dynamic programme in numpy, no table", "version": np.__version__, "value": peer}
        rows.append({**row, "ratio": peer / row["value"]})
    return [*rows, _row(NAMES[4], decided, "ms", 1.0)]


def _plain_programme(curves: list[Any]) -> float:
    """Equation 5 of Unicron as it stands: every number of GPUs of every task."""
    sums = curves[0]
    for curve in curves[1:]:
        total = np.full(len(sums), -np.inf)
        for units, value in enumerate(curve.tolist()):
            np.maximum(total[units:], sums[: len(sums) - units] + value, out=total[units:])
        sums = total
    return float(sums.max())


def _topology() -> dict[str, Any]:
    """8 x 16 x 8 ranks with six slow GPUs and six slow links."""
    seconds = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        compute_s = {gpu: 0.1 * (1.8 if gpu % 170 == seed else 1.0) for gpu in range(1024)}
        gbps = {f"{one}-{other}": 40.0 for one, other in rng.integers(128, size=(6, 2)).tolist()}
        sizes = Exchanged(1e9, 4e9, 1e8)
        question = TopologyQuestion(8, 16, 8, 8, list(range(1024)), compute_s, 200.0, 32, gbps, sizes)
        seconds.append(_timed(lambda question=question: Topology().answer(question))[1])
    return _row(NAMES[5], seconds, "s", None)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """What `work` answers, and its seconds of processor time: it has one thread and waits for nobody."""
    began_s = time.process_time()
    done = work()
    return done, time.process_time() - began_s


def _cluster(groups: int, seed: int) -> list[float]:
    """Seconds per micro-batch, a tenth of the groups slow."""
    rng = random.Random(seed)
    return [rng.gauss(0.1, 0.002) * (rng.uniform(1.2, 3.0) if rng.random() < 0.1 else 1.0) for _ in range(groups)]


def _quadratic_programme_s(seconds: list[float]) -> float:
    """Time of Falcon's equation 1 by cvxpy, counts not even required to be whole, which only makes it easier."""
    import cvxpy

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
    return _row(name, values, unit, bar)


def _row(name: str, values: list[float], unit: str, bar: float | None) -> dict[str, Any]:
    value = statistics.median(values)
    row = {"name": name, "value": value, "unit": unit, "rounds": len(values), "spread": max(values) - min(values)}
    return {**row, "peer": None, "ratio": None, "bar": bar, "holds": None if bar is None else value < bar}


if __name__ == "__main__":
    for result in benchmarks():
        print(result)
