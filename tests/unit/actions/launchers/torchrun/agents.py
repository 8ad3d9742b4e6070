"""Agents of torchrun that do at once what a table says to them, on a clock that only the test moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from trainwarden.actions.launchers.torchrun.in_job import MeasuredInJob
from trainwarden.actions.launchers.torchrun.messages import Beat, Checkpoint, Failure, Grow, Hello, Memory, Submit
from trainwarden.actions.launchers.torchrun.operations import answer, end_operations, state_of
from trainwarden.actions.launchers.torchrun.table import JobTable
from trainwarden.launching import LauncherState, Operation, Plan, Report, Targets, Verb

STEP_S = 0.1


@dataclass
class Agent:
    """One torchrun on `node`; `rounds` are those that its ranks were started in, with their places."""

    node: str
    life: str
    least: int
    most: int
    ranks: int = 2
    beat: Beat = field(default_factory=lambda: Beat(waits=True, port=1))
    rounds: list[tuple[int, int]] = field(default_factory=list)
    memory: Memory | None = None
    over: int | None = None
    place: int | None = None
    spares: int | None = None
    failures: int | None = None
    grow: Grow = "worth"
    held: bool = False
    weight: float | None = None
    reachable: bool = True
    stuck: bool = False
    """Its ranks do not end when they are asked to."""

    def hello(self) -> Hello:
        return Hello(
            job="j", life=self.life, node=self.node, host=self.node, least=self.least, most=self.most, beat=self.beat,
            last_call_s=1.0, memory=self.memory, place=self.place, spares=self.spares, grow=self.grow,
            failures=self.failures, held=self.held, weight=self.weight,
        )  # fmt: skip

    def obey(self, table: JobTable) -> None:
        word = table.word(self.life)
        self.memory = table.memory
        if word.over is not None and (word.stop or self.beat.waits):
            self.over, self.beat = word.over, msgspec.structs.replace(self.beat, left=True, alive=(), waits=False)
        elif word.begin is not None and self.beat.waits and word.begin.round > self.beat.at:
            first = word.begin.rank * self.ranks
            ranks = tuple(range(first, first + self.ranks))
            self.rounds.append((word.begin.round, word.begin.rank))
            self.beat = msgspec.structs.replace(
                self.beat, at=word.begin.round, waits=False, ranks=ranks, alive=ranks, failure=None, finished=False
            )
        elif word.stop and not self.stuck:
            self.come_back()

    def come_back(self) -> None:
        self.beat = msgspec.structs.replace(self.beat, waits=True, alive=(), ranks=(), failure=None)

    def finish(self) -> None:
        self.beat = msgspec.structs.replace(self.beat, finished=True, alive=())

    def fail(self, rank: int = 0) -> None:
        self.beat = msgspec.structs.replace(self.beat, failure=Failure(rank, "ended with code 7"))

    def sees(self, step: int, *outlives: int | None) -> None:
        """In a shared folder, where the newest outlives each node; else of what is named the first does."""
        checkpoint = Checkpoint(step, f"/checkpoints/step-{step}.pt", *(outlives or (step,)))
        self.beat = msgspec.structs.replace(self.beat, checkpoint=checkpoint, looks=True)


class World:
    """Agents of a job and its services; `talk` is which service each agent is connected to."""

    def __init__(
        self, *nodes: str, least: int, most: int, lost_after_s: float = 2.0, checks: MeasuredInJob | None = None,
        **more: Any,
    ) -> None:  # fmt: skip
        self.more = more
        self.now_s, self.least, self.most, self.lost_after_s = 100.0, least, most, lost_after_s
        self.table = JobTable("j", lost_after_s, self.now_s)
        if checks is not None:
            checks.attach(self.table)
        self.agents: dict[str, Agent] = {}
        self.talk: dict[str, JobTable] = {}
        for node in nodes:
            self.start(node)
        self.pass_s(3.0)

    def start(self, node: str, table: JobTable | None = None, **more: Any) -> Agent:
        agent = self.agents[node] = Agent(node, f"{node}/{self.now_s}", self.least, self.most, **{**self.more, **more})
        self.connect(node, table or self.table)
        return agent

    def connect(self, node: str, table: JobTable) -> None:
        self.talk[node] = table
        table.hello(self.agents[node].hello(), self.now_s)

    def kill(self, node: str) -> None:
        """The process ends, and so does its connection."""
        agent = self.agents.pop(node)
        self.talk.pop(node).closed(agent.life, self.now_s)

    def cut(self, node: str) -> None:
        """Nothing comes from it or to it any more; its ranks go on."""
        self.agents[node].reachable = False

    def pass_s(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += STEP_S
            for node, agent in self.agents.items():
                if agent.reachable:
                    self.talk[node].beat(agent.life, agent.beat, self.now_s)
            for table in {id(one): one for one in [self.table, *self.talk.values()]}.values():
                table.tick(self.now_s)
                if table.checks is not None:
                    table.checks.advance()
                end_operations(table, self.now_s)
            for node, agent in self.agents.items():
                if agent.reachable:
                    agent.obey(self.talk[node])

    @property
    def seats(self) -> list[str]:
        return [seat.node for seat in self.table.memory.roster]

    def state(self) -> LauncherState:
        return state_of(self.table, self.now_s)

    def ask(self, kind: Verb, *nodes: str, order: tuple[str, ...] = (), split: tuple[int, ...] = ()) -> Report:
        operation = Operation(
            id=f"{kind}/{self.now_s}/{nodes}", job="j", kind=kind, expected_generation=self.table.memory.generation,
            targets=Targets(nodes=nodes), plan=Plan(node_order=order, micro_batches=split), by="ann", why="a test",
        )  # fmt: skip
        reply = answer(Submit(operation), self.table, self.now_s)
        assert reply.report is not None
        return reply.report

    def report(self, operation: str) -> Report:
        return next(one.report for one in self.table.memory.kept if one.report.operation == operation)
