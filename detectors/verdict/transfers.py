"""What passes between the nodes of a job, as an incident carries it: `trainwarden.actions.planners.transfers` reads it.

Told of groups that the job's layout knows: who plans other places for ranks has to know which groups go along.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from trainwarden.detectors.calls.links import StepTraffic
from trainwarden.detectors.job.window import Window
from trainwarden.parallelism.layout import Layout

MOST_LINKS: Final = 4096  # of an incident: 0.5 MB; larger jobs tell none
_KINDS: Final = ("tp", "dp", "pp")
_WHO: Final = ("comm", "source", "target")


class _Flow(NamedTuple):
    """A group, or a pair in one direction, over the newest steps: medians."""

    kind: str
    columns: tuple[int, ...]
    calls: float
    bus_bytes: float
    byte_s: float


def transfers(window: Window, onset_step: int | None) -> dict[str, Any]:
    """Bytes of an iteration by kind of group, seconds per byte between nodes, seconds of computing by rank.

    Returns
    -------
    dict
        ``transfers``, or nothing where no sampled step since the onset was joined or the layout is not known whole.
    """
    layout, live = window.layout, np.flatnonzero(window.live)
    steps = [one for one in window.carried if onset_step is None or one.step >= onset_step]
    if layout is None or not layout.whole or not steps or live.size != layout.world_size:
        return {}
    flows = list(_flows(window, layout, steps))
    links: dict[tuple[str, tuple[str, ...]], float] = {}
    for flow in flows:
        nodes = tuple(sorted({window.nodes[column] for column in flow.columns}))
        if len(nodes) > 1:
            links[flow.kind, nodes] = max(flow.byte_s, links.get((flow.kind, nodes), 0.0))
    if len(links) > MOST_LINKS or not links:
        return {}
    order = live[np.argsort(window.ranks[live])]
    told: dict[str, Any] = {
        "micro_batches": round(max((flow.calls for flow in flows if flow.kind == "pp"), default=0.0)),
        "links": [{"kind": kind, "nodes": list(nodes), "byte_s": byte_s} for (kind, nodes), byte_s in links.items()],
        "ranks": [int(rank) for rank in window.ranks[order]],
        "working_s": _working_s(steps, order),
    }
    return {"transfers": told | {f"{kind}_bytes": size for kind, size in _bytes(window, flows).items()}}


def _flows(window: Window, layout: Layout, steps: Sequence[StepTraffic]) -> Iterator[_Flow]:
    """What passes the groups of the layout, but for those that lie on one node."""
    group_of = {kind: _groups(layout, kind) for kind in _KINDS}
    ranks = window.ranks.tolist()
    for comm, source, target, calls, bus_bytes, took_s in _medians(window, steps):
        if bus_bytes <= 0.0 or took_s <= 0.0:
            continue
        columns = (source, target) if source >= 0 else _members(window, comm)
        if any(column >= len(ranks) for column in columns):
            continue
        if source < 0:
            told = frozenset(ranks[column] for column in columns)
            kind = next((kind for kind in ("tp", "dp") if told and group_of[kind].get(min(told)) == told), None)
        else:
            pipeline = group_of["pp"].get(ranks[source])
            kind = "pp" if pipeline is not None and ranks[target] in pipeline else None
        if kind is not None:
            yield _Flow(kind, columns, calls, bus_bytes, took_s / bus_bytes)


def _medians(window: Window, steps: Sequence[StepTraffic]) -> Iterator[tuple[int, int, int, float, float, float]]:
    """Communicator, source, target, calls, bytes and seconds of each group between nodes and each pair."""
    loads = [step.loads for step in steps]
    comm, source, target = (np.concatenate([getattr(one, name) for one in loads]) for name in _WHO)
    of_nodes = np.zeros(0, dtype=np.int64) if window.counts is None else window.counts.nodes
    known = comm < of_nodes.size
    kept = (source >= 0) | (known & (of_nodes[np.where(known, comm, 0)] != 1) if of_nodes.size else known)
    _, first, place = np.unique(
        (comm[kept] << 36) | (source[kept] + 1 << 18) | (target[kept] + 1), return_index=True, return_inverse=True
    )
    begins = np.searchsorted(np.sort(place), np.arange(first.size))
    count = np.bincount(place, minlength=first.size)
    middles = []
    for name in ("calls", "bus_bytes", "transfer_s"):
        value = np.concatenate([getattr(one, name) for one in loads])[kept]
        value = value[np.lexsort((value, place))]
        middles.append((value[begins + (count - 1) // 2] + value[begins + count // 2]) / 2.0)
    rows = (comm[kept][first], source[kept][first], target[kept][first], *middles)
    return zip(*(row.tolist() for row in rows), strict=True)


def _members(window: Window, comm: int) -> tuple[int, ...]:
    counts = window.counts
    return () if counts is None or comm >= len(counts.names) else tuple(counts.members(comm).tolist())


def _groups(layout: Layout, kind: str) -> dict[int, frozenset[int]]:
    """The group of each rank, where a group is more than one."""
    groups = (frozenset(group) for group in layout.groups(kind) if len(group) > 1)
    return {rank: group for group in groups for rank in group}


def _bytes(window: Window, flows: Sequence[_Flow]) -> dict[str, float]:
    """What a rank exchanges at most in groups of a kind between nodes; with one neighbour of a pipeline both ways."""
    both: defaultdict[tuple[str, frozenset[int]], float] = defaultdict(float)
    for flow in flows:
        if len({window.nodes[column] for column in flow.columns}) > 1:
            key = flow.kind, frozenset(flow.columns)
            both[key] = both[key] + flow.bus_bytes if flow.kind == "pp" else max(both[key], flow.bus_bytes)
    most: dict[str, float] = {}
    for (kind, _), size in both.items():
        most[kind] = max(size, most.get(kind, 0.0))
    return most


def _working_s(steps: Sequence[StepTraffic], order: Any) -> list[float | None]:
    """What is left of a step outside of all kernels that wait or transfer, of each rank; None where that is unknown."""
    ranks = len(order)
    left = np.array(
        [one.period_s - one.kernel_s[order] for one in steps if one.kernel_s.size > order.max(initial=0)]
    ).reshape(-1, ranks)
    middle = np.median(left, axis=0) if len(left) else np.full(ranks, np.nan)
    return [round(one, 6) if one > 0.0 else None for one in middle.tolist()]
