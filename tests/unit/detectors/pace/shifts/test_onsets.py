"""The naming of onsets: of steps, stairs, slopes and reliefs, and what only goes on with a change that was told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.benchmarks.detection.change_series import Floats
from tests.unit.detectors.pace.shifts.constructed import noisy, stepped
from trainwarden.detectors.pace.shifts.levels import Levels
from trainwarden.detectors.pace.shifts.onsets import LastReported, OnsetConfig, Onsets, began, knee, refine
from trainwarden.detectors.pace.shifts.shift import Mechanism, Shift, Thresholds

ROWS = 24


def levels_after(values: Floats) -> Levels:
    """The levels of one series [rows] of which nothing was told."""
    levels = Levels(Thresholds())
    levels.resize(1)
    for seq, x in enumerate(values):
        row = np.array([x])
        levels.calibrate(seq, levels.observe(seq, row))
        levels.mark(seq)
        levels.follow(row)
    return levels


def onset(values: Floats, *leave_out: Mechanism) -> int:
    return Onsets(Thresholds(leave_out=leave_out), OnsetConfig()).of_rise(0, ROWS, levels_after(values))


def test_a_step_is_where_the_series_splits_best() -> None:
    values = stepped(0.3)[:206]
    assert [Onsets(Thresholds(), OnsetConfig()).of_step(values, 0, near) for near in (197, 200, 203)] == [200] * 3
    assert Onsets(Thresholds(leave_out=("refine",)), OnsetConfig()).of_step(values, 0, 203) == 203
    assert refine(np.r_[np.zeros(30), np.ones(10)], 0, 32, OnsetConfig()) == 30
    assert refine(np.zeros(12), 0, 8, OnsetConfig()) <= 9  # hardly anything is known


def test_a_staircase_begins_with_its_first_stair() -> None:
    values = noisy(274)
    values[220:] += np.log(1.05)
    values[260:] += np.log(1.06)
    assert 212 <= onset(values) <= 228


def test_a_wobble_of_two_points_before_the_first_stair_is_not_its_beginning() -> None:
    values = noisy(274, 0.002)
    values[202:218] += 0.016  # as high as a third of the stair
    values[220:] += np.log(1.05)
    values[260:] += np.log(1.06)
    assert 212 <= onset(values) <= 228


def test_a_slope_is_named_late_rather_than_early() -> None:
    values = noisy(445, 0.02) + np.clip(np.arange(445) - 200, 0, None) * np.log(1.1) / 250
    likeliest, told = onset(values, "late_onset"), onset(values)
    assert 160 <= likeliest < told
    assert told <= 445 - ROWS


def test_a_rise_that_began_long_ago_is_found_in_the_marks() -> None:
    values = noisy(900, 0.005) + np.clip(np.arange(900) - 300, 0, None) * np.log(1.1) / 500
    assert 280 <= onset(values) <= 400


def test_a_relief_begins_where_the_series_is_nearer_to_its_baseline() -> None:
    levels = levels_after(np.r_[noisy(100), noisy(60, seed=1) + 0.4, noisy(20, seed=2)])
    levels.level[0], levels.baseline[0] = 0.4, 0.0
    assert Onsets(Thresholds(), OnsetConfig()).of_relief(0, levels) == 160


def test_knees_and_first_levels_off_the_base() -> None:
    places = np.arange(20)
    assert knee(places, np.maximum(0.0, places - 12.0), 0.0, OnsetConfig()) in (11, 12)
    bent = np.maximum(0.0, 0.1 * (places - 8)) + noisy(20, 0.05)
    assert knee(places, bent, 0.0, OnsetConfig(), 9.0) >= knee(places, bent, 0.0, OnsetConfig())
    assert knee(np.arange(1), np.zeros(1), 0.0, OnsetConfig()) == 0
    assert began(np.full(3, 1.0), 0.0, 0.5) == 0
    assert began(np.zeros(3), 0.0, 0.5) == 2


@pytest.mark.parametrize(
    ("change", "goes_on"),
    [
        ({"onset": 205, "after": 2.0}, True),  # within ten rows, however large
        ({"onset": 250}, True),  # a further small one within a hundred
        ({"onset": 250, "after": 2.0}, False),  # a large one is news
        ({"onset": 400}, False),
        ({"onset": 400, "basis": "baseline"}, True),  # the rest of a drift
        ({"onset": 400, "basis": "baseline", "after": 1.4}, True),  # however much of it was left
        ({"onset": 250, "after": 0.9}, False),  # the other way
    ],
)
def test_what_goes_on_with_a_change_is_not_told_again(change: dict[str, object], goes_on: bool) -> None:
    first = Shift(0, 200, 209, 1.0, 1.12, "segment")
    further = replace(first, **{"before": 1.12, "after": 1.25, "reported": 420, **change})  # type: ignore[arg-type]
    told, all_told = (
        LastReported(Thresholds(), OnsetConfig()),
        LastReported(Thresholds(leave_out=("continuation",)), OnsetConfig()),
    )
    for one in (told, all_told):
        one.resize(1)
        assert not one.goes_on(first)
        one.note(first)
    assert told.goes_on(further) is goes_on
    assert not all_told.goes_on(further)
    told.forget(np.array([True]))
    assert not told.goes_on(further)


def test_a_rise_begins_within_its_segment() -> None:
    values = noisy(324)
    values[:300] += 0.5
    values[304:] += 0.5
    levels = levels_after(values)
    levels.begin(0, 300, 0.0)  # a dip that was told
    assert 300 <= Onsets(Thresholds(), OnsetConfig()).of_rise(0, ROWS, levels) <= 310
