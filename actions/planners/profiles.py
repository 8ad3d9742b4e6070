"""How fast a task trains on so many GPUs, from jobs that were recorded: T(t, x) for `trainwarden plan cluster`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from trainwarden.errors import DataError
from trainwarden.parallelism.layout import product
from trainwarden.recorded.job import RecordedJob

LEAST_STEPS = 20  # the first few compile and warm up; their median must not decide


class Point(msgspec.Struct, frozen=True):
    """A job's throughput: work a second on `gpus` GPUs, by the median of its `steps` steps' `step_s`."""

    job: str
    gpus: int
    throughput: float
    step_s: float
    steps: int


class Skipped(msgspec.Struct, frozen=True):
    """A job that says nothing, and why."""

    job: str
    why: str


class Profile(msgspec.Struct, frozen=True):
    """`throughput` as a task of `plan cluster` takes it, by number of GPUs from 0; None where no job was recorded."""

    throughput: tuple[float | None, ...]
    measured: tuple[Point, ...]
    skipped: tuple[Skipped, ...]


def point(job: RecordedJob, work_per_step: float) -> Point:
    """What one job says: a rank is a GPU, and all ranks take part in a step.

    The median step is that of the healthy job, as long as it was slow for less than half of its steps; what lies
    between steps (evaluation, checkpoints) is not in it.

    Parameters
    ----------
    work_per_step : float
        Tokens, samples or FLOP of one step; the same for all tasks of a plan.

    Raises
    ------
    DataError
        If it has too few steps, or does not say on how many ranks it ran.
    """
    table = job.iterations
    if table is None:
        raise DataError("it has no iterations")
    gpus = _gpus(job)
    # One value a step, so that ranks and steps that are recorded more often count no more.
    order = np.argsort(table.step, kind="stable")
    _, starts = np.unique(table.step[order], return_index=True)
    covered = int(table.steps[order][starts].sum())
    if covered < LEAST_STEPS:
        raise DataError(f"it has {covered} steps; {LEAST_STEPS} are needed")
    by_step = np.split(table.duration_s[order], starts[1:])
    step_s = float(np.median([np.median(durations) for durations in by_step]))
    return Point(job.name, gpus, work_per_step / step_s, step_s, covered)


def _gpus(job: RecordedJob) -> int:
    """Ranks by the layout of job.toml where it is whole, else those of the table."""
    if {"tp", "dp", "pp"} <= job.parallel.keys():
        return product(job.parallel)
    ranks = {rank for rank in job.iterations.ranks if rank is not None} if job.iterations else set()
    if not ranks:
        raise DataError("it does not say on how many ranks it ran (ranks in iterations, or [parallel] in job.toml)")
    return max(ranks) + 1


def profile(points: Iterable[Point], skipped: Iterable[Skipped] = ()) -> Profile:
    """The points in one curve; of several with as many GPUs the fastest counts, as T(t, x) is that of the best layout.

    Examples
    --------
    >>> points = [Point("a", 2, 1.8, 0.5, 100), Point("b", 2, 1.9, 0.5, 100), Point("c", 4, 3.5, 0.3, 100)]
    >>> profile(points).throughput
    (0.0, None, 1.9, None, 3.5)
    """
    best: dict[int, Point] = {}
    for one in points:
        if one.gpus not in best or one.throughput > best[one.gpus].throughput:
            best[one.gpus] = one
    curve: list[float | None] = [0.0, *[None] * max(best, default=0)]
    for gpus, one in best.items():
        curve[gpus] = one.throughput
    return Profile(tuple(curve), tuple(best[gpus] for gpus in sorted(best)), tuple(skipped))
