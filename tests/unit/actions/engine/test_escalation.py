"""What failed or did not help raises the severity and with it the remedy (Unicron, section 4.2)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine_doubles import Rig
from trainwarden.launching import Capabilities, JobPhase, NodeState
from trainwarden.records import ActionRecord, IncidentRecord, Suspect


def rig(remedies: dict[str, Any] | None = None, **settings: Any) -> Rig:
    made = Rig(remedies, **{"cool_down_s": 0.0, **settings})
    made.launcher.able = Capabilities(can=frozenset({"restart", "evict", "stop", "rebalance"}))
    made.launcher.nodes["job"] = tuple(NodeState(node=f"n{number}") for number in range(10))
    return made


def crashes(rig: Rig, *nodes: str, kind: str = "crash") -> list[IncidentRecord]:
    """The job goes down once for each of `nodes`, which is blamed; each incident closes when the ranks run again."""
    told = []
    for number, node in enumerate(nodes):
        rig.launcher.phase = "failed"
        suspects = (Suspect(score=1.0, reason="killed", node=node),)
        told.append(rig.incident(f"{node}/{number}/{rig.clock.now_s():.0f}", kind, suspects=suspects))
        rig.tell(told[-1])
        rig.tick(1.0)
        if number < len(nodes) - 1:
            rig.tell(rig.closed(told[-1]))
    return told


def kinds(rig: Rig) -> list[str]:
    return [operation.kind for operation in rig.launcher.operations]


def last(rig: Rig, kind: str) -> ActionRecord:
    return next(action for action in reversed(rig.bus.actions()) if action.kind == kind)


def test_a_node_for_which_two_restarts_did_not_help_is_isolated() -> None:
    one = rig()
    first, second, _ = crashes(one, "n7", "n7", "n7")
    assert kinds(one)[:3] == ["restart", "restart", "evict"]
    assert first.id != second.id
    evicted = last(one, "evict_node")
    assert (evicted.plan["nodes"], evicted.severity, evicted.after) == (["n7"], "sev1", f"{second.id}/restart/1")
    assert evicted.why == "2 restarts for n7 within 600 s have not helped: rank 2 was killed"
    assert {action.severity for action in one.bus.actions() if action.kind == "restart_process"} == {"sev2"}


def test_where_each_time_another_node_is_blamed_none_is_isolated() -> None:
    one = rig()
    crashes(one, "n1", "n2", "n1", "n4")
    assert kinds(one) == ["restart"] * 3 + ["stop"]
    stopped = last(one, "stop_job")
    assert (stopped.severity, "3 restarts" in stopped.why) == ("sev1", True)
    assert stopped.after is not None
    assert "/restart/" in stopped.after


def test_restarts_of_long_ago_isolate_nobody() -> None:
    one = rig()
    crashes(one, "n7", "n7")
    one.tick(700.0)
    crashes(one, "n7")
    assert kinds(one) == ["restart"] * 3


def test_where_the_launcher_cannot_its_words_are_recorded_once_and_restarts_go_on() -> None:
    one = rig()
    one.launcher.able = Capabilities(can=frozenset({"restart", "stop"}), cannot={"evict": "a desk has one node"})
    crashes(one, "n7", "n7", "n7", "n7")
    assert kinds(one) == ["restart"] * 3 + ["stop"]
    said = [action for action in one.bus.actions() if action.kind == "evict_node"]
    assert {action.outcome for action in said} == {"skipped"}
    assert said[0].why == "a desk has one node"


def test_while_a_person_is_asked_for_the_eviction_the_job_is_restarted() -> None:
    one = rig(policy={"modes": {"evict_node": "confirm"}})
    crashes(one, "n7", "n7", "n7")
    assert kinds(one) == ["restart"] * 3
    assert last(one, "evict_node").outcome == "proposed"


def test_an_approved_eviction_is_done_if_the_job_is_still_down() -> None:
    """A restart that was tried meanwhile has changed the job, so it is asked about once more."""
    rungs = [{"action": "restart_process"}, {"action": "evict_node", "after_restarts": 2}]
    one = rig({"crash": rungs}, policy={"modes": {"evict_node": "confirm"}})
    one.tell(one.closed(crashes(one, "n7", "n7")[-1]))
    one.launcher.slow = True
    crashes(one, "n7")
    one.launcher.finish(one.launcher.operations[-1].id, "no room")
    for _ in range(2):
        one.tell(one.command("approve", last(one, "evict_node").id))
        one.tick(1.0)
    assert kinds(one)[-1] == "evict"
    assert one.bus.actions()[-1].by == "someone"


def test_a_hang_that_outlasts_its_restarts_costs_the_node() -> None:
    one = rig()
    one.launcher.phase = "running"
    one.tell(one.incident("i1", "hang", suspects=(Suspect(score=1.0, reason="stands still", node="n7"),)))
    for _ in range(4):
        one.tick(121.0)
    assert kinds(one)[:3] == ["restart", "restart", "evict"]
    assert last(one, "evict_node").after == "i1/restart/2"


def a_port_is_down(rig: Rig, number: int = 1) -> IncidentRecord:
    rig.launcher.phase = "running"
    told = rig.incident(f"i{number}", "nic_down", suspects=(Suspect(score=1.0, reason="no carrier", node="n7"),))
    rig.tell(told)
    return told


def test_a_link_that_is_back_in_time_costs_no_node() -> None:
    """SEV3 of Unicron's table 1: what was lost is sent again by the transport."""
    one = rig()
    told = a_port_is_down(one)
    one.tick(33.0)
    (left,) = one.bus.actions()
    assert (left.kind, left.severity, left.outcome, left.plan["retried_s"]) == ("ignore", "sev3", "skipped", 34.0)
    assert "34 s to pass by itself while the job runs" in left.why
    one.tell(one.closed(told))
    one.tick(60.0)
    assert kinds(one) == []


