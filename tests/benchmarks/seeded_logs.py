"""Seeded log folders, right kind and rank: ``python -m tests.benchmarks.seeded_logs [--faulty N] [--healthy N]``."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.log_folders.judging import answers

FAULTY, HEALTHY = 5_000, 1_000
SHOWN = 20


def main() -> int:
    """Judge the folders, write one JSON object; exit code 1 below the bar (98 % right, no healthy one accused)."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faulty", type=int, default=FAULTY)
    parser.add_argument("--healthy", type=int, default=HEALTHY)
    parser.add_argument("--seed", type=int, default=1_000_000, help="the first; others than those of the tests")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        faulty = list(answers(Path(folder), range(asked.seed, asked.seed + asked.faulty), healthy=False))
        healthy = list(answers(Path(folder), range(asked.seed, asked.seed + asked.healthy), healthy=True))
    right = sum(one.right for one in faulty)
    accused = sum(not one.right for one in healthy)
    wrong = [f"{one.truth.how} -> {one.found}" for one in (*faulty, *healthy) if not one.right]
    answer = {
        "faulty": len(faulty),
        "right": right,
        "healthy": len(healthy),
        "accused": accused,
        "wrong": wrong[:SHOWN],
    }
    sys.stdout.write(f"{json.dumps(answer, indent=1)}\n")
    return 0 if right >= 0.98 * len(faulty) and not accused else 1


if __name__ == "__main__":
    sys.exit(main())
