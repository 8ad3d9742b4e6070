"""What the chaos runs have shown: a node out twice, restarts that were never done as evidence, a restart too many."""

from __future__ import annotations

import pytest

from tests.engine_doubles import Rig
from trainwarden.actions.brakes.history import UNDONE
from trainwarden.actions.remedies.by_launcher import SETTLED_S
from trainwarden.actions.remedies.engine_state import EngineState, with_outcome
from trainwarden.actions.remedies.policy import Rules
from trainwarden.commands.builders import set_healthy
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import Capabilities, NodeState, Operation, Targets
from trainwarden.records import ActionRecord, IncidentRecord, Suspect
from trainwarden.settings import EngineSettings

SUSPECTS = (Suspect(score=1.0, reason="Xid 79", node="n7"),)


def rig() -> Rig:
    made = Rig(cool_down_s=0.0)
    made.launcher.able = Capabilities(can=frozenset({"restart", "evict", "stop"}))
    made.launcher.nodes["job"] = tuple(NodeState(node=f"n{number}") for number in range(10))
    made.launcher.slow = True
    return made


def incident(one: Rig, name: str, kind: str = "gpu_lost") -> IncidentRecord:
    made = one.incident(name, kind, suspects=SUSPECTS)
    one.tell(made)
    return made


def evicted(one: Rig) -> list[str]:
    return [operation.id for operation in one.launcher.operations if operation.kind == "evict"]


def test_a_node_that_two_incidents_blame_is_taken_out_once() -> None:
    one = rig()
    incident(one, "i1")
    incident(one, "i2")
    one.tick(5.0)
    assert evicted(one) == ["i1/evict/1"]
    one.launcher.finish("i1/evict/1")
    for _ in range(5):
        one.tick(15.0)
    assert evicted(one) == ["i1/evict/1"]
    told = one.bus.actions()[-1]
    assert (told.id, told.outcome) == ("i2/person/1", "skipped")
    assert told.why == "n7 is not taken out again: i1/evict/1 has done so since that was seen"


def test_a_node_whose_eviction_failed_is_taken_out_for_the_other_incident() -> None:
    one = rig()
    incident(one, "i1")
    incident(one, "i2")
    one.launcher.finish("i1/evict/1", "no room")
    one.tick(15.0)
    one.tick(15.0)
    assert evicted(one) == ["i1/evict/1", "i2/evict/1"]


def test_what_is_seen_of_a_node_after_it_was_taken_out_counts_again() -> None:
    one = rig()
    incident(one, "i1")
    one.launcher.finish("i1/evict/1")
    one.tick(15.0)
    incident(one, "i2")
    assert evicted(one) == ["i1/evict/1", "i2/evict/1"]


@pytest.mark.parametrize("error", [LauncherError("500: try later"), LauncherUnavailable("timed out")])
def test_restarts_that_were_refused_or_never_heard_of_speak_neither_against_a_node_nor_for_a_stop(
    error: LauncherError,
) -> None:
    one = rig()
    one.launcher.failing = error
    incident(one, "i1", "crash")
    while len(failed := [a for a in one.bus.actions() if a.outcome == "failed"]) < 3:
        one.tick(10.0)
    assert all(action.plan[UNDONE] for action in failed)
    one.launcher.failing = None
    one.tick(10.0)
    assert [operation.id for operation in one.launcher.operations] == ["i1/restart/4"]


def test_a_hang_is_not_restarted_right_after_an_eviction_has_started_all_ranks_again() -> None:
    one = rig()
    one.launcher.phase = "running"
    hang = one.incident("i1", "hang")
    incident(one, "i2")
    one.tell(hang)
    one.launcher.finish("i2/evict/1")
    one.tick(15.0)
    assert [operation.kind for operation in one.launcher.operations] == ["evict"]
    for _ in range(11):
        one.tick(15.0)
    assert [operation.kind for operation in one.launcher.operations] == ["evict", "restart"]


