"""Models by the path of `trainwarden train`, of the healthy choosing runs or of all with their faults told."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyarrow import parquet

from tests.benchmarks.detection.own_runs.reading import Captured
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.errors import DetectorError
from trainwarden.trainer_offline.registry.registry import Registry
from trainwarden.trainer_offline.registry.serving import local_bundle
from trainwarden.trainer_offline.service.train import TrainConfig, train

HEADER: Final = "job,from_s,to_s,label,kind,suspects,note\n"


@dataclass(frozen=True, slots=True)
class Trained:
    """What serves, or None where the gate let nothing, and what it said of each detector."""

    bundle: ModelBundle | None
    answer: dict[str, Any]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """One row for each detector."""
        found = []
        for one in self.answer["models"]:
            gate, seen = one["gate"], one["gate"]["metrics"]
            found.append(
                {
                    "row": f"{name}: {one['detector']}",
                    "gate": "passed" if gate["passed"] else "provisional" if gate["provisional"] else "rejected",
                    "found": f"{seen.get('found')} of {seen.get('events')}",
                    "false alarms": seen.get("false_episodes"),
                    "machine-days": round(seen.get("machine_days") or 0.0, 2),
                    "why": "; ".join(gate["reasons"]),
                }
            )
        return found


def trained(runs: Sequence[Captured]) -> Trained:
    """Train on the runs' folders, their faults annotated, into a registry that is thrown away afterwards."""
    with tempfile.TemporaryDirectory() as place, batch(runs) as data:
        uri = str(Path(place) / "registry")
        answer = train(data, Registry.at(uri, create=True), TrainConfig(), promote=True)
        try:
            bundle = ModelBundle.load(local_bundle(uri))
        except DetectorError:  # all were rejected
            bundle = None
    return Trained(bundle, answer)


@contextmanager
def batch(runs: Sequence[Captured], every: int = 1) -> Iterator[Path]:
    """A folder of recorded folders with `annotations.csv`, as people leave it; of metrics every so-manieth sample."""
    with tempfile.TemporaryDirectory() as place:
        lines = [HEADER]
        for run in runs:
            folder = Path(place) / run.name
            shutil.copytree(run.job.folder, folder)
            _thin(folder / "metrics.parquet", every)
            lines += [
                f"{run.name},{fault.from_s},{fault.to_s},fault,metric_anomaly,rank={fault.rank},\n"
                for fault in run.faults
            ]
        (Path(place) / "annotations.csv").write_text("".join(lines), encoding="utf-8")
        yield Path(place)


def _thin(path: Path, every: int) -> None:
    """Leave every so-manieth row of each device."""
    table = parquet.read_table(path)
    devices, turns = table.column("device").to_pylist(), np.zeros(table.num_rows, dtype=np.int64)
    seen: dict[str, int] = {}
    for row, device in enumerate(devices):
        turns[row] = seen.get(device, 0)
        seen[device] = seen.get(device, 0) + 1
    parquet.write_table(table.filter(turns % every == 0), path)
