"""Modes by kind of action: what is done, what waits for a person, what is only told."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec
import pytest

from tests.engine_doubles import Rig
from trainwarden.actions.remedies.policy import Rules
from trainwarden.errors import ConfigError
from trainwarden.launching import Capabilities
from trainwarden.records import ActionKind, IncidentKind, Suspect
from trainwarden.settings import EngineSettings

CAREFUL = {"restart_process": "auto", "evict_node": "confirm", "others": "observe"}


def rig(modes: dict[str, str], remedies: dict[str, Any] | None = None, **settings: Any) -> Rig:
    made = Rig(remedies, policy={"modes": modes, **settings.pop("policy", {})}, **settings)
    made.launcher.able = Capabilities(can=frozenset({"restart", "evict", "rebalance", "stop"}))
    return made


def begins(rig: Rig, kind: IncidentKind, phase: Literal["running", "failed"]) -> None:
    rig.launcher.phase = phase
    rig.tell(rig.incident("i1", kind, suspects=(Suspect(score=1.0, reason="Xid 79", node="n7"),)))


@pytest.mark.parametrize(
    ("kind", "phase", "outcomes"),
    [
        ("crash", "failed", ["started", "done"]),
        ("gpu_lost", "running", ["proposed"]),
        ("user_error", "failed", ["proposed"]),
    ],
)
def test_each_kind_of_action_has_its_mode(
    kind: IncidentKind, phase: Literal["running", "failed"], outcomes: list[str]
) -> None:
    one = rig(CAREFUL, cool_down_s=0.0)
    begins(one, kind, phase)
    one.tick(1.0)
    assert [action.outcome for action in one.bus.actions()] == outcomes


def test_what_is_confirmed_can_be_approved_and_what_is_observed_cannot() -> None:
    one = rig(CAREFUL)
    begins(one, "gpu_lost", "running")
    assert one.bus.actions()[-1].plan_digest is not None
    one.tell(one.command("approve", "i1/evict/1"))
    assert one.launcher.done == ["i1/evict/1"]
    other = rig(CAREFUL)
    begins(other, "user_error", "failed")
    assert other.bus.actions()[-1].plan_digest is None
    other.tell(other.command("approve", "i1/stop/1"))
    assert other.launcher.done == []


def test_none_is_bolder_than_the_engines_own() -> None:
    """`launch` observes unless it is told otherwise, whatever a file says of single kinds."""
    rules = Rules.of(EngineSettings(mode="observe", policy={"modes": {"others": "auto"}}))
    assert {rules.mode_of(kind) for kind in get_args(ActionKind)} == {"observe"}
    rules = Rules.of(EngineSettings(mode="confirm", policy={"modes": {"others": "auto", "ignore": "observe"}}))
    assert (rules.mode_of("stop_job"), rules.mode_of("ignore")) == ("confirm", "observe")


def test_a_rung_that_is_only_shown_gives_way_to_the_next_once_it_would_have_been_in_vain() -> None:
    rungs = [{"action": "restart_process", "persist_s": 100.0}, {"action": "evict_node"}]
    one = rig({"restart_process": "observe"}, {"hang": rungs})
    begins(one, "hang", "running")
    one.tick(99.0)
    assert one.story() == [("i1/restart/1", "proposed")]
    one.tick(1.0)
    one.tick(1.0)
    assert one.launcher.done == ["i1/evict/1"]


def test_where_all_is_observed_the_first_rung_alone_is_shown() -> None:
    rungs = [{"action": "restart_process", "persist_s": 100.0}, {"action": "evict_node"}]
    one = rig({}, {"hang": rungs}, mode="observe")
    begins(one, "hang", "running")
    one.tick(500.0)
    assert one.story() == [("i1/restart/1", "proposed")]


def test_restarts_end_though_the_stop_after_them_is_only_shown() -> None:
    one = rig({"stop_job": "observe"}, cool_down_s=0.0)
    for number in range(6):
        one.launcher.phase = "failed"
        one.tell(one.incident(f"i{number}"))
        one.tick(1.0)
    assert len(one.launcher.done) == 3
    assert one.bus.actions()[-1].kind == "stop_job"
    assert one.bus.actions()[-1].outcome == "proposed"


def test_an_action_whose_kind_became_observed_is_not_finished() -> None:
    one = rig({})
    one.launcher.before = lambda: setattr(one.launcher, "unreachable", True)
    begins(one, "crash", "failed")
    one.launcher.unreachable = False
    one.launcher.before = lambda: None
    one.restart_engine(policy={"modes": {"restart_process": "observe"}})
    one.tick(5.0)
    assert one.launcher.done == []
    assert "told to observe only" in one.bus.actions()[-1].why


@pytest.mark.parametrize(("mode", "waits"), [("auto", "confirm"), ("confirm", "confirm"), ("observe", "observe")])
def test_a_job_that_is_down_waits_for_whom_may_restart_it(
    mode: Literal["observe", "confirm", "auto"], waits: str
) -> None:
    engine = EngineSettings(policy={"modes": {"restart_process": "confirm", "others": "auto"}})
    assert Rules.of(msgspec.structs.replace(engine, mode=mode)).mode_of("restart_process") == waits


@pytest.mark.parametrize("modes", [{"restart": "auto"}, {"restart_process": "yes"}, {"others": 1}])
def test_what_is_no_mode_is_said(modes: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"engine\.policy: .*modes"):
        Rules.of(EngineSettings(policy={"modes": modes}))
