"""Measurements of the job on several nodes between two attempts: who is suspected, and what measuring says of it.

The leader's and the nodes' parts are the real ones; a measurement's process is made up. It says the truth, or nothing,
or it hangs, fails, or dies with its node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from random import Random
from typing import TYPE_CHECKING

from actions.launchers.cluster.words import node_of
from actions.launchers.restart_check.trial import Trial, TrialId
from actions.launchers.restart_check.words import Conclusion, Outcome, Wanted
from actions.validation.question import at_fault
from trainwarden.launching import Accused, Findings

if TYPE_CHECKING:
    from tests.chaos.grid import Grid


class Measurement:
    """A validation's process on one node (`actions.launchers.restart_check.words.Child`)."""

    pid = 0

    def __init__(self, grid: Grid, trial: Trial) -> None:
        self._grid, self._trial, self._random = grid, trial, grid.random
        self._ready_s = grid.now_s + self._random.choice((0.0, 1.0, 3.0))
        self._takes_s = float("inf") if self._random.random() < 0.1 else self._random.uniform(0.0, 12.0)
        self._ends_s = float("inf")

    @property
    def ready(self) -> bool:
        return self._grid.now_s >= self._ready_s

    @property
    def ended(self) -> bool:
        return self._grid.now_s >= self._ends_s or self._grid.calm

    def begin(self) -> None:
        self._ends_s = self._grid.now_s + self._takes_s

    def kill(self) -> None:
        return None

    def outcome(self) -> Outcome:
        drawn = self._random.random()
        if drawn < 0.1:
            return Outcome(None, "the validation has ended without a result")
        if drawn < 0.2:
            return Outcome(Findings())
        nodes = tuple(map(node_of, self._trial.roster))
        slow = [one for one in self._trial.nodes if one in self._grid.sick and one in nodes]
        accused = tuple(Accused(kind="slow_compute", text=f"{one} is slow", nodes=(one,)) for one in slow)
        return Outcome(Findings(accused=accused, judged=self._trial.checks, nodes=nodes))


class Suspected:
    """Who of a job is suspected, in truth or not (`actions.launchers.restart_check.words.Suspicions`).

    Attributes
    ----------
    ever_sick : set of str
        Who was at fault at some time.
    done : Counter of str
        Measurements by how they ended.
    """

    def __init__(self, grid: Grid, random: Random) -> None:
        self._grid, self._random = grid, random
        self._nodes: set[str] = set()
        self._begun: dict[str, list[TrialId]] = {}
        self.ever_sick: set[str] = set()
        self.done: Counter[str] = Counter()

    def say(self) -> bool:
        """Somebody is suspected from now on, at fault or not."""
        node = self._random.choice(self._grid.machines).name
        self._nodes.add(node)
        if self._random.random() < 0.6:
            self._grid.sick.add(node)
            self.ever_sick.add(node)
        return True

    def wanted(self, nodes: Collection[str]) -> Wanted | None:
        named = tuple(sorted(self._nodes.intersection(nodes)))
        return Wanted(checks=("gemm",), nodes=named) if named else None

    def conclude(self, wanted: Wanted, outcome: Outcome) -> Conclusion:
        found = outcome.findings
        self.done["failed" if found is None else "accused" if found.accused else "told"] += 1
        if found is None or not found.judged:
            return Conclusion(said=outcome.error or "undecided")
        self._nodes.difference_update(wanted.nodes)
        return Conclusion(confirmed=at_fault(found), said="measured")

    def begins(self, life: str, trial: Trial) -> Measurement:
        """A node's process begins to measure; each trial once."""
        begun = self._begun.setdefault(life, [])
        if begun and trial.id <= begun[-1]:
            self._grid.history.aside.append(f"{life} measured {trial.id} after {begun[-1]}")
        begun.append(trial.id)
        return Measurement(self._grid, trial)

    def check(self, asked: Collection[str]) -> None:
        """Nobody is set aside who was never at fault, unless a word `asked` for it; nobody is measured as he trains."""
        told = self._grid.history.aside
        for one in self._grid.machines:
            aside = set() if one.orders.ledger is None else set(one.orders.ledger.aside)
            told += [f"{name} is set aside, well and unasked" for name in aside - self.ever_sick - set(asked)]
            if one.on and one.ranks.alive and one.trial._measurement is not None:
                told.append(f"{one.life} is measured while its ranks run")
