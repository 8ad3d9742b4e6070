"""Budget, cool-down, stop, restart loops."""

from __future__ import annotations

import pytest

from trainwarden.actions.brakes.active_brake import ActiveBrake, BrakeInput
from trainwarden.actions.brakes.brakes import HOUR_S, Brakes
from trainwarden.actions.brakes.history import restart_loop
from trainwarden.records import ActionKind, ActionRecord, Outcome
from trainwarden.settings import EngineSettings


def action(kind: ActionKind = "restart_process", outcome: Outcome = "done", at_s: float = 0.0) -> ActionRecord:
    return ActionRecord(
        id=f"{kind}{at_s}", incident="i", job="job", kind=kind, outcome=outcome, at_s=at_s, finished_at_s=at_s, why="x"
    )


def brakes(**settings: float) -> Brakes:
    return Brakes(EngineSettings(mode="auto", **settings))  # type: ignore[arg-type]


def hold(brake: Brakes, actions: list[ActionRecord], stopped_by: str | None = None) -> ActiveBrake | None:
    return brake.hold(0.0, BrakeInput(action=action(outcome="started"), actions=actions, stopped_by=stopped_by))


def test_only_what_the_launcher_was_called_for_uses_up_the_budget() -> None:
    brake = brakes(actions_per_hour=2)
    harmless = [action(outcome="proposed"), action(outcome="skipped"), action(at_s=-4000.0)]
    assert hold(brake, [*harmless, action(at_s=-1.0)]) is None
    assert hold(brake, [action(at_s=-1.0, outcome="failed"), action(at_s=-2.0, outcome="started")]) is not None


def test_the_budget_says_when_it_frees_up() -> None:
    """Once so many have left the hour that one more fits."""
    actions = [action(at_s=at_s) for at_s in (-30.0, -20.0, -10.0)]
    assert [held.until_s for n in (3, 2, 1) if (held := hold(brakes(actions_per_hour=n), actions))] == [
        HOUR_S - 30.0, HOUR_S - 20.0, HOUR_S - 10.0,
    ]  # fmt: skip
    assert (never := hold(brakes(actions_per_hour=0), actions)) is not None
    assert never.until_s is None


def test_a_stop_names_who_said_so() -> None:
    held = hold(brakes(), [], "the night shift")
    assert held is not None
    assert "the night shift" in held.why


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
    brake = brakes(cool_down_s=10.0)
    assert (brake.cooling_until_s(kind, [action(earlier)]) == 10.0) is cooling
    assert brake.cooling_until_s(kind, [action(earlier, outcome="skipped")]) < 0.0


def test_a_loop_is_restarts_in_the_window_only() -> None:
    restarts = [action(at_s=at_s) for at_s in (0.0, 100.0, 200.0)]
    assert restart_loop(300.0, restarts[::-1], least=3, within_s=600.0) == restarts
    assert restart_loop(601.0, restarts, least=3, within_s=600.0) == []
    assert restart_loop(300.0, [*restarts[:2], action("rebalance", at_s=250.0)], least=3, within_s=600.0) == []