def test_a_job_that_is_down_again_by_another_node_is_no_evidence_against_the_first() -> None:
    one = rig()
    one.launcher.slow = False
    incident(one, "i1", "crash")
    one.launcher.phase = "failed"
    one.tick(1.0)
    one.launcher.phase = "failed"
    other = one.incident("i2", "crash", suspects=(Suspect(score=1.0, reason="Xid 79", node="n3"),))
    one.tell(other)
    assert [operation.id for operation in one.launcher.operations][:2] == ["i1/restart/1", "i1/restart/2"]
    assert evicted(one) == []


def test_restarts_in_vain_while_another_node_has_lost_its_gpu_are_no_evidence() -> None:
    """Its eviction may be held, or was dropped by a person."""
    one = rig()
    one.launcher.slow = False
    one.tell(one.command("stop"))
    one.tell(one.incident("i0", "gpu_lost", suspects=(Suspect(score=1.0, reason="Xid 79", node="n3"),)))
    one.tell(one.command("deny", "i0/evict/1"), one.command("resume"))
    incident(one, "i1", "crash")
    for _ in range(2):
        one.launcher.phase = "failed"
        one.tick(1.0)
    assert evicted(one) == []
    assert [operation.kind for operation in one.launcher.operations] == ["restart"] * 3


def test_a_node_that_a_person_has_called_healthy_since_excuses_no_other() -> None:
    one = rig()
    one.launcher.slow = False
    one.tell(one.command("stop"))
    one.tell(one.incident("i0", "gpu_lost", suspects=(Suspect(score=1.0, reason="Xid 79", node="n3"),)))
    one.clock.sleep(1.0)
    one.tell(set_healthy("n3", "its cable was out", "ann", one.clock.now_s()), one.command("resume"))
    crash = incident(one, "i1", "crash")
    for _ in range(2):
        one.launcher.phase = "failed"
        one.tell(crash := one.later(crash))
        one.tick(1.0)
    assert evicted(one) == ["i1/evict/1"]


def test_restarts_in_vain_before_another_node_was_repaired_are_no_evidence() -> None:
    """The job went down by that one, before detection had told so; a repair takes its blame away, not the failure."""
    one = rig()
    one.launcher.slow = False
    crash = incident(one, "i1", "crash")
    one.launcher.phase = "failed"
    one.tick(1.0)
    one.launcher.phase = "failed"
    other = one.incident("i2", "crash", suspects=(Suspect(score=1.0, reason="Xid 79", node="n3"),))
    one.tell(one.command("stop"), other)
    one.clock.sleep(1.0)
    one.tell(set_healthy("n3", "repaired", "ann", one.clock.now_s()), one.closed(other), one.later(crash))
    one.tell(one.command("resume"))
    assert "evict_node" not in {action.kind for action in one.bus.actions()}
    assert [operation.kind for operation in one.launcher.operations] == ["restart"] * 3


def test_an_open_incident_is_no_evidence_for_a_failure_of_which_it_has_not_told() -> None:
    """It is waited for as long as it takes to tell who was the first; then the job goes on with all its nodes."""
    one = rig()
    one.launcher.slow = False
    incident(one, "i1", "crash")
    for _ in range(2):
        one.launcher.phase = "failed"
        one.tick(1.0)
    assert [operation.kind for operation in one.launcher.operations] == ["restart"] * 2
    one.tick(SETTLED_S)
    assert [operation.kind for operation in one.launcher.operations] == ["restart"] * 3


def test_a_restart_from_before_a_repair_is_no_evidence_after_it_however_late_its_end_is_told() -> None:
    """An engine that was down meanwhile tells of it only when it is back."""
    one = rig()
    one.launcher.slow = False
    first = incident(one, "i1", "crash")
    (ended,) = (action for action in one.bus.actions() if (action.id, action.outcome) == ("i1/restart/1", "done"))
    one.tell(one.closed(first))
    one.clock.sleep(10.0)
    one.tell(set_healthy("n7", "repaired", "ann", one.clock.now_s()))
    one.clock.sleep(10.0)
    one.tell(ended)
    one.launcher.phase = "failed"
    incident(one, "i2", "crash")
    one.launcher.phase = "failed"
    one.tick(1.0)
    assert [operation.id for operation in one.launcher.operations] == ["i1/restart/1", "i2/restart/1", "i2/restart/2"]


