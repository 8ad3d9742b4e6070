"""The last rungs of a slow job: a checkpoint where the launcher can, then the restart that goes on from it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine_doubles import Killed, Rig
from tests.unit.actions.engine.test_handler import slow_evidence
from trainwarden.launching import Accused, Capabilities, Findings, NodeState
from trainwarden.records import Suspect

ABLE = Capabilities(can=frozenset({"restart", "checkpoint"}))
ABLE_TO_EVICT = Capabilities(can=frozenset({"restart", "checkpoint", "evict"}))


RUNGS: dict[str, Any] = {
    "slow_compute": [
        {"action": "checkpoint_job", "overhead_s": 600.0},
        {"action": "restart_job", "overhead_s": 600.0},
    ]
}


EVICTS: dict[str, Any] = {"slow_compute": [{"action": "evict_node", "overhead_s": 600.0}, *RUNGS["slow_compute"]]}
SUSPECTS = (Suspect(score=0.9, reason="slow", rank=2, node="n7"),)


def rig_of(able: Capabilities = ABLE) -> Rig:
    rig = Rig(RUNGS, cool_down_s=0.0)
    rig.launcher.able, rig.launcher.phase = able, "running"
    return rig


def goes_slow(rig: Rig) -> None:
    """It has lost 900 s."""
    rig.tell(rig.incident(kind="slow_compute", evidence=slow_evidence(slow_iterations=3000)))


def slow(able: Capabilities = ABLE) -> Rig:
    """A slow job, with a launcher that takes its time."""
    rig = rig_of(able)
    rig.launcher.slow = True
    goes_slow(rig)
    return rig


def ticks(rig: Rig) -> None:
    for _ in range(5):
        rig.tick(10.0)


def asked(rig: Rig) -> list[str]:
    return [verb for verb, _ in rig.launcher.asked]


def test_the_restart_waits_for_the_checkpoint_and_names_it() -> None:
    rig = slow()
    rig.tick(30.0)
    assert asked(rig) == ["checkpoint"]
    rig.launcher.finish("i1/checkpoint/1")
    ticks(rig)
    assert asked(rig) == ["checkpoint", "restart"]
    restart = rig.bus.actions()[-1]
    assert (restart.plan["checkpoint"], restart.severity, restart.after) == ("i1/checkpoint/1", "sev2", None)
    assert rig.launcher.operations[1].expected_generation == 2


def test_a_checkpoint_that_failed_holds_nothing_up_and_is_said() -> None:
    rig = slow()
    rig.launcher.finish("i1/checkpoint/1", error="the disk is full")
    ticks(rig)
    assert asked(rig) == ["checkpoint", "restart"]
    why = rig.bus.actions()[-1].why
    assert why.endswith("; the checkpoint before it failed, so steps since the newest one are lost")
    assert "checkpoint" not in rig.bus.actions()[-1].plan


def test_where_the_launcher_cannot_its_words_are_recorded_and_the_restart_follows() -> None:
    rig = slow(Capabilities(can=frozenset({"restart"}), cannot={"checkpoint": "the script writes its own"}))
    rig.tick()
    assert asked(rig) == ["restart"]
    assert rig.story()[0] == ("i1/checkpoint/1", "skipped")
    assert rig.bus.actions()[0].why == "the script writes its own"


def test_a_restart_does_not_overtake_a_checkpoint_that_a_brake_holds() -> None:
    rig = rig_of()
    rig.tell(rig.command("stop"))
    goes_slow(rig)
    ticks(rig)
    assert asked(rig) == []
    rig.tell(rig.command("resume"))
    ticks(rig)
    assert asked(rig) == ["checkpoint", "restart"]


@pytest.mark.parametrize("place", [0, 1])
def test_a_kill_at_either_call_repeats_neither(place: int) -> None:
    rig, calls = rig_of(), iter([False, True] if place else [True])

    def arrive() -> None:
        if next(calls, False):
            raise Killed

    rig.launcher.before = arrive
    for what in (goes_slow, ticks):
        try:
            what(rig)
        except Killed:
            rig.restart_engine()
    ticks(rig)
    assert next(calls, None) is None
    assert [one.kind for one in rig.launcher.operations] == ["checkpoint", "restart"]


def evicting(able: Capabilities = ABLE_TO_EVICT) -> Rig:
    """A job that trains, a node of which is to be taken out."""
    rig = Rig(EVICTS, cool_down_s=60.0)
    rig.launcher.able, rig.launcher.phase, rig.launcher.slow = able, "running", True
    rig.launcher.nodes["job"] = (NodeState(node="n6"), NodeState(node="n7"))
    incident = rig.incident(kind="slow_compute", suspects=SUSPECTS, evidence=slow_evidence(slow_iterations=3000))
    rig.tell(incident)
    return rig


def test_a_job_that_trains_saves_before_a_node_is_taken_out_and_the_eviction_names_the_checkpoint() -> None:
    rig = evicting()
    assert asked(rig) == ["checkpoint"]
    saved = rig.bus.actions()[-1]
    assert (saved.id, saved.plan["saved_before"], saved.outcome) == ("i1/save/1", "evict_node", "started")
    rig.tick(500.0)
    assert asked(rig) == ["checkpoint"], "it waits for the checkpoint"
    rig.launcher.finish("i1/save/1")
    rig.tick(30.0)
    rig.tick(0.1)
    assert asked(rig) == ["checkpoint", "evict"], "at once: nobody waits for a checkpoint's effect"
    evict = rig.bus.actions()[-1]
    assert (evict.id, evict.plan["checkpoint"], evict.severity) == ("i1/evict/1", "i1/save/1", "sev1")
    assert "raised from" not in evict.why, "a checkpoint is no remedy that did not help"


def test_an_eviction_goes_on_where_the_checkpoint_before_it_failed_or_cannot_be_had() -> None:
    rig = evicting()
    rig.launcher.finish("i1/save/1", error="the disk is full")
    rig.tick(30.0)
    rig.tick(0.1)
    assert asked(rig) == ["checkpoint", "evict"]
    assert "checkpoint" not in rig.bus.actions()[-1].plan
    assert asked(evicting(Capabilities(can=frozenset({"evict"})))) == ["evict"]


def test_no_checkpoint_is_asked_of_a_job_that_is_down_or_whose_device_is_at_fault() -> None:
    rig = Rig()
    rig.launcher.able, rig.launcher.phase = Capabilities(can=frozenset({"evict", "checkpoint"})), "running"
    suspects = (Suspect(score=0.9, reason="Xid 79", rank=2, node="n7"),)
    rig.tell(rig.incident(kind="gpu_memory_error", suspects=suspects))
    assert asked(rig) == ["evict"]


def test_after_the_eviction_a_restart_takes_a_checkpoint_of_its_own() -> None:
    """The one before the eviction is older than what was trained since."""
    rig = evicting()
    rig.launcher.finish("i1/save/1")
    rig.tick(30.0)
    rig.tick(0.1)
    rig.launcher.finish("i1/evict/1", error="no spare came")
    for _ in range(20):
        rig.tick(61.0)
        if asked(rig)[-1] == "checkpoint":
            break
    assert asked(rig) == ["checkpoint", "evict", "checkpoint"]
    assert rig.bus.actions()[-1].id == "i1/checkpoint/1"


def test_a_stop_holds_the_checkpoint_and_after_it_both_are_done() -> None:
    rig = Rig({"slow_compute": EVICTS["slow_compute"][:1]}, cool_down_s=0.0)
    rig.launcher.able, rig.launcher.phase = ABLE_TO_EVICT, "running"
    rig.launcher.nodes["job"] = (NodeState(node="n6"), NodeState(node="n7"))
    rig.tell(rig.command("stop"))
    rig.tell(rig.incident(kind="slow_compute", suspects=SUSPECTS, evidence=slow_evidence(slow_iterations=3000)))
    ticks(rig)
    assert asked(rig) == []
    rig.tell(rig.command("resume"))
    ticks(rig)
    assert asked(rig) == ["checkpoint", "evict"]


# --- a launcher that restarts the job to measure it ------------------------------------------------------------------

MEASURES: dict[str, Any] = {
    "slow_compute": [{"action": "validate", "overhead_s": 60.0}, *EVICTS["slow_compute"]],
    "metric_anomaly": [{"action": "validate"}, {"action": "evict_node"}],
}
SLOW = Accused(kind="slow_compute", text="rank 2 on n7 is slow", ranks=(2,), nodes=("n7",))


def measuring(findings: Findings, lost: int = 3000, kind: str = "slow_compute") -> Rig:
    """A job that trains and has lost 0.3 s in each of so many iterations."""
    rig = Rig(MEASURES, cool_down_s=0.0)
    able = frozenset({"restart", "checkpoint", "evict", "validate"})
    rig.launcher.able = Capabilities(can=able, restarts_to_validate=True)  # type: ignore[arg-type]
    rig.launcher.phase, rig.launcher.findings = "running", findings
    rig.launcher.nodes["job"] = (NodeState(node="n6"), NodeState(node="n7"))
    rig.tell(rig.incident(kind=kind, suspects=SUSPECTS, evidence=slow_evidence(slow_iterations=lost)))  # type: ignore[arg-type]
    ticks(rig)
    return rig


@pytest.mark.parametrize(
    ("findings", "then"),
    [
        (Findings(accused=(SLOW,), judged=("gemm",), nodes=("n6", "n7")), ["checkpoint", "validate", "evict"]),
        (Findings(judged=("gemm",), nodes=("n6", "n7")), ["checkpoint", "validate"]),
        (Findings(), ["checkpoint", "validate"]),
    ],
    ids=["confirmed", "cleared", "undecided"],
)
def test_once_a_restart_pays_the_suspects_are_measured_with_it_and_no_second_one_follows(
    findings: Findings, then: list[str]
) -> None:
    rig = measuring(findings)
    assert asked(rig) == then
    validated = next(action for action in rig.bus.actions() if action.kind == "validate" and action.outcome == "done")
    assert (validated.plan["restart"], validated.plan["checkpoint"]) == (True, "i1/save/1")


def test_before_a_restart_pays_nobody_is_measured_with_one() -> None:
    rig = measuring(Findings(), lost=1000)
    assert asked(rig) == []
    (held,) = rig.bus.actions()
    assert (held.kind, held.plan["held"]) == ("validate", "restart")
    assert "pays once 600 s are lost" in held.why
    incident = rig.incident(kind="slow_compute", suspects=SUSPECTS)
    rig.tell(rig.later(incident, evidence=slow_evidence(slow_iterations=3000)))
    ticks(rig)
    assert asked(rig) == ["checkpoint", "validate"], "and no restart comes before it"


def test_where_nothing_restarts_a_job_that_trains_it_is_not_restarted_to_be_measured() -> None:
    rig = measuring(Findings(), kind="metric_anomaly")
    assert asked(rig) == []
    assert [(action.kind, action.plan["held"]) for action in rig.bus.actions()] == [("validate", "pause")]


def test_a_validation_that_the_launcher_refuses_leaves_the_restart_due() -> None:
    rig = measuring(Findings())
    rig.launcher.able = Capabilities(can=frozenset({"restart", "checkpoint"}), cannot={"validate": "no reservation"})
    assert asked(rig) == ["checkpoint", "validate"]
    other = Rig(MEASURES, cool_down_s=0.0)
    other.launcher.able, other.launcher.phase = rig.launcher.able, "running"
    other.tell(other.incident(kind="slow_compute", suspects=SUSPECTS, evidence=slow_evidence(slow_iterations=3000)))
    ticks(other)
    assert asked(other) == ["checkpoint", "restart"]
