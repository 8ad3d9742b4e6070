"""Slow rises and gentle reliefs: what has left its level, or come back to it, without any one clear step."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.detection.change_series import Floats
from tests.unit.detectors.pace.shifts.constructed import noisy
from trainwarden.detectors.pace.shifts.drift import DriftConfig, DriftProposer, RecoveryProposer
from trainwarden.detectors.pace.shifts.levels import Levels
from trainwarden.detectors.pace.shifts.shift import Mechanism, Thresholds

ONE = np.ones(1, dtype=np.bool_)


def first_rise(values: Floats, *leave_out: Mechanism, stride: int = 1) -> int | None:
    """The first row in which a slow rise of the one series is proposed."""
    thresholds = Thresholds(leave_out=leave_out)
    levels, rises = Levels(thresholds), DriftProposer(thresholds, DriftConfig())
    levels.resize(1)
    for seq, x in enumerate(values):
        row = np.array([x])
        levels.calibrate(seq, levels.observe(seq, row))
        levels.mark(seq)
        levels.follow(row)
        if rises.candidates(seq, ONE, np.array([stride]), levels):
            return seq
    return None


def rising(length: int, rows_for_10_percent: int, begin: int = 200) -> Floats:
    return noisy(length) + np.clip(np.arange(length) - begin, 0, None) * np.log(1.1) / rows_for_10_percent


def test_a_rise_is_proposed_once_its_newest_values_are_that_high() -> None:
    seq = first_rise(rising(500, 200))
    assert seq is not None
    assert 390 <= seq <= 420
    assert first_rise(rising(500, 200), "drift") is None
    assert first_rise(noisy(500)) is None


def test_a_rise_as_slow_as_ever_is_the_programs_own() -> None:
    assert first_rise(rising(1300, 1000, begin=0)) is None
    assert first_rise(rising(1300, 1000, begin=0), "own_drift") is not None


def test_rows_that_stand_for_many_iterations_rise_as_slowly_as_those_do() -> None:
    assert first_rise(rising(330, 250, begin=0)) is not None
    assert first_rise(rising(330, 250, begin=0), stride=10) is None


def test_a_step_is_no_slow_rise_until_half_of_the_older_values_are_of_it() -> None:
    values = noisy(300, 0.03)
    values[200:] += 0.2
    young, old = first_rise(values, "drift_wait"), first_rise(values)
    assert young is not None
    assert old is not None
    assert young <= 213
    assert 217 <= old <= 220
    stairs = noisy(300)
    stairs[200:] += np.log(1.05)
    stairs[230:] += np.log(1.07)
    assert first_rise(stairs) == first_rise(stairs, "drift_wait")


def test_a_series_is_back_when_its_newest_values_are_near_the_baseline() -> None:
    levels, reliefs = Levels(Thresholds()), RecoveryProposer(Thresholds(), DriftConfig())
    levels.resize(1)
    for seq, x in enumerate(np.r_[noisy(60), noisy(15, seed=1) + 0.02]):
        levels.calibrate(seq, levels.observe(seq, np.array([x])))
    levels.level[0], levels.raised_since[0] = 0.3, 40
    ((series, level),) = reliefs.candidates(74, ONE, levels)
    assert series == 0
    assert abs(level - 0.02) < 0.01
    assert reliefs.candidates(45, ONE, levels) == []  # too soon
    assert RecoveryProposer(Thresholds(leave_out=("relief",)), DriftConfig()).candidates(74, ONE, levels) == []
