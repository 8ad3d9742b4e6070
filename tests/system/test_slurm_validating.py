"""Under a real Slurm suspects are measured while their job is requeued: with one restart, and nothing is left of it.

What runs on the nodes is `trainwarden validate`, and on one each product takes twice as long; where engines are
killed, a script that finds all well. Both look first whether processes of the job are left: nothing may be measured
beside them.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.places import ROOT
from tests.servers.slurm import Slurm
from tests.system.runs import WARDEN
from tests.system.slurm_world import PATIENCE_S, World
from trainwarden.records import ActionRecord
from trainwarden.topics import ACTIONS

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

BATCH: Final = """#!/bin/sh
srun sh -c 'echo $$ >> {folder}/pids; echo $SLURM_PROCID $SLURMD_NODENAME >> {folder}/starts; exec sleep 600'
"""
MEASURES: Final = """#!/bin/sh
echo $TRAINWARDEN_NODE >> {folder}/measured
for pid in $(cat {folder}/pids); do [ ! -e /proc/$pid ] || echo $pid >> {folder}/beside; done
[ ! -e {folder}/slow ] || exec env PYTHONPATH={folder}:{root} {warden} "$@"
while [ "$#" -gt 0 ]; do [ "$1" != --json ] || into=$2; [ "$1" != --nodes ] || about=$2; shift; done
[ -z "$into" ] || echo '{{"accused": [], "nodes": {{"'$about'": [0]}}, "judged": ["gemm"]}}' > $into
"""
SLOW: Final = """
import os, sys
from importlib.abc import MetaPathFinder
from importlib.util import find_spec

class Slow(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "trainwarden.actions.validation.running.gemm":
            return None
        import torch
        product = torch.mm
        torch.mm = lambda left, right: (product(left, right), product(left, right))[1]
        sys.meta_path.remove(self)
        return find_spec(name)

with open(os.path.join(os.path.dirname(__file__), "slow")) as file:
    slow = file.read()
if os.environ.get("TRAINWARDEN_NODE") == slow:
    sys.meta_path.insert(0, Slow())
"""
MORE: Final = """ranks_per_node = 2
validate = {{ folder = "{folder}/results", program = "{folder}/measure" }}
"""
RUNGS: Final = """
slow_compute = [{ action = "validate" }, { action = "evict_node" }, { action = "restart_job" }]
"""


@pytest.fixture
def world(slurm: Slurm, tmp_path: Path) -> Iterator[World]:
    """A job of three nodes, and one that is spare."""
    program = MEASURES.format(folder=tmp_path, root=ROOT, warden=" ".join(WARDEN))
    (tmp_path / "measure").write_text(program)
    (tmp_path / "sitecustomize.py").write_text(SLOW)
    (tmp_path / "measure").chmod(0o755)
    (tmp_path / "results").mkdir()
    made = World(slurm, tmp_path, BATCH, MORE.format(folder=tmp_path), RUNGS, nodes=3)
    yield made
    made.close()
    assert slurm.ask("scontrol", "--oneliner", "show", "reservation") in ("", "No reservations in the system")


def verdict(world: World) -> ActionRecord:
    """The newest record of the validation."""
    records = (message.record for message in world.bus.read(ACTIONS))
    return [one for one in records if isinstance(one, ActionRecord) and one.id == "i1/validate/1"][-1]


def measured_once(world: World) -> None:
    """On all of the job's nodes, with nothing of the job beside it; and nothing is left of what was done for it."""
    assert sorted((world.folder / "measured").read_text().split()) == sorted(node for _, node in world.starts()[:3])
    assert not (world.folder / "beside").exists(), "processes of the job were left"
    assert "No reservations" in world.slurm.ask("scontrol", "show", "reservation")
    assert world.field("Restarts") == "1"


def test_a_slow_node_is_confirmed_and_taken_out_with_one_restart(world: World) -> None:
    world.running(starts=3)
    (world.folder / "slow").write_text(world.bad)
    world.start_engine()
    world.tell("slow_compute")
    world.until(lambda: ("i1/validate/1", "done") in world.story())
    plan = verdict(world).plan
    assert (plan["verdict"], plan["confirmed"], plan["restart"]) == ("confirmed", [world.bad], True), verdict(world).why
    world.done("i1/evict/1")
    world.running(starts=6)
    assert world.bad not in {node for _, node in world.starts()[3:]}
    measured_once(world)
    assert "Reason=trainwarden:i1/evict/1 slow_compute" in world.node(world.bad)
    assert {action for action, _ in world.story()} == {"i1/validate/1", "i1/evict/1"}
    reserve, drain = (
        next(place for place, line in enumerate(world.asked()) if line.startswith(word))
        for word in ("create reservation", "update NodeName")
    )
    assert reserve < world.asked().index(f"requeue {world.job}") < drain


STEPS: Final = ("requeue", "--job-name=trainwarden")  # the unit tests lose the answer to each step


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.thorough
def test_an_engine_killed_at_any_step_is_followed_by_one_that_ends_it(world: World, step: str) -> None:
    world.running(starts=3)
    (world.folder / "aim").write_text(step)
    world.start_engine()
    world.tell("slow_compute")
    assert world.engine is not None
    assert world.engine.wait(PATIENCE_S) == -signal.SIGKILL
    world.start_engine()
    world.until(lambda: ("i1/validate/1", "done") in world.story())
    assert verdict(world).plan["verdict"] == "cleared"
    world.running(starts=6)
    measured_once(world)
    assert {action for action, _ in world.story()} == {"i1/validate/1"}, "no node is blamed, and the job restarts once"
