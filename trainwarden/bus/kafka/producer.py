"""The writing side of the Kafka engine: a queue in front of an idempotent producer that loses nothing."""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Collection
from typing import Any

from kafka import KafkaProducer
from kafka.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    PolicyViolationError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)

from trainwarden.bus.kafka.client import LIBRARYS, Clients, is_about
from trainwarden.errors import BusError, BusUnavailable, RecordError, RecordsRefused

log = logging.getLogger("trainwarden.bus")

_JOIN_TIMEOUT_S = 2.0
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
_FOR_GOOD = (*_TOO_LARGE, InvalidRecordError, InvalidTimestampError, PolicyViolationError)
_SLICE_S = 1.0  # of a wait for acknowledgements; after each one topics that are gone are looked for
_BARRED_S = 30.0  # between two tries to write to a topic that is not permitted: each costs a new producer
_ALONE_S = 5.0  # for one record that is sent by itself, so that nothing else shares its refusal


class _Sent:
    """One record until it is acknowledged."""

    __slots__ = ("alone", "future", "key", "refusal", "topic", "value")

    def __init__(self, topic: str, key: bytes, value: bytes) -> None:
        self.topic = topic
        self.key = key
        self.value = value
        self.future: Any = None
        self.refusal: BaseException | None = None
        self.alone = False  # its batch was refused for good, by its own fault or by a neighbour's


