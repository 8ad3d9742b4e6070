"""Maintenance windows: which moments lie in them, and when they end."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from trainwarden.actions.brakes.windows import MaintenanceWindow, over
from trainwarden.errors import ConfigError
from trainwarden.settings import parse


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("window", "inside", "outside", "end"),
    [
        (MaintenanceWindow(days=("sat", "sun")), "2026-11-21 00:00", "2026-11-20 23:59:59", "2026-11-22 00:00"),
        (MaintenanceWindow(from_utc="22:00", to_utc="06:00"), "2026-11-20 05:59:59", *["2026-11-20 06:00"] * 2),
        # The night that begins on Saturday goes on into Sunday, and no night begins there.
        (
            MaintenanceWindow(days=("sat",), from_utc="22:00", to_utc="06:00"),
            "2026-11-22 03:00", "2026-11-22 22:30", "2026-11-22 06:00",
        ),
        (
            MaintenanceWindow(days=("sat",), from_utc="08:00", to_utc="08:00"),
            "2026-11-22 07:00", "2026-11-21 07:00", "2026-11-22 08:00",
        ),
    ],
)  # fmt: skip
def test_a_moment_is_in_it_or_not(window: MaintenanceWindow, inside: str, outside: str, end: str) -> None:
    assert window.until_s(at(inside)) == at(end)
    assert window.until_s(at(outside)) is None


def test_windows_that_join_end_together() -> None:
    nights = MaintenanceWindow(from_utc="22:00", to_utc="06:00")
    weekend = MaintenanceWindow(days=("sat", "sun"), why="power works")
    found = over([nights, weekend], at("2026-11-20 23:00"))
    assert found == (nights, at("2026-11-23 06:00"))
    assert over([nights, weekend], at("2026-11-20 12:00")) is None
    assert over([], 0.0) is None


def test_a_window_that_never_ends_says_so() -> None:
    always = MaintenanceWindow()
    assert over([always], at("2026-11-20 12:00")) == (always, None)


@pytest.mark.parametrize(
    "wrong", [{"days": []}, {"days": ["today"]}, {"from_utc": "25:00"}, {"to_utc": "24:01"}, {"from": "8:00"}]
)
def test_what_is_no_window_is_said(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"engine\.policy"):
        parse(MaintenanceWindow, wrong, "engine.policy.maintenance")
