"""What takes a minute to make and several files look at: made once for all of them."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.once import once
from tests.servers.kafka import ServerMissing
from tests.servers.mlflow import DATABASE, empty_database
from tests.servers.slurm import Slurm, requeuing
from tests.system.runs import demo
from tests.system.slurm_world import NODES
from tests.torch_forks import TorchForks
from tests.trained_models import TrainedModels

# What takes longest begins first, or the last of them would be waited for with a processor idle (three minutes of 25).
FIRST = (
    "swap_in_demo", "demo", "mlflow", "dask", "cluster_move", "watch", "chaos_processes", "cluster_launch",
    "cluster_engine", "demo_nodes", "train_interrupted",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {f"test_{name}.py": place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(FIRST)))


@pytest.fixture(scope="session")
def empty_registry(tmp_path_factory: pytest.TempPathFactory, require_servers: Callable[[str], Any]) -> Path:
    """MLflow's database with nothing in it: a copy saves a server or a registry its migrations."""
    if importlib.util.find_spec("mlflow") is None:
        require_servers("mlflow is not installed")
    return once(tmp_path_factory, "empty-registry", lambda folder: empty_database(folder / DATABASE)) / DATABASE


@pytest.fixture(scope="session")
def trained_models(
    tmp_path_factory: pytest.TempPathFactory, require_servers: Callable[[str], Any], empty_registry: Path
) -> TrainedModels:
    """Two trainings in an MLflow server that is down again: each test works on a copy."""
    try:
        return TrainedModels.read(
            once(tmp_path_factory, "trained-models", lambda folder: TrainedModels.make(folder, empty_registry))
        )
    except ServerMissing as missing:
        require_servers(str(missing))
        raise


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory, require_servers: Callable[[str], NoReturn]) -> Iterator[Slurm]:
    """Five nodes, for the tests of one file."""
    with requeuing(tmp_path_factory.mktemp("slurm") / "slurm", NODES, require_servers) as server:
        yield server


@pytest.fixture(scope="session")
def torch_forks() -> Iterator[TorchForks]:
    """Torch imported once: for jobs whose start is not what a test is about."""
    pytest.importorskip("torch")
    made = TorchForks()
    yield made
    made.close()


@pytest.fixture(scope="session")
def quiet_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo without a fault: its answer in ``result.json``, its recording in ``data``."""

    def carry_out(folder: Path) -> None:
        words = ("--fault", "none", "--ranks", "3", "--seed", "3", "--steps", "80")
        result = demo(folder, *words, "--keep", str(folder / "data"), teaches=True)
        (folder / "result.json").write_text(json.dumps(result))

    return once(tmp_path_factory, "quiet-demo", carry_out)
