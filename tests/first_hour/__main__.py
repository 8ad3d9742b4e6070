"""``python -m tests.first_hour [NAME ...]``: the table of situations, each beside what was answered."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.first_hour.situations import HOWS, SHELL, SITUATIONS, Cell, run


def main(names: list[str]) -> int:
    """Run the table, of `names` alone if there are any; exit code 1 if an answer is wrong."""
    cells: list[Cell] = []
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        todo = [(one, how) for one in SITUATIONS for how in HOWS] + [(one, "shell") for one in SHELL]
        for situation, how in todo:
            if names and situation.name not in names:
                continue
            cell = run(situation, how, Path(folder) / f"{situation.name}-{how.replace(' ', '-')}")
            cells.append(cell)
            print(f"{situation.name:<18}{how:<12}{cell.wrong or 'right':<40}{cell.wall_s:6.1f} s", flush=True)
            if cell.wrong:
                print(cell.log)
    right = sum(cell.wrong is None for cell in cells)
    false = sum(bool(cell.made.get("incidents")) for cell in cells if not cell.situation.kinds)
    print(f"{right} of {len(cells)} cells right, {false} false incidents in healthy ones")
    return 0 if right == len(cells) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
