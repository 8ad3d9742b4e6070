"""Iteration time by the period of the collective calls, of jobs whose steps nothing announces: how often it is right.

Run: ``python -m tests.benchmarks.bench_call_period``. A trace is right if the median error of its iterations and that
of their mean are both at most 0.5 %, to its end. Seeds are not those of the unit tests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

from tests.call_traces import BAR, LATEST, Call, found_in, recorded, simulated
from tests.places import shared_data

NAMES = ("call_period_recorded_wrong", "call_period_simulated_wrong", "call_period_between_wrong")
SEEDS = range(3_000, 3_100)
SKIPPED = "the shared data are not there: set TRAINWARDEN_SHARED or put them beside the checkout"


def benchmarks() -> list[dict[str, Any]]:
    """Traces that are wrong, of recorded ranks and of simulated jobs with and without compute between their calls."""
    data = shared_data()
    first = {"name": NAMES[0], "skipped": True, "reason": SKIPPED} if data is None else _row(NAMES[0], recorded(data))
    made = [
        _row(name, ((f"seed {seed}", simulated(seed, computes_between=between)) for seed in SEEDS), LATEST)
        for name, between in zip(NAMES[1:], (False, True), strict=True)
    ]
    return [first, *made]


def _row(name: str, traces: Iterable[tuple[str, list[list[Call]]]], since: int = 0) -> dict[str, Any]:
    begun_s, wrong, errors, calls, number = time.process_time(), [], [0.0], 0, 0
    for number, (trace, steps) in enumerate(traces, 1):  # noqa: B007 - the last number is how many there are
        found = found_in(steps, since)
        calls += sum(map(len, steps))
        wrong += [] if found.right(len(steps)) else [trace]
        errors += [] if found.error is None or found.mean_error is None else [max(found.error, found.mean_error)]
    return {
        "name": name, "value": len(wrong), "unit": "traces", "cases": number, "wrong": wrong, "calls": calls,
        "largest_error": max(errors), "cpu_s": time.process_time() - begun_s, "bar": f"none above {BAR:.1%}",
        "holds": not wrong,
    }  # fmt: skip


if __name__ == "__main__":
    for row in benchmarks():
        print(json.dumps(row))
