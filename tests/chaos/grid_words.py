"""Operators' commands to a job of torchruns: planned from its state, asked again until they are done."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

from trainwarden.actions.launchers.torchrun.messages import Memory, Poll, Reply, Submit
from trainwarden.actions.launchers.torchrun.operations import answer
from trainwarden.launching import Operation, Plan, Targets, Verb

if TYPE_CHECKING:
    from tests.chaos.grid import Grid

KINDS: Final[tuple[Verb, ...]] = ("evict", "cordon", "uncordon", "move", "restart")


class Words:
    """What operators have asked for, and which nodes are out.

    Attributes
    ----------
    out : dict of str to int
        By node that was seen cordoned, the newest round that was decided then; nodes may begin it later.
    done : Counter of str
        Operations that were seen done, by kind.
    """

    def __init__(self, grid: Grid, random: Random) -> None:
        self._grid, self._random = grid, random
        self._asked: Operation | None = None
        self._number = 0
        self.out: dict[str, int] = {}
        self.done: Counter[str] = Counter()
        self._orders: list[tuple[str, ...]] = []  # of rounds that began since the last was asked for

    def say(self) -> bool:
        """One operation; False if no service answers, or another one has no end yet."""
        table = self._grid.service
        if self._asked is not None or table is None:
            return False
        kind, node = self._random.choice(KINDS), self._random.choice(self._grid.machines).name
        targets = Targets(nodes=(node,))
        order: tuple[str, ...] = ()
        if kind in ("move", "restart"):
            targets = Targets()
        if kind == "move":
            nodes = [seat.node for seat in table.memory.roster]
            order = tuple(self._random.sample(nodes, len(nodes)))
        self._orders, self._number = [], self._number + 1
        self._asked = Operation(
            id=f"word/{self._number}", job="j", kind=kind, expected_generation=table.memory.generation,
            targets=targets, plan=Plan(node_order=order), by="ann",
        )  # fmt: skip
        if kind == "uncordon":
            self.out.pop(node, None)
        return True

    def tick(self) -> None:
        """Ask how far it is, and for it again where it is unknown."""
        asked, table = self._asked, self._grid.service
        if asked is None or table is None:
            return
        reply: Reply = answer(Poll("j", asked.id), table, self._grid.now_s)
        if reply.report is not None and reply.report.state == "unknown":
            self._orders = []  # a round that began before this service knew of it may have any order
            reply = answer(Submit(asked), table, self._grid.now_s)
        if reply.report is None or not reply.report.ended:
            return
        self._asked = None
        if reply.report.state != "done":
            return
        self.done[asked.kind] += 1
        if asked.kind == "move":
            wanted = asked.plan.node_order
            same = [order for order in self._orders if sorted(order) == sorted(wanted)]
            if same and same[0] != wanted:
                self._grid.history.aside.append(f"a move to {wanted} is done, and {same[0]} began")
        if asked.kind in ("evict", "cordon"):
            self.out[asked.targets.nodes[0]] = max(table.memory.round, *self._grid.rosters)

    def check(self, memory: Memory) -> None:
        """A round begins somewhere: without nodes of which one of its own knows that they are out."""
        nodes = [seat.node for seat in memory.roster]
        if memory.round not in self._grid.rosters or tuple(nodes) not in self._orders:
            self._orders.append(tuple(nodes))
        knew = {name for one in self._grid.machines for name in self._known_out(one.agent.memory) if one.name in nodes}
        for name in knew.intersection(nodes, self.out):
            if memory.round > self.out[name]:
                self._grid.history.aside.append(f"{name} takes part in round {memory.round} though it is cordoned")

    @staticmethod
    def _known_out(memory: Memory | None) -> set[str]:
        return set() if memory is None else set(memory.cordoned)
