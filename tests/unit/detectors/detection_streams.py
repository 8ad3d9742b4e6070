"""A make-believe training job as the records an agent would send, and a bus that only remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from detectors.service import DetectionHandler
from tests.doubles import ManualClock
from trainwarden.protocols import Consumer, Message
from trainwarden.records import (
    EventRecord,
    HeartbeatRecord,
    IncidentRecord,
    IterationRecord,
    LogRecord,
    Record,
    VerdictRecord,
)
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings
from trainwarden.topics import INCIDENTS, Topic, topic_of

JOB, START_S = "job", 1_000_000.0


@dataclass
class Job:
    """A synchronous job: every rank computes, then waits for the slowest.

    `slow(rank, step)` multiplies a rank's compute time, `pause(rank, step)` adds a pause, `stop_s` ends everything.
    """

    ranks: int = 4
    step_s: float = 0.3
    noise: float = 0.04
    seed: int = 0
    share: float = 0.8
    roles: Sequence[str] = ()
    node: Callable[[int], str] = lambda rank: "node0"
    slow: Callable[[int, int], float] = lambda rank, step: 1.0
    everyone: Callable[[int], float] = lambda step: 1.0
    pause: Callable[[int, int], float] = lambda rank, step: 0.0
    micro: Callable[[int, int], int | None] = lambda rank, step: None
    life: int = 0
    records: list[tuple[float, Record]] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)

    def incarnation(self, rank: int) -> str:
        return f"{1000 + rank + 100 * self.life}-{self.life}"

    def run(self, steps: int, *, first: int = 0, start_s: float = START_S) -> Job:
        """Add `steps` steps and their heartbeats."""
        rng = np.random.default_rng((self.seed, self.life))
        now_s, batch = start_s, 2
        rows: dict[int, list[tuple[Any, ...]]] = {rank: [] for rank in range(self.ranks)}
        for step in range(first, first + steps):
            even = [self.micro(rank, step) for rank in range(self.ranks)]
            mean = np.mean([m for m in even if m is not None]) if any(m is not None for m in even) else 1.0
            work = np.array(
                [
                    self.share * self.step_s * self.slow(rank, step) * self.everyone(step)
                    * ((m / mean) if (m := even[rank]) is not None else 1.0) * rng.lognormal(0.0, self.noise)
                    for rank in range(self.ranks)
                ]
            )  # fmt: skip
            pauses = np.array([self.pause(rank, step) for rank in range(self.ranks)])
            took = float((work + pauses).max()) + (1 - self.share) * self.step_s
            begun_s, now_s = now_s, now_s + took
            for rank in range(self.ranks):
                wait = took - work[rank] - pauses[rank]
                rows[rank].append((step, now_s, took, float(work[rank]), float(wait), float(pauses[rank]), even[rank]))
            self.ends_s.append(now_s)
            self._beat(begun_s, now_s, step)
            if (step - first + 1) % batch == 0 or step == first + steps - 1:
                self._flush(rows, now_s + 0.05)
        return self

    def _flush(self, rows: dict[int, list[tuple[Any, ...]]], at_s: float) -> None:
        for rank, lines in rows.items():
            if not lines:
                continue
            steps, ends, took, work, wait, pause, micro = zip(*lines, strict=True)
            self.records.append(
                (
                    at_s,
                    IterationRecord(
                        job=JOB, node=self.node(rank), rank=rank, incarnation=self.incarnation(rank), steps=steps,
                        end_s=ends, duration_s=took, compute_s=work, wait_s=wait, pause_s=pause,
                        micro_batches=micro if micro[0] is not None else (),
                        role=self.roles[rank] if self.roles else "collective",
                    ),
                )
            )  # fmt: skip
            lines.clear()

    def _beat(self, begun_s: float, end_s: float, step: int) -> None:
        for at_s in np.arange(np.ceil(begun_s / 0.2) * 0.2, end_s, 0.2):
            waiting = at_s - begun_s > 0.9 * (end_s - begun_s)
            self.beat(float(at_s), step, phase="wait" if waiting else "compute", calls=2 * step + waiting)

    def beat(
        self,
        at_s: float,
        step: int,
        *,
        phase: str = "compute",
        calls: int = 0,
        states: Mapping[int, str] | None = None,
        phases: Mapping[int, str] | None = None,
        cpu_s: Mapping[int, float] | None = None,
        begun: Mapping[int, int] | None = None,
    ) -> None:
        """One heartbeat of every node."""
        nodes: dict[str, list[int]] = {}
        for rank in range(self.ranks):
            nodes.setdefault(self.node(rank), []).append(rank)
        for node, ranks in nodes.items():
            self.records.append(
                (
                    at_s,
                    HeartbeatRecord(
                        job=JOB, node=node, time_s=at_s, ranks=tuple(ranks), pids=tuple(1000 + r for r in ranks),
                        incarnations=tuple(self.incarnation(r) for r in ranks), steps=(step,) * len(ranks),
                        step_end_s=(None,) * len(ranks),
                        phases=tuple((phases or {}).get(r, phase) for r in ranks),  # type: ignore[arg-type,misc]
                        phase_since_s=(at_s,) * len(ranks), calls=tuple((begun or {}).get(r, calls) for r in ranks),
                        states=tuple((states or {}).get(r, "S") for r in ranks),
                        cpu_s=tuple((cpu_s or {}).get(r, at_s - START_S) for r in ranks),
                    ),
                )
            )  # fmt: skip

    def add(self, at_s: float, *records: Record) -> Job:
        """Add further records that are sent at `at_s`."""
        self.records.extend((at_s, record) for record in records)
        return self

    @property
    def end_s(self) -> float:
        return self.ends_s[-1]


def event(
    kind: str, at_s: float, rank: int | None = None, *, message: str = "", life: int = 0, **fields: Any
) -> EventRecord:
    """An event of a rank's process."""
    if rank is not None:
        fields.setdefault("incarnation", f"{1000 + rank + 100 * life}-{life}")
    node = fields.pop("node", "node0")
    device = fields.pop("device", None)
    return EventRecord(
        id=f"{kind}/{node}/{rank}/{device}/{life}/{at_s}", job=JOB, node=node, time_s=at_s, kind=kind,  # type: ignore[arg-type]
        rank=rank, device=device, message=message, fields=fields,
    )  # fmt: skip


