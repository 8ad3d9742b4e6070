"""Jobs are prepared here, by processes or by a cluster; what goes wrong with those is one sentence."""

from __future__ import annotations

import pickle
import sys
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.training_data import batch, job
from trainwarden import catalogue
from trainwarden.detectors.recorded import processes as processes_module
from trainwarden.errors import ConfigError, DataError
from trainwarden.trainer_offline.data import dask_cluster, workers
from trainwarden.trainer_offline.data.dask_cluster import UnfitWorker, on_cluster, prepare_there, versions
from trainwarden.trainer_offline.data.grids import PrepareConfig
from trainwarden.trainer_offline.data.prepare_job import Task, files_of, prepare_job


def tasks(folder: Path, count: int = 3) -> list[Task]:
    batch(folder, jobs=count, rows=100)
    return [Task(folder / f"job{n}", f"job{n}", None, False, {}, 1_000, PrepareConfig(), 0) for n in range(count)]


def test_metrics_that_plug_ins_brought_travel_with_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of another process, or another machine, knows a plug-in's counter for one: it is turned into a rate."""
    ours = dict(catalogue.CATALOGUE)
    monkeypatch.setattr(catalogue, "CATALOGUE", dict(ours))
    spins = catalogue.Metric(name="host_spins_count", unit="count", kind="counter", per="host", meaning="Spins.")
    catalogue.add([spins])
    job(tmp_path / "job0", 0, rows=100, host_spins_count=7.0)
    sent = pickle.dumps(Task(tmp_path / "job0", "job0", None, False, {}, 1_000, PrepareConfig(), 0))
    monkeypatch.setattr(catalogue, "CATALOGUE", dict(ours))
    assert catalogue.lookup("host_spins_count") is None
    (grid,) = prepare_job(pickle.loads(sent)).grids
    assert catalogue.lookup("host_spins_count") == spins
    values = grid.values[:, grid.names.index("host_spins_count")]
    assert np.nanmax(values) == 0.0  # it stands still, so its rate is nothing


class Killed(Exception):
    """How Dask's own exceptions look from here."""


class Cluster:
    """A client whose cluster works at once, in this process."""

    def __init__(self, answers=()):
        self.answers = dict(answers)
        self.cancelled = []
        self.closed = False
        self.submitted = 0
        self.workers = {"tcp://a": 1}

    def nthreads(self):
        return self.workers

    def submit(self, work, task, *more, pure):
        assert task.folder.is_absolute()
        self.submitted += 1
        future = Future()
        answer = self.answers.get(task.name)
        try:
            future.set_result(work(task, *more)) if answer is None else future.set_exception(answer)
        except DataError as error:
            future.set_exception(error)
        return SimpleNamespace(name=task.name, result=future.result, status="error" if answer else "finished")

    def cancel(self, futures, force):
        self.cancelled += [one.name for one in futures]

    def close(self, timeout):
        self.closed = True


@pytest.fixture
def cluster(monkeypatch):
    found = Cluster()
    monkeypatch.setattr(dask_cluster, "connect", lambda address: found)
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(KilledWorker=Killed, CancelledError=Killed))
    return found


def test_a_cluster_gives_the_same_in_the_same_order(tmp_path, cluster):
    work = tasks(tmp_path)
    there, here = list(on_cluster("tcp://s:1", work)), list(workers.outcomes(work, 1))
    assert [one.digest for one in there] == [one.digest for one in here]
    assert cluster.closed
    assert cluster.cancelled == []


def test_a_job_that_cannot_be_used_is_left_out_and_the_others_go_on(tmp_path, cluster):
    work = tasks(tmp_path)
    (tmp_path / "job1" / "metrics.csv").write_text("time_s,power\nnonsense,1\n")
    found = list(on_cluster("tcp://s:1", work))
    assert [isinstance(one, DataError) for one in found] == [False, True, False]


def test_what_is_left_is_cancelled_when_a_worker_is_unfit(tmp_path, cluster):
    cluster.answers = {"job1": UnfitWorker("the worker on n17 does not see 'x'")}
    with pytest.raises(DataError, match="Dask scheduler tcp://s:1: the worker on n17 does not see 'x'"):
        list(on_cluster("tcp://s:1", tasks(tmp_path)))
    assert cluster.cancelled == ["job1", "job2"]
    assert cluster.closed


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Killed(), "every Dask worker that prepared it was lost"),
        (ModuleNotFoundError("No module named 'trainer_offline'"), r"need trainwarden\[train,dask\].*No module named"),
        (OSError("no space left"), "job0 failed on a Dask worker .no space left"),
    ],
)
def test_a_failure_of_the_cluster_is_one_sentence(tmp_path, cluster, error, said):
    cluster.answers = {"job0": error}
    with pytest.raises(DataError, match=said):
        list(on_cluster("tcp://s:1", tasks(tmp_path)))


def test_a_cluster_without_workers_is_not_waited_for_for_ever(tmp_path, cluster, monkeypatch):
    cluster.workers = {}
    monkeypatch.setattr(dask_cluster, "WORKERS_S", 0.0)
    monkeypatch.setattr(dask_cluster, "POLL_S", 0.0)
    with pytest.raises(DataError, match="has no worker"):
        list(on_cluster("tcp://s:1", tasks(tmp_path)))


def test_a_worker_that_does_not_see_a_file_names_it(tmp_path):
    task = tasks(tmp_path)[0]
    files = files_of(task)
    assert tmp_path / "job0" / "metrics.csv" in files
    files[-1].unlink()
    with pytest.raises(UnfitWorker, match=f"does not see '{files[-1]}'"):
        prepare_there(task, files, versions())


def test_a_worker_of_another_version_says_which(tmp_path):
    task = tasks(tmp_path)[0]
    with pytest.raises(UnfitWorker, match=r"has trainwarden .*, but the command has trainwarden 99"):
        prepare_there(task, files_of(task), [versions()[0], "trainwarden 99", *versions()[2:]])


def test_a_missing_package_is_the_users_to_mend(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ConfigError, match=r"pip install 'trainwarden\[train,dask\]'"):
        dask_cluster.connect("tcp://scheduler:8786")


def test_a_process_that_is_ended_from_outside_is_one_sentence(tmp_path, monkeypatch):
    shut = []

    class Pool:
        def __init__(self, count, **how):
            pass

        def submit(self, work, task):
            future = Future()
            future.set_exception(BrokenProcessPool("terminated abruptly"))
            return future

        def shutdown(self, **how):
            shut.append(how)

    monkeypatch.setattr(processes_module, "ProcessPoolExecutor", Pool)
    with pytest.raises(DataError, match=r"trainer\.prepare\.max_cells"):
        list(workers.outcomes(tasks(tmp_path), 2))
    assert shut == [{"wait": True, "cancel_futures": True}]


def test_dask_is_not_loaded_unless_asked_for(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert len(list(workers.outcomes(tasks(tmp_path), 1))) == 3
