"""Training on a real Dask cluster: scheduler and workers are processes of their own, one of which is killed."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.system.runs import ROOT, WARDEN
from tests.training_data import batch

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs trainwarden[dask]"),
]
DEADLINE_S = 240.0
JOBS = 4
MODELS = "[trainer.models]\nmembers = { pca = 1.0, kmeans = 1.0 }\n"


def free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Cluster:
    """A scheduler and its workers on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.workers: list[subprocess.Popen[bytes]] = []
        port = free_port()
        self.address = f"tcp://127.0.0.1:{port}"
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--no-show"
        )

    def add_worker(self) -> None:
        # Without a nanny: nobody starts again what a test has killed.
        more = ("--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard", "--no-nanny", "--death-timeout", "60")
        more = (*more, "--name", f"worker{len(self.workers)}")
        self.workers.append(self._start("worker", self.address, *more))

    def _start(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        log = self._folder / f"{what}{len(self._started)}.log"
        command = [sys.executable, "-m", "dask", what, *arguments]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=out, stderr=out)
        self._started.append((process, log))
        return process

    def wait_for(self, workers: int) -> None:
        """Until the scheduler itself says that so many workers have come."""
        self._ask(f"client.wait_for_workers({workers}, timeout=60)")

    def wait_for_task(self, worker: int) -> None:
        """Until the scheduler has given a task to this worker."""
        self._ask(
            "address, = (one for one, about in client.scheduler_info(n_workers=-1)['workers'].items()\n"
            f"            if about['name'] == 'worker{worker}')\n"
            "until = time.monotonic() + 200\n"
            "while not client.processing([address])[address]:\n"
            "    assert time.monotonic() < until\n"
            "    time.sleep(0.1)\n"
        )

    def _ask(self, body: str) -> None:
        program = (
            "import time; from distributed import Client\n"
            f"with Client({self.address!r}, timeout=60, set_as_default=False) as client:\n"
            + textwrap.indent(body, "    ")
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        assert done.returncode == 0, f"{done.stderr[-1000:]}\n{self.tails()}"

    def tails(self) -> str:
        return "\n".join(f"-- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for _, log in self._started)

    def close(self) -> None:
        for process, _ in reversed(self._started):
            process.kill()
        for process, _ in self._started:
            process.wait(10.0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "cluster"
    folder.mkdir()
    found = Cluster(folder)
    try:
        yield found
    finally:
        found.close()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, empty_registry: Path) -> Path:
    """What is trained on, and beside it the registry that each training begins with."""
    folder = tmp_path_factory.mktemp("dask")
    shutil.copyfile(empty_registry, folder / "empty.db")
    return batch(folder / "data", jobs=JOBS, rows=300)


def command(place: Path, data: Path, *more: str) -> list[str]:
    (place / "models").mkdir(exist_ok=True)
    shutil.copyfile(data.with_name("empty.db"), place / "models" / "mlflow.db")
    (place / "trainwarden.toml").write_text(MODELS)
    told = ["--config", str(place / "trainwarden.toml"), "--json", str(place / "answer.json")]
    return [*WARDEN, "train", "--data", str(data), "--registry", str(place / "models"), *told, *more]


@contextmanager
def training(place: Path, data: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    place.mkdir(exist_ok=True)
    with subprocess.Popen(
        command(place, data, *more), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def trained(place: Path, data: Path) -> dict[str, object]:
    with training(place, data) as process:
        return answered(process, place)


def answered(process: subprocess.Popen[str], place: Path) -> dict[str, object]:
    said, _ = process.communicate(timeout=DEADLINE_S)
    assert (place / "answer.json").exists(), said[-2000:]
    answer: dict[str, object] = json.loads((place / "answer.json").read_text())
    return {"data": answer["data"], "models": answer["models"]}


def test_a_cluster_finds_what_this_machine_finds_though_a_worker_is_killed(
    cluster: Cluster, data: Path, tmp_path: Path
) -> None:
    local = trained(tmp_path / "local", data)
    cluster.add_worker()
    cluster.add_worker()
    cluster.wait_for(2)
    # Stopped, it takes tasks and never ends them: its death is what sets them free.
    os.kill(cluster.workers[0].pid, signal.SIGSTOP)
    with training(tmp_path / "run", data, "--dask", cluster.address) as process:
        cluster.wait_for_task(0)
        cluster.workers[0].kill()
        assert answered(process, tmp_path / "run") == local, cluster.tails()


def sentence(place: Path, data: Path, address: str) -> str:
    place.mkdir(exist_ok=True)
    more = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": DEADLINE_S}
    done = subprocess.run(command(place, data, "--dask", address), check=False, **more)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_what_is_wrong_with_a_cluster_is_one_sentence(data: Path, tmp_path: Path) -> None:
    port = free_port()
    assert "cannot be reached" in sentence(tmp_path / "run", data, f"tcp://127.0.0.1:{port}")
    assert "no certificate" in sentence(tmp_path / "run", data, f"tls://127.0.0.1:{port}")


def test_a_scheduler_that_dies_is_one_sentence(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    cluster.add_worker()
    cluster.wait_for(1)
    os.kill(cluster.workers[0].pid, signal.SIGSTOP)
    with training(tmp_path / "run", data, "--dask", cluster.address) as process:
        cluster.wait_for_task(0)
        cluster.scheduler.kill()
        said, _ = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2, said
    assert "Traceback" not in said
    assert f"Dask scheduler {cluster.address}" in said.strip().splitlines()[-1]
