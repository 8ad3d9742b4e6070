"""What is known of levels: learnt at first, known better later, taken along where a program gets faster."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.detection.change_series import Floats
from tests.unit.detectors.pace.shifts.constructed import noisy
from trainwarden.detectors.pace.shifts.level_shifts import LevelShifts, ShiftConfig
from trainwarden.detectors.pace.shifts.levels import Levels
from trainwarden.detectors.pace.shifts.shift import Mechanism, Thresholds


def after(values: Floats, *leave_out: Mechanism) -> Levels:
    levels = Levels(Thresholds(leave_out=leave_out))
    levels.resize(1)
    for seq, x in enumerate(values):
        row = np.array([x])
        levels.calibrate(seq, levels.observe(seq, row))
        levels.mark(seq)
        levels.follow(row)
    return levels


def test_a_level_is_known_after_twelve_values_and_better_later() -> None:
    assert np.isnan(after(noisy(11)).level).all()
    values = np.r_[noisy(12) + 0.1, noisy(60, seed=1)]
    assert abs(after(values[:12]).baseline[0] - 0.1) < 0.02
    assert abs(after(values[:60]).baseline[0]) < 0.05
    assert after(np.full(12, 0.5)).scale.tolist() == [0.01]  # a constant series has the least noise there is


def test_unknown_values_count_for_nothing() -> None:
    values = np.full(24, np.nan)
    values[::2] = 0.5
    assert np.isnan(after(values[:22]).level).all()
    assert after(values).level.tolist() == [0.5]


def test_the_baseline_follows_a_program_that_gets_faster_without_a_step() -> None:
    values = noisy(500) - np.clip(np.arange(500) - 100, 0, 300) * np.log(1.2) / 300
    assert abs(after(values).baseline[0] + np.log(1.2)) < 0.05
    assert abs(after(values, "gentle_gain").baseline[0]) < 0.03


def test_a_step_after_a_gentle_gain_is_told_as_soon_as_any() -> None:
    places = np.arange(700)[:, None]
    gains = np.log([1.12, 1.12, 1.2, 1.4])
    steps = np.array([1.0, 1.5, 1.0, 0.5]) * gains  # also back to the very level that the program began with
    values = noisy(2800, seed=4).reshape(700, 4) - gains * np.clip((places - 100) / 300, 0.0, 1.0)
    values += np.where(places >= 500, steps, 0.0)
    shifts = LevelShifts(ShiftConfig())
    found = [shift for seq, row in enumerate(values) for shift in shifts.update(seq, row)]
    assert sorted((shift.series, shift.onset) for shift in found) == [(series, 500) for series in range(4)]
    assert max(shift.reported for shift in found) <= 509


def test_a_slower_segment_is_raised_until_one_is_near_the_baseline() -> None:
    levels = after(noisy(100))
    levels.begin(0, 90, 0.3)
    assert (levels.raised_since[0], levels.segment[0], levels.age[0]) == (90, 90, 10)
    levels.begin(0, 95, 0.2)
    assert levels.raised_since[0] == 90
    levels.rebase(0)
    assert (levels.raised_since[0], levels.baseline[0]) == (-1, 0.2)
    levels.begin(0, 98, 0.0)
    assert levels.raised_since[0] == -1


def test_another_filter_moves_all_levels_along() -> None:
    levels = after(noisy(100))
    past = levels.rows.recent(96).copy() + 0.5
    before = {name: getattr(levels, name)[0] for name in ("level", "baseline", "trail", "slow")}
    levels.filter_again(np.array([0]), past)
    assert all(abs(getattr(levels, name)[0] - old - 0.5) < 1e-9 for name, old in before.items())
    assert np.array_equal(levels.rows.recent(96), past)
    levels.forget(np.array([True]))
    assert np.isnan(levels.level).all()
    assert levels.rows.of(0)[1].size == 0


def test_only_what_is_near_the_baseline_is_healthy() -> None:
    levels = after(noisy(100))
    assert [levels.is_healthy(0, level) for level in (-0.3, -0.05, 0.05, 0.15)] == [False, True, True, False]