def test_a_link_that_stays_down_costs_the_node_and_the_record_says_what_was_tried_before() -> None:
    one = rig()
    a_port_is_down(one)
    one.tick(33.0)
    assert kinds(one) == []
    one.tick(2.0)
    evicted = last(one, "evict_node")
    assert (kinds(one), evicted.severity, evicted.after) == (["evict"], "sev1", "i1/person/1")
    assert evicted.why.endswith("raised from sev3 to sev1 as i1/person/1 did not help")


@pytest.mark.parametrize("phase", ["failed", "restarting"])  # torchrun starts its ranks again by itself
def test_once_the_job_is_down_nothing_repeats_what_failed(phase: JobPhase) -> None:
    one = rig()
    a_port_is_down(one)
    one.launcher.phase = phase
    one.tick(1.0)
    assert kinds(one) == ["evict"]


def test_a_link_that_was_back_twice_within_twelve_hours_is_given_no_time_again() -> None:
    one = rig()
    for number in (1, 2):
        one.tell(one.closed(a_port_is_down(one, number)))
        one.tick(3600.0)
    a_port_is_down(one, 3)
    one.tick(1.0)
    assert kinds(one) == ["evict"]
    assert "left to pass by itself 2 times" in last(one, "ignore").why


@pytest.mark.parametrize(("error", "said"), [(None, "did not help"), ("no room", "failed")])
def test_what_was_in_vain_in_the_incident_itself_is_named(error: str | None, said: str) -> None:
    one = Rig(
        {"gpu_throttle": [{"action": "restart_job"}, {"action": "evict_node"}]}, cool_down_s=0.0,
    )  # fmt: skip
    one.launcher.able = Capabilities(can=frozenset({"restart", "evict"}))
    one.launcher.phase, one.launcher.slow = "running", True
    one.tell(one.incident("i1", "gpu_throttle", suspects=(Suspect(score=1.0, reason="hot", node="n0"),)))
    one.launcher.finish("i1/restart/1", error)
    one.tick(1.0)
    one.tick(1.0)
    evicted = last(one, "evict_node")
    assert evicted.why.endswith(f"raised from sev2 to sev1 as i1/restart/1 {said}")
    assert (evicted.severity, evicted.after) == ("sev1", "i1/restart/1")


def test_a_first_remedy_names_nothing_before_it() -> None:
    one = rig()
    crashes(one, "n7")
    assert (last(one, "restart_process").severity, last(one, "restart_process").after) == ("sev2", None)


def test_a_hang_from_before_an_eviction_that_is_told_after_it_is_restarted_only_if_it_lasts() -> None:
    one = rig()
    one.launcher.phase, began_s = "running", one.clock.now_s()
    one.tick(3.0)
    one.tell(one.incident("i1", "gpu_lost", suspects=(Suspect(score=1.0, reason="Xid 79", node="n7"),)))
    one.tick(3.0)
    one.tell(one.incident("i2", "hang", onset_s=began_s, suspects=(Suspect(score=1.0, reason="still", node="n6"),)))
    one.tick(60.0)
    assert kinds(one) == ["evict"]
    one.tick(60.0)
    assert kinds(one) == ["evict", "restart"]
