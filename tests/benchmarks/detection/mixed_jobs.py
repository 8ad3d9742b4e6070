"""Constructed jobs: healthy metrics, step times and log lines of different real runs on one clock, and one real
anomaly of one kind put in at a known time. No such job was ever recorded as a whole.
"""

from __future__ import annotations

import csv
import functools
import gzip
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tests.benchmarks.detection.change_series import Series, megatron, nanogpt
from tests.benchmarks.detection.logs import excerpts, healthy
from tests.benchmarks.detection.servers import ServerCase, listed, load
from tests.places import shared_data
from trainwarden.recorded.job import IterationTable, LogTable, MetricTable, RecordedJob
from trainwarden.trainer_offline.fit.judge import segments

Floats = npt.NDArray[np.float64]
Anomaly = Literal["metric", "log", "steps", "none"]
TICK_S: Final = 2.0  # a sample of every metric background is replayed every so often, as the power readings were taken
TRAINING_ROWS, JUDGED_ROWS = 3_000, 700
POWER_TRAINING = 0.4  # share of the power readings
LINES, LINES_PER_S = 1_000, 5.0  # log lines of a job and their pace
LOG_AFTER_S: Final = 500.0  # the log begins so long after the training part
STEPS: Final = 1_500
LONG_ENOUGH, SHORT_ENOUGH = 10, 300  # rows of an event that is put in
LOG_EVENT_S: Final = 30.0  # an incident so long after the last line of an excerpt is still of it
ENDING: Final = frozenset("ACN")  # failures of these classes end a job: nothing follows them
SPELL_LEAD: Final = 400  # steps before a spell
_RANK: Final = re.compile(r"^ *([0-9]{1,6}): ")


@dataclass(frozen=True, slots=True)
class MixedJob:
    """A job to be judged and the one event in it, in seconds; None where it is healthy."""

    job: RecordedJob
    anomaly: Anomaly
    event: tuple[float, float] | None


@functools.cache
def mixed_jobs() -> list[MixedJob]:
    """All of them, always the same; empty without shared data."""
    data = shared_data()
    if data is None:
        return []
    calm = _Calm(data)
    return [*_metric_jobs(calm), *_log_jobs(calm, data), *_step_jobs(calm, data), *_healthy_jobs(calm)]


