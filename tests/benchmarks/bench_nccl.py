"""What NCCL's profiler plug-in costs: nanoseconds a collective call on the thread that makes it, and memory.

A player (`tests/data/nccl_profiler/player.c`) goes the whole way of a call as NCCL 2.28 does: group, call, plan and
collective events, six to eight callbacks, its own work included. Processor time of that thread, the best of ten
stretches; other processes of the machine count for less so.

Run: ``python -m tests.benchmarks.bench_nccl`` (a few seconds).
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from tests import nccl_player
from trainwarden.collectors.nccl_profiler import build

NAMES = ("nccl_plugin_call_ns", "nccl_plugin_stamped_call_ns", "nccl_plugin_bytes", "nccl_plugin_growth_bytes")
BARS = {
    "nccl_plugin_call_ns": 200.0,
    "nccl_plugin_stamped_call_ns": None,
    "nccl_plugin_bytes": 1_000_000.0,
    "nccl_plugin_growth_bytes": 262_144.0,  # over ten million calls; what /proc says is that coarse
}
ROUNDS = 5
CALLS = 10_000_000


def benchmarks() -> list[dict[str, Any]]:
    """One row per cost."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            built = nccl_player.compile_plugin(Path(folder))
        except build.NoCompilerError as missing:
            return [_row(name, [], str(missing)) for name in NAMES]
        plain = [_played(built, Path(folder), CALLS // ROUNDS, kernels=False) for _ in range(ROUNDS)]
        stamped = [_played(built, Path(folder), CALLS // 10, kernels=True) for _ in range(ROUNDS)]
        long = _played(built, Path(folder), CALLS, kernels=False)
        held = nccl_player.held_bytes(built[0])
    return [
        _row("nccl_plugin_call_ns", [one["ns"] for one in plain]),
        _row("nccl_plugin_stamped_call_ns", [one["ns"] for one in stamped]),
        _row("nccl_plugin_bytes", [long["file_bytes"] + held]),
        _row("nccl_plugin_growth_bytes", [long["grown_bytes"]]),
    ]


def _played(built: tuple[Path, Path], folder: Path, calls: int, *, kernels: bool) -> dict[str, float]:
    said: dict[str, float] = json.loads(nccl_player.play(built, folder, 5, "bench", calls, int(kernels)))
    return said


def _row(name: str, values: list[float], skipped: str = "") -> dict[str, Any]:
    value, bar = statistics.median(values) if values else None, BARS[name]
    row = {
        "name": name,
        "value": value,
        "unit": name.rpartition("_")[2],
        "rounds": len(values),
        "spread": round(max(values) - min(values), 3) if values else None,
        "peer": None,
        "ratio": None,
        "bar": bar,
        "holds": None if value is None or bar is None else value <= bar,
    }
    return {**row, "skipped": skipped} if skipped else row


if __name__ == "__main__":
    print(json.dumps(benchmarks(), indent=2))
