"""A job on several nodes, run by the real launchers' parts: lease, elector, fence, leader, reporter, orders.

Only processes, time, disks and the network between them are made up. A launcher that is killed comes back as another
process, which knows what it wrote down: whom it obeyed, and what was asked of the job.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any, Final

import msgspec

from actions.launchers.cluster.leading import Leading
from actions.launchers.cluster.orders import NodeOrders, Ranks
from actions.launchers.cluster.reporter import Reporter
from actions.launchers.cluster.words import Attempt, AttemptId, Over, Patience, Report, Shape
from actions.launchers.leases.client import LeaseKeeper
from actions.launchers.leases.elector import LeaderElector
from actions.launchers.leases.fence import EpochFence
from actions.launchers.leases.table import LeaseTable
from actions.launchers.leases.words import DURATION_S, Answer, Ask
from actions.launchers.restart_check.trial import TrialPart
from tests.chaos.cluster_words import Words
from tests.chaos.history import History
from tests.chaos.measuring import Suspected
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import JobPhase
from trainwarden.metrics_http.strangers import Strangers

SHAPE: Final = Shape(nodes=3, least_nodes=2, spares=1, restarts=1000)
PATIENCE: Final = Patience(join_s=15.0, poll_s=1.0)  # a report at each tick
LOST_ON_THE_WIRE: Final = 0.05
PLACES: Final = 16  # of strangers at a launcher's port
PLACES_OF_ONE: Final = 4  # as at the real one, where they are 256 and 64
FLOODS: Final = 4  # addresses from which strangers come
STOPPING_S: Final = 3.0  # ranks that are asked to stop are gone by then


class NodeClock:
    """Goes on as time does, from another beginning on each node."""

    def __init__(self, grid: Grid, offset_s: float) -> None:
        self._grid, self._offset_s = grid, offset_s

    def now_s(self) -> float:
        return self._grid.now_s + self._offset_s

    monotonic_s = now_s

    def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody waits here")


class GridNode:
    """A machine with its launcher."""

    def __init__(self, number: int, grid: Grid) -> None:
        self.number, self.name, self.grid = number, f"{grid.name}{number}", grid
        self.fence, self.lives, self.cut_until_s = EpochFence(), 0, float("-inf")
        self.orders = NodeOrders("", self.fence, PATIENCE, 0.0)
        self.door: Strangers[str] = Strangers(PLACES, PLACES_OF_ONE, silent_s=10.0, longest_s=30.0)
        self.clock = NodeClock(grid, grid.random.uniform(0.0, 1e4))
        self.boot()

    def boot(self) -> None:
        self.lives += 1
        self.life, self.on = f"{self.name}/{self.lives}", True
        self.fence = EpochFence(self.fence.allegiance)
        kept = self.orders.ledger
        self.orders = NodeOrders(self.life, self.fence, PATIENCE, self.clock.now_s(), ledger=kept)
        self.ranks, self.gone_s = Ranks(), float("inf")
        self.keeper = LeaseKeeper(LeaderElector(self.grid.name, self.life, self.life), self.ask_lease, self.clock)
        self.leading = Leading(
            self.grid.name, self.life, self.keeper, self.clock, shape=SHAPE, patience=PATIENCE, checkpoints=None,
            suspicions=self.grid.suspected,
        )  # fmt: skip
        life = self.life
        self.trial = TrialPart(life, lambda trial: self.grid.suspected.begins(life, trial), self.clock)
        self.reporter = Reporter(self.orders, self.keeper, self.report, threading.Lock(), self.clock, token=None)
        self.reporter._asker = self  # type: ignore[assignment]
        self.grid.history.begun[self.life] = []

    def kill(self) -> None:
        self.on, self.ranks = False, Ranks()
        self.trial.close()

    def ask_lease(self, question: Ask) -> Answer:
        """The way to the lease service and back."""
        return self.grid.wire(self, None, lambda: self.grid.leases.answer(question, self.grid.now_s))

    def ask(self, address: str, path: str, question: Report, kind: Any) -> Any:
        """The way to a leader and back."""
        leader = self.grid.of_life(address)
        if leader is None:
            raise LauncherUnavailable("nobody is there")
        return self.grid.wire(self, leader, lambda: leader.leading.answer(question))

    def report(self) -> Report:
        orders = self.orders
        return Report(
            job=self.grid.name, life=self.life, node=self.name, shape=SHAPE, host=self.life, port=7000,
            alive=self.ranks.alive, ran=orders.ran, state=orders.state, code=orders.code, newest=orders.newest,
            obeyed_epoch=0 if orders.obeys is None else orders.obeys.epoch,
            obeyed_holder="" if orders.obeys is None else orders.obeys.holder, ledger=orders.ledger,
            trial=self.trial.said, over=orders.over,
        )  # fmt: skip

    def tick(self) -> None:
        grid = self.grid
        if self.ranks.alive and grid.now_s >= self.gone_s:
            self.ranks, self.gone_s = Ranks(code=self.ranks.code), float("inf")
        self.keeper.once()
        self.reporter.once()
        self.leading.advance()
        if (asking := self.leading._trials._asking) is not None:
            asking.wait(5.0)
        todo = self.orders.decide(self.ranks, self.clock.now_s())
        trial = self.orders.trial if self.orders.over is None else None
        self.trial.follow(trial, idle=not self.ranks.alive and not isinstance(todo, Attempt))
        if todo == "stop":
            self.gone_s = min(self.gone_s, grid.now_s + grid.random.uniform(0.0, STOPPING_S))
        elif isinstance(todo, Attempt):
            grid.history.begun[self.life].append(todo.id)
            grid.words.check(todo)
            self.ranks, self.gone_s = Ranks(alive=1), float("inf")


class Grid:
    """The job ``g``, which restarts by itself what has crashed; an engine's launcher knows nothing of it."""

    def __init__(self, name: str, random: Random, history: History, now_s: float) -> None:
        self.name, self.random, self.history, self.now_s = name, random, history, now_s
        self.calm = False
        self.leases_away_until_s = self.flooded_until_s = float("-inf")
        self.strangers = 0
        self.sick: set[str] = set()
        self.out: set[str] = set()
        self.down_since_s: float | None = None
        self.words, self.suspected = Words(self, random), Suspected(self, random)
        self.restart_leases()
        self.machines = [GridNode(number, self) for number in range(SHAPE.nodes + SHAPE.spares)]

    def restart_leases(self) -> None:
        """The lease service begins with nothing."""
        self.leases = LeaseTable(DURATION_S, self.now_s)

    def of_life(self, life: str) -> GridNode | None:
        return next((one for one in self.machines if one.life == life and one.on), None)

    def wire(self, asks: GridNode | None, answers: GridNode | None, question: Callable[[], Any]) -> Any:
        """A question and its answer, which may get lost; `asks` None: a person, `answers`: the lease service."""
        cut = asks is not None and self.now_s < asks.cut_until_s
        away = self.now_s < (self.leases_away_until_s if answers is None else answers.cut_until_s)
        lost = LOST_ON_THE_WIRE if not self.calm else 0.0
        if asks is not answers and (away or cut or self.random.random() < lost):
            raise LauncherUnavailable("lost on the way there")
        if asks is not None and answers is not None and self.now_s < self.flooded_until_s:
            self.connect(asks, answers)
        answer = question()
        if asks is not answers and self.random.random() < lost:
            raise LauncherUnavailable("lost on the way back")
        return answer

    def flood(self) -> bool:
        """From a few addresses strangers connect to every launcher, and say nothing."""
        self.flooded_until_s = self.now_s + self.random.choice((2.0, 10.0))
        return True

    def connect(self, asks: GridNode, answers: GridNode) -> None:
        """A connection of `asks`, beside which strangers connect before it has said a word."""
        door, self.strangers = answers.door, self.strangers + 1
        gone = [door.enter(asks.life, asks.name, self.now_s)]
        for number in range(self.random.randrange(2 * PLACES)):
            stranger = f"stranger/{self.strangers}/{number}"
            gone.append(door.enter(stranger, f"10.9.0.{number % FLOODS}", self.now_s))
            if gone[-1] is not None:
                door.leave(gone[-1])
        for one in door.overdue(self.now_s):
            door.leave(one)
        if asks.life in gone:
            self.history.shut_out.append(f"{asks.life} lost its connection to {answers.life}")
            raise LauncherUnavailable("hung up on")
        door.leave(asks.life)

    def tick(self, now_s: float) -> None:
        self.now_s = now_s
        for one in self.random.sample(self.machines, len(self.machines)):
            if one.on:
                one.tick()
        self.words.tick()
        self.suspected.check(self.words.named)
        leads = sum(one.on and one.keeper.leads() is not None for one in self.machines)
        self.history.leaders = max(self.history.leaders, leads)
        self.history.steps += sorted(attempt.id for attempt in self._whole())

    def _whole(self) -> list[Attempt]:
        """Attempts of which every rank runs."""
        found: dict[AttemptId, Attempt] = {}
        for one in self.machines:
            if one.on and one.orders.newest is not None:
                found[one.orders.newest.id] = one.orders.newest
        return [attempt for attempt in found.values() if all(self._runs(life, attempt) for life in attempt.roster)]

    def _runs(self, life: str, attempt: Attempt) -> bool:
        one = self.of_life(life)
        return one is not None and one.ranks.alive > 0 and one.ranks.code is None and one.orders.ran == attempt.id

    @property
    def over(self) -> Over | None:
        return next((one.orders.over for one in self.machines if one.on and one.orders.over is not None), None)

    @property
    def phase(self) -> JobPhase:
        if self.over is not None:
            return "ended"
        return "running" if self._whole() else "restarting"

    @property
    def trains(self) -> bool:
        return self.phase == "running"

    @property
    def placed(self) -> list[str]:
        whole = self._whole()
        return [life.split("/")[0] for life in whole[-1].roster] if whole else []

    def crash(self, node: str) -> None:
        for one in self.machines:
            if one.name == node and one.ranks.alive:
                one.ranks = msgspec.structs.replace(one.ranks, code=9)

    def note(self, now_s: float) -> None:
        if self.trains:
            self.down_since_s = None
        elif self.down_since_s is None:
            self.down_since_s = now_s
