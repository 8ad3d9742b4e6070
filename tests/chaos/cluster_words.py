"""A person's words to the job on several nodes: to whoever leads, again until they are done, and once each."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Final

from actions.launchers.cluster.words import Attempt, AttemptId, node_of
from actions.launchers.local.control import AskState, Poll, Reply, Request, Submit
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import Operation, Plan, Targets, Verb

if TYPE_CHECKING:
    from tests.chaos.grid import Grid

KINDS: Final[tuple[Verb, ...]] = ("evict", "cordon", "uncordon", "move", "restart")


class Words:
    """What people have said of nodes, and since which attempt who is out.

    Attributes
    ----------
    out : dict of str to tuple of int
        By node that was seen set aside, the newest attempt that any launcher knew of then.
    named : set of str
        Nodes that a word was to set aside.
    done : Counter of str
        Words that were seen done, by kind.
    """

    def __init__(self, grid: Grid, random: Random) -> None:
        self._grid, self._random = grid, random
        self._asked: Operation | None = None
        self._said = 0
        self._knew: dict[str, set[str]] = {}
        self.out: dict[str, AttemptId] = {}
        self.named: set[str] = set()
        self.done: Counter[str] = Counter()
        self._rosters: list[tuple[str, ...]] = []  # of attempts later than this one
        self._since: AttemptId = (0, 0)
        self._wanted: tuple[str, ...] | None = None  # of a move

    def say(self) -> bool:
        """One word, planned from what the leader tells; False if nobody tells, or another word has no end yet."""
        if self._asked is not None or (reply := self._ask(AskState(self._grid.name))) is None or reply.state is None:
            return False
        kind, node = self._random.choice(KINDS), self._random.choice(self._grid.machines).name
        order, targets, newest = (), Targets(nodes=(node,)), self._led()
        if kind in ("move", "restart"):
            targets = Targets()
        if kind == "move":
            if newest is None:
                return False
            self._wanted = tuple(self._random.sample(newest.roster, len(newest.roster)))
            order = tuple(map(node_of, self._wanted))
        self._rosters, self._since = [], (0, 0) if newest is None else newest.id
        self._said += 1
        self._asked = Operation(
            id=f"word/{self._said}", job=self._grid.name, kind=kind, expected_generation=reply.state.generation,
            targets=targets, plan=Plan(node_order=order), by="ann",
        )  # fmt: skip
        if kind in ("evict", "cordon"):
            self.named.add(node)
        if kind == "uncordon":
            self.out.pop(node, None)  # from when it is asked for it may take part
            self._knew.pop(node, None)
        return True

    def tick(self) -> None:
        """Ask how far the word is, and for it again where it is unknown."""
        self._hear()
        if (asked := self._asked) is None or (reply := self._ask(Poll(asked.job, asked.id))) is None:
            return
        if reply.report is not None and reply.report.state == "unknown":
            reply = self._ask(Submit(asked))
        if reply is None or reply.report is None or not reply.report.ended:
            return
        self._asked = None
        if reply.report.state == "done":
            self.done[asked.kind] += 1
            if asked.kind == "move":
                self._check_move()
            if asked.kind in ("evict", "cordon"):
                self.out[asked.targets.nodes[0]] = self._newest()
                self._hear()

    def check(self, attempt: Attempt) -> None:
        """An attempt begins somewhere. It may be of nodes that have never heard of a word, and of no others."""
        if attempt.id > self._since:
            self._rosters.append(attempt.roster)
        nodes = set(map(node_of, attempt.roster))
        for name in nodes.intersection(self.out):
            if attempt.id > self.out[name] and (knew := sorted(nodes & self._knew[name])):
                said = f"{name} takes part in {attempt.id}, though {', '.join(knew)} knew that it is set aside"
                self._grid.history.aside.append(said)

    def _hear(self) -> None:
        """See which machines have been told of which node that it is out."""
        for name in self.out:
            self._knew.setdefault(name, set()).update(
                one.name
                for one in self._grid.machines
                if one.orders.ledger is not None and name in one.orders.ledger.aside
            )

    def _check_move(self) -> None:
        """Whoever of the wanted order have begun anew together since have done so in that order, at first."""
        wanted = self._wanted
        assert wanted is not None
        of_them = [roster for roster in self._rosters if set(roster) == set(wanted)]
        if of_them and of_them[0] != wanted:
            self._grid.history.aside.append(f"a move to {wanted} is done, and {of_them[0]} began")
        if not self._rosters:
            self._grid.history.aside.append(f"a move to {wanted} is done, and nothing began")

    def _newest(self) -> AttemptId:
        known = [one.orders.newest.id for one in self._grid.machines if one.on and one.orders.newest is not None]
        return max(known, default=(0, 0))

    def _led(self) -> Attempt | None:
        """The newest attempt that who leads knows of."""
        tables = [one.leading._table for one in self._grid.machines if one.on and one.keeper.leads() is not None]
        return None if not tables or tables[0] is None else tables[0].attempt

    def _ask(self, request: Request) -> Reply | None:
        leaders = [one for one in self._grid.machines if one.on and one.keeper.leads() is not None]
        if not leaders:
            return None
        try:
            reply: Reply = self._grid.wire(None, leaders[0], lambda: leaders[0].leading.control(request))
        except LauncherUnavailable:
            return None
        return None if reply == Reply() else reply
