"""Steps by rank and bin of time: as a slow plain twin adds them up, whatever comes."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwarden.dashboards.overview.pace import BIN_S, BINS, Pace
from trainwarden.records import IterationRecord

T0_S = 1_000_000.0


def record(rank: int, ends_s: tuple[float, ...], node: str = "n0", **columns: tuple) -> IterationRecord:
    size = len(ends_s)
    columns = {"steps": tuple(range(size)), "duration_s": (1.0,) * size, **columns}
    return IterationRecord(job="j", node=node, rank=rank, incarnation="a", end_s=ends_s, **columns)


def plain(told: list[tuple[float, IterationRecord]]) -> dict[tuple[str, int, int], float]:
    """Mean by quantity, rank and bin from the epoch, one step after the other."""
    sums: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    late_s: dict[str, list[float]] = defaultdict(list)
    for arrived_s, one in told:
        late_s[one.node].append(arrived_s - one.end_s[-1])
        ahead_s = min(late_s[one.node][-64:])
        for index, end_s in enumerate(one.end_s):
            bin_ = math.floor(min(end_s + ahead_s, arrived_s) / BIN_S)
            for name, column in (("duration", one.duration_s), ("compute", one.compute_s), ("wait", one.wait_s)):
                if column and column[index] is not None:
                    sums[name, one.rank, bin_].append(column[index])
    return {place: sum(values) / len(values) for place, values in sums.items()}


seconds = st.floats(0.0, 50.0, width=32)
told_of = st.tuples(
    st.floats(0.0, 4_000.0),  # when it comes
    st.sampled_from(["n0", "n1"]),
    st.integers(0, 3),
    st.lists(st.tuples(st.floats(-60.0, 5.0), seconds, st.none() | seconds), min_size=1, max_size=4),
    st.booleans(),
)


@pytest.mark.thorough
@given(st.lists(told_of, max_size=12))
def test_means_are_those_of_the_plain_twin(drawn):
    pace, told = Pace(), []
    for after_s, node, rank, steps, split in sorted(drawn, key=lambda one: one[0]):
        arrived_s = T0_S + after_s
        columns = {"duration_s": tuple(step[1] for step in steps)}
        if split:
            columns |= {"compute_s": tuple(step[2] for step in steps), "wait_s": tuple(step[1] for step in steps)}
        one = record(rank, tuple(arrived_s + step[0] for step in steps), node, **columns)
        told.append((arrived_s, one))
        pace.apply(one, arrived_s)
        if rank % 2:
            pace.apply_pending()
    pace.apply_pending()
    expected = plain(told)
    newest = max((place[2] for place in expected), default=0)
    for name in ("duration", "compute", "wait"):
        means = pace.mean(name)
        assert means.shape == (len(pace.ranks), BINS)
        for row, rank in enumerate(pace.ranks):
            for column in range(BINS):
                there = expected.get((name, rank, newest - BINS + 1 + column))
                assert (
                    means[row, column] == pytest.approx(there, rel=1e-5, nan_ok=True)
                    if there is not None
                    else (np.isnan(means[row, column]))
                )


def test_nodes_whose_clocks_differ_stand_side_by_side():
    pace = Pace()
    for number in range(4):
        arrived_s = T0_S + 5.0 * number
        pace.apply(record(0, (arrived_s - 0.1,), "right"), arrived_s)
        pace.apply(record(1, (arrived_s + 86_400.0,), "ahead"), arrived_s)
        pace.apply(record(2, (arrived_s - 7_200.0,), "behind"), arrived_s)
    pace.apply_pending()
    assert (~np.isnan(pace.mean("duration", 4))).all()


def test_what_no_step_can_be_is_passed_over():
    pace = Pace()
    pace.apply(record(0, (T0_S,)), T0_S)
    pace.apply(record(0, (-1e300, T0_S)), T0_S)  # no integer of 64 bits is as far away
    pace.apply(record(0, (T0_S, T0_S), duration_s=(-3.0, 1e300)), T0_S)
    pace.apply(record(0, (T0_S, T0_S), duration_s=(1.0,), compute_s=()), T0_S)  # columns that do not fit
    pace.apply(record(0, (T0_S, T0_S), compute_s=(0.5,)), T0_S)
    pace.apply(record(0, ()), T0_S)
    pace.apply_pending()
    assert pace.mean("duration", 1).tolist() == [[1.0]]
    assert pace.mean("compute", 1).tolist() == [[0.5]]


def test_ranks_and_rows_are_of_one_moment():
    """Somebody may look between the taking of a batch and its settling."""
    pace = Pace()
    pace.apply(record(0, (T0_S,)), T0_S)
    assert (pace.ranks, pace.mean("duration").shape) == ([], (0, BINS))
    pace.apply_pending()
    pace.apply(record(1, (T0_S,)), T0_S)
    assert (pace.ranks, pace.mean("duration").shape) == ([0], (1, BINS))


def test_what_is_older_than_the_ring_goes():
    pace = Pace()
    pace.apply(record(0, (T0_S,)), T0_S)
    pace.apply_pending()
    later_s = T0_S + BINS * BIN_S
    pace.apply(record(1, (later_s,)), later_s)
    pace.apply_pending()
    means = pace.mean("duration")
    assert np.isnan(means[0]).all()
    assert np.flatnonzero(~np.isnan(means[1])).tolist() == [BINS - 1]
    assert np.isnan(pace.recent("duration")[0])
    assert pace.iteration_s()[-1] == 1.0
