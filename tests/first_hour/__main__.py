"""The table of a new user's first hour, each situation beside what was answered.

    python -m tests.first_hour                               # all of it
    python -m tests.first_hour leak hang --how "torchrun 2"  # some
    python -m tests.first_hour --packages DIR                # Hugging Face's packages, made as tests.frameworks says
    python -m tests.first_hour --kept FILE --how python      # adds to FILE, and shows the newest of each in it

The column of Hugging Face's Trainer is left out, and said to be, where its packages are not to be had.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.first_hour.situations import RANKS, SHELL, SITUATIONS, Cell, Situation, run

TRAINER, SHELL_COLUMN = "HF Trainer", "shell"


def has_trainer(packages: Path | None) -> bool:
    """Whether transformers can be imported."""
    environ = {**os.environ, "PYTHONPATH": str(packages or "")}
    found = subprocess.run(
        [sys.executable, "-c", "import accelerate, transformers"], env=environ, capture_output=True, check=False
    )
    return found.returncode == 0


class Result(NamedTuple):
    """What a cell came to."""

    name: str
    how: str
    wrong: str | None
    wall_s: float
    after_s: float | None
    healthy: bool
    accused: bool

    @classmethod
    def of(cls, cell: Cell) -> Result:
        """The result of a cell that was run."""
        due = cell.situation
        return cls(
            due.name, cell.how, cell.wrong, round(cell.wall_s, 1), cell.answered_after_s, due.is_healthy,
            bool(cell.incidents),
        )  # fmt: skip

    def line(self) -> str:
        """One line of the table."""
        after = "" if self.after_s is None else f"answered after {self.after_s:.1f} s"
        return f"{self.name:<18}{self.how:<12}{self.wrong or 'right':<40}{self.wall_s:6.1f} s  {after}"


def kept_in(file: Path) -> list[Result]:
    """The newest result of each cell that `file` has, a line each, in the order of the table."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    newest = {one[:2]: one for one in (Result(*json.loads(line)) for line in lines)}
    return [
        newest[cell] for cell in ((one.name, how) for one, how in cells_of([*RANKS, SHELL_COLUMN])) if cell in newest
    ]


def cells_of(columns: list[str]) -> list[tuple[Situation, str]]:
    """All cells of `columns`."""
    found = [(one, how) for one in SITUATIONS for how in columns if how != SHELL_COLUMN]
    return found + [(one, SHELL_COLUMN) for one in SHELL if SHELL_COLUMN in columns]


def last_line(results: list[Result]) -> str:
    """What all cells come to."""
    wrong = sum(one.wrong is not None for one in results)
    healthy = [one for one in results if one.healthy]
    times = [one.after_s for one in results if one.wrong is None and one.after_s is not None]
    median = f"median time to answer {statistics.median(times):.1f} s" if times else "no fault was to be found"
    return (
        f"{len(results)} cells: {len(results) - wrong} right, {wrong} wrong; "
        f"{sum(one.accused for one in healthy)} of {len(healthy)} healthy jobs accused; {median}"
    )


def main() -> int:
    """Run the table, or the part that was asked for; exit code 1 if an answer is wrong."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it, and watch would
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="rows; default all")
    parser.add_argument("--how", action="append", choices=[*RANKS, SHELL_COLUMN], help="columns; default all")
    parser.add_argument("--packages", type=Path, help="folder with a folder `transformers`")
    parser.add_argument(
        "--kept", type=Path, help="file to which results are added, and whose table is shown at the end"
    )
    args = parser.parse_args()
    packages = args.packages and args.packages.resolve() / "transformers"
    columns = [one for one in args.how or [*RANKS, SHELL_COLUMN] if one != TRAINER or has_trainer(packages)]
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        for situation, how in cells_of(columns):
            if args.names and situation.name not in args.names:
                continue
            place = Path(folder) / f"{situation.name}-{how.replace(' ', '-')}"
            cell = run(situation, how, place, packages if how == TRAINER else None)
            results.append(Result.of(cell))
            print(results[-1].line(), flush=True)
            if cell.wrong:
                print(cell.log, flush=True)
            if args.kept:
                with args.kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(results[-1]) + "\n")
    if args.kept:
        results = kept_in(args.kept)
        print("", *(one.line() for one in results), sep="\n")
    if missing := len(cells_of([*RANKS, SHELL_COLUMN])) - len(results):
        print(f"{missing} cells were not run")
    if TRAINER not in columns and not args.how:
        print(f"not run: {TRAINER}, as transformers and accelerate cannot be imported (--packages DIR)")
    print(last_line(results))
    return 0 if results and all(one.wrong is None for one in results) else 1


if __name__ == "__main__":
    sys.exit(main())
