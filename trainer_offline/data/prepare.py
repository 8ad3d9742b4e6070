"""From recorded jobs to training and test data, with a card that says what it is (TRANSOM IV-B1; methods 10).

Jobs are worked through in parallel (`data.workers`), each thinned where it is read: memory is bounded by
`PrepareConfig.max_cells` for each worker and by `PrepareConfig.max_rows`, not by the archive or its largest job.
Training and test data are split by job, never by row: rows of one job are alike, and a model that has seen one has seen
all. Of a single job the last part of its time is the test; the card says so. Jobs with annotated faults go to the test
first, since only they can show what a model finds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from trainwarden.detectors.job.samples import Entity
from trainwarden.errors import DataError
from trainwarden.recorded.folder import is_batch, jobs_in
from trainwarden.trainer_offline.archive.layout import TOPIC_FOLDERS
from trainwarden.trainer_offline.archive.reader import jobs as archived_jobs
from trainwarden.trainer_offline.data.annotations import Culprit, named, spans
from trainwarden.trainer_offline.data.annotations import read as read_annotations
from trainwarden.trainer_offline.data.card import BY_TIME, DataCard, card_of
from trainwarden.trainer_offline.data.grids import Floats, PrepareConfig, Span, stretches
from trainwarden.trainer_offline.data.prepare_job import PreparedJob, Task
from trainwarden.trainer_offline.data.workers import Outcome, outcomes
from trainwarden.trainer_offline.progress import Tell, silent

METRICS = "metrics"  # the archive's folder
SHOWN_NAMES = 5
GROUP_OFFSET_S = 1e10  # further apart than any two recordings


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What is learnt from, what it is judged on, and the card."""

    train: list[PreparedJob]
    test: list[PreparedJob]
    card: DataCard
    config: PrepareConfig

    @property
    def tested_days(self) -> float:
        """Machine-days that are known to be free of faults in what it is judged on."""
        grids = [grid for job in self.test for grid in job.grids]
        return sum(len(one.entities) * int(one.quiet.sum()) * one.every_s for one in grids) / 86_400.0

    def series(self) -> tuple[dict[str, list[tuple[Entity, Floats, Floats]]], dict[str, tuple[str, ...]]]:
        """Normal series by family as `ModelBundle.fit` takes them, over the union of the jobs' metrics.

        Peers are recognised by equal times and times are used for nothing else, so those of every job and role group
        are moved apart: two jobs that both count from 0 s are no peers, nor are two pipeline stages.
        """
        names: dict[str, list[str]] = {}
        for job in self.train:
            for grid in job.grids:
                known = names.setdefault(grid.family, [])
                known += [name for name in grid.names if name not in known]
        found: dict[str, list[tuple[Entity, Floats, Floats]]] = {}
        groups: dict[tuple[str, str, int], int] = {}
        for place, job in enumerate(self.train):
            for grid in job.grids:
                columns = [names[grid.family].index(name) for name in grid.names]
                for part in stretches(grid, self.config):
                    for row, entity in enumerate(grid.entities):
                        values = np.full((part.stop - part.start, len(names[grid.family])), np.nan)
                        values[:, columns] = grid.values[row, :, part].T
                        if np.isnan(values).all():
                            continue
                        group = groups.setdefault((grid.family, grid.roles[row], place), len(groups))
                        times = grid.times_s[part] + GROUP_OFFSET_S * group
                        found.setdefault(grid.family, []).append((entity, times, values))
        return found, {family: tuple(one) for family, one in names.items()}


def prepare(
    data: Path,
    config: PrepareConfig,
    *,
    normal_until_s: float | None = None,
    keep_start: bool = False,
    seed: int = 0,
    workers: int | None = None,
    dask: str | None = None,
    tell: Tell = silent,
) -> TrainingData:
    """Read `data`, a recorded folder, a batch of them or an archive, and make training and test data of it.

    Parameters
    ----------
    normal_until_s : float, optional
        Rows before it are normal, unless a job's ``job.toml`` or annotations say otherwise; without both all are.
    keep_start : bool
        Do not look for phases of start and end.
    workers : int, optional
        Processes; one for each core by default.
    dask : str, optional
        Address of a Dask scheduler whose workers prepare the jobs instead.

    Raises
    ------
    ConfigError
        With `dask`, if Dask is not installed.
    DataError
        If no job can be read, none has anything normal to learn from, or the workers are lost.
    """
    found = sources(data)
    said = [_annotated(one, data) for one in found]
    test = (
        set()
        if len(found) == 1
        else _test_places([one.called for one in found], [bool(one.get("fault")) for one in said], config, seed)
    )
    budget = config.max_rows // max(1, len(found) - len(test))
    tasks = [
        Task(
            one.folder,
            one.name,
            normal_until_s,
            keep_start,
            spans,
            budget,
            config,
            seed,
            judged=place in test or len(found) == 1,
            named=_named(one, data),
            archived=one.archived,
        )
        for place, (one, spans) in enumerate(zip(found, said, strict=True))
    ]
    jobs, notes = _worked(tasks, outcomes(tasks, workers, dask), tell)
    notes += _astray(found, data)
    if not jobs:
        raise DataError(f"'{data}' holds nothing to learn from: {'; '.join(notes)}")
    learnt, tested, split = _sides(jobs, test, config)
    card = card_of(list(jobs.values()), learnt, tested, split, notes)
    return TrainingData(learnt, tested, card, config)


