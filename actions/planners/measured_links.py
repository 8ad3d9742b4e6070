"""What each link between two nodes carries, from what groups of nodes were seen to take: network tomography.

A group is as slow as the slowest link between any two of its nodes, so each of its links is at least as fast as it is,
and a link of several groups at least as fast as the fastest of them. A slow group of more than two nodes is explained
by a link that a validation has accused, or by a node of which nobody has seen a faster link, where there is one; its
other links are then not measured by it. A link that nobody has measured is taken to be as fast as the slower of the
best that its two nodes have shown.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.actions.planners.transfers import Kind, Link
from trainwarden.errors import DataError

Floats = npt.NDArray[np.float64]
NEARLY: Final = 1.1  # times as long counts as slower (Falcon, section 4.3)


def byte_s_between(nodes: Sequence[str], links: Sequence[Link], accused: Collection[frozenset[str]] = ()) -> Floats:
    """Seconds per byte between any two nodes.

    Parameters
    ----------
    nodes : sequence of str
    links : sequence of Link
        Those of groups that have ranks on others than `nodes` are passed over.
    accused : collection of pairs of nodes
        Links that a validation has found to be slow, their ends being well.

    Returns
    -------
    float array [nodes, nodes]
        Symmetric; 0 within a node, where all groups stay that lie on one.

    Raises
    ------
    DataError
        If nothing is known of the links of some node.

    Examples
    --------
    >>> links = [Link("dp", ("a", "b"), 1e-9), Link("dp", ("c", "d"), 8e-9), Link("pp", ("a", "c"), 1e-9)]
    >>> links.append(Link("pp", ("b", "d"), 1e-9))
    >>> (byte_s_between(["a", "b", "c", "d"], links) * 1e9).tolist()  # a to d and b to c were not measured
    [[0.0, 1.0, 1.0, 1.0], [1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 8.0], [1.0, 1.0, 8.0, 0.0]]
    """
    place = {node: number for number, node in enumerate(nodes)}
    groups = _groups(place, links)
    pairs = [frozenset(place[node] for node in pair) for pair in accused if place.keys() >= pair]
    plain = _least(len(nodes), [(_pairs_of(members), byte_s) for members, byte_s in groups])
    best = plain.min(axis=1, initial=np.inf)
    found = _least(len(nodes), [(_blamed(members, byte_s, best, pairs), byte_s) for members, byte_s in groups])
    best = found.min(axis=1, initial=np.inf)
    if (dark := [node for node, known in zip(nodes, np.isfinite(best), strict=True) if not known]) and len(nodes) > 1:
        raise DataError(f"nothing is measured of the links of {dark[0]}")
    unknown = ~np.isfinite(found)
    found[unknown] = np.maximum(best[:, None], best[None])[unknown]
    np.fill_diagonal(found, 0.0)
    return found


def _groups(place: dict[str, int], links: Sequence[Link]) -> list[tuple[tuple[int, ...], float]]:
    """Nodes of each group and its seconds per byte; of both directions, and of several groups there, the slower."""
    slowest: dict[tuple[Kind, tuple[int, ...]], float] = {}
    for link in links:
        if len(set(link.nodes)) > 1 and place.keys() >= set(link.nodes):
            key = link.kind, tuple(sorted({place[node] for node in link.nodes}))
            slowest[key] = max(link.byte_s, slowest.get(key, 0.0))
    return [(members, byte_s) for (_, members), byte_s in slowest.items()]


def _pairs_of(members: Collection[int]) -> list[tuple[int, int]]:
    return list(combinations(sorted(members), 2))


def _least(nodes: int, measured: Sequence[tuple[Sequence[tuple[int, int]], float]]) -> Floats:
    """The least of what was measured of each pair [nodes, nodes]; infinite where nothing was."""
    found = np.full((nodes, nodes), np.inf)
    for pairs, byte_s in measured:
        one, other = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        found[one, other] = found[other, one] = np.minimum(found[one, other], byte_s)
    return found


def _blamed(
    members: tuple[int, ...], byte_s: float, best: Floats, accused: Collection[frozenset[int]]
) -> list[tuple[int, int]]:
    """The links of a group that its time is known to be of."""
    pairs = _pairs_of(members)
    if named := [pair for pair in pairs if frozenset(pair) in accused]:
        return named
    culprits = {member for member in members if best[member] * NEARLY >= byte_s}
    if len(members) == 2 or len(culprits) == len(members):
        return pairs
    return [pair for pair in pairs if not culprits.isdisjoint(pair)] or pairs
