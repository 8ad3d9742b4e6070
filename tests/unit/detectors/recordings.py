"""Make-believe recorded jobs, in memory and as folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from trainwarden.recorded.job import Floats, IterationTable, LogTable, MetricTable, PlannedChange, RecordedJob

START_S = 1_000_000.0  # as in detection_streams


def iterations(
    steps: int = 300,
    ranks: int | None = None,
    slow: Callable[[int, int], float] = lambda rank, step: 1.0,
    noise: float = 0.02,
    seed: int = 0,
) -> IterationTable:
    """Steps of half a second; `slow(rank, step)` multiplies a rank's compute time. Without `ranks` the whole job's."""
    rng = np.random.default_rng(seed)
    count = ranks or 1
    factor = np.array([[slow(rank, step) for rank in range(count)] for step in range(steps)])
    compute = 0.4 * factor * rng.lognormal(0.0, noise, (steps, count))
    duration = np.repeat(compute.max(axis=1, keepdims=True) + 0.1, count, axis=1)
    end_s = START_S + np.cumsum(duration, axis=0)
    nothing = np.full(steps * count, np.nan)
    return IterationTable(
        rank=np.tile(np.arange(count), steps),
        ranks=(None,) if ranks is None else tuple(range(count)),
        nodes=(None,) if ranks is None else tuple(f"node{rank // 4}" for rank in range(count)),
        step=np.repeat(np.arange(steps), count),
        end_s=end_s.ravel(),
        duration_s=duration.ravel(),
        compute_s=nothing if ranks is None else compute.ravel(),
        wait_s=nothing if ranks is None else (duration - compute).ravel(),
        pause_s=nothing,
        micro_batches=nothing,
        steps=np.ones(steps * count, dtype=np.int64),
        timed=True,
    )


def metrics(
    rows: int = 900,
    entities: int = 4,
    names: tuple[str, ...] = ("load", "power", "clock"),
    strange: Callable[[int, int], float] = lambda entity, row: 0.0,
    seed: int = 0,
    every_s: float = 10.0,
) -> MetricTable:
    """Noise around zero on every node; `strange(entity, row)` is added to the second metric."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, entities, len(names)))
    values[:, :, 1] += np.array([[strange(entity, row) for entity in range(entities)] for row in range(rows)])
    times_s = START_S + every_s * np.arange(rows)
    return MetricTable(
        times_s=np.repeat(times_s, entities),
        entity=np.tile(np.arange(entities), rows),
        nodes=tuple(f"node{entity}" for entity in range(entities)),
        ranks=(None,) * entities,
        devices=(None,) * entities,
        names=names,
        values=values.reshape(rows * entities, len(names)),
    )


def logs(lines: list[str], times_s: Floats | None = None, file: str = "logs.txt") -> LogTable:
    """Lines of no rank."""
    unknown = (None,) * len(lines)
    stamps = np.full(len(lines), np.nan) if times_s is None else times_s
    return LogTable(file=file, times_s=stamps, nodes=unknown, ranks=unknown, lines=lines)


def job(
    name: str = "job",
    iterations: IterationTable | None = None,
    metrics: MetricTable | None = None,
    logs: tuple[LogTable, ...] = (),
    planned: tuple[PlannedChange, ...] = (),
    normal_until_s: float | None = None,
) -> RecordedJob:
    return RecordedJob(name, Path("nowhere"), metrics, iterations, logs, planned=planned, normal_until_s=normal_until_s)


def write(recorded: RecordedJob, folder: Path) -> Path:
    """The job as a folder by contract; the folder."""
    folder.mkdir(parents=True)
    steps, table = recorded.iterations, recorded.metrics
    if steps is not None:
        frame = pd.DataFrame({"step": steps.step, "duration_s": steps.duration_s, "time_s": steps.end_s})
        if steps.ranks != (None,):
            frame["rank"] = [steps.ranks[place] for place in steps.rank]
            frame["node"] = [steps.nodes[place] for place in steps.rank]
            frame["compute_s"], frame["wait_s"] = steps.compute_s, steps.wait_s
        frame.to_csv(folder / "iterations.csv", index=False)
    if table is not None:
        frame = pd.DataFrame(table.values, columns=list(table.names))
        frame.insert(0, "time_s", table.times_s)
        frame.insert(1, "node", [table.nodes[place] for place in table.entity])
        frame.to_csv(folder / "metrics.csv.gz", index=False)
    for log in recorded.logs:
        (folder / log.file).write_text("".join(f"{line}\n" for line in log.lines))
    lines = [f'name = "{recorded.name}"']
    if recorded.normal_until_s is not None:
        lines.append(f"normal_until_s = {recorded.normal_until_s}")
    for change in recorded.planned:
        lines += ["[[planned_change]]", f"step = {change.step}", f'what = "{change.what}"']
    (folder / "job.toml").write_text("\n".join(lines) + "\n")
    return folder
