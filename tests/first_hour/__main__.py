"""The table of a new user's first hour, each situation beside what was answered.

    python -m tests.first_hour                               # all of it
    python -m tests.first_hour leak hang --how "torchrun 2"  # some
    python -m tests.first_hour --packages DIR                # Hugging Face's packages, made as tests.frameworks says

The column of Hugging Face's Trainer is left out, and said to be, where its packages are not to be had.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.first_hour.situations import RANKS, SHELL, SITUATIONS, Cell, run

TRAINER = "HF Trainer"


def has_trainer(packages: Path | None) -> bool:
    """Whether transformers can be imported."""
    environ = {**os.environ, "PYTHONPATH": str(packages or "")}
    found = subprocess.run(
        [sys.executable, "-c", "import accelerate, transformers"], env=environ, capture_output=True, check=False
    )
    return found.returncode == 0


def last_line(cells: list[Cell]) -> str:
    """What all cells come to."""
    wrong = sum(cell.wrong is not None for cell in cells)
    healthy = [cell for cell in cells if cell.situation.is_healthy]
    accused = sum(bool(cell.incidents) for cell in healthy)
    after_s = [cell.answered_after_s for cell in cells if cell.wrong is None]
    times = [one for one in after_s if one is not None]
    median = f"median time to answer {statistics.median(times):.1f} s" if times else "no fault was to be found"
    return (
        f"{len(cells)} cells: {len(cells) - wrong} right, {wrong} wrong; "
        f"{accused} of {len(healthy)} healthy jobs accused; {median}"
    )


def main() -> int:
    """Run the table, or the part that was asked for; exit code 1 if an answer is wrong."""
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's jobs in the background ignore it, and so would watch
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="rows; default all")
    parser.add_argument("--how", action="append", choices=[*RANKS, "shell"], help="columns; default all")
    parser.add_argument("--packages", type=Path, help="folder with a folder `transformers`")
    args = parser.parse_args()
    packages = args.packages and args.packages.resolve() / "transformers"
    columns = [one for one in args.how or [*RANKS, "shell"] if one != TRAINER or has_trainer(packages)]
    cells: list[Cell] = []
    todo = [(one, how) for one in SITUATIONS for how in columns if how != "shell"]
    todo += [(one, "shell") for one in SHELL if "shell" in columns]
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        for situation, how in todo:
            if args.names and situation.name not in args.names:
                continue
            place = Path(folder) / f"{situation.name}-{how.replace(' ', '-')}"
            cell = run(situation, how, place, packages if how == TRAINER else None)
            cells.append(cell)
            after = "" if cell.answered_after_s is None else f"answered after {cell.answered_after_s:.1f} s"
            print(f"{situation.name:<18}{how:<12}{cell.wrong or 'right':<40}{cell.wall_s:6.1f} s  {after}", flush=True)
            if cell.wrong:
                print(cell.log, flush=True)
    if TRAINER not in columns and not args.how:
        print(f"not run: {TRAINER}, as transformers and accelerate cannot be imported (--packages DIR)")
    print(last_line(cells))
    return 0 if cells and all(cell.wrong is None for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
