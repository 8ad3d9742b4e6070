"""Passes of ring and tree: each link once, no rank in two pairs of a pass, a constant number of passes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainwarden.actions.validation.schedules import disjoint, ring, ring_and_tree, tree, turns

groups = st.integers(0, 300).flatmap(lambda count: st.permutations(range(count)))


def links_of(passes):
    return [frozenset(pair) for one in passes for pair in one]


def alone(passes):
    """No rank is in two pairs of one pass, so each link is measured alone."""
    return all(len({rank for pair in one for rank in pair}) == 2 * len(one) for one in passes)


@given(groups)
def test_a_ring_takes_two_passes_if_even_and_three_if_odd(ranks):
    count, passes = len(ranks), ring(ranks)
    expected = {frozenset((ranks[i], ranks[(i + 1) % count])) for i in range(count)} if count > 1 else set()
    assert set(links_of(passes)) == expected
    assert len(links_of(passes)) == len(expected)
    assert alone(passes)
    assert len(passes) == (count - 1 if count < 3 else 2 + count % 2) or count == 0


@given(groups)
def test_a_tree_takes_at_most_four_passes(ranks):
    passes = tree(ranks)
    expected = {frozenset((ranks[i], ranks[(i - 1) // 2])) for i in range(1, len(ranks))}
    assert set(links_of(passes)) == expected
    assert len(links_of(passes)) == len(expected)
    assert alone(passes)
    assert len(passes) <= 4
    assert len(passes) == 4 or len(ranks) < 5


@given(groups)
def test_both_together_measure_no_link_twice(ranks):
    passes = ring_and_tree(ranks)
    assert set(links_of(passes)) == set(links_of(ring(ranks))) | set(links_of(tree(ranks)))
    assert len(links_of(passes)) == len(set(links_of(passes)))
    assert alone(passes)
    assert all(passes)
    assert len(passes) <= 7


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] != pair[1])))
def test_pairs_in_passes_lose_none_and_meet_nowhere(pairs):
    passes = disjoint(pairs)
    assert sorted(pair for one in passes for pair in one) == sorted(pairs)
    assert alone(passes)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, 1, 2, 5])), max_size=30))
def test_turns_leave_no_rank_out_and_crowd_no_node(ranks):
    most = dict(ranks)  # one number for each node
    node = {rank: name for rank, (name, _) in enumerate(ranks)}
    order = turns(range(len(ranks)), node, {rank: most[name] for rank, name in node.items()})
    assert sorted(rank for turn in order for rank in turn) == list(range(len(ranks)))
    for turn in order:
        for name, number in most.items():
            assert number is None or sum(node[rank] == name for rank in turn) <= number
