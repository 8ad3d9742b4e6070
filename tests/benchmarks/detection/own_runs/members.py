"""Each member of the metric vote alone on healthy runs, at the interval of the data and thinned.

A sample is strange at a threshold that means a rarity: one normal sample in 55 where one comes a minute, as many times
rarer as they come more often. So what is expected here is known, and what is seen says whether it holds at a second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import numpy.typing as npt

from tests.benchmarks.detection.own_runs.reading import Captured
from tests.benchmarks.detection.own_runs.trained import batch
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.hysteresis import REFERENCE_S, ModelVoteConfig
from trainwarden.trainer_offline.data.grids import JobGrid, PrepareConfig
from trainwarden.trainer_offline.data.prepare import prepare
from trainwarden.trainer_offline.data.prepare_job import Task, prepare_job
from trainwarden.trainer_offline.fit import fit as fitting
from trainwarden.trainer_offline.fit.bounds import count_bounds
from trainwarden.trainer_offline.fit.judge import alerts, episodes, scored
from trainwarden.trainer_offline.service.train import TrainConfig

DAY_S: Final = 86_400.0
RARE: Final = 1.0 / 55.0  # of normal samples are at the threshold or above where one comes a minute
WAYS: Final = (
    ("1 s, scales as before", 1, 0.0),
    ("1 s", 1, fitting.SOON_S),
    ("5 s", 5, fitting.SOON_S),
    ("10 s", 10, fitting.SOON_S),
)
"""What the columns are called, every so-manieth sample, and how soon a scale of an entity's own has to be there."""


@dataclass(slots=True)
class Tally:
    """One member on the runs of one half, in one way."""

    samples: int = 0
    above: int = 0
    episodes: int = 0
    seconds: float = 0.0

    def cells(self, way: str, every: int) -> dict[str, str]:
        """What is shown of it."""
        days = self.seconds / DAY_S
        should = 100.0 * RARE * min(1.0, every / REFERENCE_S)
        if not self.samples:
            return {f"{way}: strange, %": "", f"{way}: alarms": ""}
        low, high = count_bounds(self.episodes)
        return {
            f"{way}: strange, %": f"{100.0 * self.above / self.samples:.3g} for {should:.2g}",
            f"{way}: alarms": f"{self.episodes} in {24.0 * days:.1f} h [{low / days:.3g}, {high / days:.3g} a day]",
        }


def rows(runs: Sequence[Captured], say: Callable[[str], None] = lambda line: None) -> list[dict[str, Any]]:
    """One row for each member and half: models of the other scripts' choosing runs on those of each script in turn.

    All are healthy. A script that models have not seen is what a site's next job is to them.
    """
    found: dict[tuple[str, str], dict[str, Tally]] = {}
    for way, every, soon_s in WAYS:
        for script in sorted({run.script for run in runs}):
            learnt = [run for run in runs if run.half == "choose" and run.script != script]
            bundle = _fitted(learnt, every, soon_s)
            for run in (run for run in runs if run.script == script):
                for name, tally in _tallies(bundle, run, every, say).items():
                    _add(found.setdefault((run.half, name), {}).setdefault(way, Tally()), tally)
    return [
        {"row": f"{name}, {half}"}
        | {head: cell for way, every, _ in WAYS for head, cell in of.get(way, Tally()).cells(way, every).items()}
        for (half, name), of in sorted(found.items())
    ]


def _add(one: Tally, other: Tally) -> None:
    one.samples += other.samples
    one.above += other.above
    one.episodes += other.episodes
    one.seconds += other.seconds


def _fitted(learnt: Sequence[Captured], every: int, soon_s: float) -> ModelBundle:
    with batch(learnt, every) as data, patch.object(fitting, "SOON_S", soon_s):
        return fitting.fit(prepare(data, PrepareConfig(), workers=1), TrainConfig().models, 0)


def _tallies(bundle: ModelBundle, run: Captured, every: int, say: Callable[[str], None]) -> dict[str, Tally]:
    with batch([run], every) as data:
        job = prepare_job(Task(data / run.name, None, None, False, {}, 10**9, PrepareConfig(), 0))
    tallies: dict[str, Tally] = {}
    for grid in (grid.part(grid.quiet) for grid in job.grids):
        if grid.family in bundle.votes and grid.times_s.size:
            for name, scores in scored(bundle, grid).items():
                began = _count(tallies.setdefault(name, Tally()), grid, scores)
                if name == "ensemble" and began.size:
                    say(f"{run.name}, every {every}: {grid.family} at {np.unique(began.round()).tolist()}")
    return tallies


def _count(tally: Tally, grid: JobGrid, scores: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Count one grid; when its alarms began."""
    entities = len(grid.entities)
    there = ~np.isnan(scores)
    on = alerts(scores, entities, grid.every_s, ModelVoteConfig())
    began = [int(one[0]) for row in on for one in episodes(row, grid.every_s)]
    tally.samples += int(there.sum())
    tally.above += int((scores[there] >= ModelVoteConfig().threshold_of(entities, grid.every_s)).sum())
    tally.episodes += len(began)
    tally.seconds += float(there.sum()) * grid.every_s
    return np.asarray(grid.times_s[began] - grid.times_s[0])
