"""How long `trainwarden serve` takes to tell Prometheus of 1,500 nodes.

Run as ``python -m tests.benchmarks.bench_scrape``.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from tests.fleet import Plain, fleet
from trainwarden.dashboards.exposition.jobs import JobsText

NAMES = ("scrape_1500_nodes_s",)
ROUNDS = 7
BAR_S = 0.5


def benchmarks() -> list[dict[str, Any]]:
    """The median of several scrapes, and of as many by prometheus_client in turn with them."""
    overview = fleet().overview
    text, registry = JobsText(overview), CollectorRegistry()
    registry.register(Plain(overview))  # type: ignore[arg-type] # it has all that a registry asks of a collector
    rounds, theirs = [], []
    for _ in range(ROUNDS):
        rounds.append(_seconds(text.render))
        theirs.append(_seconds(lambda: generate_latest(registry)))
    value, peer = statistics.median(rounds), statistics.median(theirs)
    row = {"name": NAMES[0], "value": round(value, 3), "unit": "s", "rounds": ROUNDS}
    row |= {"spread": round(max(rounds) - min(rounds), 3), "ratio": round(peer / value, 2), "bar": BAR_S}
    row |= {"peer": {"name": "prometheus_client", "version": version("prometheus-client"), "value": round(peer, 3)}}
    return [{**row, "holds": value <= BAR_S}]


def _seconds(render: Callable[[], bytes]) -> float:
    began_s = time.perf_counter()
    render()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    print(json.dumps(benchmarks(), indent=2))
