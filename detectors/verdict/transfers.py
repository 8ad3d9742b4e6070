"""What passes between the nodes of a job, as an incident carries it: `actions.planners.transfers` reads it.

Told of groups that the job's layout knows: who plans other places for ranks has to know which groups go along.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from detectors.calls.links import Carried
from detectors.job.window import Window
from trainwarden.parallelism.layout import Layout

MOST_LINKS: Final = 4096  # of an incident: 0.5 MB; larger jobs tell none
_KINDS: Final = ("tp", "dp", "pp")
_Key = tuple[int, int, int]  # communicator, source, target


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


def _flows(window: Window, layout: Layout, steps: Sequence[Carried]) -> Iterator[_Flow]:
    """What passes the groups of the layout."""
    group_of = {kind: _groups(layout, kind) for kind in _KINDS}
    seen: defaultdict[_Key, list[tuple[float, float, float]]] = defaultdict(list)
    for step in steps:
        loads = step.loads
        keys = zip(loads.comm.tolist(), loads.source.tolist(), loads.target.tolist(), strict=True)
        numbers = zip(loads.calls.tolist(), loads.bus_bytes.tolist(), loads.transfer_s.tolist(), strict=True)
        for key, number in zip(keys, numbers, strict=True):
            seen[key].append(number)
    for (comm, source, target), rows in seen.items():
        columns = (source, target) if source >= 0 else _members(window, comm)
        ranks = frozenset(int(window.ranks[column]) for column in columns if column < len(window.ranks))
        kind = _kind(ranks, group_of, paired=source >= 0)
        calls, bus_bytes, took_s = np.median(np.array(rows), axis=0).tolist()
        if kind and bus_bytes > 0.0 and took_s > 0.0:
            yield _Flow(kind, columns, calls, bus_bytes, took_s / bus_bytes)


def _members(window: Window, comm: int) -> tuple[int, ...]:
    counts = window.counts
    return () if counts is None or comm >= len(counts.names) else tuple(counts.members(comm).tolist())


def _groups(layout: Layout, kind: str) -> dict[int, frozenset[int]]:
    """The group of each rank, where a group is more than one."""
    return {rank: frozenset(group) for group in layout.groups(kind) if len(group) > 1 for rank in group}


def _kind(ranks: frozenset[int], group_of: Mapping[str, Mapping[int, frozenset[int]]], *, paired: bool) -> str | None:
    """Of which kind the group of just these ranks is, or whether two of them are of one pipeline."""
    if not ranks:
        return None
    if paired:
        return "pp" if ranks <= group_of["pp"].get(min(ranks), frozenset()) else None
    return next((kind for kind in ("tp", "dp") if group_of[kind].get(min(ranks)) == ranks), None)


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


def _working_s(steps: Sequence[Carried], order: Any) -> list[float | None]:
    """What is left of a step outside of all kernels that wait or transfer, of each rank; None where that is unknown."""
    ranks = len(order)
    left = np.array(
        [one.period_s - one.kernel_s[order] for one in steps if one.kernel_s.size > order.max(initial=0)]
    ).reshape(-1, ranks)
    middle = np.median(left, axis=0) if len(left) else np.full(ranks, np.nan)
    return [round(one, 6) if one > 0.0 else None for one in middle.tolist()]
