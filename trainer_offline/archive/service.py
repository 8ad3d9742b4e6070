"""The archive service: what is on the bus, as Parquet files by topic, job and day, each record exactly once.

Committing by durability: a file per poll would be thousands of tiny ones, and a second log before the files would write
everything twice. The bus is a durable log already, so rows wait in memory until they are worth a file
(`ArchiveSettings.flush_bytes`, `flush_s`) and offsets are committed only when nothing waits. The service loop commits
after every round; `GatedBus` stands between and lets a commit through only then. Killed anywhere, the process gets all
that was not committed again and recognises by file names what is on disk
(`trainwarden.trainer_offline.archive.writer`). Run on a bus without the gate, the handler writes files at every round
instead: many, but never a commit ahead of the disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainwarden.bus.address import connect
from trainwarden.clock import Clock, SystemClock
from trainwarden.errors import WardenError
from trainwarden.metrics_http.server import serve_metrics
from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.records import DeadLetter, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import Output, ServiceLoop
from trainwarden.settings import ArchiveSettings, Settings
from trainwarden.topics import Topic
from trainwarden.trainer_offline.archive.layout import ARCHIVED
from trainwarden.trainer_offline.archive.maintenance import Maintenance
from trainwarden.trainer_offline.archive.writer import ArchiveWriter

log = logging.getLogger("trainwarden.archive")

_LETTER_BYTES = 65_536


class GatedConsumer:
    """A consumer whose commits wait until `is_flushed` says that everything handed out is on disk."""

    def __init__(self, inner: Consumer, settled: Callable[[], bool]) -> None:
        self._inner = inner
        self._settled = settled
        self._pending = False

    def poll(self, timeout_s: float, max_records: int = 1000) -> list[Message]:
        if self._pending and self._settled():
            self.commit()
        return self._inner.poll(timeout_s, max_records)

    def commit(self) -> None:
        self._pending = not self._settled()
        if not self._pending:
            self._inner.commit()

    def committed(self) -> Mapping[tuple[str, int], int]:
        return self._inner.committed()

    def seek_to_time(self, time_s: float) -> None:
        self._inner.seek_to_time(time_s)

    def seek(self, offsets: Mapping[tuple[str, int], int]) -> None:
        self._inner.seek(offsets)

    def assignment(self) -> frozenset[tuple[str, int]]:
        return self._inner.assignment()

    def lag(self) -> int | None:
        return self._inner.lag()

    @property
    def dead_letters(self) -> int:
        return self._inner.dead_letters

    @property
    def lost(self) -> Mapping[str, int]:
        return self._inner.lost

    def close(self) -> None:
        self._inner.close()


class GatedBus:
    """`inner`, with consumers that commit only when `is_flushed`."""

    def __init__(self, inner: Bus, settled: Callable[[], bool]) -> None:
        self._inner = inner
        self._settled = settled

    def publish(self, topic: Topic[Any], key: str, record: Record) -> None:
        self._inner.publish(topic, key, record)

    def flush(self, timeout_s: float = 30.0) -> None:
        self._inner.flush(timeout_s)

    def consumer(self, topics: Sequence[Topic[Any]], group: str, *, start: str = "earliest") -> Consumer:
        return GatedConsumer(self._inner.consumer(topics, group, start=start), self._settled)

    def read(self, topic: Topic[Any], *, from_time_s: float | None = None) -> Iterable[Message]:
        return self._inner.read(topic, from_time_s=from_time_s)

    def close(self) -> None:
        self._inner.close()


class ArchiveHandler:
    """Handler of the archive service for `trainwarden.service_loop.ServiceLoop`, on a `GatedBus`.

    Parameters
    ----------
    settings : ArchiveSettings
        Folder, when to write files, compaction and retention.
    clock : Clock
        For the age of what waits and for retention.
    metrics : SelfMetrics
        Counters of the service.
    """

    topics: Sequence[Topic[Any]] = ARCHIVED
    group = "archive"

    def __init__(self, settings: ArchiveSettings, clock: Clock, metrics: SelfMetrics) -> None:
        root = Path(settings.folder)
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        self._writer = ArchiveWriter(root)
        self._maintenance = Maintenance(root, settings, clock)
        self._consumer: Consumer | None = None
        self._since_s: float | None = None
        metrics.count("rejected_total", "Records that could not be archived.", 0)

    def is_flushed(self) -> bool:
        """Whether everything that was handled is on disk."""
        return self._writer.is_flushed

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """Own the partitions of this member; of a new member everything that was not committed comes again."""
        del bus
        self._writer.own(consumer.assignment(), afresh=consumer is not self._consumer)
        self._consumer = consumer

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        """Apply messages; write files if that is due. Records that cannot be rows go to dead letters."""
        rejected = self._writer.add(messages)
        if self._since_s is None:
            self._since_s = self._clock.monotonic_s()
        if self._writer.nbytes >= self._settings.flush_bytes or not isinstance(self._consumer, GatedConsumer):
            self.flush()
        for _, reason in rejected:
            self._metrics.count("rejected_total", "Records that could not be archived.")
            log.warning("record cannot be archived", extra={"fields": {"reason": reason}})
        return [(message.key, _letter(message, reason)) for message, reason in rejected]

    def tick(self, now_s: float) -> Iterable[Output]:
        """Write what has waited for long enough, then do a bounded piece of compaction and retention."""
        waiting_s = self._clock.monotonic_s() - self._since_s if self._since_s is not None else 0.0
        if waiting_s >= self._settings.flush_s:
            self.flush()
        self._metrics.gauge("waiting_bytes", "Rows in memory, not yet on disk.", self._writer.nbytes)
        done = self._maintenance.step(now_s)
        if done:
            self._metrics.count("maintained_total", "Folders compacted or removed.", done)
        return []

    def flush(self) -> None:
        """Put everything that was handled on disk.

        Raises
        ------
        DataError
            If the disk refuses.
        """
        self._metrics.count("files_total", "Files written.", self._writer.flush())
        self._since_s = None

    def finish(self) -> None:
        """Before the service leaves: what waits goes to disk and is committed; if that fails it comes again."""
        try:
            self.flush()
            if isinstance(self._consumer, GatedConsumer):
                self._consumer.commit()
        except WardenError as error:
            log.warning("not all was written at the end", extra={"fields": {"error": str(error)}})

    def close(self) -> None:
        """Let go of the partitions' locks. Safe twice."""
        self._writer.close()


def _letter(message: Message, reason: str) -> DeadLetter:
    value = msgspec.json.encode(message.record)[:_LETTER_BYTES]
    return DeadLetter(
        topic=message.topic, partition=message.partition, offset=message.offset, reason=reason, value=value
    )


def serve(settings: Settings, stop: Callable[[], bool]) -> None:
    """Run the archive service until `stop()` is true, then write what waits.

    Raises
    ------
    ConfigError
        If a setting is wrong.
    BusUnavailable
        If the bus cannot be opened at all.
    """
    metrics = SelfMetrics("archive")
    handler = ArchiveHandler(settings.archive, SystemClock(), metrics)
    serve_metrics(metrics, settings.archive.metrics_port, settings)
    connection = GatedBus(
        connect(settings.bus, settings.kafka, limit_bytes=settings.runs.bus_bytes), handler.is_flushed
    )

    def stopping() -> bool:
        if not stop():
            return False
        handler.finish()
        return True

    try:
        ServiceLoop(connection, handler, SystemClock(), metrics).run(stopping)
    finally:
        connection.close()
        handler.close()
