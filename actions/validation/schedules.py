"""Which links are measured in which pass: rings in two passes (three if odd), trees in four, whatever their size.

Falcon (Wu et al. 2024), section 4.3 and figure 9, with two differences: a pair is measured in both directions within
its pass, and Greyhound's code, which leaves out links of the tree, is not followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Pair = tuple[int, int]
Pass = tuple[Pair, ...]
"""Links that are measured at the same time: no rank is in two of them."""


def ring(ranks: Sequence[int]) -> tuple[Pass, ...]:
    """Every link between neighbours of a ring, in two passes, or three where the number of ranks is odd.

    Parameters
    ----------
    ranks : sequence of int
        Ranks in the order of the ring.

    Returns
    -------
    tuple of Pass
        One pass for two ranks, as their ring has one link; none for one rank.

    Examples
    --------
    >>> ring([0, 1, 2, 3])
    (((0, 1), (2, 3)), ((1, 2), (3, 0)))
    >>> ring([0, 1, 2])
    (((0, 1),), ((1, 2),), ((2, 0),))
    """
    count = len(ranks)
    if count < 3:
        return ((tuple(ranks),),) if count == 2 else ()  # type: ignore[return-value]
    links = [(ranks[place], ranks[(place + 1) % count]) for place in range(count)]
    last = () if count % 2 == 0 else ((links.pop(),),)
    return (tuple(links[0::2]), tuple(links[1::2]), *last)


def tree(ranks: Sequence[int]) -> tuple[Pass, ...]:
    """Every link between a child and its parent in a binary tree, in at most four passes.

    The pass of a link is the side of its child (left, right) and whether the child's level is even or odd: a rank's own
    link upwards and its two downwards differ in one or the other. Place i has its children at places 2i + 1 and 2i + 2.

    Examples
    --------
    >>> tree([0, 1, 2, 3, 4, 5, 6])
    (((1, 0),), ((2, 0),), ((3, 1), (5, 2)), ((4, 1), (6, 2)))
    """
    passes: dict[tuple[int, int], list[Pair]] = {}
    for place in range(1, len(ranks)):
        level = (place + 1).bit_length() - 1
        side = (place + 1) % 2
        passes.setdefault((1 - level % 2, side), []).append((ranks[place], ranks[(place - 1) // 2]))
    return tuple(tuple(passes[key]) for key in sorted(passes))


def ring_and_tree(ranks: Sequence[int]) -> tuple[Pass, ...]:
    """The passes of the ring, then those of the tree without the links that the ring has: seven passes at most.

    Examples
    --------
    >>> ring_and_tree([0, 1, 2])
    (((0, 1),), ((1, 2),), ((2, 0),))
    """
    first = ring(ranks)
    known = {frozenset(pair) for one in first for pair in one}
    rest = (tuple(pair for pair in one if frozenset(pair) not in known) for one in tree(ranks))
    return (*first, *(one for one in rest if one))


def disjoint(pairs: Iterable[Pair]) -> tuple[Pass, ...]:
    """`pairs` in passes: each goes to the first in which neither of its ranks is taken.

    Examples
    --------
    >>> disjoint([(0, 1), (1, 2), (3, 4)])
    (((0, 1), (3, 4)), ((1, 2),))
    """
    passes: list[list[Pair]] = []
    for pair in pairs:
        for one in passes:
            if not any(set(pair) & set(other) for other in one):
                one.append(pair)
                break
        else:
            passes.append([pair])
    return tuple(tuple(one) for one in passes)


def turns(
    ranks: Iterable[int], node: Mapping[int, str], at_once: Mapping[int, int | None]
) -> tuple[tuple[int, ...], ...]:
    """`ranks` in turns: on each node at most so many compute at once as it has processors.

    Parameters
    ----------
    ranks : iterable of int
    node : mapping of int to str
        The node of each rank.
    at_once : mapping of int to int or None
        How many ranks of a rank's node may compute at once; None where each has a device of its own.

    Examples
    --------
    >>> turns([0, 1, 2], {0: "a", 1: "a", 2: "b"}, {0: 1, 1: 1, 2: None})
    ((0, 2), (1,))
    """
    order: list[list[int]] = []
    before: dict[str, int] = {}
    for rank in ranks:
        most = at_once[rank]
        turn = 0
        if most is not None:
            turn = before.get(node[rank], 0) // max(1, most)
            before[node[rank]] = before.get(node[rank], 0) + 1
        while len(order) <= turn:
            order.append([])
        order[turn].append(rank)
    return tuple(tuple(one) for one in order)
