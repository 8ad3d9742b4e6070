"""A new split is done when every rank has said that it runs by it; a launcher that wrote it down is not enough."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.engine_doubles import Rig
from tests.unit.actions.engine.test_handler import slow_evidence
from trainwarden.actions.remedies.adoption import Adoptions
from trainwarden.launching import LauncherState, Operation
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS


def put(**settings: Any) -> Rig:
    """A rig whose launcher has put a split that no rank has adopted yet."""
    rig = Rig(**settings)
    rig.adopting, rig.launcher.phase = False, "running"
    rig.tell(rig.incident(kind="slow_compute", evidence=slow_evidence()))
    assert rig.launcher.splits
    return rig


def ranks(rig: Rig) -> range:
    return range(len(rig.launcher.splits[-1]))


def test_a_rebalance_is_started_until_the_last_rank_has_adopted_it() -> None:
    rig = put()
    for rank in ranks(rig):
        rig.tick(5.0)
        assert rig.story() == [("i1/rebalance/1", "started")]
        rig.adopt(rank)
    rig.tick(5.0)
    assert rig.story() == [("i1/rebalance/1", "started"), ("i1/rebalance/1", "done")]
    assert len(rig.launcher.asked) == 1


def test_who_has_not_adopted_it_in_time_is_named() -> None:
    rig = put(policy={"adoption_deadline_s": 100.0}, cool_down_s=1000.0)
    first, *_, last = ranks(rig)
    rig.adopt(*[rank for rank in ranks(rig) if rank not in (first, last)])
    rig.tick(100.0)
    assert rig.story()[-1] == ("i1/rebalance/1", "started")
    rig.tick(1.0)
    assert rig.story()[-1] == ("i1/rebalance/1", "failed")
    assert rig.bus.actions()[-1].why.endswith(f"; ranks {first}, {last} did not adopt it within 100 s")


def test_another_split_is_not_this_one() -> None:
    rig = put()
    rig.adopt(*ranks(rig))
    rig.clock.sleep(1.0)
    rig.adopt(0, split=(1, 2, 3, 4))  # it has gone back since
    rig.tick()
    assert rig.story()[-1] == ("i1/rebalance/1", "started")


def test_a_job_that_crashes_while_its_ranks_adopt_is_restarted() -> None:
    rig = put(cool_down_s=0.0)
    rig.launcher.phase = "failed"
    rig.tell(rig.incident("i2"))
    assert rig.story() == [("i1/rebalance/1", "started"), ("i2/restart/1", "started"), ("i2/restart/1", "done")]


def test_no_other_split_is_put_while_the_ranks_adopt_one() -> None:
    rig = put(cool_down_s=0.0)
    rig.tell(rig.incident("i2", kind="slow_compute", evidence=slow_evidence()))
    rig.tick(10.0)
    assert len(rig.launcher.splits) == 1
    rig.adopt(*ranks(rig))
    rig.tick(10.0)
    rig.tick(10.0)
    assert ("i2/rebalance/1", "started") in rig.story()


@pytest.mark.parametrize("told_before", [True, False])
def test_an_engine_that_was_restarted_hears_what_was_said_before(told_before: bool) -> None:
    rig = put()
    if told_before:
        rig.adopt(*ranks(rig))
    rig.restart_engine()  # the old one has not heard it
    rig.tick(1.0)
    if not told_before:
        assert rig.story()[-1] == ("i1/rebalance/1", "started")
        rig.adopt(*ranks(rig))
        rig.tick(1.0)
    assert rig.story()[-1] == ("i1/rebalance/1", "done")
    assert rig.launcher.asked == [("rebalance", "i1/rebalance/1")]


def test_facts_that_come_between_a_plan_and_its_call_do_not_put_it_off() -> None:
    rig = Rig()
    exits = EventRecord(id="exit/1", job="job", node="n0", time_s=1.0, kind="process_exit", rank=1)
    state = rig.launcher.state

    def meanwhile(job: str) -> LauncherState:
        rig.bus.publish(EVENTS, "job", exits)
        rig.bus.flush()
        return state(job)

    rig.launcher.state = meanwhile  # type: ignore[method-assign]
    rig.tell(rig.incident())
    assert rig.story() == [("i1/restart/1", "started"), ("i1/restart/1", "done")]


@pytest.mark.parametrize("counts", [None, 7, "", "1,x", "1,,2", "1,\u0662"])
def test_damaged_words_are_no_adoption(counts: Any) -> None:
    rig = put()
    adoptions = Adoptions()
    event = EventRecord(
        id="e", job="job", node="n0", time_s=1.0, kind="microbatch_plan", rank=0, fields={"micro_batches": counts}
    )
    adoptions.apply(event)
    adoptions.apply(msgspec.structs.replace(event, rank=None))
    assert adoptions.missing(rig.bus.actions()[-1]) == tuple(ranks(rig))


def test_the_operation_is_asked_for_once() -> None:
    rig = put()
    for _ in range(10):
        rig.tick(10.0)
    operations: list[Operation] = rig.launcher.operations
    assert len(operations) == 1
