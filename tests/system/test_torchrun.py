"""Unchanged torchruns with our rendezvous: watched, restarted, replaced, stopped; nodes and services that are lost."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from tests.system.torchrun_nodes import TorchrunNodes, until
from tests.torch_forks import TorchForks
from trainwarden import rundir
from trainwarden.actions.launchers.torchrun.operations import STOPPED_CODE
from trainwarden.actions.launchers.torchrun.table import GAVE_UP_CODE
from trainwarden.bus import address as buses
from trainwarden.errors import LauncherError
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS, ITERATIONS

pytestmark = [pytest.mark.system, pytest.mark.timeout(500)]
RANK = str(ROOT / "tests" / "scripts" / "torchrun_rank.py")


@pytest.fixture
def made(torch_forks: TorchForks, tmp_path: Path) -> Iterator[Callable[..., TorchrunNodes]]:
    """Of torchruns that are forks, but for the job that is started as on a cluster, by nothing else."""
    made: list[TorchrunNodes] = []

    def make(*script: str, **more: Any) -> TorchrunNodes:
        forks = None if script else torch_forks
        made.append(TorchrunNodes(tmp_path, *(script or (RANK, str(tmp_path / "out"))), forks=forks, **more))
        return made[-1]

    yield make
    for nodes in made:
        nodes.close()


def exits(nodes: TorchrunNodes, node: str) -> list[EventRecord]:
    path = nodes.run_dir(node) / rundir.EVENTS
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [event for line in lines if (event := EVENTS.decode(line)).kind == "process_exit"]


def test_every_node_is_watched_and_a_spare_ends_well_with_the_job(
    tmp_path: Path, made: Callable[..., TorchrunNodes]
) -> None:
    """Nothing but torchrun is started on the nodes; the service names the bus."""
    script, address = ROOT / "tests" / "scripts" / "gloo_steps.py", f"embedded:{tmp_path / 'bus.db'}"
    nodes = made(str(script), "100", str(tmp_path / "steps"), bus=address)
    nodes.start("a", "b", "c", TRAINWARDEN_CHECKPOINTS=str(tmp_path))
    assert set(nodes.codes().values()) == {0}
    bus = buses.connect(address, {})
    try:
        ends = [message.record for message in bus.read(EVENTS) if message.record.kind == "process_exit"]
        steps = [message.record for message in bus.read(ITERATIONS)]
    finally:
        bus.close()
    assert {(event.job, event.rank, event.fields["code"]) for event in ends} == {("job", 0, 0), ("job", 1, 0)}
    assert {record.job for record in steps} == {"job"}
    assert len({record.node for record in steps}) == 2


def test_a_job_is_restarted_replanned_and_stopped_and_a_node_evicted(made: Callable[..., TorchrunNodes]) -> None:
    nodes = made()
    nodes.start("a", "b", "c")
    nodes.runs(0)
    assert nodes.ask("restart").state == "done"
    nodes.runs(1)
    assert nodes.ask("rebalance", split=(3, 1)).state == "done"
    first, second = nodes.begun(1)
    for node in (first, second):
        assert json.loads((nodes.run_dir(node) / rundir.PLAN).read_bytes())["micro_batches"] == [3, 1]
    until(lambda: len(nodes.state().nodes) == 3, "the spare has not come")
    assert nodes.ask("evict", first).state == "done"
    nodes.runs(2)
    (spare,) = {"a", "b", "c"} - {first, second}
    assert nodes.begun(2) == [spare, second]
    assert nodes.state().failures == 0
    nodes.ask("stop")
    assert set(nodes.codes().values()) == {STOPPED_CODE}


def test_a_killed_node_is_replaced_and_a_killed_service_missed_by_nobody(made: Callable[..., TorchrunNodes]) -> None:
    nodes = made()
    nodes.start("a", "b", "c")
    nodes.runs(0)
    first, second = nodes.begun(0)
    rank = int((nodes.out / f"0-0-{first}.begun").read_text().split()[0])
    killed = nodes.processes.pop(first)
    killed.kill()  # the ranks' store lay there
    killed.wait()
    nodes.runs(1)
    (spare,) = {"a", "b", "c"} - {first, second}
    assert nodes.begun(1) == [spare, second]
    until(lambda: not Path(f"/proc/{rank}/cwd").exists(), "the killed node has left its rank behind")
    generation = nodes.state().generation
    nodes.service.kill()
    nodes.service.wait()
    nodes.serve()
    until(lambda: _runs(nodes), "the empty service learns nothing")
    assert (nodes.begun(2), nodes.state().attempt, nodes.state().generation > generation) == ([], 1, True)
    assert nodes.ask("restart").state == "done"
    nodes.runs(2)


def test_failed_ranks_are_named_and_three_without_a_newer_checkpoint_end_the_job(
    made: Callable[..., TorchrunNodes],
) -> None:
    nodes = made()
    checkpoints = nodes.path / "checkpoints" / "checkpoint-40"
    checkpoints.mkdir(parents=True)
    (checkpoints / "trainer_state.json").write_text('{"global_step": 40}')
    nodes.start("a", "b", "c", TRAINWARDEN_CHECKPOINTS=str(checkpoints.parent))
    for attempt in range(3):
        nodes.runs(attempt)
        (nodes.out / f"fail-{attempt}-1").touch()
    assert set(nodes.codes().values()) == {GAVE_UP_CODE}
    assert str(checkpoints) in (nodes.out / f"2-0-{nodes.begun(2)[0]}.begun").read_text()
    ends = [event.fields for node in "abc" for event in exits(nodes, node)]
    # Kernels before 6.15 forget how a rank ended that torchrun has reaped first.
    assert [fields.get("code", 7) for fields in ends if not fields.get("asked")] == [7, 7, 7], ends
    assert all(fields.get("signal") == signal.SIGTERM.name for fields in ends if fields.get("asked"))


def _runs(nodes: TorchrunNodes) -> bool:
    try:
        return nodes.state().phase == "running" and len(nodes.state().ranks_running) == 2
    except LauncherError:
        return False
