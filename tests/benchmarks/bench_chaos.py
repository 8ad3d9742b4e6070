"""Two hundred seeded runs under faults of every kind: what was injected, what was done, which rules were broken.

Run as ``python -m tests.benchmarks.bench_chaos``, or ``trainwarden bench chaos``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from tests.chaos.history import RULES, History
from tests.chaos.runs import SEEDS, Sum, summed
from tests.chaos.world import World

NAMES: Final = tuple(f"chaos_{re.sub('[^a-z]+', '_', rule)}" for rule in RULES)
TABLES: Final = True  # takes names and a way to tell how far it is


def benchmarks(names: Sequence[str] = NAMES, tell: Callable[[str], None] = lambda _: None) -> list[dict[str, Any]]:
    """One object a rule, as `trainwarden bench` prints them: in how many places it was broken; the bar is none."""
    began_s = time.process_time()
    total = summed(_runs(tell))
    tell(_table(total, time.process_time() - began_s))
    counted = {"runs": total.runs, "faults": dict(total.faults), "actions": dict(total.actions)}
    rows = []
    for name, (rule, found) in zip(NAMES, total.violations.items(), strict=True):
        row = {"name": name, "value": float(len(found)), "unit": "violations", "rounds": total.runs, "spread": None}
        more = {"peer": None, "ratio": None, "bar": 0.0, "holds": not found, "rule": rule, "found": found[:10]}
        rows.append({**row, **more, **counted})
    return [row for row in rows if row["name"] in names]


def _runs(tell: Callable[[str], None]) -> Iterator[History]:
    for seed in SEEDS:
        if seed % 50 == 0:
            tell(f"runs {seed} to {seed + 49}")
        yield World(seed).run()


def _table(total: Sum, took_s: float) -> str:
    """What was injected, and what was done."""
    parts: dict[str, Mapping[str, int]] = {
        f"faults injected ({len(total.faults)} kinds)": total.faults,
        "operations carried out": total.actions,
        "jobs in the end": total.ends,
    }
    lines = [f"{total.runs} runs, {took_s:.0f} s of a processor"]
    for title, counts in parts.items():
        lines += [f"{title}: {sum(counts.values())}"]
        lines += [f"  {count:6d}  {name}" for name, count in sorted(counts.items(), key=lambda one: -one[1])]
    return "\n".join(lines)


if __name__ == "__main__":
    for row in benchmarks(tell=print):
        print(row["name"], row["value"])
