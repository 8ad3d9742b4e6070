"""Which rung has its turn, and that what a launcher cannot do is its own word."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.engine_doubles import Rig
from trainwarden.launching import Capabilities
from trainwarden.records import ActionRecord, Suspect
from trainwarden.topics import ACTIONS

SLOW: dict[str, Any] = {
    "healthy_iteration_s": 0.3, "iteration_s": 0.6, "slow_iterations": 5, "ranks": [0, 1, 2, 3],
    "compute_s": [0.3, 0.3, 0.6, 0.3], "micro_batches": [6, 6, 6, 6],
}  # fmt: skip
SUSPECTS = (
    Suspect(score=0.9, reason="its last words", rank=3),
    Suspect(score=0.8, reason="Xid 79", rank=2, node="n7"),
    Suspect(score=0.1, reason="beside it", rank=1, node="n6"),
)


@pytest.mark.parametrize(
    ("kind", "action", "verb", "rung"),
    [("gpu_lost", "evict_node", "evict", "person"), ("slow_link", "move_topology", "move", "move")],
)
def test_what_a_launcher_cannot_do_is_said_in_its_own_words(kind: str, action: str, verb: str, rung: str) -> None:
    rig = Rig()
    rig.launcher.able = Capabilities(can=frozenset({"restart"}), cannot={verb: "not on this desk"})  # type: ignore[dict-item]
    rig.tell(rig.incident(kind=kind, suspects=SUSPECTS, evidence={**SLOW, "slow_iterations": 3000}))  # 900 s are lost
    rig.tick(1.0)
    record = rig.bus.actions()[-1]
    assert (record.id, record.kind, record.outcome, record.why) == (
        f"i1/{rung}/1",
        action,
        "skipped",
        "not on this desk",
    )


def test_a_launcher_that_can_evicts_the_most_suspected_node() -> None:
    rig = Rig()
    rig.launcher.able = Capabilities(can=frozenset({"evict"}))
    rig.tell(rig.incident(kind="gpu_lost", suspects=SUSPECTS))
    (operation,) = rig.launcher.operations
    assert (operation.kind, operation.targets.nodes, operation.targets.ranks) == ("evict", ("n7",), None)
    assert rig.story() == [("i1/evict/1", "started"), ("i1/evict/1", "done")]
    rig.tick(500.0)
    assert len(rig.launcher.operations) == 1


def test_without_a_node_under_suspicion_a_person_is_told() -> None:
    rig = Rig()
    rig.launcher.able = Capabilities(can=frozenset({"evict"}))
    rig.tell(rig.incident(kind="node_lost"))
    (record,) = rig.bus.actions()
    assert (record.kind, record.outcome, "no node is under suspicion" in record.why) == ("evict_node", "skipped", True)


def test_an_eviction_waits_for_a_person_in_confirm_mode_and_for_the_brakes() -> None:
    rig = Rig(mode="confirm", actions_per_hour=0)
    rig.launcher.able = Capabilities(can=frozenset({"evict"}))
    rig.tell(rig.incident(kind="gpu_lost", suspects=SUSPECTS))
    rig.tell(rig.command("approve", "i1/evict/1"))
    assert rig.story() == [("i1/evict/1", "proposed"), ("i1/evict/1", "skipped")]
    rig.restart_engine(actions_per_hour=5)
    rig.tick(1.0)
    assert rig.story()[2:] == [("i1/evict/1", "started"), ("i1/evict/1", "done")]


def test_an_absent_launcher_is_no_reason_to_say_that_it_cannot_evict() -> None:
    rig = Rig()
    rig.launcher.unreachable = True
    rig.tell(rig.incident(kind="gpu_lost", suspects=SUSPECTS))
    assert rig.story() == []
    rig.tick(61.0)
    assert [(a.outcome, a.plan["held"]) for a in rig.bus.actions()] == [("skipped", "launcher")]
    rig.launcher.unreachable = False
    rig.launcher.able = Capabilities(can=frozenset({"evict"}))
    rig.tick(61.0)
    assert rig.launcher.done == ["i1/evict/1"]


def test_rungs_are_tried_in_order_and_each_gets_its_time() -> None:
    rungs = [{"action": "restart_process", "persist_s": 100.0}, {"action": "evict_node"}, {"action": "ignore"}]
    rig = Rig({"hang": rungs})
    rig.launcher.phase = "running"
    rig.launcher.able = Capabilities(can=frozenset({"restart", "evict"}))
    rig.tell(rig.incident(kind="hang", suspects=SUSPECTS))
    rig.tick(99.0)
    assert rig.launcher.done == ["i1/restart/1"]
    rig.tick(1.0)
    assert rig.launcher.done == ["i1/restart/1", "i1/evict/1"]
    rig.tick(119.0)
    assert rig.story()[-1] == ("i1/evict/1", "done")
    rig.tick(1.0)
    assert rig.story()[-1] == ("i1/person/1", "skipped")


def test_while_a_higher_rung_waits_a_job_that_is_down_is_restarted_again() -> None:
    rig = Rig({"crash": [{"action": "restart_process", "persist_s": 300.0}, {"action": "evict_node"}]})
    rig.launcher.able = Capabilities(can=frozenset({"restart", "evict"}))
    rig.tell(rig.incident(suspects=SUSPECTS))
    rig.launcher.phase = "failed"
    rig.tick(100.0)
    assert rig.launcher.done == ["i1/restart/1", "i1/restart/2"]
    rig.tick(300.0)
    assert rig.launcher.done[2:] == ["i1/evict/1"]


def test_a_rung_that_the_launcher_does_not_offer_leads_to_the_next() -> None:
    rig = Rig({"gpu_lost": [{"action": "evict_node"}, {"action": "restart_process"}]})
    rig.tell(rig.incident(kind="gpu_lost", suspects=SUSPECTS))
    rig.tick()
    assert rig.story() == [("i1/person/1", "skipped"), ("i1/restart/1", "started"), ("i1/restart/1", "done")]


def test_an_empty_row_means_nothing_at_all() -> None:
    rig = Rig({"crash": []})
    rig.tell(rig.incident())
    rig.tick(100.0)
    assert rig.story() == []


def test_without_a_stop_in_the_table_a_job_is_restarted_as_often_as_the_budget_allows() -> None:
    rig = Rig({"crash": [{"action": "restart_process"}]}, actions_per_hour=5)
    for number in range(7):
        rig.launcher.phase = "failed"
        rig.tell(rig.incident(f"i{number}"))
        rig.tick(15.0)
    assert [what for what, _ in rig.launcher.asked] == ["restart"] * 5


def test_a_restart_of_a_slow_job_that_a_brake_held_back_goes_ahead_when_it_is_off() -> None:
    rig = Rig()
    rig.launcher.phase = "running"
    incident = rig.incident(kind="slow_compute", evidence=SLOW)
    rig.tell(incident)
    rig.tick(700.0)
    rig.restart_engine(actions_per_hour=1)
    still = {**SLOW, "compute_s": [0.35, 0.35, 0.3, 0.35], "micro_batches": [7, 7, 3, 7], "iteration_s": 0.9}
    rig.tell(rig.later(incident, evidence={**still, "slow_iterations": 3000}))
    for _ in range(3):
        rig.tick(1.0)
    assert rig.story()[2:] == [(f"i1/{name}/1", "skipped") for name in ("validate", "move", "checkpoint", "restart")]
    rig.tell(rig.command("stop"))
    rig.tick(3000.0)
    rig.tell(rig.command("resume"))
    assert rig.story()[-2:] == [("i1/restart/1", "started"), ("i1/restart/1", "done")]


def test_an_incident_that_is_taken_for_something_else_later_has_the_remedies_of_that() -> None:
    rig = Rig()
    rig.launcher.phase = "running"
    incident = rig.incident(kind="slow_job", evidence={**SLOW, "slow_iterations": 2})
    rig.tell(incident)
    assert rig.story() == [("i1/person/1", "skipped")]
    rig.tell(rig.later(incident, kind="slow_compute", evidence=SLOW))
    rig.tick(20.0)
    assert rig.story()[1:] == [("i1/rebalance/1", "started"), ("i1/rebalance/1", "done")]
    assert next(iter(rig.engine._memory.cases.values())).ladder.impact_s == pytest.approx(1.5), "five times 0.3 s"


def test_of_two_remedies_that_no_launcher_offers_both_are_said_and_the_next_has_its_turn() -> None:
    rig = Rig({"gpu_lost": [{"action": "ignore"}, {"action": "evict_node"}, {"action": "restart_process"}]})
    rig.tell(rig.incident(kind="gpu_lost", suspects=SUSPECTS))
    rig.tick()
    rig.tick()
    told = [("i1/person/1", "skipped"), ("i1/person/2", "skipped")]
    assert rig.story() == [*told, ("i1/restart/1", "started"), ("i1/restart/1", "done")]


@pytest.mark.parametrize("strange", ["x", "9" * 5000, "²"])
def test_an_attempt_that_is_missing_on_the_bus_does_not_give_its_number_to_a_later_one(strange: str) -> None:
    """Chaos run 142267: the first was begun in memory alone, and its engine killed; the second came again for ever."""
    rig = Rig(cool_down_s=0.0)
    incident = rig.incident()
    second = ActionRecord(
        id="i1/restart/2", incident="i1", job="job", kind="restart_process", outcome="done", at_s=900.0, why="crash",
        finished_at_s=901.0,
    )  # fmt: skip
    rig.bus.publish(ACTIONS, "job", second)
    rig.bus.publish(ACTIONS, "job", msgspec.structs.replace(second, id=f"i1/restart/{strange}", outcome="skipped"))
    rig.bus.flush()
    rig.restart_engine()
    rig.tell(incident)
    for _ in range(20):
        rig.tick(10.0)
    assert rig.launcher.asked == [("restart", "i1/restart/3")]
