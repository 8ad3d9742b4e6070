"""Operations that take their time: submitted once, asked about at later ticks, ended by the launcher or a deadline."""

from __future__ import annotations

from typing import Any

import pytest

from tests.doubles import metric_value
from tests.engine_doubles import Killed, Rig
from trainwarden.launching import Capabilities
from trainwarden.records import Suspect
from trainwarden.topics import INCIDENTS

DRAIN: dict[str, Any] = {"suspects": (Suspect(score=1.0, reason="Xid 79", rank=9, node="n7"),)}


def slow_rig(**settings: Any) -> Rig:
    """A rig whose launcher takes its time with everything, and can evict."""
    rig = Rig(**settings)
    rig.launcher.slow = True
    rig.launcher.able = Capabilities(can=frozenset({*rig.launcher.able.can, "evict"}))
    return rig


def test_no_tick_waits_for_an_operation() -> None:
    rig = slow_rig()
    rig.tell(rig.incident())
    for _ in range(5):
        rig.tick(5.0)
    assert rig.story() == [("i1/restart/1", "started")]
    assert rig.launcher.asked == [("restart", "i1/restart/1")]
    rig.launcher.finish("i1/restart/1")
    rig.tick(5.0)
    assert rig.story() == [("i1/restart/1", "started"), ("i1/restart/1", "done")]
    assert rig.bus.actions()[-1].why == "crash: rank 2 was killed"
    assert rig.bus.actions()[-1].finished_at_s == 1030.0


def test_what_the_launcher_could_not_do_is_a_failed_action_with_its_words() -> None:
    rig = slow_rig(cool_down_s=1000.0)
    rig.tell(rig.incident())
    rig.launcher.finish("i1/restart/1", "no process slot")
    rig.tick(1.0)
    assert rig.story()[-1] == ("i1/restart/1", "failed")
    assert rig.bus.actions()[-1].why == "crash: rank 2 was killed; the launcher could not: no process slot"
    assert metric_value(rig.metrics, "launcher_errors_total", kind="failed") == 1.0


def test_an_operation_has_until_the_deadline_of_its_kind() -> None:
    rig = slow_rig(policy={"operation_deadline_s": {"restart": 30.0}}, cool_down_s=1000.0)
    rig.tell(rig.incident())
    for _ in range(3):
        rig.tick(10.0)
    assert rig.story() == [("i1/restart/1", "started")]
    rig.tick(10.0)
    assert rig.story()[-1] == ("i1/restart/1", "failed")
    assert rig.bus.actions()[-1].why.endswith("it was not done within 30 s; the launcher last said: on its way")


def test_a_drain_of_hours_is_asked_about_ever_more_seldom() -> None:
    rig = slow_rig()
    rig.tell(rig.incident(kind="gpu_lost", **DRAIN))
    for _ in range(1000):
        rig.tick(0.1)
    early = rig.launcher.polls
    assert early < 60  # every tenth of its age
    for _ in range(5000):
        rig.tick(1.0)
    assert rig.launcher.polls - early <= 501  # every ten seconds
    rig.launcher.finish("i1/evict/1")
    rig.tick(10.0)
    assert rig.story() == [("i1/evict/1", "started"), ("i1/evict/1", "done")]


def test_a_launcher_that_is_away_during_an_operation_has_its_deadline_from_when_it_was_last_heard() -> None:
    rig = slow_rig(policy={"launcher_deadline_s": 60.0})
    rig.tell(rig.incident(kind="gpu_lost", **DRAIN))
    for _ in range(100):
        rig.tick(10.0)
    rig.launcher.unreachable = True
    rig.tick(10.0)
    rig.tick(40.0)
    assert rig.story() == [("i1/evict/1", "started")]
    rig.launcher.unreachable = False
    rig.launcher.finish("i1/evict/1")
    rig.tick(10.0)
    assert rig.story()[-1] == ("i1/evict/1", "done")


@pytest.mark.parametrize("done_meanwhile", [True, False])
def test_an_engine_restarted_during_an_operation_asks_and_repeats_nothing(done_meanwhile: bool) -> None:
    rig = slow_rig()
    rig.tell(rig.incident())
    if done_meanwhile:
        rig.launcher.finish("i1/restart/1")
    rig.restart_engine()
    rig.tick(1.0)
    if not done_meanwhile:
        assert rig.story() == [("i1/restart/1", "started")]
        rig.launcher.finish("i1/restart/1")
        rig.tick(10.0)
    assert rig.launcher.asked == [("restart", "i1/restart/1")]
    assert rig.story() == [("i1/restart/1", "started"), ("i1/restart/1", "done")]
    assert ("before the engine was restarted" in rig.bus.actions()[-1].why) is done_meanwhile


def test_the_generation_of_the_decision_travels_with_the_action_and_outlives_the_engine() -> None:
    rig = Rig(cool_down_s=0.0)
    rig.launcher.generation = 7
    rig.launcher.before = lambda: (_ for _ in ()).throw(Killed)
    incident = rig.incident()
    rig.bus.publish(INCIDENTS, "job", incident)
    with pytest.raises(Killed):
        rig.tell(incident)
    assert rig.bus.actions()[0].generation == 7
    rig.launcher.before = lambda: None
    rig.launcher.generation = 8  # somebody else has done something since
    rig.restart_engine()
    rig.tick()
    assert rig.launcher.done == []
    assert rig.story()[-1] == ("i1/restart/1", "failed")
    assert "planned at generation 7, the job is at 8" in rig.bus.actions()[-1].why
    rig.tick(1.0)  # planned anew from what is true now
    assert rig.launcher.done == ["i1/restart/2"]


def test_an_operation_that_the_launcher_lost_is_submitted_again_and_fenced() -> None:
    rig = slow_rig(cool_down_s=1000.0)
    rig.tell(rig.incident())
    rig.launcher._under_way.clear()  # a launcher with a memory like a sieve
    rig.tick(10.0)
    assert [name for _, name in rig.launcher.asked] == ["i1/restart/1"] * 2
    assert rig.launcher.done == []
    assert rig.story()[-1] == ("i1/restart/1", "failed")
    assert "planned at generation 1, the job is at 2" in rig.bus.actions()[-1].why


def test_ranks_are_left_alone_while_something_is_done_to_them() -> None:
    rig = slow_rig(cool_down_s=0.0)
    rig.tell(rig.incident(), rig.incident("i2", "hang"), rig.incident("i3", "user_error"))
    rig.tick(5.0)
    assert rig.launcher.asked == [("restart", "i1/restart/1")]
    rig.launcher.finish("i1/restart/1")
    rig.tick(5.0)
    rig.tick(5.0)
    assert rig.story()[-1] == ("i1/restart/1", "done")


def test_a_drain_does_not_keep_a_crashed_job_waiting() -> None:
    rig = slow_rig()
    rig.tell(rig.incident(kind="gpu_lost", **DRAIN))
    rig.tell(rig.incident("i2", "crash"))
    assert [name for _, name in rig.launcher.asked] == ["i1/evict/1", "i2/restart/1"]


def test_who_wants_it_is_the_engine_or_the_person_who_approved() -> None:
    rig = Rig()
    rig.tell(rig.incident())
    rig.restart_engine(mode="confirm", cool_down_s=0.0)
    rig.launcher.phase = "failed"
    second = rig.incident("i2")
    rig.tell(second)
    rig.tell(rig.command("approve", "i2/restart/1"))
    assert [(operation.id, operation.by) for operation in rig.launcher.operations] == [
        ("i1/restart/1", "engine"), ("i2/restart/1", "someone"),
    ]  # fmt: skip
