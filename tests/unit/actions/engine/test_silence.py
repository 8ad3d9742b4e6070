"""A silence holds acting back until it ends; what was begun goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine_doubles import Rig
from trainwarden.commands.builders import silence
from trainwarden.records import Suspect


def silenced(rig: Rig, seconds: float, **of: Any) -> Any:
    now_s = rig.clock.now_s()
    return silence("ann", now_s, now_s + seconds, **of)


def test_nothing_is_done_until_it_ends_and_then_it_is() -> None:
    rig = Rig()
    rig.tell(silenced(rig, 600.0, job="job"))
    rig.tell(rig.incident())
    held = rig.bus.actions()[-1]
    assert (held.outcome, held.plan["held"]) == ("skipped", "silence")
    assert held.why.startswith("silenced by ann until ")
    assert rig.launcher.asked == []
    rig.tick(599.0)
    assert rig.story() == [("i1/restart/1", "skipped")]
    rig.tick(2.0)
    assert rig.launcher.asked == [("restart", "i1/restart/1")]


def test_a_new_engine_knows_of_it() -> None:
    rig = Rig()
    rig.tell(silenced(rig, 600.0, incident_kind="crash"))
    rig.restart_engine()
    rig.tell(rig.incident())
    assert rig.launcher.asked == []


@pytest.mark.parametrize("of", [{"job": "other"}, {"job": "job", "incident_kind": "hang"}, {"node": "n2"}])
def test_what_it_is_not_of_goes_on(of: dict[str, Any]) -> None:
    rig = Rig()
    rig.tell(silenced(rig, 600.0, **of))
    rig.tell(rig.incident(suspects=(Suspect(score=1.0, reason="r", node="n1"),)))
    assert rig.launcher.asked == [("restart", "i1/restart/1")]


def test_of_a_node() -> None:
    rig = Rig()
    rig.tell(silenced(rig, 600.0, node="n1"))
    rig.tell(rig.incident(suspects=(Suspect(score=1.0, reason="r", node="n1"),)))
    assert rig.launcher.asked == []


def test_it_can_be_ended_early() -> None:
    rig = Rig()
    rig.tell(silenced(rig, 600.0, job="job"))
    rig.tell(rig.incident())
    rig.tell(silenced(rig, 0.0, job="job"))
    rig.tick()
    assert rig.launcher.asked == [("restart", "i1/restart/1")]


def test_what_was_begun_before_it_goes_on() -> None:
    rig = Rig()
    rig.launcher.slow = True
    rig.tell(rig.incident())
    rig.tell(silenced(rig, 600.0, job="job"))
    rig.launcher.finish("i1/restart/1")
    rig.tick(1.0)
    assert rig.story()[-1] == ("i1/restart/1", "done")


def test_an_approval_during_a_silence_is_carried_out_after_it() -> None:
    rig = Rig(mode="confirm")
    rig.tell(silenced(rig, 60.0, job="job"))
    rig.tell(rig.incident())
    rig.tell(rig.command("approve", "i1/restart/1"))
    assert rig.launcher.asked == []
    rig.tick(61.0)
    assert rig.launcher.asked == [("restart", "i1/restart/1")]
