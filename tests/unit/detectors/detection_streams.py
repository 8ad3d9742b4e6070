"""A detection service driven through a job of `trainwarden.detectors.testing.streams`, on a bus that only remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.doubles import ManualClock
from trainwarden.detectors.service import DetectionHandler
from trainwarden.detectors.testing.streams import JOB, START_S, Job, event, log_lines
from trainwarden.protocols import Consumer, Message
from trainwarden.records import IncidentRecord, Record, VerdictRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings
from trainwarden.topics import INCIDENTS, Topic, topic_of

RESET = "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection reset by peer"


def crash(job: Job, *, root_late_s: float = 0.02) -> Job:
    """Rank 2 is killed, the others break off, the launcher ends what is left."""
    at_s = job.end_s + 0.05
    job.add(at_s + root_late_s, event("process_exit", at_s, 2, signal="SIGKILL"))
    for rank in (0, 1):
        job.add(at_s + 0.05, event("exception", at_s + 0.04, rank, message=RESET))
        job.add(at_s + 0.3, event("process_exit", at_s + 0.25, rank, code=1))
    job.add(at_s + 0.5, event("process_exit", at_s + 0.45, 3, signal="SIGTERM"))
    return job


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
        names = {message.topic for message in self.log}
        if self.committed_offset:  # one numbering serves for all topics, also those that hold nothing yet
            names |= {topic.name for topic in DetectionHandler.topics}
        return {(name, 0): self.committed_offset for name in names}

    def assignment(self) -> frozenset[tuple[str, int]]:
        return frozenset((topic.name, 0) for topic in DetectionHandler.topics)

    def seek_to_time(self, time_s: float) -> None:
        begin = next((place for place, one in enumerate(self.log) if one.time_s >= time_s), len(self.log))
        self.position = min(begin, self.committed_offset)

    def seek(self, offsets: Mapping[tuple[str, int], int]) -> None:
        self.position = min(offsets.values(), default=self.position)  # one numbering for all topics

    def lag(self) -> int:
        return len(self.log) - self.position

    @property
    def dead_letters(self) -> int:
        return 0

    @property
    def lost(self) -> Mapping[str, int]:
        return {}

    def poll(self, number: int) -> list[Message]:
        out = self.log[self.position : self.position + number]
        self.position += len(out)
        return out


class Run:
    """Drives a `DetectionHandler` through a job's records in the order of their time, ticking ten times a second.

    The clock of the bus is `bus_ahead_s` ahead of the service's, by which the records are sent; `stamp` tells it of a
    time and a record instead, `stamped` whether that is the bus's.
    """

    stamp: Callable[[float, Record], float] | None = None
    stamped = True

    def __init__(
        self,
        settings: DetectionSettings | None = None,
        bus: RememberingBus | None = None,
        now_s: float = START_S,
        bus_ahead_s: float = 0.0,
    ) -> None:
        self.bus_ahead_s = bus_ahead_s
        self.clock = ManualClock(now_s)
        self.metrics = SelfMetrics("detector")
        self.settings = settings or DetectionSettings()
        self.handler = DetectionHandler(self.settings, self.clock, self.metrics)
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
                stamp_s = self.stamp(at_s, record) if self.stamp else at_s + self.bus_ahead_s
                batch.append(Message(topic_of(record).name, 0, len(self.bus.log), stamp_s, JOB, record, self.stamped))
                self.bus.log.append(batch[-1])
                place += 1
            self.bus.position = len(self.bus.log)
            self.take(self.handler.handle(batch) if batch else [])
            self.take(self.handler.tick(now_s))
            self.bus.committed_offset = len(self.bus.log)
        return self

    def begin_again(self, now_s: float) -> Run:
        """Another service after this one was killed: it goes through what it reads again, and is live."""
        other = Run(self.settings, self.bus, now_s)
        while messages := self.bus.poll(1000):
            other.take(other.handler.handle(messages))
        other.take(other.handler.tick(now_s))
        return other

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
