"""An unchanged torchrun whose checkpoints go to memory by one variable: a crash, and the loss of all of the memory."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.system.torchrun_nodes import TorchrunNodes
from trainwarden.checkpoints.newest import newest

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]
SCRIPT = str(ROOT / "tests" / "scripts" / "files_trainer.py")


def run(path: Path, crash_at: int, last: int) -> list[tuple[str, str, str]]:
    """Attempt, first step and folder of each start of the rank."""
    path.mkdir()
    nodes = TorchrunNodes(path, SCRIPT, str(crash_at), str(last), nodes=1)
    memory, store = path.parent / "memory", path.parent / "store"
    memory.mkdir(exist_ok=True)
    try:
        nodes.start("a", TRAINWARDEN_CHECKPOINTS_STORE=str(store), TRAINWARDEN_CHECKPOINT_MEMORY=str(memory))
        assert nodes.codes() == {"a": 0}, (path / "a.log").read_text()
    finally:
        nodes.close()
    return re.findall(r"attempt (\d+) from (\d+) in (.*)", (path / "a.log").read_text())


def test_a_script_that_is_not_changed_goes_on_from_memory_and_then_from_the_store(tmp_path: Path) -> None:
    begun = run(tmp_path / "first", crash_at=12, last=20)
    folder = tmp_path / "memory" / "job-job%2Ffiles" / "files"
    assert begun == [("0", "0", str(folder)), ("1", "10", str(folder))]
    assert "step 10 lies in memory" in (tmp_path / "first" / "a.log").read_text()

    found = newest(tmp_path / "store")
    assert found is not None
    assert found.step == 20  # its last one, though the store was written to within the last ten minutes
    shutil.rmtree(tmp_path / "memory")
    begun = run(tmp_path / "second", crash_at=0, last=25)
    assert begun == [("0", "20", str(folder))]
    assert "step 20 is restored from the store" in (tmp_path / "second" / "a.log").read_text()
