"""Small recorded batches to train on, and settings that fit them in a second."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.settings import parse
from trainwarden.trainer_offline.service.train import TrainConfig

EVERY_S = 10.0
MODELS = {
    "members": {"pca": 1.0, "kmeans": 1.0, "lof": 1.0, "dtw": 1.0, "neighbor_profile": 1.0},
    "neighbor_profile": {"bags": 4, "bag_size": 4},
    "dtw_samples": 20,
}
SMALL = TrainConfig(models=parse(VoteConfig, MODELS, "models"))


def job(
    folder: Path, seed: int, *, rows: int = 600, nodes: int = 4, start: int = 0, end: int = 0, **columns: object
) -> Path:  # fmt: skip
    """One job: `nodes` hosts with a few metrics; the first `start` and last `end` samples stand at another level."""
    rng = np.random.default_rng(seed)
    frames = []
    for node in range(nodes):
        wave = np.sin(np.arange(rows) / 7.0 + node)
        power = 400.0 + 20.0 * wave + rng.normal(0.0, 4.0, rows)
        clock = 1.4e9 + rng.normal(0.0, 1e6, rows)
        power[:start], clock[:start] = 80.0, 3e8
        power[rows - end :], clock[rows - end :] = 60.0, 2e8
        frame = pd.DataFrame({"time_s": EVERY_S * np.arange(rows), "node": f"n{node}", "power": power, "clock": clock})
        frame["power_twice"], frame["seven"] = 2.0 * power, 7.0
        frame["traffic"] = rng.normal(5.0, 1.0, rows)
        for name, values in columns.items():
            frame[name] = values
        frames.append(frame)
    folder.mkdir(parents=True, exist_ok=True)
    pd.concat(frames).sort_values("time_s", kind="stable").to_csv(folder / "metrics.csv", index=False)
    return folder


def batch(folder: Path, jobs: int = 3, rows: int = 600) -> Path:
    for number in range(jobs):
        job(folder / f"job{number}", number, rows=rows)
    return folder


def annotate(folder: Path, *lines: str) -> None:
    (folder / "annotations.csv").write_text(
        "job,from_s,to_s,label,kind,suspects,note\n" + "".join(f"{x}\n" for x in lines)
    )
