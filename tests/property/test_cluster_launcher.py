"""Minutes of a job on several nodes under kills, cuts and lost leaders drawn at random: it goes on, and once.

Leaders here are worse than leases make them: one that has been replaced may go on for four seconds beside the next.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import example, given

from actions.launchers.cluster.control import answered
from actions.launchers.cluster.leader import LeaderTable
from actions.launchers.cluster.ledger import KEPT_OPERATIONS
from actions.launchers.cluster.orders import NodeOrders, Ranks
from actions.launchers.cluster.words import Attempt, AttemptId, Order, Patience, Report, Shape
from actions.launchers.leases.fence import EpochFence
from actions.launchers.local.control import Submit
from tests.examples import examples
from trainwarden.checkpoints.newest import Checkpoint
from trainwarden.launching import Operation, Plan, Targets, Verb

TICK_S: Final = 0.25
TROUBLE_S: Final = 180.0
CALM_S: Final = 150.0  # lost, isolated, joining and a few ends of ranks, one after the other
LEASE_S: Final = 4.0
PATIENCE: Final = Patience(join_s=20.0)
CHECKPOINT: Final = Checkpoint(Path("ckpt/step-1.pt"), 1, "torch")  # one becomes whole every five seconds


class Node:
    """A machine; its launcher's process is another one after each kill."""

    def __init__(self, number: int, world: World) -> None:
        self.number, self.world, self.lives = number, world, 0
        self.cut_until_s, self.fence = 0.0, EpochFence()
        self.orders = NodeOrders("", self.fence, PATIENCE, 0.0)
        self.boot()

    def boot(self) -> None:
        self.lives += 1
        self.life, self.on = f"n{self.number}/{self.lives}", True
        self.fence = EpochFence(self.fence.allegiance)
        kept = self.orders.ledger  # on disk
        self.orders = NodeOrders(self.life, self.fence, PATIENCE, self.world.now_s, ledger=kept)
        self.ranks, self.begun, self.gone_s = Ranks(), list[AttemptId](), float("inf")
        self.leads: LeaderTable | None = None
        self.leads_until_s = 0.0
        self.obeys: Node | None = None

    def kill(self) -> None:
        self.on, self.ranks, self.leads = False, Ranks(), None

    def report(self) -> Report:
        orders = self.orders
        return Report(
            job="j", life=self.life, node=f"n{self.number}", shape=self.world.shape, host=self.life, port=7000,
            alive=self.ranks.alive, ran=orders.ran, state=orders.state, code=orders.code, newest=orders.newest,
            obeyed_epoch=0 if orders.obeys is None else orders.obeys.epoch,
            obeyed_holder="" if orders.obeys is None else orders.obeys.holder, ledger=orders.ledger,
        )  # fmt: skip

    def tick(self) -> None:
        world, now_s = self.world, self.world.now_s
        if self.ranks.alive and now_s >= self.gone_s:
            self.ranks, self.gone_s = Ranks(code=self.ranks.code), float("inf")
        leader = self.obeys if self.obeys is not None and self.obeys.on else world.leader
        if leader is not None and leader.on and world.reach(self, leader) and world.random.random() < 0.9:
            order = world.answer(leader, self.report())
            lost = world.random.random() < 0.1
            if not lost and self.orders.hear(order, now_s):
                self.obeys = leader
            elif not lost and not order.leads:
                self.obeys = None
        elif leader is not world.leader:
            self.obeys = None
        todo = self.orders.decide(self.ranks, now_s)
        if todo == "stop":
            self.gone_s = min(self.gone_s, now_s + world.random.uniform(0.0, 3.0))
        elif isinstance(todo, Attempt):
            self.begun.append(todo.id)
            self.ranks, self.gone_s = Ranks(alive=2), float("inf")


class World:
    """Nodes and whoever leads them; `trained` are the attempts that could make steps, in the order of time."""

    def __init__(self, seed: int, shape: Shape) -> None:
        self.random, self.now_s, self.shape = Random(seed), 1000.0, shape
        self.checkpoints = Random(seed)  # of their own, so that they change no other draw
        self.epoch = 0
        self.leader: Node | None = None
        self.nodes = [Node(number, self) for number in range(shape.nodes + shape.spares)]
        self.trained: list[AttemptId] = []

    def reach(self, one: Node, other: Node) -> bool:
        return one is other or max(one.cut_until_s, other.cut_until_s) <= self.now_s

    def answer(self, leader: Node, report: Report) -> Order:
        table = leader.leads
        if table is not None and report.obeyed_epoch > table.epoch:
            leader.leads = table = None
        if table is None:
            return Order(holder=leader.life, epoch=1, leads=False)
        table.hear(report, self.now_s)
        left_s = min(LEASE_S, leader.leads_until_s - self.now_s)
        return Order(
            holder=leader.life, epoch=table.epoch, left_s=left_s, attempt=table.attempt, run=table.runs,
            ledger=table.asked.ledger, over=table.over,
        )  # fmt: skip

    def elect(self) -> None:
        """Somebody else leads; who did may not know for a while."""
        if self.leader is not None:
            self.leader.leads_until_s = self.now_s + self.random.uniform(0.0, LEASE_S)
        self.leader = self.random.choice([one for one in self.nodes if one.on] or [None])  # type: ignore[list-item]
        if self.leader is not None:
            self.epoch += 1
            self.leader.leads = LeaderTable(self.epoch, self.shape, PATIENCE, self.now_s)
            self.leader.leads_until_s = float("inf")

    def tick(self) -> None:
        self.now_s += TICK_S
        for one in self.nodes:
            if one.leads is not None and self.now_s >= one.leads_until_s:
                one.leads = None
            if one.leads is not None:
                one.leads.advance(self.now_s)
                one.leads.form(None, self.now_s)
                if self.checkpoints.random() < TICK_S / 5.0:
                    one.leads.grow(CHECKPOINT, self.now_s)
                assert one.leads.over is None
        for one in self.nodes:
            if one.on:
                one.tick()
                assert one.begun == sorted(set(one.begun)), "started twice, or an older one after a newer one"
        for attempt in {one.orders.newest for one in self.nodes if one.on and one.orders.newest is not None}:
            running = [one for one in self.nodes if one.on and one.ranks.alive and one.orders.ran == attempt.id]
            if len(running) == len(attempt.roster):
                self.trained.append(attempt.id)
        assert self.trained == sorted(self.trained), "an older attempt made a step after a newer one"

    def hurt(self) -> None:
        random, node = self.random, self.random.choice(self.nodes)
        what = random.choice(["kill", "kill", "boot", "boot", "cut", "cut", "fail", "elect", "leader", "lull"])
        if what == "kill" and sum(one.on for one in self.nodes) > 1:
            node.kill()
        elif what == "boot" and not node.on:
            node.boot()
        elif what == "cut":
            node.cut_until_s = self.now_s + random.choice([1.0, 4.0, 8.0, 30.0])
        elif what == "fail" and node.ranks.alive:
            node.ranks = msgspec.structs.replace(node.ranks, code=9)
        elif what == "elect":
            self.elect()
        elif what == "leader" and self.leader is not None:
            self.leader.kill()
        if self.leader is not None and not self.leader.on and random.random() < 0.7:
            self.elect()


