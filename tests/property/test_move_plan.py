"""The order of a job's nodes: against brute force, never worse than today, and links as far as they were measured."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import given

from tests.examples import examples
from trainwarden.actions.planners import node_order, placement
from trainwarden.actions.planners.move import best_move, byte_s_between
from trainwarden.actions.planners.node_order import best_order
from trainwarden.actions.planners.slow import Slowness
from trainwarden.actions.planners.transfers import Link, Transfers
from trainwarden.errors import DataError
from trainwarden.parallelism.layout import Layout

FAST, SLOW = 1e-9, 2e-8
Links = dict[frozenset[int], float]


def predicted_s(of: placement.Layout, per_node: int, order: Sequence[int], pp_first: bool) -> float:
    """An iteration by the words of the docs, one rank after the other; slow."""
    tp, dp, pp, m = of.tp, of.dp, of.pp, of.micro_batches
    work = of.stage_work

    def gpu(t: int, d: int, p: int) -> int:
        rank = t + tp * (p + pp * d) if pp_first else t + tp * (d + dp * p)
        return order[rank // per_node] * per_node + rank % per_node

    def slowest(gpus: Sequence[int]) -> float:
        pairs = itertools.combinations([one // per_node for one in gpus], 2)
        return max((float(of.byte_s[a, b]) for a, b in pairs), default=0.0)

    stages, links = [], []
    for p in range(pp):
        took = [
            max(float(of.compute_s[gpu(t, d, p)]) for t in range(tp)) * (1.0 if work is None else float(work[p]))
            + slowest([gpu(t, d, p) for t in range(tp)]) * of.tp_bytes / m
            for d in range(dp)
        ]
        stages.append(max(took))
        if p + 1 < pp:
            ends = [(gpu(t, d, p), gpu(t, d, p + 1)) for t in range(tp) for d in range(dp)]
            links.append(max(slowest(pair) for pair in ends) * of.pp_bytes / m)
    reductions = [slowest([gpu(t, d, p) for d in range(dp)]) * of.dp_bytes for t in range(tp) for p in range(pp)]
    return sum(stages) + sum(links) + (m - 1) * max(stages + links) + max(reductions)


@st.composite
def grids(draw: st.DrawFn, most_nodes: int = 6) -> tuple[placement.Layout, np.ndarray[Any, Any], int, bool]:
    tp, dp, pp = draw(st.sampled_from([(1, 2, 2), (2, 2, 2), (1, 3, 2), (2, 1, 3), (1, 2, 3), (2, 3, 2), (1, 4, 1)]))
    world = tp * dp * pp
    per_node = draw(st.sampled_from([one for one in (1, 2, 4) if world % one == 0 and 1 < world // one <= most_nodes]))
    nodes, rng = world // per_node, np.random.default_rng(draw(st.integers(0, 2**32)))
    byte_s = np.triu(rng.choice([FAST, 2 * FAST, SLOW], (nodes, nodes), p=[0.7, 0.1, 0.2]), 1)
    grid = np.arange(world).reshape((dp, pp, tp)) if (pp_first := draw(st.booleans())) else None
    ranks = np.arange(world) if grid is None else grid.transpose(1, 0, 2).reshape(-1)
    layout = placement.Layout(
        tp, dp, pp, draw(st.integers(1, 8)), rng.choice([1.0, 1.0, 1.5], world), np.arange(world) // per_node,
        byte_s + byte_s.T, *(float(one) for one in rng.choice([0.0, 1e6, 1e8, 1e9], 3)), rng.uniform(0.05, 0.1, pp),
    )  # fmt: skip
    return layout, ranks, per_node, pp_first


@examples(60)
@given(grids())
def test_no_order_of_few_nodes_is_better_and_the_prediction_is_the_slow_twins(
    question: tuple[placement.Layout, np.ndarray[Any, Any], int, bool],
) -> None:
    layout, ranks, per_node, pp_first = question
    found, nodes = best_order(layout, ranks), range(len(layout.byte_s))
    every = {order: predicted_s(layout, per_node, order, pp_first) for order in itertools.permutations(nodes)}
    assert found.before_s == pytest.approx(every[tuple(nodes)])
    assert found.after_s == pytest.approx(every[found.order])
    assert found.exact
    assert found.after_s <= min(every.values()) * (1.0 + 2.0 * node_order.LEAST_GAIN)
    if found.order != tuple(nodes):
        assert found.after_s < found.before_s


@examples(60)
@given(grids())
def test_a_search_among_many_is_never_worse_than_today(
    question: tuple[placement.Layout, np.ndarray[Any, Any], int, bool],
) -> None:
    layout, ranks, _, _ = question
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(node_order, "EXACT_NODES", 1)
        found = best_order(layout, ranks)
    assert sorted(found.order) == list(range(len(layout.byte_s)))
    assert found.after_s <= found.before_s
    assert found.after_s >= best_order(layout, ranks).after_s * (1.0 - 1e-9)
    assert not found.exact


@pytest.mark.thorough
def test_a_thousand_nodes_are_answered_within_seconds_and_one_slow_link_is_left() -> None:
    dp, pp = 128, 8
    byte_s = np.full((1024, 1024), FAST)
    byte_s[3, 4] = byte_s[4, 3] = SLOW  # of one data-parallel group
    np.fill_diagonal(byte_s, 0.0)
    layout = placement.Layout(
        8, dp, pp, 16, np.ones(8192), np.arange(8192) // 8, byte_s, 0.0, 1e9, 1e7, np.full(pp, 0.05)
    )
    before_s = time.process_time()
    found = best_order(layout, np.arange(8192))
    assert time.process_time() - before_s < 20.0
    assert (found.exact, found.before_s > 20.0, found.after_s < 3.0) == (False, True, True)


# --- links -----------------------------------------------------------------------------------------------------------


def seen(groups: Sequence[Sequence[int]], links: Links) -> list[Link]:
    """What groups would take over `links`; those that are not named are fast."""
    return [
        Link("dp", tuple(f"n{one}" for one in group),
             max(links.get(frozenset(pair), FAST) for pair in itertools.combinations(group, 2)))
        for group in groups
    ]  # fmt: skip


GRID = [(0, 1, 2), (3, 4, 5), (0, 3), (1, 4), (2, 5)]  # three data-parallel ranks in each of two stages
NAMES = [f"n{one}" for one in range(6)]


def test_a_slow_port_is_told_from_the_groups_that_it_shares() -> None:
    links = {frozenset((2, other)): SLOW for other in range(6)}
    found = byte_s_between(NAMES, seen(GRID, links))
    assert [set(row) - {0.0} for row in found[[0, 1]].tolist()] == [{FAST, SLOW}] * 2
    assert found[0, 1] == FAST, "neither of them is what makes their group slow"
    assert all(found[2, other] == SLOW for other in (0, 1, 3, 4, 5)), "not measured with two of them"


def test_of_a_slow_group_no_link_is_cleared_where_nothing_tells_them_apart() -> None:
    found = byte_s_between(NAMES, seen(GRID, {frozenset((0, 1)): SLOW}))
    assert found[0, 1] == found[0, 2] == found[1, 2] == SLOW
    assert found[0, 4] == FAST
    accused = byte_s_between(NAMES, seen(GRID, {frozenset((0, 1)): SLOW}), [frozenset(("n0", "n1"))])
    assert (accused[0, 1], accused[0, 2], accused[1, 2]) == (SLOW, FAST, FAST)


def test_a_node_of_whose_links_nothing_was_measured_is_named() -> None:
    with pytest.raises(DataError, match="nothing is measured of the links of n5"):
        byte_s_between(NAMES, seen([(0, 1, 2), (3, 4)], {}))


@examples(40)
@given(st.integers(0, 2**32))
def test_no_link_that_was_measured_alone_is_mistaken_and_none_is_called_faster_than_all_of_its_node(seed: int) -> None:
    rng = random.Random(seed)
    links = {frozenset(pair): rng.choice([FAST, FAST, SLOW]) for pair in itertools.combinations(range(6), 2)}
    found = byte_s_between(NAMES, seen(GRID, links))
    for one, other in GRID[2:]:
        group = next(group for group in GRID[:2] if one in group)
        assert found[one, other] == links[frozenset((one, other))], group
    assert np.array_equal(found, found.T)
    assert set(np.unique(found)) <= {0.0, FAST, SLOW}


# --- from evidence ---------------------------------------------------------------------------------------------------

LAYOUT = Layout(world_size=4, sizes={"tp": 1, "cp": 1, "dp": 2, "pp": 2})
PLACED = [(f"n{one}", (one,)) for one in range(4)]
# Stages and transfers of 0.1 + 0.1 + 0.01 s, three more turns of 0.1 s, and a reduction of 2 s where it is slow.
MEASURED = Slowness(
    layout=LAYOUT, healthy_iteration_s=0.61, iteration_s=2.51,
    transfers=Transfers(
        dp_bytes=1e8, pp_bytes=4e7, micro_batches=4, ranks=(0, 1, 2, 3), working_s=(0.4,) * 4,
        links=tuple(
            Link("dp" if one in ((0, 1), (2, 3)) else "pp", (f"n{one[0]}", f"n{one[1]}"),
                 SLOW if one == (2, 3) else FAST)
            for one in ((0, 1), (2, 3), (0, 2), (1, 3))
        ),
    ),
)  # fmt: skip


def with_transfers(**what: Any) -> Slowness:
    assert MEASURED.transfers is not None
    return msgspec.structs.replace(MEASURED, transfers=msgspec.structs.replace(MEASURED.transfers, **what))


def test_a_slow_link_goes_out_of_the_group_that_exchanges_much() -> None:
    found = best_move(MEASURED, PLACED)
    assert found.today == ("n0", "n1", "n2", "n3")
    stages = [set(found.node_order[:2]), set(found.node_order[2:])]
    assert {"n2", "n3"} not in stages
    assert found.iteration_s == 2.51
    assert found.predicted_s == pytest.approx(0.61, abs=0.02)
    assert found.removed == pytest.approx(1.0, abs=0.01)
    assert found.exact


def test_without_a_slow_link_nobody_moves() -> None:
    links = tuple(Link(one.kind, one.nodes, SLOW) for one in MEASURED.transfers.links)  # type: ignore[union-attr]
    slow = with_transfers(links=links)
    found = best_move(msgspec.structs.replace(slow, iteration_s=3.2), PLACED)
    assert (found.node_order, found.removed) == (found.today, 0.0)


@pytest.mark.parametrize(
    ("slowness", "placed", "said"),
    [
        (msgspec.structs.replace(MEASURED, layout=None), PLACED, r"not known whole \(no rank has reported it\)"),
        (
            msgspec.structs.replace(MEASURED, layout=msgspec.structs.replace(LAYOUT, sizes={**LAYOUT.sizes, "ep": 2})),
            PLACED, "expert parallel groups are not in the prediction",
        ),
        (msgspec.structs.replace(MEASURED, transfers=None), PLACED, "profiler plug-in has told nothing"),
        (with_transfers(dp_bytes=0.0), PLACED, "what data parallel groups exchange between nodes is not measured"),
        (with_transfers(micro_batches=0), PLACED, "number of micro-batches is not known"),
        (with_transfers(working_s=(0.4, 0.4, None, 0.4)), PLACED, "how long rank 2 computes is not known"),
        (with_transfers(links=()), PLACED, "nothing is measured of the links of n0"),
        (msgspec.structs.replace(MEASURED, healthy_iteration_s=None), PLACED, "how much longer"),
        (msgspec.structs.replace(MEASURED, iteration_s=9.0), PLACED, "predicted to take 2.51 s today, and takes 9 s"),
        (MEASURED, [("n0", (0, 1)), ("n1", (2,)), ("n2", (3,))], "as many ranks on each node"),
        (MEASURED, [], "as many ranks on each node"),
        (
            msgspec.structs.replace(
                MEASURED, layout=Layout(world_size=10**15, sizes={"tp": 1, "cp": 1, "dp": 10**15, "pp": 1})
            ),
            PLACED, "as many ranks on each node",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(slowness: Slowness, placed: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        best_move(slowness, placed)
