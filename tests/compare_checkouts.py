"""Do two checkouts judge the same recordings alike, to the byte, and at the same pace?

``python -m tests.compare_checkouts OTHER`` writes the shared data sets as recorded folders, lets ``detect --data`` of
both checkouts judge them with all scores, and compares incidents, change points, log findings, stragglers, abstentions
and scores. ``--captures DIR`` adds folders that ``demo --keep`` wrote; ``--bench NAME ...`` runs benchmarks in turn.
Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.places import ROOT
from tests.recorded_sets import write

RUN = "import sys; from trainwarden.cli.main import run; sys.exit(run())"


def trainwarden(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command of one checkout."""
    environ = {**os.environ, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-P", "-c", RUN, *words]
    return subprocess.run(command, cwd=checkout, env=environ, capture_output=True, text=True, check=False)


def judge(checkout: Path, batch: Path, out: Path) -> dict[str, Any]:
    """What one checkout finds in a batch: objects by job; the scores lie in ``out/scores.csv``."""
    out.mkdir(parents=True, exist_ok=True)
    answer = out / "answer.json"
    done = trainwarden(
        checkout, "detect", "--data", str(batch), "--json", str(answer), "--scores", str(out / "scores.csv")
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{checkout}: {batch.name}: exit {done.returncode}: {done.stderr[-2000:]}")
    return {job["job"]: job for job in json.loads(answer.read_text())["jobs"]}


def compare(batch: Path, sides: Sequence[Path], work: Path) -> int:
    """Judge `batch` by both sides and say how they differ; returns the number of differences."""
    outs = [work / name / batch.name for name in ("this", "other")]
    this, other = (judge(side, batch, out) for side, out in zip(sides, outs, strict=True))
    differing = [job for job in this.keys() | other.keys() if this.get(job) != other.get(job)]
    for job in sorted(differing)[:5]:
        mine, theirs = this.get(job, {}), other.get(job, {})
        keys = [key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)]
        print(f"  {batch.name}/{job}: {', '.join(keys)}")
        for key in keys:
            print(f"    this  {str(mine.get(key))[:600]}\n    other {str(theirs.get(key))[:600]}")
    files = [out / "scores.csv" for out in outs]
    known = [file.exists() for file in files]
    scores = known[0] != known[1] or (all(known) and not filecmp.cmp(*files, shallow=False))
    said = (
        f"{len(differing)} jobs differ, scores {'differ' if scores else 'are equal'}"
        if differing or scores
        else "equal"
    )
    incidents = sum(len(job.get("incidents", ())) for job in this.values())
    size = files[0].stat().st_size if known[0] else 0
    print(f"{batch.name}: {len(this)} jobs, {incidents} incidents, {size} bytes of scores: {said}", flush=True)
    return len(differing) + scores


def pace(names: Sequence[str], sides: Sequence[Path], rounds: int, work: Path) -> int:
    """Run benchmarks of both sides in turn; returns how many are slower here by more than 5 % (medians of pairs)."""
    values: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in names}
    units: dict[str, str] = {}
    file = work / "bench.json"
    for turn in range(2 * rounds):
        side = turn % 2 if turn // 2 % 2 == 0 else 1 - turn % 2  # ABBA: a drift of the machine hits both
        file.unlink(missing_ok=True)
        trainwarden(sides[side], "bench", *names, "--json", str(file))
        for row in json.loads(file.read_text())["benchmarks"]:
            if row["name"] in values and row["value"] is not None:
                values[row["name"]][side].append(float(row["value"]))
                units[row["name"]] = row["unit"]
                print(f"  {'this' if side == 0 else 'other'} {row['name']} {row['value']:.4g}", flush=True)
    slower = 0
    for name, pairs in values.items():
        if not pairs[0] or not pairs[1]:
            print(f"{name}: no figure here")
            continue
        ratio = statistics.median(mine / theirs for mine, theirs in zip(*pairs, strict=True))
        worse = (1.0 / ratio if "/s" in units[name] else ratio) > 1.05  # so many a second: more is better
        slower += worse
        shown = " ".join(f"{statistics.median(one):.4g}" for one in pairs)
        print(f"{name}: this, other {shown} {units[name]}, median ratio {ratio:.3f}{': SLOWER' if worse else ''}")
    return slower


def main() -> int:
    """The whole comparison."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("other", type=Path, help="root of the other checkout")
    asked.add_argument("--quick", action="store_true", help="every tenth job of each set")
    asked.add_argument("--only", nargs="*", help="names of sets")
    asked.add_argument("--captures", type=Path, nargs="*", default=[], help="batches that `demo --keep` wrote")
    asked.add_argument("--bench", nargs="*", default=[], help="benchmarks to run in pairs, nothing else")
    asked.add_argument("--rounds", type=int, default=5)
    given = asked.parse_args()
    sides = (ROOT, given.other.resolve())
    with tempfile.TemporaryDirectory() as folder:
        if given.bench:
            return 1 if pace(given.bench, sides, given.rounds, Path(folder)) else 0
        batches = [
            batch for batch in write(Path(folder) / "sets", given.quick) if not given.only or batch.name in given.only
        ]
        found = [compare(batch, sides, Path(folder)) for batch in [*batches, *given.captures]]
    return 1 if any(found) else 0


if __name__ == "__main__":
    sys.exit(main())
