"""A job's layout read off the process groups that its ranks have really made."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.rank_environment import environment
from tests.torch_forks import TorchForks
from trainwarden import rundir
from trainwarden.clock import SystemClock
from trainwarden.collectors.parallel_layout.collector import ParallelLayoutCollector
from trainwarden.parallelism.board import LayoutBoard
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

RANKS = 8
SCRIPT = """
    import pathlib, sys, time
    import torch, torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp_replicate", "tp"))
    plain = dist.new_group(range(4))
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(5):
        model(torch.ones(1, 2)).sum().backward()
        for name in ("tp", "dp_replicate"):
            dist.all_reduce(model.weight.grad, group=mesh.get_group(name))
        optimizer.step()
    pathlib.Path(f"done-{dist.get_rank()}").touch()
    while not pathlib.Path("end").exists():
        time.sleep(0.02)
    dist.destroy_process_group()
"""


def test_groups_of_a_device_mesh(torch_forks: TorchForks, tmp_path: Path) -> None:
    for folder in (rundir.HOOK, rundir.LOGS):
        (tmp_path / folder).mkdir()
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    log = rundir.rank_log(tmp_path, 0)
    own = environment(tmp_path)
    job = torch_forks.start([str(tmp_path / "train.py")], own, folder=tmp_path, log=log, ranks=RANKS)
    clock = SystemClock()
    while len(list(tmp_path.glob("done-*"))) < RANKS:
        assert job.poll() is None, log.read_text()
        clock.sleep(0.05)
    watch = ParallelLayoutCollector(
        ParallelLayoutCollector.Config(), Scope(job="job", node="node", run_dir=str(tmp_path)), clock
    )
    board = LayoutBoard()
    events = [event for event in watch.collect(clock.now_s()) if isinstance(event, EventRecord)]
    (tmp_path / "end").touch()
    for event in events:
        board.apply(event)
    assert job.wait() == 0, log.read_text()
    assert sorted(event.rank or 0 for event in events) == list(range(RANKS))
    layout = board.layout()
    assert layout is not None
    assert layout.summary() == "tp 2 x pp 2 x dp 2; from process groups"
    assert layout.whole
    assert layout.replicas() == ((0, 1, 4, 5), (2, 3, 6, 7))
