"""Jobs of the real rendezvous tables on shared nodes, and a coordinator over them, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.doubles import ManualClock
from tests.engine_doubles import MemoryBus, MemoryConsumer
from tests.unit.actions.launchers.torchrun.agents import World
from trainwarden.actions.coordinator.coordinator import Coordinator
from trainwarden.actions.launchers.torchrun.messages import AskState, Poll, Submit
from trainwarden.actions.launchers.torchrun.operations import CAPABILITIES, answer
from trainwarden.actions.remedies.policy import Rules
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import Capabilities, LauncherState, Operation, Report
from trainwarden.records import ActionRecord, Record, TaskRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import flush
from trainwarden.settings import CoordinatorSettings, EngineSettings
from trainwarden.topics import TASKS, topic_of

STEP_S = 0.2


class Cluster:
    """`jobs` by name: their least and most nodes and their weight. Every node runs a held torchrun of each job."""

    def __init__(self, *nodes: str, mode: str = "auto", **engine: Any) -> None:
        self.clock, self.bus, self.metrics = ManualClock(1000.0), MemoryBus(), SelfMetrics("coordinator")
        self.bus.now_s = self.clock.now_s
        self.nodes = list(nodes)
        self.jobs: dict[str, World] = {}
        self.weights: dict[str, float] = {}
        self.operations: list[Operation] = []
        self.unreachable: set[str] = set()
        self.engine: dict[str, Any] = {"mode": mode, "cool_down_s": 0.0, "actions_per_hour": 1000, **engine}
        self.restart()

    # --- trainwarden.launching.Launcher ------------------------------------------------------------------------------

    job = None

    def capabilities(self) -> Capabilities:
        return CAPABILITIES

    def _world(self, job: str) -> World:
        if job in self.unreachable or job not in self.jobs:
            raise LauncherUnavailable("no agent of it was heard")
        return self.jobs[job]

    def state(self, job: str) -> LauncherState:
        world = self._world(job)
        reply = answer(AskState(job), world.table, world.now_s)
        assert reply.state is not None
        return msgspec.structs.replace(reply.state, job=job)

    def submit(self, operation: Operation) -> Report:
        world = self._world(operation.job)
        reply = answer(Submit(operation), world.table, world.now_s)
        if reply.report is None:
            raise LauncherUnavailable(reply.later or "")
        if reply.report.state != "refused":
            self.operations.append(operation)
        return reply.report

    def poll(self, job: str, operation: str) -> Report:
        world = self._world(job)
        report = answer(Poll(job, operation), world.table, world.now_s).report
        if report is None:
            raise LauncherError("no report")
        return report

    def jobs_seen(self) -> Sequence[TaskRecord]:
        return [
            TaskRecord(
                id=job, job=job, at_s=0.0, weight=self.weights[job], minimum=world.least, maximum=world.most,
                by="rendezvous",
            )
            for job, world in self.jobs.items()
            if world.table.memory.over is None
        ]  # fmt: skip

    # --- the test's side ---------------------------------------------------------------------------------------------

    def restart(self, **engine: Any) -> None:
        """A new coordinator on the same bus, as after kill -9."""
        self.engine.update(engine)
        self.bus.queued.clear()
        rules = Rules.of(EngineSettings(**self.engine))
        settings = CoordinatorSettings(running_s=3600.0, transition_s=10.0)
        launcher = _Listing(self)
        self.coordinator = Coordinator(settings, rules, launcher, self.clock, self.metrics)
        self.consumer = MemoryConsumer(self.bus, self.coordinator.topics)
        self.coordinator.start(self.bus, self.consumer)  # type: ignore[arg-type]

    def launch(self, job: str, least: int = 1, most: int = 4, weight: float = 1.0) -> None:
        """Start a held torchrun of `job` on every node."""
        self.weights[job] = weight
        self.jobs[job] = World(*self.nodes, least=least, most=most, held=True)

    def kill(self, node: str) -> None:
        self.nodes.remove(node)
        for world in self.jobs.values():
            world.kill(node)

    def back(self, node: str) -> None:
        self.nodes.append(node)
        for world in self.jobs.values():
            world.start(node)

    def finish(self, job: str) -> None:
        """Its ranks end well."""
        for seat in self.jobs[job].table.memory.roster:
            self.jobs[job].agents[seat.node].finish()

    def say(self, *records: Record) -> None:
        for record in records:
            self.bus.publish(topic_of(record), "job", record)
        self.bus.flush()

    def pass_s(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            for world in self.jobs.values():
                world.pass_s(STEP_S)
            self.tick()

    def tick(self) -> None:
        self.clock.sleep(STEP_S)
        self.coordinator.handle(self.consumer.poll(0.0))
        for key, record in self.coordinator.tick(self.clock.now_s()):
            self.bus.publish(topic_of(record), key, record)
        flush(self.bus, self.metrics)

    def placed(self) -> dict[str, list[str]]:
        """Nodes on which each job's ranks run."""
        return {
            job: sorted(one.node for one in self.state(job).nodes if one.ranks)
            for job, world in self.jobs.items()
            if world.table.memory.over is None
        }

    def sizes(self) -> dict[str, int]:
        return {job: len(nodes) for job, nodes in self.placed().items()}

    def orders(self) -> list[tuple[str, str, str]]:
        return [(one.job, one.kind, one.targets.nodes[0]) for one in self.operations]

    def story(self) -> list[ActionRecord]:
        return self.bus.actions()

    def tasks(self) -> dict[str, TaskRecord]:
        """The newest record of each job."""
        return {message.record.job: message.record for message in self.bus.read(TASKS)}  # type: ignore[attr-defined,misc]


class _Listing:
    """The cluster as a launcher that lists its jobs."""

    job = None

    def __init__(self, cluster: Cluster) -> None:
        self.capabilities, self.state, self.submit, self.poll = (
            cluster.capabilities, cluster.state, cluster.submit, cluster.poll,
        )  # fmt: skip
        self.jobs = cluster.jobs_seen
