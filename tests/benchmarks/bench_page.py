"""How long the page takes to open in a real browser: 1,024 ranks for 25 minutes, 10,000 incidents, one job.

Seconds from asking for an address to its load event, heat map drawn; the slowest of the three pages by its median.

Run: ``python -m tests.benchmarks.bench_page`` (about a minute and a half).
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.page_world import incident, publish, steps, verdicts
from tests.servers.chromium import Chromium
from tests.servers.kafka import ServerMissing
from tests.servers.page import PageServer

NAMES: Final = ("page_open",)
RANKS: Final = 1_024
INCIDENTS: Final = 10_000
ROUNDS: Final = 7
BAR_S: Final = 1.0
PAGES: Final = ("/", "/jobs/large", "/incidents")
DRAWN: Final = """
const canvas = document.querySelector('.plot.heat canvas');
return !canvas || canvas.getContext('2d').getImageData(2, 2, 1, 1).data[3] === 255
"""


def benchmarks() -> list[dict[str, Any]]:
    """The one entry, as `trainwarden bench` prints it."""
    row: dict[str, Any] = {
        "name": NAMES[0], "value": None, "unit": "s to open the slowest page", "rounds": ROUNDS, "spread": None,
        "peer": None, "ratio": None, "bar": f"<= {BAR_S:g} s with {RANKS} ranks and {INCIDENTS} incidents",
        "holds": None,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="trainwarden-page-") as temporary:
        place = Path(temporary)
        try:
            browser = Chromium(place / "browser")
        except ServerMissing as missing:
            return [{**row, "skipped": str(missing)}]
        now_s = time.time()
        told = [*steps("large", RANKS, now_s=now_s, step_s=4.0, slow=777), *verdicts("large", now_s=now_s)]
        for number in range(INCIDENTS):
            one = incident(f"i{number}", "large", now_s - 1_400.0 + number / 10.0, closed=number % 10 > 0)
            told.append((one.opened_at_s, "large", one))
        address = publish(place / "bus.db", sorted(told, key=lambda each: each[0]))
        with PageServer(place / "serve", address) as server, browser:
            browser.open(server.entrance)
            by_page = {page: [_opened(browser, server.uri + page) for _ in range(ROUNDS)] for page in PAGES}
    slowest = max(by_page.values(), key=statistics.median)
    value = statistics.median(slowest)
    return [
        {
            **row,
            "value": value,
            "spread": max(slowest) - min(slowest),
            "pages": {page: statistics.median(taken) for page, taken in by_page.items()},
            "holds": value <= BAR_S,
        }
    ]


def _opened(browser: Chromium, address: str) -> float:
    started_s = time.perf_counter()
    browser.open(address)
    taken_s = time.perf_counter() - started_s
    if not browser.run(DRAWN):
        raise AssertionError(f"the heat map of {address} is not drawn")
    return taken_s


if __name__ == "__main__":
    print(json.dumps(benchmarks(), indent=2))
