"""Which order of a job's nodes, whose ranks are numbered by it, has the least predicted iteration time.

Groups within a node stay there, so this is what a launcher can do with any job: it numbers whole nodes anew. The
prediction is `trainwarden.actions.planners.placement`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.actions.planners.placement import Floats, Layout, iteration_s, parts, terms

Ints = npt.NDArray[np.int64]
EXACT_NODES: Final = 7  # 5,040 orders: under a second of a processor with eight ranks a node
MOST_WORK: Final = 3e7  # ranks looked at by the local search: a second or two, in which the engine does nothing else
HOT: Final = 8  # nodes with the slowest links or ranks, which are tried in other places
ROUNDS: Final = 16
LEAST_TRIED: Final = 4  # other places of a hot node
LEAST_GAIN: Final = 1e-3  # less than measurements are good for
EQUAL: Final = 1.0 + 1e-9


class Order(NamedTuple):
    """The places today of the nodes, in the new order; predicted seconds; whether no order is better."""

    order: tuple[int, ...]
    before_s: float
    after_s: float
    exact: bool


def best_order(layout: Layout, ranks: Ints) -> Order:
    """The best order that is found; today's, unless another is better. Of equal ones that which moves fewest nodes.

    Parameters
    ----------
    layout : Layout
        Its GPUs in the order of today's ranks, equally many on each node.
    ranks : int array [ranks]
        The number of each rank of the grid: tensor fastest, then data, then pipeline.

    Examples
    --------
    >>> slow = np.array([[0, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 9], [1, 1, 9, 0.0]]) * 1e-9
    >>> layout = Layout(1, 2, 2, 4, np.full(4, 0.1), np.arange(4), slow, 0.0, 1e9, 4e7)
    >>> found = best_order(layout, np.arange(4))  # nodes 2 and 3 reduce gradients today; then they exchange nothing
    >>> found.order, round(found.before_s, 2), round(found.after_s, 2)
    ((0, 3, 2, 1), 9.51, 1.51)
    """
    nodes = len(layout.byte_s)
    today = np.arange(nodes)
    if nodes <= EXACT_NODES:
        orders = np.array(list(permutations(range(nodes))), dtype=np.int64)
        seconds = _seconds(layout, ranks, orders)
        least = np.flatnonzero(seconds <= seconds.min() * EQUAL)
        moved = (orders[least] != today).sum(axis=1)
        order, exact = orders[least[moved.argmin()]], True
    else:
        order, exact = _local(layout, ranks, today), False
    before_s, after_s = _seconds(layout, ranks, np.stack([today, order])).tolist()
    if after_s > before_s * (1.0 - LEAST_GAIN):
        return Order(tuple(today.tolist()), before_s, before_s, exact)
    return Order(tuple(order.tolist()), before_s, after_s, exact)


def _placements(ranks: Ints, orders: Ints) -> Ints:
    """The GPU of each rank of the grid [orders, ranks], where nodes have `orders` [orders, nodes]."""
    per_node = len(ranks) // orders.shape[1]
    placed: Ints = orders[:, ranks // per_node] * per_node + ranks % per_node
    return placed


def _seconds(layout: Layout, ranks: Ints, orders: Ints) -> Floats:
    return iteration_s(layout, _placements(ranks, orders))


def _local(layout: Layout, ranks: Ints, today: Ints) -> Ints:
    """Nodes that hold the job up change places with others, as long as that helps and the work is within bounds."""
    rng = np.random.default_rng(0)  # the same answer for the same question
    tried = int(np.clip(MOST_WORK / (ROUNDS * HOT * layout.ranks), LEAST_TRIED, len(today)))
    order, now = today, _worth(layout, ranks, today[None])[0]
    hot = _hot(layout)
    for _ in range(ROUNDS):
        others = rng.permutation(len(today))[:tried] if tried < len(today) else today
        orders = np.stack([_swapped(order, node, place) for node in hot for place in others])
        worth = _worth(layout, ranks, orders)
        best = int(np.lexsort(worth.T[::-1])[0])
        if not (worth[best] * EQUAL < now).any() or tuple(worth[best]) >= tuple(now):
            break
        order, now = orders[best], worth[best]
    return order


def _worth(layout: Layout, ranks: Ints, orders: Ints) -> Floats:
    """Predicted seconds, and what all groups take together, which falls also while another one as slow lasts [., 2]."""
    judged = [terms(layout, part) for part in parts(layout, _placements(ranks, orders))]
    seconds = np.concatenate([one.iteration_s(layout.micro_batches) for one in judged])
    return np.stack([np.round(seconds, 9), np.concatenate([one.strain_s() for one in judged])], axis=1)


def _hot(layout: Layout) -> Sequence[int]:
    """Nodes whose links or ranks are slowest beside the median's, worst first."""
    compute_s = layout.compute_s.reshape(len(layout.byte_s), -1).max(axis=1)
    between = layout.byte_s[~np.eye(len(layout.byte_s), dtype=np.bool_)]
    links = layout.byte_s.max(axis=1) / max(float(np.median(between)), 1e-30)
    worst = np.maximum(links, compute_s / np.median(compute_s))
    found: list[int] = np.argsort(-worst, kind="stable")[:HOT].tolist()
    return found


def _swapped(order: Ints, node: int, place: int) -> Ints:
    """`order` with `node` at `place`, and whoever was there in its place."""
    found = order.copy()
    at = int(np.flatnonzero(order == node)[0])
    found[at], found[place] = found[place], found[at]
    return found
