"""Collective calls across simulated ranks: how fast they are joined, and how often the right one is named.

Run: ``python -m tests.benchmarks.bench_transfers [--cases N]`` (the join alone with ``--cases 0``, some seconds).
Seeds here are not those that anything was tuned on.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from tests.simulated_ranks.judged import Fault, Layout, Ranks, Told, judged
from trainwarden.detectors.calls.functions import code_of
from trainwarden.detectors.calls.joined import Calls, join
from trainwarden.detectors.recorded.processes import processes

NAMES = (
    "collective_join_s", "transfers_straggler_named_share", "transfers_slow_link_named_share",
    "transfers_healthy_accused_runs",
)  # fmt: skip
ROUNDS = 3
RANKS, CALLS = 16_384, 200
TP, DP = 8, 128
SEED = 20_000
LAYOUTS = (
    Layout(1, 64, 1), Layout(8, 2, 4), Layout(4, 16, 1), Layout(1, 8, 8), Layout(2, 8, 4), Layout(8, 8, 2),
    Layout(8, 4, 8), Layout(8, 32, 1),
)  # fmt: skip
LARGE = (Layout(8, 32, 4), Layout(4, 256, 1))
LARGEST = Layout(8, 128, 16)
STEPS = {"late": 160, "link": 110, "healthy": 90}
SHARE = {"late": 0.10, "link": 0.20, "healthy": 0.0}


def benchmarks(cases: int = 0, workers: int = 2) -> list[dict[str, Any]]:
    """The join, and `cases` simulated jobs of each kind."""
    return [_join(), *(_named(cases, workers) if cases else ())]


def step_of_all() -> tuple[Calls, Any]:
    """One step of 16,384 ranks with 200 calls each, three quarters in tensor parallel groups, and the groups' sizes."""
    column, number = np.repeat(np.arange(RANKS), CALLS), np.tile(np.arange(CALLS), RANKS)
    tensor = number < 3 * CALLS // 4
    groups = RANKS // TP
    data = groups + column % TP + column // (TP * DP) * TP
    late = number - 3 * CALLS // 4
    function = np.where(tensor, code_of("all_reduce"), 2 + late % 2)
    calls = Calls(
        column, np.where(tensor, column // TP, data), function, np.where(tensor, number, late // 2) + 1_000,
        np.where(tensor, 1 << 22, 1 << 24), np.random.default_rng(0).lognormal(-7.0, 0.3, column.size),
        np.full(column.size, -1),
    )  # fmt: skip
    return calls, np.concatenate((np.full(groups, TP), np.full(RANKS // DP, DP)))


def _join() -> dict[str, Any]:
    import pandas as pd

    calls, sizes = step_of_all()
    trusted = np.ones(sizes.size, dtype=np.bool_)
    frame = pd.DataFrame({name: getattr(calls, name) for name in ("column", "comm", "function", "seq", "device_s")})

    def ours() -> Any:
        return join(calls, sizes, trusted, RANKS, at=(0, 0.0)).wait_s

    def theirs() -> Any:
        shortest_s = frame.groupby(["comm", "function", "seq"], sort=False)["device_s"].transform("min")
        return (frame["device_s"] - shortest_s).groupby(frame["column"]).sum().to_numpy()

    np.testing.assert_allclose(ours(), theirs())
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for times, work in zip(taken, (ours, theirs), strict=True):
            times.append(_cpu_s(work))
    value, other = statistics.median(taken[0]), statistics.median(taken[1])
    return {
        "name": NAMES[0], "value": value, "unit": "CPU s", "rounds": ROUNDS,
        "spread": (max(taken[0]) - min(taken[0])) / value,
        "peer": {"name": "pandas groupby.transform", "version": version("pandas"), "value": other},
        "ratio": other / value, "bar": "< 1 CPU s for 16,384 ranks x 200 calls", "holds": value < 1.0,
    }  # fmt: skip


def _cpu_s(work: Callable[[], Any]) -> float:
    begun_s = time.process_time()
    work()
    return time.process_time() - begun_s


def _named(cases: int, workers: int, layouts: tuple[Layout, ...] = LAYOUTS) -> list[dict[str, Any]]:
    seeds = range(SEED, SEED + cases)
    with processes(workers) as pool:
        out = {kind: list(pool.map(_case, [(kind, seed, layouts) for seed in seeds])) for kind in STEPS}
    shares = {kind: sum(found["right"] for found in out[kind]) / cases for kind in ("late", "link")}
    accused = sum(not found["right"] for found in out["healthy"])
    values = (shares["late"], shares["link"], accused)
    bars = (">= 0.99 of 10 %", ">= 0.95 of 20 %", "none")
    holds = (shares["late"] >= 0.99, shares["link"] >= 0.95, accused == 0)
    kinds = ("late", "link", "healthy")
    return [
        {
            "name": name, "value": value, "unit": "share" if kind != "healthy" else "runs", "cases": cases, "bar": bar,
            "holds": held, "wrong": [found for found in out[kind] if not found["right"]],
            "others_accused": sum(found["others"] for found in out[kind]),
            "sampled_steps_median": _median(found["after"] for found in out[kind]),
        }
        for name, kind, value, bar, held in zip(NAMES[1:], kinds, values, bars, holds, strict=True)
    ]  # fmt: skip


def _median(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _case(which: tuple[str, int, tuple[Layout, ...]]) -> dict[str, Any]:
    """One simulated job, and whether it was judged rightly."""
    kind, seed, layouts = which
    random = np.random.default_rng((1, seed))
    layout = layouts[seed % len(layouts)]
    noise, at = float(random.uniform(0.02, 0.1)), int(random.integers(20, 40))
    fault = Fault()
    if kind == "late":
        fault = Fault("late", int(random.integers(layout.ranks)), SHARE[kind], at)
    elif kind == "link":
        layout = layout if layout.tp * layout.pp > 2 else LAYOUTS[1]  # a single group has no likes
        pairs = layout.pp > 1 and (layout.dp == 1 or bool(random.integers(2)))
        places = layout.ranks - layout.tp * layout.dp if pairs else layout.tp * layout.pp
        fault = Fault("pair" if pairs else "dp", int(random.integers(places)), SHARE[kind], at)
    told = judged(Ranks(layout, seed=seed, noise=noise, faults=(fault,)), STEPS[kind])
    right, others, first = _judged(kind, told, fault, layout)
    after = None if first is None else first - at
    shape = f"tp {layout.tp} dp {layout.dp} pp {layout.pp}"
    return {"seed": seed, "layout": shape, "noise": noise, "right": right, "others": others, "after": after}


def _judged(kind: str, told: Told, fault: Fault, layout: Layout) -> tuple[bool, bool, int | None]:
    """Whether it is right, whether anybody else was accused too, and at which sampled step."""
    if kind == "healthy":
        return told.waits is None and told.links is None, False, None
    if kind == "late":
        right = told.waits is not None and told.waits[1].suspects[0].rank == fault.place
        others = told.links is not None or bool(told.accused - {fault.place})
        return right, others, told.waits[0] if told.waits else None
    if told.links is None or told.links[0] < fault.from_step or told.links[1].kind != "slow_link":
        return False, told.waits is not None, None
    suspects = told.links[1].suspects
    if fault.kind == "pair":
        right = {one.rank for one in suspects} == {fault.place, fault.place + layout.tp * layout.dp}
    else:
        group = layout.groups["dp"][fault.place].tolist()
        nodes = {layout.nodes[rank] for rank in group}
        right = all((one.rank in group) if one.rank is not None else (one.node in nodes) for one in suspects)
    return right, told.waits is not None, told.links[0]


def largest(kind: str, steps: int = 30) -> dict[str, Any]:
    """One job of 16,384 ranks at 3 % noise, judged as the others."""
    layout, at = LARGEST, steps // 3
    fault = {"late": Fault("late", layout.ranks // 3, 0.15, at), "link": Fault("dp", 37, SHARE["link"], at)}
    wrong = fault.get(kind, Fault())
    begun_s = time.process_time()
    told = judged(Ranks(layout, seed=SEED, noise=0.03, faults=(wrong,), layers=1), steps)
    right, others, first = _judged(kind, told, wrong, layout)
    return {
        "ranks": layout.ranks, "kind": kind, "right": right, "others": others,
        "after": None if first is None else first - at, "cpu_s": time.process_time() - begun_s,
    }  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=200)
    parser.add_argument("--large", type=int, default=0, help="so many of 1,024 ranks too, and one of 16,384")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"numpy": version("numpy"), "benchmarks": benchmarks(arguments.cases)}
    if arguments.large:
        found["large"] = [*_named(arguments.large, 2, LARGE), *(largest(kind) for kind in STEPS)]
    print(json.dumps(found, indent=2))
