"""Sampling on suspicion over a real Kafka broker: a slow job, a request, every step stamped for a while, a name.

Broker, detection service, the agents of two nodes and NCCL's plug-in are real; the ranks are players of NCCL, whose
kernels last as long as their ranks wait for the last one. Iterations are told by the test, as the device's own.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hook_doubles import write_header
from tests.nccl_player import Player
from tests.servers.agent import AgentProcess
from tests.servers.kafka import KafkaBroker
from tests.system.runs import WARDEN
from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
from trainwarden.hook import read_header
from trainwarden.records import CollectivesRecord, EventRecord, IncidentRecord, IterationRecord, SamplingRecord
from trainwarden.topics import COLLECTIVES, INCIDENTS, SAMPLING, topic_of

pytestmark = [
    pytest.mark.system,
    pytest.mark.kafka,
    pytest.mark.timeout(300),
]

RANKS, PER_NODE, LATE = 6, 3, 4
COMPUTES_S, LATE_S = 0.1, 0.25  # of a step; the rank that is late then computes as much longer
HEALTHY, MOST = 40, 160  # steps
PATIENCE_S = 120.0


class Job:
    """Ranks on two nodes that step together, their agents, and a detection service."""

    def __init__(self, broker: KafkaBroker, built: tuple[Path, Path], folder: Path) -> None:
        self.bus = KafkaBus([broker.server], KafkaConfig(connect_timeout_s=60.0, request_timeout_s=60.0))
        self.step = 0
        self.stamped: dict[int, list[bool]] = {}  # by step: whether the stamps of each rank were kept
        self.agents: list[AgentProcess] = []
        self.players: list[Player] = []
        self.lives: list[str] = []
        self.detector: subprocess.Popen[bytes] | None = None
        self._address, self._built, self._folder = broker.address, built, folder
        self._said = folder / "detector.err"

    def start(self) -> None:
        """Ranks first, whose files the agents then find."""
        for node in range(RANKS // PER_NODE):
            environ = {"TRAINWARDEN_BUS": self._address, "TRAINWARDEN_NODE": f"node{node}"}
            folder = self._folder / f"node{node}"
            self.agents.append(AgentProcess(folder, "{nccl_calls = {interval_s = 0.2}}", environ))
        for rank in range(RANKS):
            hook = self.agents[rank // PER_NODE].run_dir / "hook"
            player = Player(self._built, hook, RANK=str(rank))
            self.players.append(player)
            player.ask("init", 0, "abc", "dp", RANKS // PER_NODE, RANKS, rank)
            path = hook / f"rank-{rank}-{player.process.pid}.hook"
            write_header(path, player.process.pid)
            header = read_header(path)
            assert header is not None
            self.lives.append(header.incarnation)
        for agent in self.agents:
            agent.start()
        environ = {"TRAINWARDEN_BUS": self._address, "TRAINWARDEN_STATE_DIR": str(self._folder / "state")}
        with self._said.open("wb") as said:
            self.detector = subprocess.Popen([*WARDEN, "detector"], env=os.environ | environ, stdout=said, stderr=said)
        self._tell(EventRecord(id="start", job="job", node="", time_s=time.time(), kind="job_start",
                               fields={"world_size": RANKS}))  # fmt: skip

    def _tell(self, record: EventRecord | IterationRecord) -> None:
        self.bus.publish(topic_of(record), "job", record)

    def make_step(self, late_s: float = 0.0) -> None:
        """All come to one call, the late rank last; it ends for all at once."""
        for player in self.players:
            player.ask("step", self.step)
        kernels: dict[int, list[int]] = {}
        time.sleep(COMPUTES_S)
        for rank in sorted(range(RANKS), key=lambda rank: rank == LATE):
            if rank == LATE:
                time.sleep(late_s)
            player = self.players[rank]
            calls = [player.coll(seq=2 * self.step + one, count=1 << 20, func="ReduceScatter") for one in range(2)]
            kernels[rank] = player.ask("begin", 0, calls[1], 0, player.now()) if calls[1] else []
        time.sleep(0.005)
        for rank, kernel in kernels.items():
            if kernel and kernel[0]:
                self.players[rank].ask("stop", kernel[0], self.players[rank].now())
        self.stamped[self.step] = [any(kernels[rank]) for rank in range(RANKS)]  # 0: stamped and not kept, a step ahead
        took_s = (COMPUTES_S + late_s) * (1.0 + 0.02 * math.sin(self.step))
        for rank in range(RANKS):
            self._tell(IterationRecord(
                job="job", node=f"node{rank // PER_NODE}", rank=rank, incarnation=self.lives[rank], steps=(self.step,),
                end_s=(time.time(),), duration_s=(took_s,), basis="device_step", accelerator="cuda",
            ))  # fmt: skip
        self.bus.flush()
        self.step += 1

    def requests(self) -> list[SamplingRecord]:
        return [one.record for one in self.bus.read(SAMPLING) if isinstance(one.record, SamplingRecord)]

    def incidents(self) -> list[IncidentRecord]:
        return [one.record for one in self.bus.read(INCIDENTS) if isinstance(one.record, IncidentRecord)]

    def sampled(self) -> dict[int, set[int]]:
        """By step, the ranks whose calls the bus has with their times on the device."""
        found: dict[int, set[int]] = {}
        for message in self.bus.read(COLLECTIVES):
            record = message.record
            assert isinstance(record, CollectivesRecord)
            for step, took_s in zip(record.steps, record.device_s, strict=True):
                if took_s is not None:
                    found.setdefault(step, set()).add(record.rank)
        return found

    def said(self) -> str:
        return "\n".join([self._said.read_text(errors="replace")[-2000:], *(agent.tail() for agent in self.agents)])

    def close(self) -> None:
        if self.detector is not None:
            self.detector.kill()
            self.detector.wait()
        for agent in self.agents:
            agent.kill()
        for player in self.players:
            player.__exit__(None, None, None)
        self.bus.close()


@pytest.fixture
def job(own_kafka_broker: KafkaBroker, built: tuple[Path, Path], tmp_path: Path) -> Iterator[Job]:
    made = Job(own_kafka_broker, built, tmp_path)
    try:
        made.start()
        yield made
    finally:
        made.close()


def test_of_a_slow_job_every_step_is_sampled_for_a_while_and_the_late_rank_named(job: Job) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while job.step % 16 or not job.sampled():  # the agents are there, and the service has had time to join
        job.make_step()
        assert time.monotonic() < until_s, job.said()
    slow_from = job.step + HEALTHY
    while job.step < slow_from:
        job.make_step()
    assert job.requests() == [], "a healthy job is left alone"
    named: list[IncidentRecord] = []
    while not named and job.step < slow_from + MOST:
        job.make_step(LATE_S)
        if job.step % 8 == 0:
            named = [one for one in job.incidents() if one.suspects]
    (request,) = job.requests()
    assert named, (request, [one.kind for one in job.incidents()], job.said())
    assert [(who.rank, who.node) for who in named[0].suspects] == [(LATE, "node1")]
    asked = range(request.from_step, request.until_step)
    made = [step for step in asked if step in job.stamped]
    assert len(made) >= 3
    assert all(all(job.stamped[step]) for step in made), "all ranks of both nodes sample the same steps"
    others = [step for step in range(slow_from, job.step) if step not in asked and step % 64]
    assert not any(any(job.stamped[step]) for step in others), "and no others"
    assert [step for step in made[:3] if job.sampled()[step] != set(range(RANKS))] == []
