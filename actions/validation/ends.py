"""Slow links that have an end in common: a node or a rank of which every link is slow, whoever is at the other end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from trainwarden.actions.validation.judgement import link_kind
from trainwarden.actions.validation.results import RankInfo
from trainwarden.actions.validation.schedules import Pair

LEAST_PARTNERS: Final = 2  # of one slow link nobody knows which end it is


class CommonEnd(NamedTuple):
    """The ranks of a node, or one rank, and their slow links to `partners` other nodes or ranks."""

    ranks: tuple[int, ...]
    links: frozenset[Pair]
    partners: int


def common_ends(
    measured: Iterable[Pair], suspects: Collection[Pair], confirmed: Collection[Pair], joined: Mapping[int, RankInfo]
) -> list[CommonEnd]:
    """Nodes and ranks that explain slow links: all of their links are suspects, and of two partners it is confirmed.

    Whoever explains most comes first, and what it explains accuses nobody else.

    Parameters
    ----------
    measured, suspects, confirmed
        Links, each with its smaller rank first; every one of a set is in the sets before it.

    Examples
    --------
    >>> joined = {rank: RankInfo(rank=rank, node=f"n{rank}", local_rank=0, device="cpu") for rank in range(4)}
    >>> common_ends([(0, 1), (1, 2), (2, 3), (0, 3)], {(0, 1), (1, 2)}, {(0, 1), (1, 2)}, joined)[0].ranks
    (1,)
    """
    groups: dict[tuple[int, ...], dict[Pair, object]] = {}
    for pair in measured:
        between = link_kind(*pair, joined) == "between nodes"
        for end, other in (pair, pair[::-1]):
            groups.setdefault((end,), {})[pair] = other
            if between:
                groups.setdefault(_of_node(end, joined), {})[pair] = joined[other].node
    # A rank's links within its node say nothing of its port: judged by kind, a rank has two groups.
    by_kind = {
        (ranks, kind): {pair: other for pair, other in links.items() if link_kind(*pair, joined) == kind}
        for ranks, links in groups.items()
        for kind in {link_kind(*pair, joined) for pair in links}
    }
    whole = [(ranks, links) for (ranks, _), links in by_kind.items() if all(pair in suspects for pair in links)]
    found: list[CommonEnd] = []
    explained: set[Pair] = set()
    for ranks, links in sorted(whole, key=lambda one: (-len(one[1]), one[0])):
        known = {pair: other for pair, other in links.items() if pair in confirmed and pair not in explained}
        partners = len(set(known.values()))
        if partners >= LEAST_PARTNERS:
            found.append(CommonEnd(ranks, frozenset(links), partners))
            explained |= links.keys()
    return found


def _of_node(rank: int, joined: Mapping[int, RankInfo]) -> tuple[int, ...]:
    return tuple(sorted(other for other, member in joined.items() if member.node == joined[rank].node))
