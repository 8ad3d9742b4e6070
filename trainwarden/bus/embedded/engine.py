"""The embedded engine: one SQLite file shared by the processes of one machine."""

from __future__ import annotations

import heapq
import itertools
import logging
import sqlite3
import threading
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from trainwarden.bus.dead_letters import Decoder
from trainwarden.bus.embedded import group as embedded_group
from trainwarden.bus.embedded import retention as embedded_retention
from trainwarden.bus.embedded.consumer import EmbeddedConsumer
from trainwarden.bus.embedded.damaged import opened, set_aside
from trainwarden.bus.embedded.store import Row, Store, is_damage
from trainwarden.clock import Clock, SystemClock
from trainwarden.errors import BusError, BusUnavailable
from trainwarden.protocols import Message
from trainwarden.records import DeadLetter, Record
from trainwarden.topics import DEAD_LETTERS, Topic

log = logging.getLogger("trainwarden.bus")

MAX_QUEUE_BYTES = 64 * 1024 * 1024
_BATCH_RECORDS = 2_000  # one transaction: short enough that other writers need not wait a noticeable time
_BATCH_BYTES = 8 * 1024 * 1024
_PRUNE_INTERVAL_S = 30.0
_READ_ROWS = 256


class EmbeddedBus:
    """A `trainwarden.protocols.Bus` in one SQLite file in WAL mode.

    What `flush` returned for survives the death of any process and the loss of power: records are written with
    ``synchronous=FULL``, one wait for the disk per batch. Committed offsets and group membership are written with
    ``synchronous=NORMAL``: to lose the last of them means to read some records again, never to lose one.

    Parameters
    ----------
    path : str
        The file; made if absent. Beside it lie ``PATH-wal``, ``PATH-shm`` and ``PATH-members``.
    clock : Clock, optional
        Source of write times, leases and waits.
    partitions : int
        Partitions of topics that do not exist yet; a key's partition is ``crc32(key) % partitions``.
    limit_bytes : int, optional
        Most bytes the file should use; above it the oldest records go, measured by their topics' own times.
    lease_s : float
        A member of a group that has not polled for so long loses its partitions. A dead one loses them within seconds.
    max_queue_bytes : int
        Most bytes of values that wait for `flush`.

    Raises
    ------
    ConfigError
        If the folder does not exist or the file is not one of ours.
    BusUnavailable
        If the file cannot be opened now.

    Examples
    --------
    >>> import tempfile
    >>> from trainwarden.records import EventRecord
    >>> from trainwarden.topics import EVENTS
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bus = EmbeddedBus(f"{folder}/bus.db")
    ...     bus.publish(EVENTS, "job", EventRecord(id="e1", job="job", node="n0", time_s=1.0, kind="job_start"))
    ...     bus.flush()
    ...     consumer = bus.consumer([EVENTS], "example")
    ...     ids = [message.record.id for message in consumer.poll(1.0)]
    ...     consumer.commit()
    ...     bus.close()
    >>> ids
    ['e1']
    """

    def __init__(
        self,
        path: str,
        *,
        clock: Clock | None = None,
        partitions: int = 8,
        limit_bytes: int | None = None,
        lease_s: float = embedded_group.LEASE_S,
        max_queue_bytes: int = MAX_QUEUE_BYTES,
    ) -> None:
        self.path = path
        self._clock: Clock = clock or SystemClock()
        self._partitions = partitions
        self._limit_bytes = limit_bytes
        self._lease_s = lease_s
        self._max_queue_bytes = max_queue_bytes
        self._queue: deque[tuple[int, float, str, bytes]] = deque()
        self._queued_bytes = 0
        self._queue_lock = threading.Lock()
        self._store_lock = threading.RLock()
        self._streams: dict[str, list[int]] = {}
        self._topics: dict[str, Topic[Any]] = {}
        self._consumers: list[EmbeddedConsumer] = []
        self._prune_due_s = self._clock.monotonic_s() + _PRUNE_INTERVAL_S
        self._limit_told = False
        self._closed = False
        self._store = opened(path, power_loss_safe=True)

    def publish(self, topic: Topic[Any], key: str, record: Record) -> None:
        """Queue `record`; from time to time this also writes what is queued.

        Raises
        ------
        RecordError
            If the record does not fit the topic.
        BusUnavailable
            If the file cannot be written and the queue is full; the record was not taken.
        """
        value = topic.encode(record)
        streams = self._streams.get(topic.name) or self._topic_streams(topic)
        stream = streams[zlib.crc32(key.encode()) % len(streams)]
        if self._queued_bytes + len(value) > self._max_queue_bytes:
            self.flush(timeout_s=1.0)
        with self._queue_lock:
            if self._closed:
                raise BusError("the bus is closed")
            self._queue.append((stream, self._clock.now_s(), key, value))
            self._queued_bytes += len(value)
            full = len(self._queue) >= _BATCH_RECORDS or self._queued_bytes >= _BATCH_BYTES
        if full and self._store_lock.acquire(blocking=False):
            try:
                self.flush(timeout_s=1.0)
            except BusUnavailable as error:
                log.debug("batch stays queued", extra={"fields": {"error": str(error)}})
            finally:
                self._store_lock.release()

    def flush(self, timeout_s: float = 30.0) -> None:
        deadline_s = self._clock.monotonic_s() + timeout_s
        with self._store_lock, self._guard():
            while batch := self._batch():
                self._store.append(batch, max(0.0, deadline_s - self._clock.monotonic_s()))
                with self._queue_lock:
                    for _, _, _, value in batch:
                        self._queue.popleft()
                        self._queued_bytes -= len(value)
            if self._clock.monotonic_s() >= self._prune_due_s:
                self.prune()

    def prune(self) -> int:
        """Remove some of what need not be kept; the number of records removed. `flush` calls it now and then."""
        with self._store_lock, self._guard():
            limit_bytes = self._limit_bytes
            over = limit_bytes is not None and embedded_retention.used_bytes(self._store) > limit_bytes
            removed = embedded_retention.prune(self._store, self._clock.now_s(), limit_bytes)
            if over and removed and not self._limit_told:
                self._limit_told = True
                log.warning("bus is full: the oldest records go", extra={"fields": {"limit_bytes": limit_bytes}})
            # A full step means that more is waiting: go on at the next flush, not half a minute later.
            behind = removed >= embedded_retention.PRUNE_RECORDS
            self._prune_due_s = self._clock.monotonic_s() + (0.0 if behind else _PRUNE_INTERVAL_S)
            return removed

    def consumer(self, topics: Sequence[Topic[Any]], group: str, *, start: str = "earliest") -> EmbeddedConsumer:
        """Join `group` at once; see `trainwarden.protocols.Bus.consumer`."""
        if start not in ("earliest", "latest"):
            raise ValueError(f"start is 'earliest' or 'latest', not {start!r}")
        for topic in topics:
            self._topic_streams(topic)
        consumer = EmbeddedConsumer(
            lambda: opened(self.path, power_loss_safe=False),
            self._guard,
            topics,
            group,
            start=start,
            clock=self._clock,
            decoder=Decoder({topic.name: topic for topic in topics}, self._publish_dead_letter),
            flush=self.flush,
            lease_s=self._lease_s,
        )
        self._consumers = [*(one for one in self._consumers if not one.closed), consumer]
        return consumer

    def read(self, topic: Topic[Any], *, from_time_s: float | None = None) -> Iterable[Message]:
        """Everything kept of one topic when called, by write time; undecodable records are skipped and logged."""
        self._topic_streams(topic)
        with self._store_lock, self._guard(), self._store.snapshot():
            ranges = [
                (
                    stream,
                    stream.first if from_time_s is None else self._store.offset_at(stream, from_time_s),
                )
                for stream in self._store.streams(topic.name)
            ]
        partition_of = {stream.id: stream.partition for stream, _ in ranges}
        merged = heapq.merge(*(self._rows(stream.id, start, stream.next) for stream, start in ranges))
        return self._decoded(topic, partition_of, merged)

    def close(self) -> None:
        with self._queue_lock:
            if self._closed:
                return
            self._closed = True
        for consumer in self._consumers:
            consumer.close()
        try:
            self.flush(timeout_s=5.0)
        except BusUnavailable as error:
            log.error("records lost at close", extra={"fields": {"records": len(self._queue), "error": str(error)}})
        with self._store_lock:
            self._store.close()

    def _publish_dead_letter(self, letter: DeadLetter) -> None:
        self.publish(DEAD_LETTERS, letter.topic, letter)

    def _topic_streams(self, topic: Topic[Any]) -> list[int]:
        if topic.name not in self._streams:
            with self._store_lock, self._guard():
                self._streams[topic.name] = self._store.ensure_topic(topic.name, self._partitions, topic.keep_s)
                self._topics[topic.name] = topic
        return self._streams[topic.name]

    def _batch(self) -> list[tuple[int, float, str, bytes]]:
        """The head of the queue that one transaction takes; it stays queued until that is done."""
        with self._queue_lock:
            batch: list[tuple[int, float, str, bytes]] = []
            size = 0
            for item in itertools.islice(self._queue, _BATCH_RECORDS):
                size += len(item[3])
                if batch and size > _BATCH_BYTES:
                    break
                batch.append(item)
            return batch

    def _rows(self, stream: int, start: int, end: int) -> Iterator[Row]:
        while start < end:
            with self._store_lock, self._guard():
                rows = list(self._store.rows(stream, start, end, _READ_ROWS))
            if not rows:
                return
            yield from rows
            start = rows[-1].offset + 1

    def _decoded(self, topic: Topic[Any], partition_of: dict[int, int], rows: Iterable[Row]) -> Iterator[Message]:
        decoder = Decoder({topic.name: topic}, None)
        for row in rows:
            partition = partition_of[row.stream]
            record = decoder.decode(topic.name, partition, row.offset, row.value)
            if record is not None:
                yield Message(topic.name, partition, row.offset, row.time_s, row.key, record, clock_s=row.clock_s)

    @contextmanager
    def _guard(self, used: Store | None = None) -> Iterator[None]:
        """SQLite's errors in our words: locked too long, disk full, I/O error, closed; of a damaged file a new one.

        Parameters
        ----------
        used : Store, optional
            Whose connection is used: a consumer has its own.
        """
        store = used or self._store
        try:
            if store.replaced():
                self._follow_file(store)
            yield
        except sqlite3.ProgrammingError as error:  # "Cannot operate on a closed database."
            raise BusError(f"embedded bus {self.path}: {error}") from error
        except sqlite3.Error as error:
            if is_damage(error):
                set_aside(self.path, store.inode)
            raise BusUnavailable(f"embedded bus {self.path}: {error}") from error

    def _follow_file(self, store: Store) -> None:
        """Go on with the new file; what waits goes to the same partitions, which may have other numbers there."""
        with self._store_lock:
            if self._store.replaced():
                self._store.reopen()
                places = {id_: (name, at) for name, ids in self._streams.items() for at, id_ in enumerate(ids)}
                for name, ids in self._streams.items():
                    self._streams[name] = self._store.ensure_topic(name, len(ids), self._topics[name].keep_s)
                with self._queue_lock:
                    there = {id_: self._streams[name][at] for id_, (name, at) in places.items()}
                    self._queue = deque((there[one[0]], one[1], one[2], one[3]) for one in self._queue)
        if store is not self._store:
            store.reopen()