def log_lines(
    rank: int | None, lines: Sequence[tuple[float, str]], *, first: int = 1, node: str = "node0"
) -> LogRecord:
    """A batch of log lines of one rank."""
    return LogRecord(
        job=JOB, node=node, source=f"rank-{rank}.log" if rank is not None else "kernel", rank=rank,
        ends=tuple(range(first, first + len(lines))), lines=tuple(line for _, line in lines),
        times_s=tuple(at_s for at_s, _ in lines),
    )  # fmt: skip


class RememberingBus:
    """What has been published, and the input log that a consumer may read again."""

    def __init__(self) -> None:
        self.log: list[Message] = []
        self.outputs: list[Record] = []
        self.committed_offset = 0
        self.position = 0

    def read(self, topic: Topic[Any], *, from_time_s: float | None = None) -> Iterable[Message]:
        for offset, record in enumerate(self.outputs):
            if topic_of(record) is topic:
                yield Message(topic.name, 0, offset, 0.0, JOB, record)

    # the consumer's side; one partition serves for all topics
    def committed(self) -> Mapping[tuple[str, int], int]:
        return {(name, 0): self.committed_offset for name in {message.topic for message in self.log}}

    def seek_to_time(self, time_s: float) -> None:
        self.position = 0

    def lag(self) -> int:
        return len(self.log) - self.position

    def poll(self, number: int) -> list[Message]:
        out = self.log[self.position : self.position + number]
        self.position += len(out)
        return out


class Run:
    """Drives a `DetectionHandler` through a job's records in the order of their time, ticking ten times a second."""

    def __init__(self, settings: DetectionSettings | None = None, bus: RememberingBus | None = None) -> None:
        self.clock = ManualClock(START_S)
        self.metrics = SelfMetrics("detector")
        self.handler = DetectionHandler(settings or DetectionSettings(), self.clock, self.metrics)
        self.bus = bus or RememberingBus()
        consumer: Any = self.bus
        self.handler.start(self.bus, consumer)  # type: ignore[arg-type]

    def play(self, records: Iterable[tuple[float, Record]], until_s: float) -> Run:
        """Everything that is sent up to `until_s`."""
        pending = sorted(records, key=lambda entry: entry[0])
        place = 0
        while self.clock.now_s() < until_s:
            self.clock.sleep(0.1)
            now_s = self.clock.now_s()
            batch = []
            while place < len(pending) and pending[place][0] <= now_s:
                at_s, record = pending[place]
                batch.append(Message(topic_of(record).name, 0, len(self.bus.log), at_s, JOB, record))
                self.bus.log.append(batch[-1])
                place += 1
            self.bus.position = len(self.bus.log)
            self.take(self.handler.handle(batch) if batch else [])
            self.take(self.handler.tick(now_s))
            self.bus.committed_offset = len(self.bus.log)
        return self

    def take(self, outputs: Iterable[tuple[str, Record]]) -> None:
        self.bus.outputs.extend(record for _, record in outputs)

    @property
    def revisions(self) -> list[IncidentRecord]:
        return [record for record in self.bus.outputs if isinstance(record, IncidentRecord)]

    @property
    def verdicts(self) -> list[VerdictRecord]:
        return [record for record in self.bus.outputs if isinstance(record, VerdictRecord)]

    @property
    def incidents(self) -> list[IncidentRecord]:
        """Newest revision of each incident, in the order of opening."""
        newest: dict[str, IncidentRecord] = {}
        for record in self.revisions:
            newest[record.id] = record
        return list(newest.values())

    def opened(self, kind: str) -> IncidentRecord:
        """The first revision of the only incident of `kind`."""
        (record,) = [one for one in self.revisions if one.state == "opened" and one.kind == kind]
        return record


__all__ = ["INCIDENTS", "JOB", "START_S", "Consumer", "Job", "RememberingBus", "Run", "event", "log_lines"]
