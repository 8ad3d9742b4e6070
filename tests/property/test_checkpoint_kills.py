"""Some of the seeded kills that `python -m tests.benchmarks.checkpoint_kills` has all of."""

from __future__ import annotations

import pytest

from tests.benchmarks.checkpoint_kills import counted


@pytest.mark.thorough
def test_whoever_is_killed_the_newest_whole_checkpoint_is_restored():
    found = counted(12)
    assert sum(sum(ends.values()) for ends in found.values()) == 12
    assert all("the newest whole checkpoint" in ends for ends in found.values())
