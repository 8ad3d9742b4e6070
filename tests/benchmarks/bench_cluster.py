"""Replays of Unicron's failure traces: accumulated WAF of our plans beside other ways to share out a cluster.

Run as ``python -m tests.benchmarks.bench_cluster``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.benchmarks.cluster_profiles import CASES
from tests.benchmarks.cluster_replay import DAY_S, POLICIES, RULES, Minutes, Setting, policy, trace, upper_bound, waf

BARS: Final = {"a": 1.2, "b": 1.9}  # the paper's, over the baseline that only restarts
SEEDS = 20
ALL_SIX = Setting(most_gpus=24)
OF_BOUND: Final = 0.95
NAMES: Final = (
    *(f"cluster_trace_{one}_vs_{other}" for one in BARS for other in ("restart_only", *RULES)),
    *(f"cluster_trace_{one}_all_six_train_vs_{other}" for one in BARS for other in ("restart_only", "upper_bound")),
    *(f"cluster_case_{case}_vs_best_split" for case in CASES),
)
TABLES: Final = True  # takes names and a way to tell how far it is


def benchmarks(names: Sequence[str] = NAMES, tell: Callable[[str], None] = lambda _: None) -> list[dict[str, Any]]:
    """One object a benchmark, as `trainwarden bench` prints them."""
    rows = []
    for one, bar in BARS.items():
        tell(f"trace {one}, {SEEDS} seeds")
        for setting, name in ((Setting(), ""), (ALL_SIX, "_all_six_train")):
            ratios, kept = _replayed(one, Minutes(), setting)
            restart = _row(f"cluster_trace_{one}{name}_vs_restart_only", ratios["restart-only"], bar)
            rows.append({**restart, "kept_share": kept, "sensitivity": _sensitivity(one, setting)})
            if setting == Setting():
                rows += [_row(f"cluster_trace_{one}_vs_{rule}", ratios[rule], 1.0) for rule in RULES]
        rows.append(_beside_the_bound(one))
    rows += [_row(f"cluster_case_{case}_vs_best_split", [_unfailing(case)], 1.0) for case in CASES]
    return [row for row in rows if row["name"] in names]


def _replayed(
    one: str, minutes: Minutes, setting: Setting, slower: float = 1.0
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Ours against each policy by seed, and the share of its own unfailing WAF that each keeps (medians)."""
    ratios: dict[str, list[float]] = {name: [] for name in POLICIES}
    kept: dict[str, list[float]] = {name: [] for name in POLICIES}
    for seed in range(SEEDS):
        failures = trace(one, seed, slower)
        achieved = {name: waf(name, failures, minutes, setting) for name in POLICIES}
        for name, (total, unfailing) in achieved.items():
            ratios[name].append(achieved["ours"][0] / total)
            kept[name].append(total / unfailing)
    return ratios, {name: round(statistics.median(shares), 4) for name, shares in kept.items()}


def _beside_the_bound(one: str) -> dict[str, Any]:
    """Ours, where all six tasks train, against what no policy exceeds; and how far above restart-only that lies."""
    traces = [trace(one, seed) for seed in range(SEEDS)]
    bounds = [upper_bound(failures, ALL_SIX) for failures in traces]
    shares, restart = (
        [waf(name, failures, Minutes(), ALL_SIX)[0] / bound for failures, bound in zip(traces, bounds, strict=True)]
        for name in ("ours", "restart-only")
    )
    row = _row(f"cluster_trace_{one}_all_six_train_vs_upper_bound", shares, OF_BOUND)
    return {**row, "bound_vs_restart_only": round(1.0 / statistics.median(restart), 4)}


def _sensitivity(one: str, setting: Setting) -> dict[str, float]:
    """The same ratio if our restart or the repair of nodes takes longer or shorter than assumed."""
    found = {}
    for minutes in (2.0, 8.0, 30.0, 68.0):
        ratios, _ = _replayed(one, Minutes(ours=minutes), setting)
        found[f"ours_{minutes:g}_min"] = round(statistics.median(ratios["restart-only"]), 3)
    for slower in (0.5, 3.0):
        ratios, _ = _replayed(one, Minutes(), setting, slower)
        found[f"repair_x{slower:g}"] = round(statistics.median(ratios["restart-only"]), 3)
    return found


def _unfailing(case: int) -> float:
    """WAF of our plan against the best of the splits, nothing failing."""

    def total(name: str) -> float:
        state = policy(name, Setting(case), Minutes(), DAY_S).state
        return sum(map(state.waf, range(6)))

    return total("ours") / max(map(total, RULES))


def _row(name: str, ratios: Sequence[float], bar: float) -> dict[str, Any]:
    value = statistics.median(ratios)
    row: dict[str, Any] = {"name": name, "value": round(value, 4), "unit": "times", "rounds": len(ratios)}
    row |= {"spread": round(max(ratios) - min(ratios), 4), "least": round(min(ratios), 4), "peer": None, "ratio": None}
    return {**row, "bar": bar, "holds": value >= bar * (1.0 - 1e-9)}


if __name__ == "__main__":
    for row in benchmarks():
        print(row)
