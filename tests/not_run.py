"""Which tests were not run and why, and which were run twice: ``python -m tests.not_run FILE`` for all runs in FILE.

Each run of pytest ends with the line of its own tests; `make test` makes two at the same time and ends with both.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

VARIABLE: Final = "TRAINWARDEN_NOT_RUN"
"""Names the file to which each run appends."""
MOST_CHARS: Final = 90  # of a reason
AGAIN: Final = "run again"
"""Stands in place of a reason for a test of the second pass (`pytest --last-failed`)."""


def line(skipped: Iterable[tuple[str, str]]) -> str:
    """One line about tests that were skipped, each with its file and the reason.

    Examples
    --------
    >>> line([("tests/test_helm.py", "no go"), ("tests/test_helm.py", "no go"), ("tests/test_a.py", "no root")])
    'not run: 3 tests (2 of test_helm: no go; 1 of test_a: no root)'
    >>> line([])
    'not run: no test'
    """
    counts = Counter((reason, Path(file).stem) for file, reason in skipped)
    reasons = Counter(reason for reason, _ in counts.elements())
    if not counts:
        return "not run: no test"
    groups = []
    for reason, count in reasons.most_common():
        files = ", ".join(sorted({file for why, file in counts if why == reason}))
        short = reason if len(reason) <= MOST_CHARS else f"{reason[:MOST_CHARS]}..."
        groups.append(f"{count} of {files}: {short}")
    return f"not run: {counts.total()} tests ({'; '.join(groups)})"


def run_twice(tests: Iterable[str]) -> str:
    """One line about the tests that failed at first and were run once more.

    Examples
    --------
    >>> run_twice(["tests/unit/test_b.py::test_2", "tests/system/test_a.py::test_1[x]"])
    'run again after a failure: 2 tests (test_a.py::test_1[x], test_b.py::test_2)'
    >>> run_twice([])
    'run again after a failure: no test'
    """
    names = sorted(Path(one).name for one in tests)
    found = f"{len(names)} tests ({', '.join(names)})" if names else "no test"
    return f"run again after a failure: {found}"


def keep(skipped: Iterable[tuple[str, str]]) -> None:
    """Append what this run skipped to the file that `VARIABLE` names, if it does."""
    if path := os.environ.get(VARIABLE):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write("".join(f"{name}\t{' '.join(reason.split())}\n" for name, reason in skipped))


if __name__ == "__main__":
    kept = Path(sys.argv[1])
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    pairs = [(name, reason) for name, _, reason in (one.partition("\t") for one in lines)]
    print(run_twice(name for name, reason in pairs if reason == AGAIN))
    print(line(pair for pair in pairs if pair[1] != AGAIN))
