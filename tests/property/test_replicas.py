"""Splits for replicas of many ranks against brute force, and which ranks count as one replica."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden.actions.planners.slow import Replica, Slowness, best_split, even_split, relieved, replicas, split
from trainwarden.errors import DataError
from trainwarden.parallelism.layout import Layout

SECONDS = st.sampled_from([0.1, 0.2, 0.25, 0.5, 1.0]) | st.floats(0.01, 5.0)


def finish_s(found: list[Replica], counts: tuple[int, ...]) -> float:
    return max(one.after_s(count) for one, count in zip(found, counts, strict=True))


@examples(200)
@given(st.lists(st.tuples(SECONDS, SECONDS), min_size=1, max_size=4), st.integers(0, 9))
def test_no_split_is_better(times: list[tuple[float, float]], extra: int) -> None:
    found = [Replica((place,), batch_s, fill_s) for place, (batch_s, fill_s) in enumerate(times)]
    total = len(found) + extra
    counts = split(found, total)
    assert sum(counts) == total
    assert min(counts) >= 1
    best_s = min(
        finish_s(found, tuple(b - a for a, b in itertools.pairwise((0, *cuts, total))))
        for cuts in itertools.combinations(range(1, total), len(found) - 1)
    )
    assert finish_s(found, counts) == pytest.approx(best_s, rel=1e-12)


def test_too_few_micro_batches() -> None:
    with pytest.raises(DataError, match="cannot give each of 2 groups"):
        split([Replica((0,), 1.0, 1.0), Replica((1,), 1.0, 1.0)], 1)


LAYOUT = Layout(world_size=16, sizes={"tp": 2, "cp": 1, "dp": 4, "pp": 2})


def measured(slow: dict[int, float], layout: Layout | None = LAYOUT, each: int = 8) -> Slowness:
    """Every rank computes 0.1 s a micro-batch, those of `slow` so many times as long."""
    compute_s = tuple(0.1 * each * slow.get(rank, 1.0) for rank in range(16))
    return Slowness(ranks=tuple(range(16)), compute_s=compute_s, micro_batches=(each,) * 16, layout=layout)


def test_one_slow_rank_makes_its_replica_slow() -> None:
    found = best_split(measured({9: 2.0}), ())
    assert found.replicas == 4
    by_replica = [{found.micro_batches[rank] for rank in ranks} for ranks in LAYOUT.replicas()]
    assert all(len(counts) == 1 for counts in by_replica)
    assert [counts.pop() for counts in by_replica] == [5, 9, 9, 9]  # rank 9 is in the replica of 0, 1, 8, 9
    assert sum(found.micro_batches) == 8 * 16
    # 1 micro-batch fills the other stage, 8 at 0.2 s; afterwards 5 of 0.2 s or 9 of 0.1 s.
    assert found.compute_s == pytest.approx(0.1 + 8 * 0.2)
    assert found.predicted_compute_s == pytest.approx(0.1 + 5 * 0.2)


def test_without_a_layout_a_rank_is_a_replica() -> None:
    found = best_split(measured({9: 2.0}, None), ())
    assert found.replicas == 16
    assert found.micro_batches[9] == min(found.micro_batches)
    assert found.micro_batches[9] < found.micro_batches[8]


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (Layout(world_size=16, sizes={"tp": 2, "pp": 2}), "not known whole: .*context and data not known"),
        (Layout(world_size=16, contradictions=("a says 2, b says 4",)), "contradiction: a says 2, b says 4"),
        (Layout(world_size=8, sizes={"tp": 2, "cp": 1, "dp": 2, "pp": 2}), "8 ranks, and 16 were measured"),
        (Layout(world_size=16, sizes=LAYOUT.sizes, uneven=("ZeRO-3: every ...",)), "wrong here: ZeRO-3"),
    ],
)
def test_what_cannot_be_relied_on_is_refused_by_name(layout: Layout, why: str) -> None:
    with pytest.raises(DataError, match=why):
        best_split(measured({9: 2.0}, layout), ())
    with pytest.raises(DataError, match=why):
        even_split(measured({}, layout), (8,) * 16)


def test_ranks_of_a_replica_that_run_unequal_numbers_are_said() -> None:
    with pytest.raises(DataError, match=r"unequal numbers of micro-batches: 7 on rank 0, 8 on rank 1"):
        even_split(measured({}), (7, *(8,) * 15))


def test_the_even_split_is_even_over_replicas() -> None:
    split_of = best_split(measured({9: 2.0}), ()).micro_batches
    assert even_split(measured({}), split_of) == (8,) * 16
    odd = tuple(count + (rank in LAYOUT.replicas()[0]) for rank, count in enumerate((8,) * 16))
    again = even_split(measured({}), odd)  # 33 micro-batches on 4 replicas
    assert again == odd


def test_stages_that_differ_by_design_are_no_slow_ranks() -> None:
    head = dict.fromkeys(range(8, 16), 1.4)  # the second stage
    assert relieved(measured(head), (), 1.1)
    assert not relieved(measured(head, None), (), 1.1)
    assert not relieved(measured(head | {12: 2.0}), (), 1.1)


@examples(30)
@given(st.lists(st.floats(0.05, 2.0), min_size=16, max_size=16))
def test_a_replica_is_as_slow_as_its_slowest_rank_of_each_stage(seconds: list[float]) -> None:
    for one in replicas(LAYOUT, seconds):
        first, second = (max(seconds[rank] for rank in one.ranks if rank // 8 == stage) for stage in (0, 1))
        assert one.after_s(1) == pytest.approx(first + second)
        assert one.micro_batch_s == max(first, second)
