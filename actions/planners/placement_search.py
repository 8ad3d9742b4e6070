"""The placement with the least predicted iteration time: all are looked at where they are few, else local search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from trainwarden.actions.planners.placement import (
    MANY,
    Floats,
    Ints,
    Layout,
    iteration_s,
    links_of,
    parts,
    slowest,
    terms,
)

MOST_ARRANGEMENTS = 50_000  # under a second; eight GPUs that all differ have 40,320
MOST_WORK = 3e8  # pairs of GPUs that the local search looks at: some seconds
LEAST_GAIN = 1e-3  # less than measurements are good for: not worth moving a rank
STRAGGLER = 1.1  # times the median GPU (Falcon, section 4.3)
EQUAL = 1.0 + 1e-9
SAMPLE = 256  # partners of one held-up rank; more find little that these do not
LEAST_TRIED = 32  # held-up ranks that the work must do for
LEAST_SAMPLE = 48  # fewer partners find nothing
CRITICAL = 16  # ranks that are tried to be relieved before the search gives up


class Found(NamedTuple):
    """A placement [ranks], predicted seconds before and after, and whether nothing better exists."""

    placement: Ints
    before_s: float
    after_s: float
    exact: bool


def search(layout: Layout, today: Ints) -> Found:
    """The best placement that is found; `today` itself unless another is better.

    Of equal ones that with the fewest stragglers in the first and last stage, which carry more load (Falcon, section
    5.3), and of these the one that moves the fewest ranks.

    Examples
    --------
    >>> layout = Layout(1, 2, 2, 4, np.array([1.0, 2.0, 2.0, 1.0]), np.zeros(4, int), np.zeros((1, 1)), 0.0, 0.0, 0.0)
    >>> search(layout, np.arange(4))  # both slow ones into one stage
    Found(placement=array([2, 1, 0, 3]), before_s=10.0, after_s=9.0, exact=True)
    """
    before_s = float(iteration_s(layout, today[None])[0])
    stay = Found(today, before_s, before_s, exact=True)
    one_group = layout.pp == 1 and 1 in (layout.tp, layout.dp)  # whoever lies where, the links and times are the same
    if one_group or before_s <= _bound_s(layout) * EQUAL:
        return stay
    kinds, kind = np.unique(np.stack([layout.node, layout.compute_s]), axis=1, return_inverse=True)
    counts = np.bincount(kind.reshape(-1), minlength=kinds.shape[1])
    log_arrangements = math.lgamma(layout.ranks + 1) - sum(math.lgamma(count + 1) for count in counts.tolist())
    if log_arrangements <= math.log(MOST_ARRANGEMENTS) + 1e-6:
        best = _every_one(layout, today, kind.reshape(-1), counts)
        after_s = float(iteration_s(layout, best[None])[0])
        return Found(best, before_s, after_s, exact=True) if after_s * EQUAL < before_s else stay
    best = _local(layout, today)
    after_s = float(iteration_s(layout, best[None])[0])
    if after_s > before_s * (1.0 - LEAST_GAIN):
        return stay._replace(exact=False)
    return Found(best, before_s, after_s, exact=after_s <= _bound_s(layout) * EQUAL)


def _bound_s(layout: Layout) -> float:
    """No placement is faster: stragglers in as few stages as they fit into, and nothing exchanged."""
    in_order = np.sort(layout.compute_s)[::-1][:: layout.tp * layout.dp]
    return float(in_order.sum() + (layout.micro_batches - 1) * in_order[0])


def _every_one(layout: Layout, today: Ints, kind: Ints, counts: Ints) -> Ints:
    """The best of all arrangements; GPUs of one kind (node and time) are not told apart."""
    arrangements, left = np.zeros((1, 0), dtype=np.int64), counts[None]
    for _ in range(layout.ranks):
        grown = [np.flatnonzero(left[:, one]) for one in range(len(counts))]
        arrangements = np.concatenate(
            [np.column_stack([arrangements[rows], np.full(len(rows), one)]) for one, rows in enumerate(grown)]
        )
        left = np.concatenate([left[rows] - (np.arange(len(counts)) == one) for one, rows in enumerate(grown)])
    _, example = np.unique(kind, return_index=True)
    seconds = iteration_s(layout, example[arrangements])
    equal = arrangements[seconds <= seconds.min() * EQUAL]
    slow = layout.compute_s[example] > STRAGGLER * np.median(layout.compute_s)
    stage = layout.tp * layout.dp
    at_the_ends = slow[equal[:, :stage]].sum(axis=1) + slow[equal[:, -stage:]].sum(axis=1)
    moves = (equal != kind[today]).sum(axis=1)
    wanted = equal[np.lexsort((moves, at_the_ends))[0]]
    placement = today.copy()
    for one in range(len(counts)):  # who may stay stays
        comes = np.flatnonzero((wanted == one) & (kind[today] != one))
        goes = np.flatnonzero((wanted != one) & (kind[today] == one))
        placement[comes] = today[goes]
    return placement


def _local(layout: Layout, today: Ints) -> Ints:
    """Swap what holds the iteration up with something else, as long as that helps and the work is within bounds."""
    rng = np.random.default_rng(0)  # the same answer for the same question
    placement, work = today.copy(), 0.0
    second_s, strain_s = _judged(layout, placement[None])
    of_group = layout.node[today.reshape(layout.pp, layout.dp, layout.tp)[0, :, 0]]
    pairs = layout.dp**2 if layout.dp <= MANY else len(np.unique(of_group)) ** 2
    cost = layout.ranks * layout.tp + layout.ranks / (layout.tp * layout.dp) * pairs  # groups on one node each
    sample = int(min(max(MOST_WORK / cost / LEAST_TRIED, LEAST_SAMPLE), SAMPLE))
    while work < MOST_WORK:
        for rank in _critical(layout, placement):
            found = None
            for swapped in _swaps(layout, placement, rank, lambda places: _some(places, sample, rng)):
                work += cost * len(swapped)
                seconds, strains = _judged(layout, swapped)
                place = int(np.lexsort((strains, np.round(seconds / second_s[0], 9)))[0])
                better = seconds[place] * EQUAL < second_s[0]
                if better or (seconds[place] <= second_s[0] and strains[place] * EQUAL < strain_s[0]):
                    found = swapped[place], seconds[place : place + 1], strains[place : place + 1]
                    break
            if found is not None:
                placement, second_s, strain_s = found
                break
            if work >= MOST_WORK:
                return placement
        else:
            return placement
    return placement


def _judged(layout: Layout, placements: Ints) -> tuple[Floats, Floats]:
    """Predicted seconds and strain [placements]."""
    judged = [terms(layout, part) for part in parts(layout, placements)]
    seconds = np.concatenate([one.iteration_s(layout.micro_batches) for one in judged])
    return seconds, np.concatenate([one.strain_s() for one in judged])


def _critical(layout: Layout, placement: Ints) -> list[int]:
    """Ranks that hold the iteration up, of each stage the worst: its slowest GPU, the ends of its slowest links."""
    grid = placement.reshape(layout.pp, layout.dp, layout.tp)
    ranks = np.arange(layout.ranks).reshape(grid.shape)
    nodes, compute_s = layout.node[grid], layout.compute_s[grid]
    found: list[tuple[float, int]] = []
    for stage in range(layout.pp):
        slow = int(compute_s[stage].argmax())
        found.append((float(compute_s[stage].max()) * layout.micro_batches, int(ranks[stage].flat[slow])))
        if stage + 1 < layout.pp and layout.pp_bytes:
            link_s = layout.byte_s[nodes[stage], nodes[stage + 1]] * layout.pp_bytes
            at = int(link_s.argmax())
            found += [(float(link_s.max()), int(ranks[side].flat[at])) for side in (stage, stage + 1)]
        groups = ((ranks[stage], layout.tp_bytes), (ranks[stage].T, layout.dp_bytes))
        for members, size in (one for one in groups if one[1] and one[0].shape[1] > 1):
            worst_s = slowest(layout.byte_s, layout.node[placement[members]])
            group = members[int(worst_s.argmax())]
            found += [(float(worst_s.max()) * size, rank) for rank in _ends(layout, placement, group)]
    in_order = [rank for _, rank in sorted(found, key=lambda one: -one[0])]
    return list(dict.fromkeys(in_order))[:CRITICAL]


def _ends(layout: Layout, placement: Ints, group: Ints) -> tuple[int, int]:
    """Two members of `group` on the nodes with the slowest link between them."""
    links, place = links_of(layout.byte_s, layout.node[placement[group]])
    one, other = divmod(int(links.argmax()), len(links))
    return int(group[place[one]]), int(group[place[other]])


def _swaps(layout: Layout, placement: Ints, rank: int, some: Callable[[Ints], Ints]) -> Iterator[Ints]:
    """Placements with `rank`'s whole node swapped with another; its tensor-parallel group; its GPU alone."""
    node = layout.node[placement]
    mine = np.flatnonzero(node == node[rank])
    nodes = [np.flatnonzero(node == other) for other in some(np.delete(np.arange(node.max() + 1), node[rank]))]
    if len(mine) > 1 and any(len(theirs) == len(mine) for theirs in nodes):
        yield _swapped(placement, mine, np.stack([theirs for theirs in nodes if len(theirs) == len(mine)]))
    blocks = np.arange(layout.ranks).reshape(-1, layout.tp)
    if 1 < layout.tp < layout.ranks and not np.array_equal(mine, blocks[rank // layout.tp]):
        others = some(np.delete(np.arange(len(blocks)), rank // layout.tp))
        yield _swapped(placement, blocks[rank // layout.tp], blocks[others])
    # Of each stage the GPUs that differ most, those on the same node, and some others.
    by_stage = np.argsort(layout.compute_s[placement.reshape(layout.pp, -1)], axis=1)
    starts = np.arange(layout.pp)[:, None] * (layout.tp * layout.dp)
    telling = (starts + by_stage[:, [0, -1]]).reshape(-1)
    near = np.flatnonzero(layout.node[placement] == layout.node[placement[rank]])
    others = some(np.unique(np.concatenate([telling, near, some(np.arange(layout.ranks))])))
    yield _swapped(placement, np.array([rank]), others[others != rank][:, None])


def _swapped(placement: Ints, mine: Ints, others: Ints) -> Ints:
    """A placement for each row of `others` [rows, ranks of mine], their GPUs swapped with those of `mine`."""
    swapped = np.repeat(placement[None], len(others), axis=0)
    swapped[:, mine] = placement[others]
    np.put_along_axis(swapped, others, np.broadcast_to(placement[mine], others.shape), axis=1)
    return swapped


def _some(places: Ints, most: int, rng: np.random.Generator) -> Ints:
    return places if len(places) <= most else rng.choice(places, most, replace=False)
