"""How many nodes may be taken out, by number, by share and by the health of the others; latched until reset."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.doubles import ManualClock, metric_value
from tests.engine_doubles import Killed, Rig
from trainwarden.launching import Capabilities, NodeCondition, NodeState
from trainwarden.records import CommandRecord, IncidentRecord, Suspect
from trainwarden.topics import COMMANDS, INCIDENTS

FREE = {"at_most": 100, "share": 1.0, "least_healthy_share": 0.0}


def rig(nodes: int = 20, policy: dict[str, Any] | None = None, **limits: Any) -> Rig:
    """Jobs ``a`` to ``z`` of so many nodes each, ``a0``, ``a1``..., under `limits` laid over none."""
    made = Rig(actions_per_hour=1000, cool_down_s=0.0, policy={"nodes": {**FREE, **limits}, **(policy or {})})
    made.launcher.phase = "running"
    made.launcher.able = Capabilities(can=frozenset({"evict", "restart"}))
    for job in "abcdefghijklmnopqrstuvwxyz":
        made.launcher.nodes[job] = tuple(NodeState(node=f"{job}{number}") for number in range(nodes))
    return made


def lost(rig: Rig, job: str, node: int = 0) -> IncidentRecord:
    """A GPU of a node of `job` is gone."""
    suspects = (Suspect(score=1.0, reason="Xid 79", node=f"{job}{node}"),)
    incident = rig.incident(f"{job}/{node}/{rig.clock.now_s():.0f}", "gpu_lost", suspects=suspects)
    return msgspec.structs.replace(incident, job=job)


def evicted(rig: Rig) -> list[str]:
    return [node for operation in rig.launcher.operations for node in operation.targets.nodes]


def ill(rig: Rig, job: str, nodes: range, state: NodeCondition) -> None:
    known = rig.launcher.nodes[job]
    rig.launcher.nodes[job] = tuple(
        msgspec.structs.replace(one, state=state) if place in nodes else one for place, one in enumerate(known)
    )


def test_no_more_than_the_number_of_all_jobs_and_the_rest_is_held_with_its_reason() -> None:
    one = rig(at_most=2)
    one.tell(*(lost(one, job) for job in "abc"))
    assert evicted(one) == ["a0", "b0"]
    held = one.bus.actions()[-1]
    assert (held.outcome, held.plan["held"]) == ("skipped", "nodes")
    assert "2 nodes were taken out within 3600 s (a0, b0), and the limit of all jobs together is 2" in held.why
    assert "until a person resets it" in held.why


def test_no_more_than_the_share_of_the_job_and_other_jobs_go_on() -> None:
    one = rig(nodes=10, share=0.2)
    one.tell(*(lost(one, "a", node) for node in range(3)), lost(one, "b"))
    assert evicted(one) == ["a0", "a1", "b0"]
    assert any("the limit of this job is 2 of 10 (20%, rounded up)" in action.why for action in one.bus.actions())


def test_a_share_is_rounded_up_so_that_a_small_job_may_lose_a_node() -> None:
    one = rig(nodes=2, share=0.2)
    one.tell(lost(one, "a", 0), lost(one, "a", 1))
    assert evicted(one) == ["a0"]


def test_a_share_that_is_no_binary_number_is_no_node_more() -> None:
    """0.07 of 100 is 7.000000000000001."""
    one = rig(nodes=100, share=0.07)
    one.tell(*(lost(one, "a", node) for node in range(8)))
    assert len(evicted(one)) == 7


@pytest.mark.parametrize("state", ["lost", "cordoned", "suspect"])
def test_where_too_many_others_are_ill_no_node_is_taken_out(state: NodeCondition) -> None:
    one = rig(nodes=5, least_healthy_share=0.5)
    ill(one, "a", range(1, 4), state)
    one.tell(lost(one, "a"))
    assert evicted(one) == []
    assert (
        "of the job's 4 other nodes 1 are healthy, and 2 have to be (not healthy: a1, a2, a3)"
        in one.bus.actions()[-1].why
    )


def test_nodes_that_are_accused_at_the_same_time_count_as_ill() -> None:
    """A switch that goes takes a row of nodes with it; they are not evicted one by one."""
    one = rig(nodes=4, least_healthy=2)
    for node in range(3):
        one.bus.publish(INCIDENTS, "a", lost(one, "a", node))
    one.tell()
    assert evicted(one) == []


def test_a_job_of_one_node_may_lose_it() -> None:
    one = rig(nodes=1, least_healthy_share=0.51, share=0.2)
    one.tell(lost(one, "a"))
    assert evicted(one) == ["a0"]


def test_where_the_launcher_tells_no_nodes_none_is_taken_out_until_it_does() -> None:
    one = rig()
    nodes = one.launcher.nodes.pop("a")
    one.launcher.nodes["a"] = ()
    one.tell(lost(one, "a"))
    assert one.bus.actions()[-1].plan["held"] == "nodes_unknown"
    one.launcher.nodes["a"] = nodes
    one.tick(1.0)
    assert evicted(one) == ["a0"]


def test_what_tripped_stays_latched_when_the_time_is_over_and_after_a_kill() -> None:
    one = rig(at_most=1)
    one.tell(lost(one, "a"), lost(one, "b"))
    one.tick(9 * 86_400.0)  # longer than actions are remembered
    one.restart_engine()
    one.tell(lost(one, "c"))
    assert evicted(one) == ["a0"]
    assert one.bus.actions()[-1].why.startswith("no more nodes are taken out, until a person resets it")


def test_a_reset_drops_what_was_held_and_lets_new_faults_be_acted_on() -> None:
    one = rig(at_most=1)
    one.tell(lost(one, "a"), lost(one, "b"))
    one.tick(3700.0)
    one.tell(reset())
    dropped = one.bus.actions()[-1]
    assert (dropped.job, dropped.outcome, dropped.plan.get("held")) == ("b", "skipped", None)
    assert "dropped when the brake on nodes taken out was reset" in dropped.why
    one.tell(lost(one, "c"))
    for _ in range(3):
        one.tick(10.0)
    assert evicted(one) == ["a0", "c0"]


def test_a_reset_within_the_time_forgets_nothing_that_was_taken_out() -> None:
    one = rig(at_most=1)
    one.tell(lost(one, "a"), lost(one, "b"))
    one.tell(reset())
    one.tell(lost(one, "c"))
    assert evicted(one) == ["a0"]


def test_the_reset_of_one_job_leaves_others_latched() -> None:
    one = rig(nodes=2, share=0.5)
    one.tell(*(lost(one, job, node) for job in "ab" for node in range(2)))
    one.tell(reset("b"))
    assert {job: latch for job in "ab" if (latch := one.engine._memory.latches.over(job))}.keys() == {"a"}


def test_two_engines_that_begin_at_the_same_moment_do_not_take_out_too_many() -> None:
    """Each has looked before the other began; then both withdraw, and one is first at the next try."""
    one = rig(at_most=1)
    one.bus.elsewhere = frozenset({"b"})
    one.restart_engine()
    other = one.beside()
    one.bus.publish(INCIDENTS, "b", lost(one, "b"))
    one.bus.flush()
    list(other.engine.handle(other.consumer.poll(0.0)))
    one.bus.publish(INCIDENTS, "a", lost(one, "a"))
    one.bus.flush()
    list(one.engine.handle(one.consumer.poll(0.0)))
    one.bus.before_flush = other.tick
    one.tick()
    assert len(evicted(one)) == 1
    for _ in range(10):
        one.tick(1.0)
        other.tick()
    assert len(evicted(one)) == 1
    withdrawn = [action for action in one.bus.actions() if action.plan.get("withdrawn")]
    assert [action.outcome for action in withdrawn] == ["failed"]
    assert "the limit of all jobs together is 1" in withdrawn[0].why
    assert withdrawn[0].why.endswith("before the launcher heard of it")


def test_an_engine_that_has_not_heard_all_begins_nothing_yet() -> None:
    one = rig()
    hearing = one.engine._acting._hearing
    assert hearing is not None
    behind = [True]
    hearing.behind = lambda: behind[0]  # type: ignore[method-assign]
    one.tell(lost(one, "a"), lost(one, "b"))
    assert (one.story(), evicted(one)) == ([], [])
    behind[0] = False
    one.tick(1.0)
    one.tick(1.0)
    assert evicted(one) == ["a0", "b0"]


def test_a_kill_between_record_and_call_counts_its_node_once() -> None:
    one = rig(at_most=1)

    def die() -> None:
        one.launcher.before = lambda: None
        raise Killed

    one.launcher.before = die
    with pytest.raises(Killed):
        one.tell(lost(one, "a"))
    one.restart_engine()
    one.tick(1.0)
    one.tell(lost(one, "b"))
    assert evicted(one) == ["a0"]


def test_in_a_maintenance_window_nothing_is_done_by_itself_until_it_ends() -> None:
    one = rig(policy={"maintenance": [{"days": ["thu"], "to_utc": "02:00", "why": "new switches"}]})
    one.launcher.phase = "failed"
    one.tell(one.incident())  # a quarter of an hour into 1970, a Thursday
    held = one.bus.actions()[-1]
    assert held.plan["held_until_s"] == 7200.0
    assert held.why == "maintenance (new switches); it may go ahead from 1970-01-01 02:00:00 UTC"
    one.tick(6300.0)
    assert one.launcher.done == ["i1/restart/1"]


def test_what_was_begun_and_never_reached_the_launcher_is_not_done_in_a_window_that_came_since() -> None:
    one = rig(policy={"maintenance": [{"days": ["thu"], "from_utc": "02:00", "to_utc": "04:00"}]})

    def die() -> None:
        one.launcher.before = lambda: None
        raise Killed

    one.launcher.before = die
    with pytest.raises(Killed):
        one.tell(lost(one, "a"))
    one.clock.sleep(7200.0)
    one.restart_engine()
    one.tick(1.0)
    assert evicted(one) == []
    assert [action.plan["withdrawn"] for action in one.bus.actions() if action.outcome == "failed"] == ["maintenance"]


def test_what_a_person_approves_is_done_in_a_maintenance_window_too() -> None:
    one = rig(policy={"maintenance": [{}]})
    one.restart_engine(mode="confirm")
    one.launcher.phase = "failed"
    one.tell(one.incident())
    one.tell(one.command("approve", "i1/restart/1"))
    assert one.launcher.done == ["i1/restart/1"]


def reset(job: str = "*") -> CommandRecord:
    return CommandRecord(id=f"command/{job}", job=job, at_s=0.0, kind="reset", by="ann")


def test_a_cool_down_that_lasts_is_told_with_its_end_and_lets_no_dearer_remedy_pass() -> None:
    one = Rig(
        {"crash": [{"action": "restart_process", "persist_s": 1.0}, {"action": "restart_job"}]}, cool_down_s=600.0
    )
    first = one.incident()
    one.tell(first)
    one.launcher.phase = "failed"
    one.tell(one.closed(first), one.incident("i2"))
    held = one.bus.actions()[-1]
    assert (held.id, held.plan["held"], held.plan["held_until_s"]) == ("i2/restart/1", "cool_down", 1600.0)
    one.tick(599.0)
    assert one.launcher.done == ["i1/restart/1"]
    one.tick(1.0)
    assert one.launcher.done == ["i1/restart/1", "i2/restart/1"]


def test_latches_are_on_the_bus_of_commands() -> None:
    one = rig(at_most=0)
    one.tell(lost(one, "a"))
    one.tick(1.0)
    assert metric_value(one.metrics, "latched") == 1.0
    (latch,) = [message.record for message in one.bus.read(COMMANDS)]
    assert isinstance(latch, CommandRecord)
    assert (latch.kind, latch.job, latch.by, latch.action) == ("latch", "*", "engine", one.bus.actions()[-1].id)


@pytest.mark.parametrize("ahead_s", [7200.0, -7200.0])
def test_engines_whose_clocks_are_apart_take_out_no_more(ahead_s: float) -> None:
    """What lies within the time is told by the bus's clock, once the record of a start has come there."""
    one = rig(at_most=1)
    one.bus.elsewhere = frozenset({"b"})
    one.restart_engine()
    other = one.beside()
    other.clock = ManualClock(one.clock.now_s() + ahead_s)
    other.restart_engine()
    one.tell(lost(one, "a"))
    other.bus.publish(INCIDENTS, "b", lost(other, "b"))
    other.bus.flush()
    list(other.engine.handle(other.consumer.poll(0.0)))
    for _ in range(5):
        other.tick(1.0)
    assert evicted(one) == ["a0"]


@pytest.mark.parametrize("ahead_s", [7200.0, -7200.0])
def test_what_an_engine_of_another_clock_has_taken_out_counts(ahead_s: float) -> None:
    one = rig(at_most=1)
    one.bus.elsewhere = frozenset({"b"})
    one.restart_engine()
    other = one.beside()
    other.clock = ManualClock(one.clock.now_s() + ahead_s)
    other.restart_engine()
    other.bus.publish(INCIDENTS, "b", lost(other, "b"))
    other.bus.flush()
    list(other.engine.handle(other.consumer.poll(0.0)))
    for _ in range(5):
        other.tick(1.0)
    one.tell(lost(one, "a"))
    assert evicted(one) == ["b0"]
