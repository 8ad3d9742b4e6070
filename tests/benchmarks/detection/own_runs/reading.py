"""Captured runs as they are judged: the recorded job, what was done to it, and the times at which nothing was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tests.benchmarks.detection.own_runs.plan import Half
from tests.places import ROOT
from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.stream import Fact
from trainwarden.recorded.folder import read_folder
from trainwarden.recorded.job import RecordedJob

DATA: Final = ROOT / "tests" / "data" / "own_runs"
AFTER_S: Final = 60.0  # a fault's own consequences: so long after it no time is healthy


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to a rank, and when."""

    kind: str
    rank: int
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class Captured:
    """One run."""

    name: str
    half: Half
    script: str
    ranks: int
    job: RecordedJob
    facts: list[Fact]
    faults: tuple[Fault, ...]
    live: list[dict[str, Any]]

    @property
    def span_s(self) -> tuple[float, float]:
        """First and last time that anything is known of."""
        assert self.job.span_s is not None
        return self.job.span_s

    @property
    def healthy_s(self) -> float:
        """How long nothing was wrong."""
        first_s, last_s = self.span_s
        sick_s = sum(min(fault.to_s + AFTER_S, last_s) - fault.from_s for fault in self.faults)
        return last_s - first_s - sick_s

    def healthy(self, times_s: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
        """Which of the times are of nobody's fault."""
        sick = [(times_s >= fault.from_s) & (times_s < fault.to_s + AFTER_S) for fault in self.faults]
        return ~np.any(sick, axis=0) if sick else np.ones(times_s.shape, dtype=np.bool_)


def captured(folder: Path = DATA, names: tuple[str, ...] = ()) -> Iterator[Captured]:
    """The runs in `folder`, by name."""
    for path in sorted(folder.glob("*/labels.json")):
        if not names or path.parent.name in names:
            yield one_run(path.parent)


def one_run(folder: Path) -> Captured:
    """The run in `folder`."""
    labels = json.loads((folder / "labels.json").read_text(encoding="utf-8"))
    job = read_folder(folder, labels["name"])
    faults = tuple(Fault(one["kind"], one["rank"], one["from_s"], one["to_s"]) for one in labels["faults"])
    return Captured(
        labels["name"], labels["half"], labels["script"], labels["ranks"], job, read_facts(job), faults, labels["live"]
    )
