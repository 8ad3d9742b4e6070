"""Rendezvous services killed, doubled, cut off; agents killed, moved, frozen: never two rounds at once."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from tests.examples import examples
from tests.unit.actions.launchers.torchrun.agents import World
from trainwarden.actions.launchers.torchrun.messages import Memory
from trainwarden.actions.launchers.torchrun.operations import end_operations
from trainwarden.actions.launchers.torchrun.table import JobTable

NODES = ("a", "b", "c", "d", "e")
MISHAPS = st.tuples(
    st.sampled_from(["kill", "start", "cut", "heal", "move", "fail", "empty", "restart", "wait", "blip"]),
    st.sampled_from(NODES),
    st.floats(0.1, 6.0),
)


class Two(World):
    """A job with two services: each agent is connected to one; what begins where is kept."""

    def __init__(self, least: int) -> None:
        self.begun: dict[int, tuple[str, ...]] = {}
        self.done: dict[str, int] = {}
        super().__init__(*NODES[:4], least=least, most=4)
        self.other = JobTable("j", self.lost_after_s, self.now_s)

    def do(self, what: str, node: str) -> None:
        agent = self.agents.get(node)
        if what == "start" and agent is None:
            self.start(node)
        elif agent is None:
            return
        elif what == "kill":
            self.kill(node)
        elif what in ("cut", "heal"):
            agent.reachable = what == "heal"
        elif what == "move" and agent.reachable:
            before = self.talk[node]
            before.beat(agent.life, type(agent.beat)(at=agent.beat.at, moves=True), self.now_s)
            before.closed(agent.life, self.now_s)
            self.connect(node, self.other if before is self.table else self.table)
        elif what == "blip":
            self.talk[node].closed(agent.life, self.now_s)
            self.connect(node, self.talk[node])
        elif what == "fail" and agent.beat.alive:
            agent.fail(agent.beat.alive[0])
        elif what == "empty":
            self._empty(node)
        elif what == "restart":
            self.ask("restart")

    def _empty(self, node: str) -> None:
        """The service that `node` is connected to is followed by an empty one; agents that it hears come to it."""
        old = self.talk[node]
        new = JobTable("j", self.lost_after_s, self.now_s)
        self.table, self.other = (new, self.other) if old is self.table else (self.table, new)
        for name, table in list(self.talk.items()):
            if table is old:
                self.connect(name, new)

    def look(self) -> None:
        for table in (self.table, self.other):
            end_operations(table, self.now_s)
            memory: Memory = table.memory
            if memory.round:
                lives = tuple(seat.life for seat in memory.roster)
                assert self.begun.setdefault(memory.round, lives) == lives, "two services began one round each"


@examples(60)
@given(st.lists(MISHAPS, max_size=25), st.integers(1, 4))
def test_no_round_begins_twice_and_no_agent_goes_back(mishaps, least):
    world = Two(least)
    for what, node, seconds in mishaps:
        world.do(what, node)
        for _ in range(int(seconds / 0.5) + 1):
            world.pass_s(0.5)
            world.look()
    for agent in world.agents.values():
        rounds = [number for number, _ in agent.rounds]
        assert rounds == sorted(set(rounds))


@pytest.mark.thorough
@examples(60)
@given(st.lists(MISHAPS, max_size=10), st.integers(1, 3))
def test_once_all_is_well_again_the_job_runs_or_has_been_ended_for_a_reason(mishaps, least):
    world = Two(least)
    for what, node, seconds in mishaps:
        world.do(what, node)
        world.pass_s(seconds)
    if any(agent.over is not None for agent in world.agents.values()):
        return  # the job has ended before, and who comes now would begin another
    for node in NODES:
        if node not in world.agents:
            world.start(node)
        world.agents[node].reachable = True
        world.connect(node, world.table)
    world.pass_s(25.0)
    memory = world.table.memory
    assert memory.over is not None or world.state().phase == "running", memory
    assert memory.over is None or memory.failures >= 3 or "failures" in memory.reason