def _sides(
    jobs: dict[int, PreparedJob], test: set[int], config: PrepareConfig
) -> tuple[list[PreparedJob], list[PreparedJob], str]:
    """What is learnt from, what is judged on, and how the two were parted."""
    if len(jobs) == 1:
        train, judged = _by_time(next(iter(jobs.values())), config)
        return [train], [judged], f"{BY_TIME}: there is one job, its last {config.test_share:.0%} is the test"
    # A job that could not be read may have been the only one of its side.
    test = test & set(jobs)
    if not test or len(test) == len(jobs):
        test = {max(jobs)}
    learnt = [job for place, job in jobs.items() if place not in test]
    return learnt, [job for place, job in jobs.items() if place in test], "by job"


@dataclass(frozen=True, slots=True)
class Source:
    """Where one job is: a recorded folder, or in an archive under its name."""

    folder: Path
    name: str | None
    archived: bool = False

    @property
    def called(self) -> str:
        """Its name in annotations."""
        return self.name or self.folder.resolve().name


def sources(data: Path, topics: Sequence[str] = (METRICS,)) -> list[Source]:
    """The jobs of `data`, a recorded folder, a batch of them or an archive that has any of `topics` of them, by name.

    Raises
    ------
    DataError
        If it holds none.
    """
    if not any((data / topic).is_dir() for topic in TOPIC_FOLDERS):
        batch = is_batch(data)
        return [Source(folder, folder.name if batch else None) for folder in jobs_in(data)]
    found = [Source(data, one.job, True) for one in archived_jobs(data) if set(topics) & set(one.topics)]
    if not found:
        raise DataError(f"archive '{data}' holds no job with {' or '.join(topics)}")
    return found


def _annotated(source: Source, data: Path) -> dict[str, list[Span]]:
    """What ``annotations.csv`` in the job's folder, in the batch's or the archive's, says of the job, by label."""
    found: dict[str, list[Span]] = {}
    for place in dict.fromkeys((source.folder, data)):
        for label, said in spans(place, source.called).items():
            found.setdefault(label, []).extend(said)
    return found


def _named(source: Source, data: Path) -> tuple[Culprit, ...]:
    """Suspects of the job's annotated faults."""
    return tuple(who for place in dict.fromkeys((source.folder, data)) for who in named(place, source.called))


def _astray(found: Sequence[Source], data: Path) -> list[str]:
    """A note on annotations of jobs that are not here: most often a name was mistyped."""
    places = dict.fromkeys((data, *(one.folder for one in found)))
    names = {one.job for place in places for one in read_annotations(place)} - {one.called for one in found}
    shown = ", ".join(f"'{name}'" for name in sorted(names)[:SHOWN_NAMES])
    return [f"annotations name {shown}, but there is no such job here"] if names else []


def _test_places(names: Sequence[str], with_faults: Sequence[bool], config: PrepareConfig, seed: int) -> set[int]:
    """Which jobs are the test: those with annotated faults first, in an order that a job keeps as others come.

    By a hash of name and seed: a later run does not train on what this one was judged on, nor the reverse.
    """
    order = list(range(len(names)))
    order.sort(
        key=lambda place: (not with_faults[place], hashlib.sha256(f"{seed}\n{names[place]}".encode()).hexdigest())
    )
    count = min(max(1, round(config.test_share * len(order))), len(order) - 1)
    return set(order[:count])


def _worked(tasks: Sequence[Task], found: Iterable[Outcome], tell: Tell) -> tuple[dict[int, PreparedJob], list[str]]:
    """Jobs by place, and a sentence on each that could not be used."""
    jobs: dict[int, PreparedJob] = {}
    notes: list[str] = []
    tell(f"preparing {len(tasks)} jobs", 0, len(tasks))
    for place, (task, one) in enumerate(zip(tasks, found, strict=True)):
        if isinstance(one, PreparedJob):
            jobs[place] = one
            said = f"{one.name}: {one.rows:,} normal rows"
        else:
            said = f"{task.label} is left out: {one}"
            notes.append(said)
        tell(said, place + 1, len(tasks))
    return jobs, notes


def _by_time(job: PreparedJob, config: PrepareConfig) -> tuple[PreparedJob, PreparedJob]:
    """One job as two: the first part of its normal time, and all that follows."""
    times = np.sort(np.concatenate([grid.times_s[grid.normal] for grid in job.grids]))
    at_s = float(times[int(times.size * (1.0 - config.test_share))])
    return (
        replace(job, grids=[grid.part(grid.times_s < at_s) for grid in job.grids]),
        replace(job, grids=[grid.part(grid.times_s >= at_s) for grid in job.grids]),
    )