class _Calm:
    """Healthy background streams, dealt out in turn."""

    def __init__(self, data: Path) -> None:
        (lines,) = (lines for name, lines in healthy(data).items() if name.startswith("result_"))
        self.lines = [lines[first : first + LINES] for first in range(0, len(lines) - LINES, LINES)]
        self.steps = _calm_steps(data)
        self.power = _power(data)
        self.servers = [case for case in _servers("smd") if len(case.train) >= TRAINING_ROWS + JUDGED_ROWS]

    def metrics(self, place: int) -> tuple[MetricTable, float]:
        if place % 2:
            return self.power
        case = self.servers[place // 2 % len(self.servers)]
        return _one_server(case.name, case.names, case.train[: TRAINING_ROWS + JUDGED_ROWS]), TRAINING_ROWS * TICK_S

    def iterations(self, place: int, start_s: float) -> IterationTable:
        return _iterations(self.steps[place % len(self.steps)], start_s)

    def log(self, place: int, start_s: float) -> LogTable:
        return _log(self.lines[place % len(self.lines)], start_s)


def _servers(dataset: str) -> list[ServerCase]:
    return [load(dataset, name) for name, half in listed(dataset) if half == "report"]


def _metric_jobs(calm: _Calm) -> list[MixedJob]:
    """Two events of each server of the report half, between training rows of the same server."""
    out: list[MixedJob] = []
    for case in [*_servers("smd"), *_servers("asd")]:
        events = [one for one in segments(case.labels) if LONG_ENOUGH <= one[1] - one[0] + 1 <= SHORT_ENOUGH]
        for first, last in events[:2]:
            values = case.train[: TRAINING_ROWS + JUDGED_ROWS].copy()
            at = TRAINING_ROWS + JUDGED_ROWS // 2
            values[at : at + last - first + 1] = case.test[first : last + 1]
            start_s, place = TRAINING_ROWS * TICK_S, len(out)
            job = RecordedJob(
                f"metric-{case.name}-{first}", Path("mixed"), metrics=_one_server(case.name, case.names, values),
                iterations=calm.iterations(place, start_s), logs=(calm.log(place, start_s),), normal_until_s=start_s,
            )  # fmt: skip
            out.append(MixedJob(job, "metric", (at * TICK_S, float(at + last - first) * TICK_S)))
    return out


def _log_jobs(calm: _Calm, data: Path) -> list[MixedJob]:
    """Every third quoted failure, once, in the middle of healthy lines; what ends a job is its last word."""
    out: list[MixedJob] = []
    for place, excerpt in enumerate(excerpts(data)[::3]):
        metrics, start_s = calm.metrics(place)
        iterations = calm.iterations(place, start_s)
        lines = calm.lines[place % len(calm.lines)]
        middle = len(lines) // 2
        quoted = [line for line in excerpt.lines if line]
        fatal = set(excerpt.classes) <= ENDING
        log = _log([*lines[:middle], *quoted, *([] if fatal else lines[middle:])], start_s)
        first_s, last_s = float(log.times_s[middle]), float(log.times_s[middle + len(quoted) - 1])
        if fatal:
            iterations, metrics = _steps_until(iterations, first_s), _metrics_until(metrics, last_s)
        job = RecordedJob(
            f"log-{place}", Path("mixed"), metrics=metrics, iterations=iterations, logs=(log,), normal_until_s=start_s
        )
        out.append(MixedJob(job, "log", (first_s, last_s + LOG_EVENT_S)))
    return out


def _steps_until(table: IterationTable, end_s: float) -> IterationTable:
    count = int(np.searchsorted(table.end_s, end_s))
    arrays = ("rank", "step", "end_s", "duration_s", "compute_s", "wait_s", "pause_s", "micro_batches", "steps")
    return replace(table, **{name: getattr(table, name)[:count] for name in arrays})


def _metrics_until(table: MetricTable, end_s: float) -> MetricTable:
    count = int(np.searchsorted(table.times_s, end_s))
    return replace(table, times_s=table.times_s[:count], entity=table.entity[:count], values=table.values[:count])


def _step_jobs(calm: _Calm, data: Path) -> list[MixedJob]:
    """Each labelled fail-slow in its own run, and its ratios laid over two other healthy runs."""
    out: list[MixedJob] = []
    for run, first, last in _spells(data):
        own = run.durations[max(0, first - SPELL_LEAD) : last + SPELL_LEAD]
        before = float(np.median(run.durations[max(0, first - SPELL_LEAD) : first]))
        ratios = run.durations[first:last] / before
        versions = [(own, min(first, SPELL_LEAD))]
        for other in calm.steps[:2]:
            laid = other.copy()
            laid[SPELL_LEAD : SPELL_LEAD + ratios.size] *= ratios
            versions.append((laid, SPELL_LEAD))
        for durations, at in versions:
            place = len(out)
            metrics, start_s = calm.metrics(place)
            table = _iterations(durations, start_s)
            job = RecordedJob(
                f"steps-{place}", Path("mixed"), metrics=metrics, iterations=table, logs=(calm.log(place, start_s),),
                normal_until_s=start_s,
            )  # fmt: skip
            begun_s = float(table.end_s[at] - table.duration_s[at])
            out.append(MixedJob(job, "steps", (begun_s, float(table.end_s[at + ratios.size - 1]))))
    return out


def _healthy_jobs(calm: _Calm) -> list[MixedJob]:
    out = []
    for place in range(6):
        metrics, start_s = calm.metrics(place)
        job = RecordedJob(
            f"none-{place}", Path("mixed"), metrics=metrics, iterations=calm.iterations(place, start_s),
            logs=(calm.log(place, start_s),), normal_until_s=start_s,
        )  # fmt: skip
        out.append(MixedJob(job, "none", None))
    return out


def _spells(data: Path) -> list[tuple[Series, int, int]]:
    """Runs with a labelled fail-slow, and its first and following index."""
    runs = {run.name: run for run in megatron(data)}
    out = []
    with (data / "megatron_step_times" / "events.csv").open() as file:
        for row in csv.DictReader(file):
            if row["kind"] == "failslow":
                run = runs[row["run"]]
                first, last = (
                    int(np.searchsorted(run.steps, int(row[f"{side}_iteration"]))) for side in ("start", "end")
                )
                out.append((run, first, last))
    return out


def _calm_steps(data: Path) -> list[Floats]:
    """Step times of nanogpt runs of the report half in which nothing changes, one of each record."""
    out, seen = [], set()
    for run in nanogpt(data):
        quiet = not run.changes and not run.ignores and run.split == "report"
        if quiet and run.group not in seen and len(run.durations) >= STEPS:
            seen.add(run.group)
            out.append(run.durations[:STEPS])
    return out


def _iterations(durations: Floats, start_s: float) -> IterationTable:
    """The whole job's step times."""
    count = durations.size
    unknown = np.full(count, np.nan)
    return IterationTable(
        rank=np.zeros(count, dtype=np.int64), ranks=(None,), nodes=(None,), step=np.arange(count),
        end_s=start_s + np.cumsum(durations), duration_s=np.asarray(durations, dtype=np.float64), compute_s=unknown,
        wait_s=unknown, pause_s=unknown, micro_batches=unknown, steps=np.ones(count, dtype=np.int64), timed=True,
    )  # fmt: skip


def _log(lines: Sequence[str], start_s: float) -> LogTable:
    times_s = start_s + LOG_AFTER_S + np.arange(len(lines)) / LINES_PER_S
    found = [_RANK.match(line) for line in lines]
    ranks = tuple(None if one is None else int(one.group(1)) for one in found)
    return LogTable("logs.txt", times_s, (None,) * len(lines), ranks, [line[:8_000] for line in lines])


def _one_server(name: str, names: tuple[str, ...], values: Floats) -> MetricTable:
    rows = len(values)
    return MetricTable(
        TICK_S * np.arange(rows, dtype=np.float64),
        np.zeros(rows, dtype=np.int64),
        (name,),
        (None,),
        (None,),
        names,
        values,
    )


def _power(data: Path) -> tuple[MetricTable, float]:
    """Power of the nodes of one healthy run whose series are distinct, and where its training part ends."""
    (path,) = (data / "smc_node_power").glob("*.csv.gz")
    with gzip.open(path, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", skiprows=1)
    series: dict[bytes, tuple[int, Floats]] = {}
    for node in np.unique(table[:, 0]).astype(int).tolist():
        own = table[table[:, 0] == node]
        series.setdefault(own[:, 2].tobytes(), (node, own))
    kept = sorted(series.values(), key=lambda one: one[0])
    rows = np.concatenate([np.column_stack([np.full(len(own), place), own]) for place, (_, own) in enumerate(kept)])
    rows = rows[np.argsort(rows[:, 2], kind="stable")]
    times_s: Floats = (rows[:, 2] - rows[0, 2]) / 1000.0
    unknown = (None,) * len(kept)
    made = MetricTable(
        times_s, rows[:, 0].astype(np.int64), tuple(f"node{node}" for node, _ in kept), unknown, unknown,
        ("node_power_watts",), rows[:, 3:4],
    )  # fmt: skip
    return made, float(times_s[-1]) * POWER_TRAINING
