"""A bus in memory for the archive, a death at any step on the disk, and an independent count of what is there."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from pyarrow import parquet

from tests.doubles import ManualClock
from trainwarden.protocols import Consumer, Message
from trainwarden.records import CollectivesRecord, EventRecord, IterationRecord, LogRecord, MetricsRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import ServiceLoop
from trainwarden.settings import ArchiveSettings
from trainwarden.topics import COLLECTIVES, EVENTS, ITERATIONS, LOGS, METRICS, Topic, topic_of
from trainwarden.trainer_offline.archive import compaction
from trainwarden.trainer_offline.archive.service import ArchiveHandler, GatedBus

DAY_S = 86_400.0
NOON_S = 20_000 * DAY_S + DAY_S / 2  # 2024-10-04 12:00 UTC


class Killed(BaseException):
    """Stands for kill -9: nothing may catch it and go on."""


class Log:
    """Messages by (topic, partition) and what the group has committed."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, int], list[Message]] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self.letters: list[Record] = []

    def publish(self, topic: Topic[Any], key: str, record: Record) -> None:
        self.letters.append(record)

    def put(self, record: Record, *, partition: int = 0, time_s: float | None = None) -> None:
        place = (topic_of(record).name, partition)
        stream = self.messages.setdefault(place, [])
        written_s = NOON_S + len(stream) if time_s is None else time_s
        stream.append(Message(place[0], partition, len(stream), written_s, getattr(record, "job", ""), record))

    def flush(self, timeout_s: float = 30.0) -> None:
        pass

    def consumer(self, topics: Sequence[Topic[Any]], group: str, *, start: str = "earliest") -> Consumer:
        return LogConsumer(self)

    def read(self, topic: Topic[Any], *, from_time_s: float | None = None) -> Iterable[Message]:
        return [message for (name, _), found in self.messages.items() if name == topic.name for message in found]

    def close(self) -> None:
        pass


class LogConsumer:
    """One member that owns every partition and starts at the last commit."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._position = dict(log.committed)

    def poll(self, timeout_s: float, max_records: int = 1000) -> list[Message]:
        found: list[Message] = []
        for place, stream in self._log.messages.items():
            position = self._position.get(place, 0)
            found += stream[position : position + 3]
            self._position[place] = min(len(stream), position + 3)
        return found

    def rewind(self) -> None:
        """What Kafka does at a rebalance, also with the partitions that a member keeps."""
        self._position = dict(self._log.committed)

    def commit(self) -> None:
        self._log.committed.update(self._position)

    def committed(self) -> Mapping[tuple[str, int], int]:
        return self._log.committed

    def seek_to_time(self, time_s: float) -> None:
        raise NotImplementedError

    def assignment(self) -> frozenset[tuple[str, int]]:
        return frozenset(self._log.messages)

    def lag(self) -> int:
        return sum(len(stream) - self._position.get(place, 0) for place, stream in self._log.messages.items())

    @property
    def dead_letters(self) -> int:
        return 0

    @property
    def lost(self) -> Mapping[str, int]:
        return {}

    def close(self) -> None:
        pass


class Service:
    """One life of the archive service on a `Log`."""

    def __init__(self, log: Log, root: Path, clock: ManualClock | None = None, **settings: Any) -> None:
        self.clock = clock or ManualClock(NOON_S)
        chosen = ArchiveSettings(**{"folder": str(root), "flush_bytes": 4_096, **settings})
        self.handler = ArchiveHandler(chosen, self.clock, SelfMetrics("archive"))
        bus = GatedBus(log, self.handler.is_flushed)  # type: ignore[arg-type]
        self.loop = ServiceLoop(bus, self.handler, self.clock, SelfMetrics("loop"), poll_timeout_s=0.0)

    def rounds(self, number: int) -> None:
        for _ in range(number):
            self.loop.step()

    def die(self) -> None:
        """What the kernel does with a dead process's locks."""
        for number in self.handler._writer._locks.values():
            os.close(number)
        self.handler._writer._locks.clear()


def archived(records: Sequence[Record], root: Path) -> Log:
    """The bus that they came by, once the archive has them all."""
    log = Log()
    for record in records:
        log.put(record)
    service = Service(log, root)
    service.rounds(len(records) + 1)
    service.handler.finish()
    service.handler.close()
    return log