def test_what_another_engine_has_had_done_meanwhile_is_not_called_unheard_of() -> None:
    """It stood still between ``started`` and the call, and lost its partition; the incident closed since."""
    one = rig()
    one.launcher.slow = False
    lost = one.incident("i1", "gpu_lost", suspects=SUSPECTS)

    def meanwhile() -> None:
        operation = Operation(
            id="i1/evict/1", job="job", kind="evict", expected_generation=1, targets=Targets(nodes=("n7",))
        )
        one.launcher.submit(operation)
        one.engine._memory.apply(one.closed(lost))

    one.launcher.nodes["job"], known = (), one.launcher.nodes["job"]
    one.tell(lost)
    one.launcher.nodes["job"] = known
    one.bus.before_flush = meanwhile
    one.tick(1.0)
    assert [outcome for name, outcome in one.story() if name == "i1/evict/1"] == ["skipped", "started", "done"]


def test_an_action_that_one_engine_gave_up_and_another_saw_done_was_done() -> None:
    memory = EngineState(Rules.of(EngineSettings()).remedies.ladder)
    started = ActionRecord(
        id="i1/evict/1", incident="i1", job="job", kind="evict_node", outcome="started", at_s=1.0, why="gpu_lost"
    )
    for outcome in ("started", "done", "failed"):
        memory.apply(with_outcome(started, outcome, 9.0))  # type: ignore[arg-type]
    assert memory.actions["i1/evict/1"].outcome == "done"


@pytest.mark.parametrize("ended_s", range(110, 120))
def test_an_eviction_that_has_just_ended_is_asked_about_before_the_ranks_are_restarted_for_a_hang(
    ended_s: int,
) -> None:
    """Chaos run 110120: the spare's start had started all ranks anew; its end was asked about a second later."""
    one = rig()
    one.launcher.phase = "running"
    incident(one, "i1")
    incident(one, "i2", "hang")
    for _ in range(ended_s):
        one.tick(1.0)
    one.launcher.finish("i1/evict/1")
    for _ in range(100):
        one.tick(1.0)
    assert [operation.id for operation in one.launcher.operations] == ["i1/evict/1"]
    for _ in range(40):
        one.tick(1.0)
    assert [operation.id for operation in one.launcher.operations] == ["i1/evict/1", "i2/restart/1"], "it hangs on"


def test_a_drain_of_hours_does_not_hold_back_the_restart_of_a_job_that_hangs() -> None:
    one = rig()
    one.launcher.phase = "running"
    incident(one, "i1")
    incident(one, "i2", "hang")
    for _ in range(14):
        one.tick(10.0)
    assert [operation.id for operation in one.launcher.operations] == ["i1/evict/1", "i2/restart/1"]


@pytest.mark.parametrize("tells_places", [True, False])
def test_a_node_that_is_set_aside_is_not_evicted_again_where_the_launcher_tells_where_ranks_are(
    tells_places: bool,
) -> None:
    """Chaos run 142135: its eviction had failed, as the ranks ended at once, and had taken it out all the same."""
    one = rig()
    places = [NodeState(node=f"n{place}", ranks=(place,) if tells_places else ()) for place in range(7)]
    one.launcher.nodes["job"] = (*places, NodeState(node="n7", state="cordoned"))
    incident(one, "i1")
    one.tick(10.0)
    assert evicted(one) == ([] if tells_places else ["i1/evict/1"])
    assert ("n7 is set aside already" in one.bus.actions()[-1].why) is tells_places
