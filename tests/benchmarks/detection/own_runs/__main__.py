"""Capturing and judging::

python -m tests.benchmarks.detection.own_runs capture DIR [--minutes M] [--lanes N] [RUN...]
python -m tests.benchmarks.detection.own_runs judge [DIR] [--only day_one|trained|members] [--kept DIR] [--write]
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from tests.benchmarks.detection.own_runs.capture import capture
from tests.benchmarks.detection.own_runs.judge import PARTS, judge, write
from tests.benchmarks.detection.own_runs.reading import DATA


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    capturing = commands.add_parser("capture", help="run the jobs of plan.py; about an hour")
    capturing.add_argument("folder", type=Path)
    capturing.add_argument("--minutes", type=float, help="of each run, else as planned")
    capturing.add_argument("--lanes", type=int, default=4, help="jobs at once")
    capturing.add_argument("names", nargs="*")
    judging = commands.add_parser("judge", help="what is found in captured runs")
    judging.add_argument("folder", type=Path, nargs="?", default=DATA)
    judging.add_argument("--only", choices=PARTS, action="append")
    judging.add_argument("--kept", type=Path, help="a folder that remembers what was found of each run on day one")
    judging.add_argument("--write", action="store_true", help="put the tables into tables.md")
    asked = parser.parse_args()
    if asked.command == "capture":
        capture(asked.folder, asked.minutes, asked.lanes, asked.names)
        return
    text = judge(asked.folder, asked.only or PARTS, partial(print, flush=True), asked.kept).markdown()
    print(text)
    if asked.write:
        write(text)


if __name__ == "__main__":
    main()
