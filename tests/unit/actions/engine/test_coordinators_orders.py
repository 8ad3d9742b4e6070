"""What a coordinator has begun is not an engine's to end."""

from __future__ import annotations

from tests.engine_doubles import Rig
from trainwarden.records import ActionRecord
from trainwarden.topics import ACTIONS


def test_an_engine_that_starts_leaves_a_coordinators_order_alone() -> None:
    rig = Rig()
    order = ActionRecord(
        id="cluster/lost:n3-1/evict/n2/job/1", job="job", kind="reconfigure", outcome="started", at_s=1000.0,
        why="coordinator: takes n2 from job", plan={"verb": "evict", "nodes": ["n2"]}, generation=1,
    )  # fmt: skip
    rig.bus.publish(ACTIONS, "job", order)
    rig.bus.flush()
    rig.restart_engine()
    rig.tick(1.0)
    assert rig.story() == [(order.id, "started")]
    rig.tell(rig.incident())  # and its own work goes on beside an order about a node
    assert ("i1/restart/1", "done") in rig.story() or ("i1/restart/1", "started") in rig.story()
