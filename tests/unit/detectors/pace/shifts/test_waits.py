"""How long a verified change is waited for: bursts, restarts, warm caches, and what the series has done before."""

from __future__ import annotations

import numpy as np

from tests.benchmarks.detection.change_series import Floats
from tests.unit.detectors.pace.shifts.constructed import noisy, stepped
from trainwarden.detectors.pace.shifts.shift import Mechanism, Thresholds
from trainwarden.detectors.pace.shifts.verification import Verdict
from trainwarden.detectors.pace.shifts.waits import ConfirmationDelay, WaitConfig


def needed(
    values: Floats, *leave_out: Mechanism, size: float = 0.3, clear: bool = True, longest: int = 0, relief: bool = False
) -> int:
    waits = ConfirmationDelay(Thresholds(leave_out=leave_out), WaitConfig())
    return waits.needed(values, 200, Verdict(0.0, size, 30, clear), longest=longest, relief=relief)


def test_clear_changes_need_four_values_and_small_ones_ten() -> None:
    assert needed(stepped(0.3)[:204]) == 4
    assert needed(stepped(0.1)[:210], size=0.1, clear=False) == 10


def test_values_that_do_not_agree_are_a_burst_until_there_are_six() -> None:
    values = stepped(0.5)[:204]
    values[203] += 0.6
    assert needed(values) == 6
    assert needed(values, "cluster_wait") == 4
    assert needed(np.r_[values, noisy(2) + 0.5]) == 4


def test_a_restart_has_a_slow_start_of_its_own() -> None:
    values = noisy(204)
    values[200] += np.log(15.0)
    values[201:] += np.log(1.6)
    assert needed(values, "cluster_wait") == 13
    assert needed(values, "cluster_wait", "restart_wait") == 4


def test_faster_than_healthy_waits_longer_than_a_relief() -> None:
    values = stepped(-0.3)[:204]
    assert needed(values, size=-0.3) == 10
    assert needed(values, size=-0.3, relief=True) == 4
    assert needed(values, "faster_wait", size=-0.3) == 4
    assert needed(stepped(-0.1)[:210], size=-0.1, clear=False) == 20


def test_a_relief_whose_steps_differ_waits_as_what_is_faster_than_healthy() -> None:
    values = stepped(-0.3)[:204]
    values[202:] += (0.2, -0.2)
    assert needed(values, size=-0.3, relief=True) == 10
    assert needed(values, "faster_wait", "cluster_wait", size=-0.3, relief=True) == 4


def test_what_has_come_and_gone_before_must_last_longer_than_it_did() -> None:
    assert needed(stepped(0.3)[:204], longest=7) == 8
    assert needed(stepped(0.3)[:204], "excursion_wait", longest=7) == 4


def test_few_rows_are_sure_where_they_are_far_off_and_near_to_each_other() -> None:
    waits = ConfirmationDelay(Thresholds(), WaitConfig())
    change = Verdict(0.0, np.log(4.0), 30, clear=True)
    near, apart = np.log([3.6, 4.0, 4.4]), np.log([2.0, 4.0, 8.0])
    assert waits.sure(near, change)
    assert not waits.sure(apart, change)
    assert not waits.sure(near - np.log(3.0), Verdict(0.0, np.log(1.33), 30, clear=True))
    assert not waits.sure(near, Verdict(0.0, np.log(4.0), 30, clear=False))


def test_three_rows_are_enough_where_they_last_for_ten_iterations() -> None:
    assert Thresholds().fewest(np.array([1, 3, 4, 100])).tolist() == [4, 4, 3, 3]
    assert Thresholds(clear_steps=3).fewest(np.array([1, 100])).tolist() == [3, 3]
