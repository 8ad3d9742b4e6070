"""Training on an archive of 10 GB within 4 GB of memory.

It writes 10 GB and takes several minutes, so it only runs when asked for:
``TRAINWARDEN_BENCH_LARGE=1 trainwarden bench training_archive_10gb`` (TMPDIR names the disk).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from tests.benchmarks.large_archive import JobSize, run_limited, write_archive
from tests.places import ROOT

NAMES: Final = ("training_archive_10gb",)
LARGE: Final = "TRAINWARDEN_BENCH_LARGE"
ARCHIVE_BYTES: Final = 10_000_000_000
LIMIT_BYTES: Final = 4_000_000_000
FREE_BYTES: Final = 14_000_000_000
TIMEOUT_S: Final = 3_600.0
# One job is larger than the limit by itself.
JOBS: Final = (JobSize("large", 124, 7), *(JobSize(f"job{number}", 16, 7) for number in range(7)))
BAR: Final = "< 4 GB of memory, every family learnt, and versions registered"


def benchmarks() -> list[dict[str, Any]]:
    """Peak memory of ``trainwarden train`` with all its processes."""
    row: dict[str, Any] = {
        "name": NAMES[0], "value": None, "unit": "bytes", "rounds": 1, "spread": None, "peer": None, "ratio": None,
        "bar": BAR, "holds": None,
    }  # fmt: skip
    place = Path(tempfile.gettempdir())
    if not os.environ.get(LARGE):
        return [{**row, "skipped": f"it writes 10 GB; set {LARGE}=1"}]
    if shutil.disk_usage(place).free < FREE_BYTES:
        return [{**row, "skipped": f"'{place}' has less than {FREE_BYTES / 1e9:g} GB free"}]
    with tempfile.TemporaryDirectory(prefix="trainwarden-bench-") as scratch:
        began_s = time.monotonic()
        nbytes, rows = write_archive(Path(scratch) / "archive", JOBS)
        return [{**row, "writing_s": round(time.monotonic() - began_s, 1), **measure(Path(scratch), nbytes, rows)}]


def measure(scratch: Path, nbytes: int, rows: int) -> dict[str, Any]:
    """What training on ``scratch/archive``, of `nbytes` and with `rows` values, took."""
    answer = scratch / "answer.json"
    command = [sys.executable, "-m", "trainwarden.cli.main", "train", "--data", str(scratch / "archive")]
    command += ["--registry", str(scratch / "models"), "--json", str(answer)]
    root = ROOT
    found = run_limited(command, LIMIT_BYTES, scratch / "log", TIMEOUT_S, root)
    if not answer.exists():
        raise RuntimeError(f"training failed ({found.how}, exit code {found.code}): {found.output[-2_000:]}")
    said = json.loads(answer.read_text())
    missing = [note for note in said["data"]["notes"] if "nothing to learn" in note]
    return {
        "value": found.peak_bytes,
        "holds": found.peak_bytes < LIMIT_BYTES and nbytes >= ARCHIVE_BYTES and bool(said["models"]) and not missing,
        "limit": found.how,
        "archive_bytes": nbytes,
        "archive_values": rows,
        "wall_s": round(found.wall_s, 1),
        "values_per_s": round(rows / found.wall_s),
        "trained_rows": said["data"]["train_rows"],
        "registered": [f"{one['detector']} {one['version']}" for one in said["models"]],
        "notes": said["data"]["notes"],
    }


if __name__ == "__main__":
    print(json.dumps(benchmarks(), indent=2))
