"""Nodes that are blamed again and again, and a person's word that one is well."""

from __future__ import annotations

import msgspec
import pytest

from tests.engine_doubles import Killed, Rig
from tests.unit.actions.brakes.test_nodes import evicted, lost, rig
from trainwarden.actions.nodes.past import NodePasts
from trainwarden.commands.builders import set_healthy
from trainwarden.records import ActionRecord, IncidentRecord
from trainwarden.topics import COMMANDS, INCIDENTS


def of_node(one: Rig, job: str, name: str = "z0") -> IncidentRecord:
    """An incident of `job` that blames a node which several jobs share."""
    incident = lost(one, job)
    suspects = (msgspec.structs.replace(incident.suspects[0], node=name),)
    return msgspec.structs.replace(incident, suspects=suspects)


def last(one: Rig) -> ActionRecord:
    return one.bus.actions()[-1]


def test_a_node_that_was_taken_out_twice_is_told_in_the_proposal_of_any_job() -> None:
    one = rig()
    for job in "ab":
        one.tell(of_node(one, job))
        one.tick(60.0)
    assert last(one).blames == "z0"
    one.restart_engine(mode="confirm")
    one.tell(of_node(one, "c"))
    told = last(one)
    assert (told.outcome, told.job) == ("proposed", "c")
    advice = "z0 was blamed in 2 incidents of 2 jobs and taken out 2 times within 7 days"
    assert told.plan["advice"] == f"{advice}: have it tested before it is used again"
    one.tell(one.command("approve", told.id, "c"))
    assert evicted(one) == ["z0", "z0", "z0"]


def test_five_incidents_are_often_and_those_of_last_week_do_not_count() -> None:
    one = rig(at_most=0)
    for number, job in enumerate("abcdef"):
        one.tell(of_node(one, job))
        assert ("advice" in last(one).plan) is (number == 5)
        one.tick(60.0)
    one.tick(8 * 86_400.0)
    one.tell(of_node(one, "g"))
    assert "advice" not in last(one).plan


def test_once_a_person_has_said_that_it_is_well_old_evidence_takes_it_out_no_more() -> None:
    one = rig()
    one.restart_engine(mode="confirm")
    one.tell(lost(one, "a"))
    shown = last(one)
    one.tell(set_healthy("a0", "new GPU", "ann", one.clock.now_s()))
    one.tell(one.command("approve", shown.id, "a"))
    assert evicted(one) == []
    assert last(one).why == "a0 is not taken out: ann has set it healthy since that was seen; what comes new counts"
    one.restart_engine(mode="auto")
    for _ in range(3):
        one.tick(60.0)
    assert evicted(one) == []
    one.tell(lost(one, "a"))
    assert evicted(one) == ["a0"]


def test_a_word_that_comes_between_record_and_call_is_heard() -> None:
    one = rig()

    def die() -> None:
        one.launcher.before = lambda: None
        raise Killed

    one.launcher.before = die
    with pytest.raises(Killed):
        one.tell(lost(one, "a"))
    one.restart_engine()
    one.tell(set_healthy("a0", "", "ann", one.clock.now_s()))
    assert evicted(one) == []
    assert "ann has set it healthy" in last(one).why


def test_an_old_incident_that_is_told_again_is_old_evidence() -> None:
    one = rig()
    one.restart_engine(mode="observe")
    seen = lost(one, "a")
    one.tell(seen)
    one.bus.publish(COMMANDS, "*", set_healthy("a0", "", "ann", one.clock.now_s()))
    one.clock.sleep(1.0)
    one.bus.publish(INCIDENTS, "a", one.later(seen))
    one.bus.flush()
    one.restart_engine(mode="auto")
    one.tick(1.0)
    assert evicted(one) == []
    assert "ann has set it healthy" in last(one).why


def test_a_node_that_was_taken_out_was_so_whatever_is_done_next() -> None:
    one = rig()
    one.tell(lost(one, "a"))
    (out,) = [action for action in one.bus.actions() if action.outcome == "done"]
    pasts = NodePasts()
    for number in range(2):
        for kind in ("evict_node", "restart_process"):
            again = msgspec.structs.replace(out, id=f"{number}/{kind}", incident=f"{number}", kind=kind)
            pasts.take_action(again, 1.0)
    assert "taken out 2 times" in (pasts.advice("a0", 2.0) or "")


def test_a_word_about_one_node_is_no_word_about_another() -> None:
    one = rig()
    one.tell(set_healthy("a1", "", "ann", one.clock.now_s()))
    one.tell(lost(one, "a"))
    assert evicted(one) == ["a0"]


def test_what_was_blamed_before_the_word_is_forgiven() -> None:
    one = rig()
    for job in "ab":
        one.tell(of_node(one, job))
        one.tick(60.0)
    one.tell(set_healthy("z0", "burnt in", "ann", one.clock.now_s()))
    one.tell(of_node(one, "c"))
    assert "advice" not in last(one).plan


def test_a_node_that_was_set_healthy_does_not_count_as_ill() -> None:
    one = rig(nodes=3, least_healthy=2)
    one.tell(lost(one, "a", 1))
    one.tell(set_healthy("a1", "", "ann", one.clock.now_s()))
    one.tell(lost(one, "a", 2))
    assert evicted(one) == ["a1", "a2"]
