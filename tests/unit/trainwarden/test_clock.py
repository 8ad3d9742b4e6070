"""A clock whose steps ahead count once they have lasted."""

from __future__ import annotations

from tests.doubles import ManualClock
from trainwarden.clock import JITTER_S, STEP_LASTS_S, SteadyClock


def test_a_step_ahead_counts_once_it_has_lasted_and_a_step_back_at_once() -> None:
    clock = ManualClock(1000.0)
    steady = SteadyClock(clock)
    clock.ahead_s = 3600.0
    assert steady.now_s() == 1000.0
    clock.sleep(STEP_LASTS_S / 2)
    clock.ahead_s = 0.0
    assert steady.now_s() == clock.now_s()
    clock.ahead_s = 3600.0
    for _ in range(2):
        assert steady.now_s() == clock.monotonic_s()
        clock.sleep(STEP_LASTS_S / 2)
    assert steady.now_s() == clock.now_s()
    clock.ahead_s = -3600.0
    assert steady.now_s() == clock.now_s()
    clock.ahead_s += JITTER_S  # slewed
    assert steady.now_s() == clock.now_s()
