"""``python -m tests.benchmarks.detection.own_runs capture DIR [--minutes M] [--lanes N] [RUN...]``."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.benchmarks.detection.own_runs.capture import capture


def main() -> None:
    """What the command line asks for."""
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    capturing = commands.add_parser("capture", help="run the jobs of plan.py; about an hour")
    capturing.add_argument("folder", type=Path)
    capturing.add_argument("--minutes", type=float, help="of each run, else as planned")
    capturing.add_argument("--lanes", type=int, default=4, help="jobs at once")
    capturing.add_argument("names", nargs="*")
    asked = parser.parse_args()
    capture(asked.folder, asked.minutes, asked.lanes, asked.names)


if __name__ == "__main__":
    main()
