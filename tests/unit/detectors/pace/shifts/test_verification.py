"""Verification: what stands clear of the noise, what is smaller but known well enough, and what only looks like it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.benchmarks.detection.change_series import Floats
from tests.unit.detectors.pace.shifts.constructed import noisy, shifts_of, stepped, two_paces
from trainwarden.detectors.pace.shifts.robust import lasting_jitter, levels, wander
from trainwarden.detectors.pace.shifts.shift import Mechanism, Thresholds
from trainwarden.detectors.pace.shifts.verification import Verdict, Verification, VerificationConfig, restart_rows


def judge(values: Floats, *leave_out: Mechanism, onset: int = 200, raised: bool = False) -> Verdict | None:
    return Verification(Thresholds(leave_out=leave_out), VerificationConfig()).judge(
        values, 0, onset, raised=raised, fewest=4
    )


def test_four_values_of_a_clear_change_are_enough_and_three_are_not() -> None:
    values = stepped(0.3)
    assert judge(values[:203]) is None
    verdict = judge(values[:204])
    assert verdict is not None
    assert verdict.clear
    assert verdict.slower
    assert abs(verdict.high - verdict.low - 0.3) < 0.02


def test_a_small_change_is_not_clear_and_needs_evidence() -> None:
    verdict = judge(stepped(np.log(1.12))[:210])
    assert verdict is not None
    assert not verdict.clear
    assert judge(stepped(np.log(1.12), width=0.1)[:210]) is None
    assert judge(stepped(np.log(1.06))) is None  # known well, but too small to count


def test_slow_steps_among_others_move_the_median_but_not_the_trimmed_mean() -> None:
    values = noisy(214)
    values[200 + np.array([0, 1, 3, 4, 6, 8, 11, 13])] += 0.12
    assert judge(values) is None
    assert judge(values, "trimmed_mean") is not None


def test_what_has_been_as_slow_before_is_not_clear() -> None:
    values = stepped(0.24)[:204]
    values[174:200:10] += 0.3
    verdict = judge(values, "separate")
    assert verdict is not None
    assert verdict.clear
    assert judge(values) is None or not judge(values).clear  # type: ignore[union-attr]


def test_two_paces_in_turn_are_no_noise_of_the_level() -> None:
    assert lasting_jitter(np.tile([0.0, 0.2], 20), 0.01) == 0.01
    values = stepped(0.3)[:204] + np.tile([0.0, 0.15], 102)
    verdict, without = judge(values), judge(values, "paired_noise")
    assert verdict is not None
    assert verdict.clear
    assert without is None or not without.clear


def test_a_small_drop_after_a_pause_is_warm_caches() -> None:
    values = stepped(-np.log(1.15))[:220]
    assert judge(values) is not None
    values[199] += np.log(2.5)
    assert judge(values) is None
    assert judge(values, "restart_drop") is not None
    assert judge(values, raised=True) is not None  # the way back to healthy is no such drop


def test_a_single_slow_step_among_many_hides_no_drop() -> None:
    values = stepped(-np.log(1.12), width=0.005)[:220]
    values[215] += 1.5
    assert judge(values) is not None


def test_a_pause_every_ten_steps_hides_no_large_drop() -> None:
    values = stepped(-np.log(1.7), width=0.005)
    values[110::10] += 1.65
    verdict = judge(values[:210])
    assert verdict is not None
    assert verdict.clear
    assert [shift.onset in (200, 201) for shift in shifts_of(values)] == [True]  # a pause hides its first step
    rise = stepped(np.log(1.7), width=0.005)[:210]
    rise[205] -= 1.65
    assert judge(rise) is None or not judge(rise).clear  # type: ignore[union-attr]  # of a rise nothing is left out


def test_only_what_differs_at_all_is_looked_at() -> None:
    verification = Verification(Thresholds(), VerificationConfig())
    values = stepped(0.3)
    assert verification.plausible(values[:210], 0, 200, fewest=4)
    assert not verification.plausible(values[:210], 196, 200, fewest=4)  # too little of the segment before it
    assert not verification.plausible(noisy(210), 0, 200, fewest=4)


def test_a_slow_rise_must_be_more_than_noise() -> None:
    verification = Verification(Thresholds(), VerificationConfig())
    assert verification.rises(noisy(100), 0, 0.1, 24)
    assert not verification.rises(noisy(100, 0.08), 0, 0.1, 24)


@pytest.mark.thorough
def test_two_paces_by_chance_are_told_a_third_as_often_and_a_step_on_top_of_them_is_told() -> None:
    told, without, missed = 0, 0, 0
    for seed in range(12):
        values = two_paces(seed=seed)
        told += len([shift for shift in shifts_of(values) if shift.slower])
        without += len([shift for shift in shifts_of(values, ("wander",)) if shift.slower])
        values[300:] += np.log(1.5)
        found = [shift for shift in shifts_of(values) if shift.slower and 295 <= shift.onset <= 310]
        missed += not any(shift.reported <= 325 for shift in found)
    assert told <= without / 3
    assert missed == 0


def test_a_slow_rise_within_what_the_series_does_by_itself_is_none() -> None:
    verification = Verification(Thresholds(), VerificationConfig())
    without = Verification(Thresholds(leave_out=("wander",)), VerificationConfig())
    values = two_paces(160, seed=1)
    assert without.rises(values, 0, 0.1, 24)
    assert not verification.rises(values, 0, 0.1, 24)


def test_how_far_a_series_wanders_is_that_of_its_values_where_they_do_not_depend_on_each_other() -> None:
    values = np.random.default_rng(3).normal(0.0, 0.02, 4000)
    assert 0.017 < wander(values, 0, 10) < 0.022
    follow = np.zeros(4000)
    for place in range(1, 4000):
        follow[place] = 0.8 * follow[place - 1] + values[place]
    assert wander(follow, 0, 10) > 0.05  # a value alone varies by 0.033


def test_how_far_a_series_wanders_is_the_same_block_by_block() -> None:
    values, first = two_paces(100, seed=4), 33
    cut = np.clip(values, *np.percentile(values, (5.0, 95.0)))
    apart = [
        cut[place + 10 : place + 20].mean() - cut[place : place + 10].mean()
        for place in range(81)
        if not place < first < place + 20
    ]
    assert np.isclose(wander(values, first, 10), np.sqrt(np.mean(np.square(apart)) * 10 / 2))


def test_a_change_that_was_told_is_no_wandering_and_a_single_slow_step_hardly() -> None:
    values = stepped(0.3, at=80, length=160)
    assert wander(values, 0, 10) > 0.1
    assert wander(values, 80, 10) < 0.015
    values[120] += 3.0
    assert wander(values, 80, 10) < 0.02
    assert wander(values[:19], 0, 10) == 0.0


def test_levels_and_restarts_of_what_is_hardly_known() -> None:
    assert np.isnan(levels(np.full((4, 1), np.nan))).all()
    assert levels(np.array([[np.nan, 1.0], [2.0, 3.0]])).tolist() == [2.0, 2.0]
    assert restart_rows(noisy(40), 30, 3.0, 30) == 0


def test_a_small_change_is_none_while_the_smallest_that_counts_is_two_standard_errors_away() -> None:
    assert judge(stepped(np.log(1.088))) is None
    assert judge(stepped(np.log(1.1))) is not None