class OrderedProducer:
    """Keeps every record until the broker has acknowledged it.

    While the broker is away the producer itself retries, in order and without duplicates, for as long as it takes.
    Only where it gives records up (a fatal error, a lost producer id) they are handed, in their order, to a new one;
    such a second attempt may write a record twice, which at-least-once delivery allows.

    Parameters
    ----------
    clients : Clients
        Addresses and settings.
    missing : callable
        Told of topics that the cluster says are not there any more.

    Raises
    ------
    BusUnavailable
        If no broker answers in time.
    """

    def __init__(self, clients: Clients, missing: Callable[[Collection[str]], None]) -> None:
        self._clients, self._missing = clients, missing
        self._lock = threading.RLock()
        self._flush_lock = threading.Lock()
        self._pending: deque[_Sent] = deque()
        self._pending_bytes = 0
        self._partitions: dict[str, int] = {}  # 0: the topic was there, and is gone
        self._stalled = False
        self._barred: dict[str, tuple[float, BaseException]] = {}  # topics that may not be written, until the next try
        self._refusing: set[str] = set()  # topics that refused a record and have acknowledged none since
        self._held: set[str] = set()  # topics whose records wait, while those of others go on
        self._producer: KafkaProducer | None = self._new_producer()

    def send(self, topic: str, key: str, value: bytes) -> None:
        """Queue one record.

        Raises
        ------
        BusUnavailable
            If the queue is full; the record was not taken.
        RecordError
            If the record is larger than the producer may send.
        """
        record = _Sent(topic, key.encode(), value)
        with self._lock:
            self._forget_acknowledged()
            if self._pending_bytes + len(value) > self._clients.config.max_queue_bytes:
                raise BusUnavailable(
                    f"kafka {','.join(self._clients.servers)}: {len(self._pending)} records wait unacknowledged, "
                    "the queue is full"
                )
            if not self._stalled:
                self._hand_over(record)
            self._pending.append(record)
            self._pending_bytes += len(value)

    def flush(self, timeout_s: float) -> None:
        """Return once everything queued is acknowledged.

        Raises
        ------
        BusUnavailable
            If it is not in time; all of it stays queued.
        RecordsRefused
            If the broker refuses records for good (larger than the topic allows, against a policy); they are dropped.
        """
        deadline_s = time.monotonic() + timeout_s
        with self._flush_lock:
            while True:
                self._recover()
                self._wait(min(_SLICE_S, max(0.0, deadline_s - time.monotonic())))
                error = self._settle()
                if not self._pending:
                    return
                self._look_for_topics()
                if time.monotonic() >= deadline_s:
                    waiting = f"{len(self._pending)} records not acknowledged within {timeout_s:g} s"
                    raise BusUnavailable(f"kafka {','.join(self._clients.servers)}: {waiting} ({error})")
                time.sleep(min(0.05, max(0.0, deadline_s - time.monotonic())))

    def close(self, timeout_s: float) -> None:
        """Flush what can be flushed in `timeout_s` and let go."""
        try:
            self.flush(timeout_s)
        except BusError as error:
            with self._lock:
                fields = {"records": len(self._pending), "error": str(error)}
            log.error("records lost at close", extra={"fields": fields})
        self._drop_producer()

    def _hand_over(self, record: _Sent) -> None:
        """Give `record` to the producer; where that cannot be done now, stall until the next flush."""
        if self._producer is None:
            self._stalled = True
            return
        if record.topic in self._held:
            return
        refused_until_s, refusal = self._barred.get(record.topic, (0.0, None))
        if time.monotonic() < refused_until_s:
            record.refusal = refusal
            return
        try:
            count = self._partitions_of(record.topic, self._producer)
            if not count:
                self._held.add(record.topic)
                return
            # The same stable hash as the embedded engine; the library's own is slow and in pure Python.
            record.future = self._producer.send(
                record.topic, record.value, key=record.key, partition=zlib.crc32(record.key) % count
            )
        except _TOO_LARGE as error:
            raise RecordError(str(error)) from error
        except TopicAuthorizationFailedError as error:
            record.refusal = error
        except KafkaTimeoutError:  # the broker knows no such topic
            self._partitions[record.topic] = 0
            self._held.add(record.topic)
        except ValueError:  # no such partition: the topic was made again with fewer
            self._partitions.pop(record.topic, None)
            self._held.add(record.topic)
        except LIBRARYS:
            self._stalled = True

    def _partitions_of(self, topic: str, producer: KafkaProducer) -> int:
        """How many partitions `topic` has; 0 while it is gone."""
        count = self._partitions.get(topic)
        if count == 0:
            count = len(producer._metadata.partitions_for_topic(topic) or ())
        elif count is None:
            count = len(producer.partitions_for(topic) or ())
        self._partitions[topic] = count
        return count

    def _recover(self) -> None:
        """Hand over again what a producer gave up or could not take, in order; a new producer if it gave up any."""
        with self._lock:
            if any(record.future is not None and record.future.failed() for record in self._pending):
                self._drop_producer()
                for record in self._pending:
                    if record.future is not None and not record.future.succeeded():
                        # Refused since `_settle` looked: sent again in the same batch, it would be so for ever.
                        record.alone = record.alone or isinstance(record.future.exception, _FOR_GOOD)
                        record.future = None
            if self._producer is None:
                self._producer = self._new_producer()
            self._stalled = False
            self._held.clear()
            for record in self._pending:
                if record.future is None and record.refusal is None and not self._stalled:
                    self._hand_over(record)
                    if record.alone:
                        self._stalled = self._stalled or not _came_through(record)  # then a new producer takes the rest

    def _new_producer(self) -> KafkaProducer:
        self._clients.reach()
        self._partitions.clear()
        with self._clients.guard("connecting"):
            return KafkaProducer(**self._clients.producer())

    def _drop_producer(self) -> None:
        with self._lock:
            producer, self._producer = self._producer, None
            self._stalled = True
        if producer is not None:
            # `close` alone first waits for what cannot be sent, gives up, and leaves the sending thread at work:
            # that thread would send again what a new producer sends. Our queue still has it all.
            producer._sender.force_close()
            producer._sender.join(_JOIN_TIMEOUT_S)
            try:
                producer.close(timeout=0)
            except LIBRARYS as error:
                log.warning("producer did not end", extra={"fields": {"error": str(error)}})

    def _wait(self, timeout_s: float) -> None:
        producer = self._producer
        if producer is not None:
            try:
                producer.flush(timeout=timeout_s)
            except LIBRARYS as error:  # whose records it is about is for their futures to say
                log.debug("flush is not done", extra={"fields": {"error": str(error)}})

    def _look_for_topics(self) -> None:
        """Have topics made again that records wait for and the broker says are gone. While it is away it says nothing.

        What the producer has in hand for them it sends by itself once they are there.
        """
        with self._lock:
            waiting = {record.topic for record in self._pending}
            known = self._producer._metadata if self._producer is not None else None
            if known is None:
                return
            gone = {one for one in waiting & self._partitions.keys() if known.partitions_for_topic(one) is None}
            gone -= known.unauthorized_topics
            self._partitions.update(dict.fromkeys(gone, 0))  # they may come back with another number of them
            counts = {one: len(known.partitions_for_topic(one) or ()) for one in waiting & self._partitions.keys()}
            if any(count < self._partitions[one] for one, count in counts.items()):
                self._drop_producer()  # what it has in hand for partitions that are gone it would send for ever
        if gone:
            self._missing(gone)

    def _settle(self) -> BaseException | None:
        """Forget what is acknowledged; the first error among the rest."""
        with self._lock:
            first: BaseException | None = None
            refused: list[tuple[_Sent, BaseException]] = []
            kept: deque[_Sent] = deque()
            for record in self._pending:
                error = record.refusal
                if error is None and record.future is not None and record.future.is_done:
                    error = record.future.exception
                    if error is None:
                        self._refusing.discard(record.topic)
                        continue
                if isinstance(error, TopicAuthorizationFailedError) and not is_about(error, record.topic):
                    record.refusal = record.future = None  # the library asks about several topics at once
                elif isinstance(error, TopicAuthorizationFailedError) or (
                    isinstance(error, _FOR_GOOD) and record.alone
                ):
                    refused.append((record, error))
                    continue
                record.alone = isinstance(error, _FOR_GOOD)  # whole batches are refused: try each record by itself
                first = first or error
                kept.append(record)
            self._pending = kept
            self._pending_bytes = sum(len(record.value) for record in kept)
        if refused:
            until_s = time.monotonic() + _BARRED_S
            for record, error in refused:
                if isinstance(error, TopicAuthorizationFailedError) and record.future is not None:
                    self._barred[record.topic] = until_s, error
            if any(record.future is not None for record, _ in refused):
                self._drop_producer()  # what was in one batch with them, or comes after it, has their fault too
            raise self._refusal(refused)
        return first

    def _refusal(self, refused: list[tuple[_Sent, BaseException]]) -> RecordsRefused:
        said = {record.topic: error for record, error in refused}
        why = "; ".join(f"{topic}: {_why(error)}" for topic, error in sorted(said.items()))
        records = tuple((one.topic, one.key.decode(), one.value) for one, _ in refused)
        is_repeated = said.keys() <= self._refusing
        self._refusing |= said.keys()
        text = f"kafka: the broker refuses {len(refused)} records for good: {why}"
        return RecordsRefused(text, records, is_repeated=is_repeated)

    def _forget_acknowledged(self) -> None:
        pending = self._pending
        while pending:
            future = pending[0].future
            if future is None or not future.is_done or future.exception is not None:
                return
            self._refusing.discard(pending[0].topic)
            self._pending_bytes -= len(pending.popleft().value)


def _why(error: BaseException) -> str:
    return "writing is not permitted" if isinstance(error, TopicAuthorizationFailedError) else str(error)


def _came_through(record: _Sent) -> bool:
    """Whether `record`, which was handed over by itself, has been acknowledged."""
    try:
        record.future.get(timeout=_ALONE_S)
    except LIBRARYS:
        return False
    return True
