"""Why no events are put around the last exchange of a sharded step: what they would show of a slow rank (a toy)."""

from __future__ import annotations

import pytest

from tests.sharded_tail import shown, times


def test_of_one_layer_the_tail_shows_a_slow_rank_and_of_many_next_to_nothing() -> None:
    assert shown(1, 1.5)[1] == pytest.approx(1.5, abs=0.05)
    own, seen = shown(24, 1.5)
    assert own == pytest.approx(1.5, abs=0.01)
    assert 1.0 < seen < 1.05
    assert 1.0 < shown(24, 1.5, ahead=False)[1] < seen
    assert shown(48, 2.0)[1] < 1.03  # twice as slow, and less than the noise of a step


def test_all_ranks_end_within_two_layers_of_one_another() -> None:
    _, ends = times(24, 1.5)
    assert max(ends) - min(ends) < 2 * 3 * 1.5
