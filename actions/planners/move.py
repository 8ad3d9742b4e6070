"""From an incident's evidence and the places of a job's ranks to the order of its nodes that loses least (Falcon, 5.3).

What is not known is not guessed: one sentence says what is missing.

What each link between two nodes carries, from what groups of nodes were seen to take: network tomography.

A group is as slow as the slowest link between any two of its nodes, so each of its links is at least as fast as it is,
and a link of several groups at least as fast as the fastest of them. A slow group of more than two nodes is explained
by a link that a validation has accused, or by a node of which nobody has seen a faster link, where there is one; its
other links are then not measured by it. A link that nobody has measured is taken to be as fast as the slower of the
best that its two nodes have shown.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.actions.planners import placement
from trainwarden.actions.planners.node_order import best_order
from trainwarden.actions.planners.slow import Slowness
from trainwarden.actions.planners.transfers import Kind, Link, Transfers
from trainwarden.errors import DataError
from trainwarden.parallelism.layout import WORDS, Layout

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


AGREES: Final = (
    1.25  # times as long as measured, or as short, may a prediction of today be; else it explains another job
)
_KINDS: Final[tuple[Kind, ...]] = ("tp", "dp", "pp")
Placed = Sequence[tuple[str, tuple[int, ...]]]
"""Nodes and the ranks on them."""


class Move(NamedTuple):
    """Nodes in today's order and in the best one, an iteration's seconds measured and predicted, and if that is exact.

    `predicted_s` is what was measured less what the model says is gained, and never less than the healthy time.
    """

    today: tuple[str, ...]
    node_order: tuple[str, ...]
    iteration_s: float
    predicted_s: float
    removed: float
    exact: bool


def best_move(slowness: Slowness, placed: Placed, accused: Collection[frozenset[str]] = ()) -> Move:
    """The best order of the nodes for what was measured; today's, where none is predicted to be better.

    Parameters
    ----------
    accused : collection of pairs of nodes
        Links that a validation has found to be slow.

    Raises
    ------
    DataError
        If something needed is not known, or the prediction does not fit what is measured today.
    """
    layout = _whole(slowness)
    nodes = _in_order(placed, layout.world_size)
    measured, compute_s = _measured(slowness, layout, nodes)
    iteration_s, healthy_s = slowness.iteration_s, slowness.healthy_iteration_s
    if iteration_s is None or healthy_s is None or iteration_s <= healthy_s:
        raise DataError("how much longer an iteration takes than it did is not known")
    byte_s = byte_s_between(nodes, measured.links, accused)
    grid, ranks = _grid(layout, measured, compute_s, byte_s), _ranks(layout)
    today_s = float(placement.iteration_s(grid, ranks[None])[0])
    if not iteration_s / AGREES <= today_s <= iteration_s * AGREES:
        said = f"an iteration is predicted to take {today_s:.3g} s today, and takes {iteration_s:.3g} s"
        raise DataError(f"{said}: what was measured does not explain this job")
    found = best_order(grid, ranks)
    gain_s = min(found.before_s - found.after_s, iteration_s - healthy_s)
    return Move(
        today=nodes,
        node_order=tuple(nodes[place] for place in found.order),
        iteration_s=iteration_s,
        predicted_s=iteration_s - gain_s,
        removed=gain_s / (iteration_s - healthy_s),
        exact=found.exact,
    )


def _whole(slowness: Slowness) -> Layout:
    """The job's layout, if it is one that the prediction knows."""
    layout = slowness.layout
    if layout is None or not layout.whole:
        known = "no rank has reported it" if layout is None else layout.summary()
        raise DataError(f"the job's layout is not known whole ({known})")
    for axis in ("cp", "ep"):
        if layout.sizes.get(axis, 1) > 1:
            raise DataError(f"{WORDS[axis]} parallel groups are not in the prediction of an iteration")
    return layout


def _in_order(placed: Placed, ranks: int) -> tuple[str, ...]:
    """The nodes by their ranks, as many on each."""
    nodes = sorted((tuple(sorted(own)), node) for node, own in placed if own)
    told = [rank for own, _ in nodes for rank in own]
    if len(told) != ranks or told != list(range(ranks)) or len({len(own) for own, _ in nodes}) > 1:
        raise DataError("the launcher does not tell of as many ranks on each node, one node after the other")
    return tuple(node for _, node in nodes)


def _measured(slowness: Slowness, layout: Layout, nodes: Sequence[str]) -> tuple[Transfers, placement.Floats]:
    """What was measured of the groups that lie on several nodes, and seconds of computing by rank."""
    measured = slowness.transfers
    if measured is None:
        raise DataError("what groups exchange between nodes is not measured: NCCL's profiler plug-in has told nothing")
    per_node = layout.world_size // len(nodes)
    for kind in _KINDS:
        spans = any(len({rank // per_node for rank in group}) > 1 for group in layout.groups(kind))
        if spans and not measured.bytes_of(kind):
            raise DataError(f"what {WORDS[kind]} parallel groups exchange between nodes is not measured")
    if layout.sizes["pp"] > 1 and not measured.micro_batches:
        raise DataError("the number of micro-batches is not known")
    by_rank = dict(zip(measured.ranks, measured.working_s, strict=False))
    compute_s = [by_rank.get(rank) for rank in range(layout.world_size)]
    known = [one for one in compute_s if one is not None]
    if len(known) != len(compute_s):
        raise DataError(f"how long rank {compute_s.index(None)} computes is not known")
    return measured, np.array(known)


def _grid(
    layout: Layout, measured: Transfers, compute_s: placement.Floats, byte_s: placement.Floats
) -> placement.Layout:
    """The question of `trainwarden.actions.planners.placement`; GPUs are numbered as today's ranks.

    What a stage has to compute is what its fastest GPU takes, as the first and the last differ from others by design.
    """
    sizes, world = layout.sizes, layout.world_size
    micro_batches = measured.micro_batches if sizes["pp"] > 1 else 1
    stage = np.array(layout.stages())
    work_s = np.array([compute_s[stage == one].min() for one in range(sizes["pp"])])
    return placement.Layout(
        tp=sizes["tp"],
        dp=sizes["dp"],
        pp=sizes["pp"],
        micro_batches=micro_batches,
        compute_s=compute_s / work_s[stage],
        node=np.arange(world) // (world // len(byte_s)),
        byte_s=byte_s,
        tp_bytes=measured.tp_bytes,
        dp_bytes=measured.dp_bytes,
        pp_bytes=measured.pp_bytes,
        stage_work=work_s / micro_batches,
    )


def _ranks(layout: Layout) -> npt.NDArray[np.int64]:
    """The number of each rank of the grid: tensor fastest, then data, then pipeline."""
    slowest_first = [axis for axis in reversed(layout.order) if axis != "cp"]
    numbers = np.arange(layout.world_size).reshape([layout.sizes[axis] for axis in slowest_first])
    return numbers.transpose([slowest_first.index(axis) for axis in ("pp", "dp", "tp")]).reshape(-1)
