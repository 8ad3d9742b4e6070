"""A link between two nodes of a job that is slow in truth, and what detection has measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from trainwarden.actions.planners.slow import Slowness
from trainwarden.actions.planners.transfers import Link, Transfers
from trainwarden.parallelism.layout import Layout

FAST, SLOW = 1e-9, 2e-8
GROUPS: Final = ((0, 1), (2, 3))  # data-parallel; each two stages of a replica are (0, 2) and (1, 3)
Pair = frozenset[str]


def exchanging(placed: Sequence[str]) -> list[Pair]:
    """Pairs of nodes that exchange gradients as four nodes are placed; none, if there are not four."""
    return [frozenset((placed[a], placed[b])) for a, b in GROUPS] if len(placed) == 4 else []


def evidence(placed: Sequence[str], slow: Pair) -> dict[str, Any]:
    """What was measured of four nodes, two replicas of two stages, whose link `slow` takes 2 s of each iteration."""
    links = [(("dp", group)) for group in GROUPS] + [("pp", (0, 2)), ("pp", (1, 3))]
    told = []
    for kind, ends in links:
        nodes = tuple(placed[place] for place in ends)
        told.append(Link(kind, nodes, SLOW if slow == set(nodes) else FAST))  # type: ignore[arg-type]
    of_all: dict[str, Any] = {"ranks": (0, 1, 2, 3), "working_s": (0.4, 0.4, 0.4, 0.4)}
    transfers = Transfers(dp_bytes=1e8, pp_bytes=4e7, micro_batches=4, links=tuple(told), **of_all)
    layout = Layout(world_size=4, sizes={"tp": 1, "cp": 1, "dp": 2, "pp": 2}, order=("tp", "cp", "dp", "pp"))
    slowness = Slowness(
        healthy_iteration_s=0.61, iteration_s=2.51, slow_iterations=1000, layout=layout, transfers=transfers
    )
    found: dict[str, Any] = msgspec.to_builtins(slowness)
    return found
