"""The engine takes a node out under a real Slurm: fault, drain, requeue elsewhere; whatever is killed when, once."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.servers.slurm import Slurm
from tests.system.runs import WARDEN
from tests.system.slurm_world import PATIENCE_S, World
from trainwarden.commands.builders import NodeWord, on_node
from trainwarden.records import ActionRecord
from trainwarden.topics import ACTIONS, COMMANDS

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]


@pytest.fixture
def world(slurm: Slurm, tmp_path: Path) -> Iterator[World]:
    made = World(slurm, tmp_path)
    yield made
    made.close()


def moved_once(world: World) -> None:
    """The job runs on other nodes, after one requeue; the node is out with our reason; the rest is as it was."""
    world.running(starts=4)
    assert world.went_elsewhere()
    assert (world.field("Restarts"), world.field("ExcNodeList")) == ("1", f"n5,{world.bad}")
    assert "Comment=night run trainwarden[" in world.slurm.ask("scontrol", "show", "job", world.job)
    assert "State=IDLE+DRAIN" in world.node(world.bad)
    assert "Reason=trainwarden:i1/evict/1" in world.node(world.bad)
    time.sleep(1.0)  # time for something to happen twice
    assert world.field("Restarts") == "1"
    assert len(world.starts()) == 4
    assert [outcome for action, outcome in world.story() if action == "i1/evict/1"].count("started") == 1
    assert not [action for action, _ in world.story() if action != "i1/evict/1"]


def test_a_node_at_fault_is_drained_and_the_job_runs_elsewhere(world: World) -> None:
    world.running()
    world.start_engine()
    world.tell()
    world.done()
    moved_once(world)
    asked = [line.partition(" Comment=")[0] for line in world.asked() if " Comment=" not in line]
    assert asked == [
        f"update NodeName={world.bad} State=DRAIN Reason=trainwarden:i1/evict/1 gpu_lost: GPU 3 fell off the bus",
        f"requeuehold {world.job}",
        f"update JobId={world.job} ExcNodeList=n5,{world.bad}",
        f"release {world.job}",
    ]


def test_what_is_delivered_again_is_not_done_again(world: World) -> None:
    world.running()
    world.start_engine()
    world.tell()
    world.tell()
    world.done()
    for revision in (0, 0, 1):
        world.tell(revision=revision)
    world.kill_engine()
    world.start_engine()
    world.tell(revision=2)
    time.sleep(3.0)
    moved_once(world)
    assert len(world.asked("requeuehold")) == 1


def test_two_engines_of_one_group_move_it_once(world: World) -> None:
    world.running()
    world.start_engine()
    first = world.engine
    assert first is not None
    world.start_engine()
    try:
        world.tell()
        world.done()
        moved_once(world)
    finally:
        first.kill()
        first.wait()
    assert len(world.asked("requeuehold")) == 1


STEPS: Final = ("update JobId=* Comment=", "update NodeName=", "requeuehold", "update JobId=* ExcNodeList=", "release")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.thorough
def test_an_engine_killed_at_any_step_leaves_it_to_the_next(world: World, step: str, when: str) -> None:
    world.running()
    (world.folder / "aim").write_text(step)
    if when == "before":
        (world.folder / "first").touch()
    world.start_engine()
    world.tell()
    assert world.engine is not None
    assert world.engine.wait(PATIENCE_S) == -signal.SIGKILL
    (world.folder / "first").unlink(missing_ok=True)
    world.start_engine()
    world.done()
    moved_once(world)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_a_controller_that_is_away_is_waited_for(world: World, how: str) -> None:
    """Away before the fault is told: nothing is begun. Away in the midst of it: it goes on afterwards."""
    world.running()
    time.sleep(6.0)  # a controller keeps its state five seconds later: one killed before has forgotten the job
    away = signal.SIGSTOP if how == "stopped" else signal.SIGKILL
    back = (lambda: world.slurm.signal_controller(signal.SIGCONT)) if how == "stopped" else world.slurm.start_controller
    world.slurm.signal_controller(away)
    world.start_engine()
    world.tell()
    time.sleep(5.0)
    assert world.story() == []
    back()
    world.until(lambda: world.asked("requeuehold"))
    world.slurm.signal_controller(away)
    time.sleep(5.0)
    back()
    world.done()
    moved_once(world)


def test_a_node_that_a_person_has_drained_keeps_the_persons_words(world: World) -> None:
    world.running()
    world.slurm.ask("scontrol", "update", f"NodeName={world.bad}", "State=DRAIN", "Reason=fan of anna, ask her")
    world.start_engine()
    world.tell()
    world.done()
    world.running(starts=4)
    assert "Reason=fan of anna, ask her [" in world.node(world.bad)
    assert not world.asked("update NodeName")
    assert world.went_elsewhere()


def test_a_person_who_resumes_the_node_or_holds_the_job_meanwhile_is_obeyed(world: World) -> None:
    world.running()
    spares = {"n1", "n2", "n3", "n4"} - {node for _, node in world.starts()}
    for node in spares:
        world.slurm.ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=no spare")
    world.start_engine()
    world.tell()
    world.until(lambda: world.asked("release"))
    world.slurm.ask("scontrol", "hold", world.job)
    world.slurm.ask("scontrol", "update", f"NodeName={world.bad}", "State=RESUME")
    world.slurm.ask("scontrol", "update", f"NodeName={min(spares)}", "State=RESUME")
    time.sleep(8.0)
    assert "State=IDLE " in world.node(world.bad)
    assert world.field("JobState") == "PENDING"
    assert len(world.asked("release")) == 1
    world.slurm.ask("scontrol", "release", world.job)
    world.done()
    world.running(starts=4)
    assert world.went_elsewhere()


FAILS_ONCE: Final = """#!/bin/sh
srun sh -c 'echo $SLURM_PROCID $SLURMD_NODENAME >> {folder}/starts'
[ "$SLURM_RESTART_COUNT" ] || exit 3
sleep 600
"""


@pytest.mark.parametrize(("kind", "action"), [("crash", "i1/restart/1"), ("gpu_lost", "i1/evict/1")])
def test_a_job_that_has_failed_is_brought_back(world: World, kind: str, action: str) -> None:
    world.running()
    world.slurm.ask("scancel", world.job)
    (world.folder / "starts").unlink()
    world.submit(FAILS_ONCE)
    world.until(lambda: world.field("JobState") == "FAILED")
    world.start_engine()
    world.tell(kind)
    world.done(action)
    world.running(starts=4)
    assert world.went_elsewhere() or kind == "crash"
    assert world.field("Restarts") == "1"


def test_a_job_that_may_not_be_requeued_is_left_alone_with_the_reason(world: World) -> None:
    world.running()
    world.slurm.ask("scontrol", "update", f"JobId={world.job}", "Requeue=0")
    world.start_engine()
    world.tell()
    world.until(lambda: ("i1/evict/1", "failed") in world.story())
    [ended] = [a for m in world.bus.read(ACTIONS) if isinstance(a := m.record, ActionRecord) and a.outcome == "failed"]
    assert "was submitted with --no-requeue" in ended.why
    assert world.asked() == []
    assert world.field("JobState") == "RUNNING"


def test_a_persons_cordon_drains_once_although_the_engine_is_killed_at_it_and_an_uncordon_resumes(world: World) -> None:
    world.running()
    (world.folder / "aim").write_text("update NodeName")
    say(world, "cordon")
    world.start_engine()
    world.until(lambda: world.engine is not None and world.engine.poll() is not None)
    assert len(world.asked(f"update NodeName={world.bad} State=DRAIN")) == 1
    world.start_engine()
    (cordon,) = {name for name, _ in world.story()}
    world.done(cordon)
    assert "DRAIN" in world.node(world.bad)
    assert f"Reason=trainwarden:{cordon} its fan is loud" in world.node(world.bad)
    assert len(world.asked(f"update NodeName={world.bad} State=DRAIN")) == 1
    assert (world.field("JobState"), len(world.starts())) == ("RUNNING", 2), "what runs there goes on"
    said = subprocess.run([*WARDEN, "nodes", world.bad, "--config", str(world.folder / "site.toml")],
                          capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert said.stdout.startswith(f"{world.bad} cordoned since 2"), said
    say(world, "uncordon")
    world.until(lambda: len({name for name, outcome in world.story() if outcome == "done"}) == 2)
    assert "DRAIN" not in world.node(world.bad)
    assert len(world.asked(f"update NodeName={world.bad} State=RESUME")) == 1


def test_a_node_that_a_person_has_drained_is_not_resumed_and_slurms_word_is_told(world: World) -> None:
    world.running()
    world.slurm.ask("scontrol", "update", f"NodeName={world.bad}", "State=DRAIN", "Reason=bob: its fan")
    say(world, "uncordon")
    world.start_engine()
    world.until(lambda: any(outcome == "failed" for _, outcome in world.story()))
    (why,) = [one.record.why for one in world.bus.read(ACTIONS) if one.record.outcome == "failed"]  # type: ignore[attr-defined]
    assert f"the launcher refused: {world.bad} is out for another reason (bob: its fan" in why
    assert world.asked("update NodeName") == []


def say(world: World, word: NodeWord) -> None:
    command = on_node(word, world.bad, world.name, "ann", at_s=time.time(), why="its fan is loud")
    world.bus.publish(COMMANDS, world.name, command)
    world.bus.flush()
