"""How long `trainwarden serve` takes to tell Prometheus of 1,500 nodes.

Run as ``python -m tests.benchmarks.bench_scrape``.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

from dashboards.exposition.jobs import JobsText
from tests.fleet import fleet

NAMES = ("scrape_1500_nodes_s",)
ROUNDS = 7
BAR_S = 0.5


def benchmarks() -> list[dict[str, Any]]:
    """The median of several scrapes."""
    text = JobsText(fleet().overview)
    rounds = []
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        text.render()
        rounds.append(time.perf_counter() - began_s)
    value = statistics.median(rounds)
    row = {"name": NAMES[0], "value": round(value, 3), "unit": "s", "rounds": ROUNDS}
    row |= {"spread": round(max(rounds) - min(rounds), 3), "peer": None, "ratio": None, "bar": BAR_S}
    return [{**row, "holds": value <= BAR_S}]


if __name__ == "__main__":
    print(json.dumps(benchmarks(), indent=2))
