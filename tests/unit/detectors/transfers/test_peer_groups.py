"""Who does the same work: the same kinds of calls, the same role, the same stage of a pipeline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulated_ranks.judged import Layout, Ranks, joined, window_of
from trainwarden.detectors.transfers.peer_groups import likes

LAYOUT = Layout(2, 2, 4)


def parts(codes: np.ndarray) -> set[frozenset[int]]:
    """Ranks that are alike."""
    return {frozenset(np.flatnonzero(codes == code).tolist()) for code in np.unique(codes)}


@pytest.mark.parametrize("micro_batches", [2, 12])
def test_ranks_of_a_stage_are_alike_and_have_work_for_a_part_of_the_step(micro_batches):
    ranks = Ranks(LAYOUT, micro_batches=micro_batches)
    found = likes(joined(LAYOUT, *_first(ranks)), window_of(LAYOUT))
    assert parts(found.codes) == {frozenset(stage.ravel().tolist()) for stage in LAYOUT.grid}
    assert found.filled.tolist() == [micro_batches / (micro_batches + 3)] * LAYOUT.ranks


def test_ranks_may_have_been_heard_of_in_any_order():
    order = np.random.default_rng(1).permutation(LAYOUT.ranks)
    calls, number, took_s = _first(Ranks(LAYOUT))
    moved = replace(calls, column=order[calls.column], peer=np.where(calls.peer < 0, -1, order[calls.peer]))
    counts = replace(LAYOUT.counts, column=order[LAYOUT.counts.column])
    window = replace(window_of(LAYOUT), counts=counts)
    found = likes(joined(LAYOUT, moved, number, took_s), window)
    assert parts(found.codes[order]) == {frozenset(stage.ravel().tolist()) for stage in LAYOUT.grid}


def test_where_a_stage_is_one_rank_the_inner_ones_are_alike():
    layout = Layout(1, 1, 5)
    found = likes(joined(layout, *_first(Ranks(layout))), window_of(layout))
    assert parts(found.codes) == {frozenset({0}), frozenset({1, 2, 3}), frozenset({4})}


def test_pairs_with_a_communicator_each_tell_the_first_and_the_last_alone():
    """Which stage another rank is in is not known then, nor how many there are."""
    window, counts = window_of(LAYOUT), LAYOUT.counts
    apart = LAYOUT.tp * LAYOUT.dp
    first = np.arange(LAYOUT.ranks - apart)
    comm = counts.sizes.size + np.repeat(first, 2)
    counts = replace(
        counts, comm=comm, column=np.stack((first, first + apart), axis=1).ravel(), place=np.tile((0, 1), first.size),
        sizes=np.append(counts.sizes, np.full(first.size, 2)),
        paired=np.append(counts.paired, np.ones(first.size, dtype=bool)),
    )  # fmt: skip
    step = replace(joined(LAYOUT, *_first(Ranks(LAYOUT))), turns=np.zeros(LAYOUT.ranks, dtype=np.int64))
    found = likes(step, replace(window, counts=counts))
    assert parts(found.codes) == {frozenset(range(4)), frozenset(range(4, 12)), frozenset(range(12, 16))}
    assert set(found.filled.tolist()) == {1.0}


def test_without_counts_kinds_of_calls_tell():
    window = replace(window_of(LAYOUT), counts=None)
    found = likes(joined(LAYOUT, *_first(Ranks(LAYOUT))), window)
    assert parts(found.codes) == {frozenset(range(LAYOUT.ranks))}


def _first(ranks: Ranks) -> tuple[object, int, float]:
    calls, took_s = ranks.step()
    return calls, 0, took_s