@contextmanager
def death_at(step: int, *, after: bool = False) -> Iterator[Callable[[], int]]:
    """Die at the `step`-th change of the disk, before or after it takes effect; yields the number of changes so far."""
    done = 0

    def deadly(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal done
            done += 1
            if done == step and not after:
                raise Killed
            result = real(*arguments, **named)
            if done == step and after:
                raise Killed
            return result

        return call

    with (
        mock.patch.object(os, "fsync", deadly(os.fsync)),
        mock.patch.object(os, "replace", deadly(os.replace)),
        mock.patch.object(os, "rename", deadly(os.rename)),
        mock.patch.object(os, "link", deadly(os.link)),
        mock.patch.object(os, "mkdir", deadly(os.mkdir)),
        mock.patch.object(os, "unlink", deadly(os.unlink)),
        mock.patch.object(os, "rmdir", deadly(os.rmdir)),
        mock.patch.object(compaction, "exchange", deadly(compaction.exchange)),
    ):
        yield lambda: done


def rows_of(message: Message) -> int:
    """How many rows a record is worth, counted the plain way."""
    record = message.record
    if isinstance(record, MetricsRecord):
        return sum(value is not None for row in record.values for value in row)
    if isinstance(record, IterationRecord):
        return len(record.steps)
    if isinstance(record, CollectivesRecord):
        return len(record.seqs)
    return len(record.lines) if isinstance(record, LogRecord) else 1


def expected(log: Log) -> Counter[tuple[str, int, int, float]]:
    """Rows that should be there by (topic, partition, offset, bus time)."""
    return Counter(
        {
            (name.rpartition(".")[2], partition, message.offset, message.time_s): rows_of(message)
            for (name, partition), stream in log.messages.items()
            for message in stream
            if rows_of(message)
        }
    )


def present(root: Path) -> Counter[tuple[str, int, int, float]]:
    """Rows that are there, read file by file without the archive's own reader."""
    found: Counter[tuple[str, int, int, float]] = Counter()
    for path in sorted(root.glob("[a-z]*/**/*.parquet")):
        table = parquet.ParquetFile(str(path)).read(columns=["bus_partition", "bus_offset", "written_s"])
        topic = path.relative_to(root).parts[0]
        cells = (table.column(name).to_pylist() for name in ("bus_partition", "bus_offset", "written_s"))
        found.update((topic, *row) for row in zip(*cells, strict=True))
    return found


def metrics_record(number: int, *, job: str = "j", time_s: float = NOON_S) -> MetricsRecord:
    """Two devices, one value missing."""
    return MetricsRecord(
        job=job, node=f"n{number % 2}", time_s=time_s + number, devices=("gpu0", "gpu1"),
        names=("a", f"b{number % 3}"), values=((float(number), None), (2.0, 3.0)), ranks=(0, None), models=("H200", ""),
    )  # fmt: skip


def steps_record(number: int, *, job: str = "j", time_s: float = NOON_S) -> IterationRecord:
    """Two steps of rank 0."""
    first = 2 * number
    return IterationRecord(
        job=job, node="n0", rank=0, incarnation="1-1", steps=(first, first + 1),
        end_s=(time_s + number, time_s + number + 0.5), duration_s=(0.5, 0.5), compute_s=(0.4, None),
    )  # fmt: skip


def lines_record(number: int, *, job: str = "j", time_s: float = NOON_S) -> LogRecord:
    """One line."""
    return LogRecord(
        job=job, node="n0", source="rank-0.log", ends=(number + 1,), lines=(f"line {number}",),
        times_s=(time_s + number,), rank=0,
    )  # fmt: skip


def event_record(number: int, *, job: str = "j", time_s: float = NOON_S) -> EventRecord:
    """One Xid."""
    return EventRecord(
        id=f"e{number}", job=job, node="n0", time_s=time_s + number, kind="xid", fields={"code": 79, "bus": None}
    )


def calls_record(number: int, *, job: str = "j", time_s: float = NOON_S) -> CollectivesRecord:
    """An all-reduce of rank 0 and what it sends to rank 1; every third time counts alone."""
    told = number % 3 != 0
    lanes = {
        "of": (0, 1), "functions": ("AllReduce", "Send"), "seqs": (number, number), "steps": (number, number),
        "call_bytes": (4096, 1 << 40), "device_s": (None, 0.25), "peers": (None, 1),
    }  # fmt: skip
    return CollectivesRecord(
        job=job, node="n0", rank=0, incarnation="1-1", time_s=time_s + number, comms=("c0", "c1"), places=(0, 0),
        groups=("dp", ""), sizes=(2, 2), enqueued=(number, number), **(lanes if told else {}),
    )  # fmt: skip


MAKERS: dict[str, Callable[..., Record]] = {
    METRICS.name: metrics_record, ITERATIONS.name: steps_record, LOGS.name: lines_record, EVENTS.name: event_record,
    COLLECTIVES.name: calls_record,
}  # fmt: skip
