"""Which remedy for which kind; budget, cool-down, stop, restart loops."""

from __future__ import annotations

from typing import get_args

import pytest

from actions.engine.policy import Policy, PolicyConfig
from trainwarden.errors import ConfigError
from trainwarden.records import ActionKind, ActionRecord, IncidentKind, Outcome
from trainwarden.settings import EngineSettings, parse


def action(kind: ActionKind = "restart_process", outcome: Outcome = "done", at_s: float = 0.0) -> ActionRecord:
    return ActionRecord(
        id=f"{kind}{at_s}", incident="i", job="job", kind=kind, outcome=outcome, at_s=at_s, finished_at_s=at_s, why="x"
    )


def policy(**settings: float) -> Policy:
    return Policy(EngineSettings(mode="auto", **settings))  # type: ignore[arg-type]


def test_every_kind_of_incident_has_an_answer() -> None:
    remedies = {kind: policy().remedy(kind) for kind in get_args(IncidentKind)}
    assert {kind for kind, remedy in remedies.items() if remedy is None} == {"restart_loop", "pipeline", "data_quality"}
    assert {kind for kind, remedy in remedies.items() if remedy == "ladder"} == {"slow_compute"}
    assert {"crash", "exception", "hang"} <= {kind for kind, remedy in remedies.items() if remedy == "restart"}


def test_only_what_the_launcher_was_called_for_uses_up_the_budget() -> None:
    brake = policy(actions_per_hour=2)
    harmless = [action(outcome="proposed"), action(outcome="skipped"), action(at_s=-4000.0)]
    assert brake.hold(0.0, [*harmless, action(at_s=-1.0)], None) is None
    assert (
        brake.hold(0.0, [action(at_s=-1.0, outcome="failed"), action(at_s=-2.0, outcome="started")], None) is not None
    )


def test_a_stop_names_who_said_so() -> None:
    hold = policy().hold(0.0, [], "the night shift")
    assert hold is not None
    assert "the night shift" in hold.why


@pytest.mark.parametrize(
    ("kind", "earlier", "cooling"),
    [
        ("restart_process", "restart_process", True),
        ("restart_job", "restart_process", True),
        ("restart_process", "rebalance", False),
        ("rebalance", "restart_process", True),
        ("rebalance", "rebalance", True),
    ],
)
def test_who_waits_for_whom(kind: ActionKind, earlier: ActionKind, cooling: bool) -> None:
    brake = policy(cool_down_s=10.0)
    assert brake.cooling(5.0, kind, [action(earlier)]) is cooling
    assert brake.cooling(10.0, kind, [action(earlier)]) is False
    assert brake.cooling(5.0, kind, [action(earlier, outcome="skipped")]) is False


def test_a_loop_is_restarts_in_the_window_only() -> None:
    brake = policy()
    restarts = [action(at_s=at_s) for at_s in (0.0, 100.0, 200.0)]
    assert brake.restart_loop(300.0, restarts) == 3
    assert brake.restart_loop(601.0, restarts) == 0
    assert brake.restart_loop(300.0, [*restarts[:2], action("rebalance", at_s=250.0)]) == 0


def test_limits_are_checked() -> None:
    with pytest.raises(ConfigError, match="relief_ratio"):
        parse(PolicyConfig, {"relief_ratio": 0.5}, "policy")
