"""A job that a launcher keeps going, in truth: its ranks, its nodes, and which of those, or which link, is at fault."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.chaos.slow_links import Pair, exchanging
from trainwarden.launching import JobPhase, NodeCondition, NodeState

NODES: Final = 4
SPARES: Final = 2
FAILS_AGAIN: Final = 0.5  # of restarts onto a node at fault


class ScheduledJob:
    """Four nodes and two spares, which a scheduler would know by name.

    Attributes
    ----------
    sick : set of str
        Nodes at fault, whatever anybody believes.
    slow : frozenset of str, optional
        Two nodes between which all is slow.
    down_since_s : float or None
        Since when it does not train.
    """

    def __init__(self, name: str, random: Random) -> None:
        self.name, self._random = name, random
        self.phase: JobPhase = "running"
        self.hung = False
        self.attempt = 0
        self.placed = [f"{name}{number}" for number in range(NODES)]
        self.spares = [f"{name}{NODES + number}" for number in range(SPARES)]
        self.out: set[str] = set()
        self.cordoned: set[str] = set()
        self.sick: set[str] = set()
        self.slow: Pair | None = None
        self.down_since_s: float | None = None

    @property
    def nodes(self) -> list[str]:
        """All that it has or had."""
        return sorted([*self.placed, *self.spares, *self.out])

    @property
    def trains(self) -> bool:
        return self.phase == "running" and not self.hung

    @property
    def suffers(self) -> bool:
        """Whether gradients go by the slow link as its nodes are placed now."""
        return self.slow in exchanging(self.placed)

    def states(self) -> tuple[NodeState, ...]:
        return tuple(
            NodeState(node=one, state=self._state(one), ranks=(self.placed.index(one),) if one in self.placed else ())
            for one in self.nodes
        )

    def _state(self, node: str) -> NodeCondition:
        if node in self.out | self.cordoned:
            return "cordoned"
        return "healthy" if node in self.placed else "spare"

    def crash(self, node: str) -> None:
        if self.phase == "running":
            self.phase, self.hung = "failed", False

    def hang(self) -> None:
        self.hung = self.phase == "running"

    def needs(self, kind: str, nodes: tuple[str, ...]) -> bool:
        """Whether there is anything to do."""
        if kind == "restart":
            return self.phase == "failed" or self.hung
        if kind == "evict":
            return not self.out.issuperset(nodes)
        if kind == "move":
            return self.phase == "running" and self.suffers  # hung or not
        return kind != "stop" or self.phase != "ended"

    def begin(self, kind: str, nodes: tuple[str, ...], order: tuple[str, ...] = ()) -> None:
        """The operation is accepted: what is true from then on."""
        if kind == "move":
            self.placed = list(order)
        if kind in ("restart", "move"):
            self.phase, self.hung = "restarting", False
        elif kind == "stop":
            self.phase = "stopping"
        elif kind == "cordon":
            self.cordoned.update(nodes)
        elif kind == "uncordon":
            self.cordoned.difference_update(nodes)
        elif kind == "evict":
            self._replace(nodes)

    def _replace(self, nodes: tuple[str, ...]) -> None:
        """Spares take the places, and all ranks start again."""
        for node in nodes:
            if node in self.placed:
                place = self.placed.index(node)
                self.placed[place : place + 1] = [self.spares.pop()] if self.spares else []
                if self.phase in ("running", "failed"):
                    self.phase, self.hung = "restarting", False
            self.spares = [one for one in self.spares if one != node]
            self.out.add(node)

    def finish(self, kind: str) -> str | None:
        """The operation ends; why it failed, if it did."""
        if kind in ("restart", "evict", "move") and self.phase == "restarting":
            if self.sick.intersection(self.placed) and self._random.random() < FAILS_AGAIN:
                self.phase = "failed"
                return "the ranks ended at once"
            self.phase, self.attempt = "running", self.attempt + 1
        elif kind == "stop":
            self.phase = "ended"
        return None

    def note(self, now_s: float) -> None:
        """See since when it does not train."""
        if self.trains:
            self.down_since_s = None
        elif self.down_since_s is None:
            self.down_since_s = now_s
