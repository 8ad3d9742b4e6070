"""Pictures of the page and of a report, for docs/page.md: a real server and a real browser on a world of records."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.page_world import publish, world
from tests.servers.chromium import Chromium
from tests.servers.page import PageServer
from trainwarden.cli.ask.report import report

RANKS = 64
WIDTH, PHONE = 1_200, 390
JOB = "llama-70b"
INCIDENT = "llama-70b%2Fslow_compute%2F1"

COLORS = 256  # heat maps take many
FOUND_HEIGHT = 890
Write = Callable[[bytes, Path, int], None]


def pictures(to: Path, write: Write) -> None:
    """All of them, written by `write` into the folder `to`."""
    with tempfile.TemporaryDirectory(prefix="trainwarden-pictures-") as temporary:
        place = Path(temporary)
        address = publish(place / "bus.db", world(time.time() - 2.0, ranks=RANKS))
        file = place / "report.html"
        report(bus=address, job=JOB, out=file)
        with PageServer(place / "serve", address) as server, Chromium(place / "browser") as browser:
            browser.open(server.entrance)

            def taken(
                name: str, path: str, words: str, scheme: str = "light", size: tuple[int, int] = (WIDTH, 900)
            ) -> None:
                browser.look(scheme, *size)
                browser.open(path if path.startswith("file:") else server.uri + path)
                browser.shows(
                    words,
                    *(("during",) if "/incidents/" in path else ()),
                    *(("live",) if not path.startswith("file:") else ()),
                )
                write(browser.picture(), to / f"{name}.png", COLORS)

            taken("page-home", "/", "Stop all acting", size=(WIDTH, 860))
            taken("page-job", f"/jobs/{JOB}", "Slowest ranks", size=(WIDTH, 1_860))
            taken("page-incident", f"/incidents/{INCIDENT}", "CUDA out of memory", "dark", (WIDTH, 2_700))
            taken("page-phone", f"/jobs/{JOB}", "Slowest ranks", "dark", (PHONE, 1_900))
            taken("report", file.as_uri(), "Slowest ranks", size=(WIDTH, 1_500))


def found(to: Path, write: Write) -> None:
    """The report of a real demo, its first screen: a slow rank that was found, and what became of it."""
    with tempfile.TemporaryDirectory(prefix="trainwarden-pictures-") as temporary:
        place = Path(temporary)
        demo = [sys.executable, "-m", "trainwarden.cli.main", "demo", "--fault", "slow-rank"]
        subprocess.run(demo, cwd=place, check=True, timeout=300)
        with Chromium(place / "browser") as browser:
            browser.look("light", WIDTH, FOUND_HEIGHT)
            browser.open((place / "trainwarden-demo-report.html").as_uri())
            browser.shows("Ranks over time", "slow_compute")
            write(browser.picture(), to / "found.png", COLORS)
