"""Small jobs with known changes of level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from trainwarden.recorded.iterations import read_iterations
from trainwarden.recorded.job import IterationTable
from trainwarden.trainer_offline.suggest.change_points import Floats

NORMAL_S, SLOW_S = 1.0, 1.4


def steps(durations: Mapping[int, Sequence[float]]) -> IterationTable:
    """An iteration table of durations in seconds by rank, as it is read from a file."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "iterations.csv"
        rows = [
            {"step": step, "rank": rank, "duration_s": value}
            for rank, values in durations.items()
            for step, value in enumerate(values)
        ]
        pd.DataFrame(rows).to_csv(path, index=False)
        table = read_iterations(path, path.name)
    assert table is not None
    return table


def slow_spell(
    folder: Path, seed: int = 0, *, ranks: int = 4, begin: int = 200, end: int = 300, count: int = 400
) -> Path:
    """A job that is slower from step `begin` to `end`, and whose GPUs draw less power meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    duration_s = rng.normal(NORMAL_S, 0.02, (count, ranks))
    duration_s[begin:end] += SLOW_S - NORMAL_S
    ends_s = np.cumsum(np.median(duration_s, axis=1))
    frame = pd.DataFrame({"step": np.repeat(np.arange(count), ranks), "rank": np.tile(np.arange(ranks), count)})
    frame["time_s"], frame["duration_s"] = np.repeat(ends_s, ranks), duration_s.ravel()
    frame.to_csv(folder / "iterations.csv", index=False)
    times_s = np.arange(0.0, ends_s[-1], 2.0)
    slow = (times_s >= ends_s[begin - 1]) & (times_s < ends_s[end - 1])
    watts = np.where(slow, 300.0, 400.0)[:, None] + rng.normal(0.0, 4.0, (times_s.size, ranks))
    metrics = pd.DataFrame({"time_s": np.repeat(times_s, ranks), "node": "n0"})
    metrics["device"] = np.tile([f"GPU-{rank}" for rank in range(ranks)], times_s.size)
    metrics["gpu_power_watts"], metrics["gpu_temperature_celsius"] = watts.ravel(), rng.normal(60.0, 1.0, watts.size)
    metrics.to_csv(folder / "metrics.csv", index=False)
    return folder


def spell(folder: Path, at: int = 300, samples: int = 12) -> Path:
    """Two GPUs whose load comes and goes, but for a dip in the power of both from second `at` on."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, times_s = np.random.default_rng(0), np.arange(500.0)
    dip = np.where((times_s >= at) & (times_s < at + samples), 200.0, 0.0)
    rows = pd.DataFrame({"time_s": np.repeat(times_s, 2), "node": "n0"})
    rows["device"] = np.tile(["GPU-0", "GPU-1"], times_s.size)
    rows["gpu_power_watts"] = np.repeat(400.0 + 40.0 * np.sin(times_s / 7.0) - dip, 2) + rng.normal(0.0, 3.0, len(rows))
    rows["gpu_temperature_celsius"] = rng.normal(60.0, 1.0, len(rows))
    rows.to_csv(folder / "metrics.csv", index=False)
    return folder


def plain_nearest(points: Floats, window: int) -> Floats:
    """The slow plain twin of `discords.nearest`, which need not be compiled."""
    windows = np.lib.stride_tricks.sliding_window_view(points, window)
    whole = np.flatnonzero(np.isfinite(windows).all(axis=1))
    found = np.zeros(len(windows))
    for place in whole.tolist():
        others = whole[np.abs(whole - place) > window / 4]  # nearer ones are the window itself, as stumpy has it
        apart = ((windows[others] - windows[place]) ** 2).sum(axis=1)
        found[place] = np.sqrt(apart.min()) if others.size else 0.0
    return found
