"""How fast detection works through its input: series of change points, log lines.

Run: ``python -m tests.benchmarks.bench_detection_speed`` (about a minute).
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np

from trainwarden.detectors.logs.rules import LogRules
from trainwarden.detectors.pace.shifts.level_shifts import LevelShifts, ShiftConfig

NAMES = ("change_point_series_updates_per_s", "log_match_lines_per_s")
ROUNDS = 5
SERIES = 4096
STEPS = 160  # long enough for periods to be looked for
LINES = 20_000
PATTERNS = (
    "step {i} loss 3.2{i} lr 3e-4 grad_norm 0.91 tokens/s 120345",
    "iteration {i}/ 500000 | consumed samples: 25600 | elapsed time per iteration (ms): 1234.5 | learning rate: 1e-4",
    "NCCL INFO Channel {i}/02 : 0 1 2 3 4 5 6 7",
    "INFO:root:saved shard {i} of the dataset in 1.2 s",
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:{i}",
)


def benchmarks() -> list[dict[str, Any]]:
    """Both benchmarks, as `trainwarden bench` prints them."""
    return [_change_points(), _log_lines()]


def _change_points() -> dict[str, Any]:
    """Values per second through proposal and verification, against one series at a time by the same rules.

    Other packages either keep the whole past (bench_bocd) or detect offline, so the peer is what one would write
    without batching: one `LevelShifts` per series.
    """
    rng = np.random.default_rng(0)
    values = rng.normal(0.0, 0.03, (STEPS, SERIES))
    values[STEPS // 2 :, ::100] += 0.4
    values[::2, 5::10] += 0.2  # two paces in turn

    def batched() -> int:
        shifts = LevelShifts(ShiftConfig())
        for seq, row in enumerate(values):
            shifts.update(seq, row)
        return values.size

    def one_by_one() -> int:
        few = 8
        for series in range(few):
            shifts = LevelShifts(ShiftConfig())
            for seq, x in enumerate(values[:, series]):
                shifts.update(seq, np.array([x]))
        return few * STEPS

    return _result(NAMES[0], "values/s", batched, one_by_one, "one series at a time", "this version", 250_000)


def _log_lines() -> dict[str, Any]:
    """Lines per second through all rules, against Python's `re` trying the patterns one by one."""
    rules = LogRules()
    lines = [PATTERNS[i % len(PATTERNS)].format(i=i) for i in range(LINES)]
    # Python's re takes inline flags at the start only, RE2 anywhere.
    plain = [
        re.compile(rule.pattern.replace("(?i)", ""), re.IGNORECASE if "(?i)" in rule.pattern else 0)
        for rule in rules.rules
    ]

    def ours() -> int:
        for line in lines:
            rules.match(line)
        return len(lines)

    def by_re() -> int:
        few = lines[: LINES // 20]
        for line in few:
            for pattern in plain:
                if pattern.search(line):
                    break
        return len(few)

    return _result(NAMES[1], "lines/s", ours, by_re, "re, pattern by pattern", sys.version.split()[0], 300_000)


def _result(
    name: str, unit: str, ours: Callable[[], int], theirs: Callable[[], int], peer: str, peer_version: str, least: int
) -> dict[str, Any]:
    """Medians of rounds taken in turn, so that a busy moment of the machine hits both."""
    rates: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for rate, work in zip(rates, (ours, theirs), strict=True):
            begun_s = time.perf_counter()
            done = work()
            rate.append(done / (time.perf_counter() - begun_s))
    value, other = statistics.median(rates[0]), statistics.median(rates[1])
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "rounds": ROUNDS,
        "spread": (max(rates[0]) - min(rates[0])) / value,
        "peer": {"name": peer, "version": peer_version, "value": other},
        "ratio": value / other,
        "bar": f">= {least:,} {unit}",
        "holds": value >= least,
    }


if __name__ == "__main__":
    print(json.dumps({"numpy": version("numpy"), "benchmarks": benchmarks()}, indent=2))
