"""torch.distributed.checkpoint saves into the folder in memory by its one argument, and is resharded from there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.keeper_doubles import Nodes
from tests.places import ROOT
from tests.servers.ports import free_ports
from tests.torch_forks import TorchForks

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]
SCRIPT = str(ROOT / "tests" / "scripts" / "dcp_files.py")


def ranks(forks: TorchForks, folder: Path, what: str, step: int, paths: list[Path]) -> None:
    """Run one rank for each path, and have all end well."""
    (port,) = free_ports(1)
    started = []
    for rank, path in enumerate(paths):
        environ = {
            "RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": str(len(paths)), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT), "TRAINWARDEN_HOOK": "0",
        }  # fmt: skip
        log = folder / f"{what}-{step}-{rank}.log"
        words = [SCRIPT, what, str(step), str(path / f"step-{step}")]
        started.append((forks.start(words, environ, folder=folder, log=log), log))
    for one, log in started:
        assert one.wait() == 0, log.read_text()


@pytest.mark.parametrize("what", ["save", "async"])
def test_a_lost_node_is_made_up_for_and_three_ranks_become_two(
    tmp_path: Path, torch_forks: TorchForks, what: str
) -> None:
    nodes = Nodes(tmp_path, 3, files=True, flush_every_s=10_000.0)
    (tmp_path / "store").mkdir()
    paths = [folder.path for folder in nodes.folders.values()]
    for folder in nodes.folders.values():
        folder.file()  # the service's thread has seen that the store is empty
    for folder in nodes.folders.values():
        folder.fill("first")
    ranks(torch_forks, tmp_path, what, 10, paths)
    nodes.tick(5)
    nodes.lose("a")  # it had the metadata
    assert [folder.fill("second").step for folder in nodes.folders.values()] == [10] * 3
    ranks(torch_forks, tmp_path, "load", 10, paths)

    nodes.tick(3)  # what the lost node had kept is copied there again
    shutil.rmtree(tmp_path / "store")
    fewer = Nodes(tmp_path, 2, files=True, flush_every_s=10_000.0)  # and the third one's memory is gone
    for folder in fewer.folders.values():
        folder.file()
    filled = [folder.fill("third") for folder in fewer.folders.values()]
    assert [one.words for one in filled] == [
        "step 10 is restored from memory of b",
        "step 10 is restored from the neighbour's memory of a",
    ]
    ranks(torch_forks, tmp_path, "load", 10, paths[:2])
