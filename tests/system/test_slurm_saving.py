"""Under a real Slurm a checkpoint is asked for before a job loses its ranks: once, and never of a task it would end."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.servers.slurm import Slurm
from tests.system.slurm_world import PATIENCE_S, World
from trainwarden.actions.launchers.slurm.client import SlurmConfig, SlurmLauncher
from trainwarden.actions.launchers.slurm.saving import JobCheckpoints
from trainwarden.launching import Operation
from trainwarden.protocols import Scope
from trainwarden.records import ActionRecord
from trainwarden.topics import ACTIONS

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

RANK: Final = """
import os, pathlib, signal, sys, time, zipfile
folder, rank = pathlib.Path(sys.argv[1]), os.environ["SLURM_PROCID"]
def save(*_):
    with open(folder / "signals", "a") as file:
        file.write(rank + "\\n")
    if rank == "0":
        with zipfile.ZipFile(folder / "half", "w") as file:
            file.writestr("step", "8")
        (folder / "half").rename(folder / "checkpoints" / "step-8.pt")
signal.signal(signal.SIGUSR1, save)
with open(folder / "starts", "a") as file:
    file.write(rank + " " + os.environ["SLURMD_NODENAME"] + "\\n")
while True:
    time.sleep(1.0)
"""
BATCH: Final = f"#!/bin/sh\nexec srun {sys.executable} -I -S {{folder}}/rank.py {{folder}}\n"
MORE: Final = """
[engine.launcher_settings.checkpoints]
"job-{name}" = {{ folder = "{folder}/checkpoints", signal = "USR1" }}
"""
EVICT: Final = 'slow_compute = [{ action = "evict_node" }]\n'


@pytest.fixture
def world(slurm: Slurm, tmp_path: Path) -> Iterator[World]:
    (tmp_path / "rank.py").write_text(RANK)
    (tmp_path / "checkpoints").mkdir()
    more = MORE.format(name=tmp_path.name, folder=tmp_path)
    made = World(slurm, tmp_path, BATCH, more, EVICT)
    yield made
    made.close()


def signals(world: World) -> list[str]:
    path = world.folder / "signals"
    return sorted(path.read_text().split()) if path.exists() else []


def actions(world: World) -> dict[str, ActionRecord]:
    """The newest record of each action."""
    records = (message.record for message in world.bus.read(ACTIONS))
    return {one.id: one for one in records if isinstance(one, ActionRecord)}


def test_the_job_saves_before_its_slow_node_is_taken_out(world: World) -> None:
    world.running()
    world.start_engine()
    world.tell("slow_compute")
    world.done()
    world.running(starts=4)
    assert world.went_elsewhere()
    story = world.story()
    assert story.index(("i1/save/1", "done")) < story.index(("i1/evict/1", "started"))
    told = actions(world)
    assert told["i1/save/1"].why.endswith("the checkpoint of step 8 is complete")
    assert told["i1/evict/1"].plan["checkpoint"] == "i1/save/1"
    assert signals(world) == ["0", "1"]
    [sent] = world.asked("--signal=")
    assert sent == f"--signal=USR1 {world.job}.0", "not to the step that looked, nor to the batch script"


def test_an_engine_killed_while_it_asks_asks_no_second_time(world: World) -> None:
    world.running()
    (world.folder / "aim").write_text("--signal=")
    world.start_engine()
    world.tell("slow_compute")
    assert world.engine is not None
    assert world.engine.wait(PATIENCE_S) == -signal.SIGKILL
    world.start_engine()
    world.done()
    world.running(starts=4)
    assert world.went_elsewhere()
    assert actions(world)["i1/save/1"].outcome == "failed", "an eviction does not wait an hour for what may never come"
    assert signals(world) == ["0", "1"]
    assert len(world.asked("--signal=")) == 1


def test_a_job_of_another_user_that_the_signal_would_end_is_left_alone(world: World) -> None:
    """Its tasks are looked at as their user, for whom alone Slurm starts a step in the job."""
    world.running()
    world.slurm.ask("scancel", world.job)
    script = world.folder / "unaware.sh"
    script.write_text("#!/bin/sh\nsrun sleep 600\n")
    words = ("--uid=nobody", "--nodes=2", "--ntasks-per-node=1", "--chdir=/", "--output=/dev/null")
    world.job = world.slurm.ask("sbatch", "--parsable", f"--job-name={world.name}", *words, str(script))
    world.until(lambda: world.field("JobState") == "RUNNING")
    settings = SlurmConfig(
        slurm_conf=str(world.slurm.conf),
        checkpoints={world.name: JobCheckpoints(folder=str(world.folder / "checkpoints"), signal="USR1")},
    )  # fmt: skip
    launcher = SlurmLauncher(settings, Scope(job=world.name, node="n", run_dir=str(world.folder)))
    before = launcher.state(world.name)
    operation = Operation(id="save", job=world.name, kind="checkpoint", expected_generation=before.generation)
    report = launcher.submit(operation)
    assert (report.state, report.reason) == ("refused", "unfit")
    assert "has tasks that all catch SIGUSR1, which would end others" in report.text
    time.sleep(1.0)
    assert world.field("JobState") == "RUNNING"
    assert launcher.state(world.name) == before