def troubled(world: World) -> None:
    """Hurt it again and again for a while, and then let it come to rest."""
    world.elect()
    until_s = world.now_s + TROUBLE_S
    while world.now_s < until_s:
        world.tick()
        if world.random.random() < TICK_S / 5.0:
            world.hurt()
    calm(world)


def calm(world: World) -> None:
    for one in world.nodes:
        one.cut_until_s = 0.0
        if not one.on:
            one.boot()
    if world.leader is None or world.leader.leads is None:
        world.elect()
    until_s = world.now_s + CALM_S
    while world.now_s < until_s:
        world.tick()


@pytest.mark.parametrize(
    "shape",
    [
        Shape(nodes=3, least_nodes=2, spares=2, restarts=1000),
        Shape(nodes=4, least_nodes=4, spares=0, restarts=1000),
        Shape(nodes=1, least_nodes=1, spares=2, restarts=1000),
        Shape(nodes=4, least_nodes=1, spares=1, restarts=1000, grow="now"),
    ],
    ids=["spares", "all or none", "one", "grows"],
)
@pytest.mark.thorough
@examples(60)
@given(st.integers(0, 2**32))
@example(191)  # with one node: who had been cut off led, and knew of no attempt since
def test_a_job_goes_on_once_whatever_is_killed_cut_off_or_replaced(shape: Shape, seed: int) -> None:
    world = World(seed, shape)
    troubled(world)
    assert world.leader is not None
    assert world.leader.leads is not None
    table = world.leader.leads
    assert table.runs
    assert table.attempt is not None
    least = shape.nodes if shape.grow == "now" else shape.least_nodes
    assert least <= len(table.attempt.roster) <= shape.nodes
    assert world.trained[-1] == table.attempt.id


class Asked(World):
    """The same, of which something is asked now and then; nobody asks twice."""

    def __init__(self, seed: int, shape: Shape) -> None:
        super().__init__(seed, shape)
        self.words, self.operations = Random(seed), list[Operation]()

    def hurt(self) -> None:
        super().hurt()
        table = None if self.leader is None or not self.leader.on else self.leader.leads
        if table is None or not table.settled(self.now_s) or len(self.operations) >= KEPT_OPERATIONS:
            return
        kind: Verb = self.words.choice(("evict", "evict", "cordon", "uncordon", "restart", "move"))
        of_ranks = kind in ("restart", "move")
        nodes = () if of_ranks else (self.words.choice(self.nodes).life.partition("/")[0],)
        placed = [] if table.attempt is None else [life.partition("/")[0] for life in table.attempt.roster]
        operation = Operation(
            id=f"o{len(self.operations)}", job="j", kind=kind, expected_generation=table.asked.generation,
            targets=Targets(nodes=nodes), plan=Plan(node_order=tuple(placed[::-1]) if kind == "move" else ()),
        )  # fmt: skip
        said = answered(Submit(operation), "j", table, self.now_s).report
        if said is not None and said.state == "accepted":
            self.operations.append(operation)


@pytest.mark.thorough
@examples(60)
@given(st.integers(0, 2**32))
def test_every_word_on_a_node_is_kept_or_was_never_begun_and_nobody_set_aside_trains(seed: int) -> None:
    shape = Shape(nodes=3, least_nodes=2, spares=2, restarts=1000)
    world = Asked(seed, shape)
    troubled(world)
    assert world.leader is not None
    table = world.leader.leads
    assert table is not None
    assert table.attempt is not None
    assert (table.runs, table.asked.under_way) == (True, ())
    assert world.trained[-1] == table.attempt.id
    out, evicted = set[str](), set[str]()
    for operation in world.operations:
        state = table.asked.report(operation.id).state
        assert state in ("done", "unknown")
        for node in operation.targets.nodes if state == "done" else ():
            if operation.kind == "uncordon":
                out.discard(node)
                evicted.discard(node)
            else:
                out.add(node)
                evicted.update({node} if operation.kind == "evict" else ())
    assert set(table.asked.aside) == out
    assert not evicted & {life.partition("/")[0] for life in table.attempt.roster}
    assert len(world.nodes) - len(out) >= shape.least_nodes
