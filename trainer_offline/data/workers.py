"""Who prepares jobs: this process, processes of this machine, or the workers of a Dask cluster; all find the same."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool

from trainwarden.detectors.recorded.processes import processes, submit_all
from trainwarden.errors import DataError
from trainwarden.trainer_offline.data.prepare_job import PreparedJob, Task, prepare_job

Outcome = PreparedJob | DataError
"""A job, or why it cannot be used."""


def outcomes(tasks: Sequence[Task], workers: int | None = None, dask: str | None = None) -> Iterator[Outcome]:
    """What becomes of each task, in the order of `tasks`; whatever is left is cancelled when something goes wrong.

    Parameters
    ----------
    tasks : sequence of Task
    workers : int, optional
        Processes of this machine; one for each core by default, none at all for one job or one core.
    dask : str, optional
        Address of a cluster's scheduler that does it instead, ``tcp://host:port`` or ``tls://host:port``.

    Raises
    ------
    ConfigError
        With `dask`, if the package is not installed.
    DataError
        If the cluster cannot be used, or the workers are lost.
    """
    if dask is not None:
        from trainwarden.trainer_offline.data.dask_cluster import on_cluster

        return on_cluster(dask, tasks)
    count = min(len(tasks), workers or os.cpu_count() or 1)
    return _here(tasks) if count <= 1 else _processes(tasks, count)


def outcome(ask: Callable[[], PreparedJob]) -> Outcome:
    """The job that `ask` returns, or the DataError that it raises."""
    try:
        return ask()
    except DataError as error:
        return error


def _here(tasks: Sequence[Task]) -> Iterator[Outcome]:
    for task in tasks:
        yield outcome(lambda task=task: prepare_job(task))  # type: ignore[misc]


def _processes(tasks: Sequence[Task], count: int) -> Generator[Outcome]:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # one job a core is faster than every job on all cores
    with processes(count) as pool:
        try:
            waiting = deque(submit_all(pool, prepare_job, tasks))
            while waiting:
                yield outcome(waiting.popleft().result)
        except BrokenProcessPool as error:
            raise DataError(
                "a process that prepared jobs was ended from outside, most likely for want of memory; lower "
                "trainer.prepare.max_cells, or give the job more memory"
            ) from error
