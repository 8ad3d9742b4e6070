"""Steps whose numbers begin again are exported once each, however often they were delivered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainwarden.trainer_offline.archive.export import Laps


def test_numbers_that_begin_again_each_epoch_are_other_steps() -> None:
    laps = Laps()
    labels = [place % 60 for place in range(180)]
    assert sum(laps.add(label, float(at)) for at, label in enumerate(labels)) == 180
    assert sum(laps.add(label, float(at)) for at, label in enumerate(labels)) == 0


@given(
    st.lists(st.integers(0, 20), min_size=1, max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40)))
)
def test_every_step_is_exported_once_whatever_comes_again(labels: list[int], again: list[tuple[int, int]]) -> None:
    laps = Laps()
    assert all([laps.add(label, float(at)) for at, label in enumerate(labels)])
    for first, count in again:
        for at in range(first, min(first + count, len(labels))):
            assert not laps.add(labels[at], float(at))
