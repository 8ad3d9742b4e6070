"""The reading side of the Kafka engine."""

from __future__ import annotations

import heapq
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    UnknownMemberIdError,
)
from kafka.structs import OffsetAndMetadata

from trainwarden.bus.dead_letters import Decoder
from trainwarden.bus.kafka_client import Clients
from trainwarden.errors import BusError, BusUnavailable
from trainwarden.protocols import Message
from trainwarden.records import Topic

_NOT_OURS_ANY_MORE = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)
_PROBE_INTERVAL_S = 5.0  # a broker that has said nothing for so long is asked whether it is there
_SLICE_S = 0.1  # the library's poll does not return when the assignment changes, so ask in slices
_CLOSE_TIMEOUT_MS = 3_000


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes what the group assigns; called from inside `poll` on the library's own loop."""

    def __init__(self) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.changes = 0

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.assigned = frozenset()
        self.changes += 1

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.assigned = frozenset(assigned)
        self.changes += 1


class GroupConsumer:
    """One member of a group; see `trainwarden.protocols.Consumer`. Made by `KafkaBus.consumer`.

    The group joins at the first polls. Partitions are shared out by range, so that partition p of every topic, and
    with it every record of a key, meets in one member. A `poll` at which the assignment changed returns nothing, so
    that a caller sees the change before any record that follows from it. After `seek_to_time` a `commit` does not
    fall behind what the group had reached before.
    """

    def __init__(
        self,
        clients: Clients,
        topics: Sequence[Topic[Any]],
        group: str,
        *,
        start: str,
        decoder: Decoder,
        flush: Callable[[], None],
    ) -> None:
        self._clients = clients
        self._decoder = decoder
        self._flush = flush
        self._timeout_ms = int(clients.config.request_timeout_s * 1000)
        self._lock = threading.RLock()
        self._listener = _Listener()
        self._seen_changes = 0
        self._buffer: deque[Any] = deque()
        self._returned: dict[TopicPartition, int] = {}
        self._reached: dict[TopicPartition, int] = {}
        self._kept: dict[TopicPartition, int | None] = {}
        self._heard_s = time.monotonic()
        self.closed = False
        names = [clients.topic_name(topic) for topic in topics]
        self._probe = TopicPartition(names[0], 0)
        session_ms = int(clients.config.session_timeout_s * 1000)
        clients.reach()
        with clients.guard("connecting"):
            self._consumer = KafkaConsumer(
                **clients.consumer(),
                group_id=clients.config.topic_prefix + group,
                auto_offset_reset=start,
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=max(100, session_ms // 5),
                partition_assignment_strategy=[RangePartitionAssignor],
            )
            self._consumer.subscribe(names, listener=self._listener)
            # Wait for the topics' metadata before joining: if it comes while the group is being shared out,
            # kafka-python 3.0 keeps an empty assignment for good.
            self._consumer.end_offsets([TopicPartition(name, 0) for name in names], timeout_ms=self._timeout_ms)

    @property
    def dead_letters(self) -> int:
        """Undecodable records met so far."""
        return self._decoder.dead_letters

    def poll(self, timeout_s: float, max_records: int = 1000) -> list[Message]:
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            self._check_open()
            while True:
                left_s = max(0.0, deadline_s - time.monotonic())
                if not self._buffer:
                    self._fetch(min(left_s, _SLICE_S), max_records)
                if self._listener.changes != self._seen_changes:
                    self._take_assignment()
                    return []
                messages = self._decoded(max_records)
                if messages or time.monotonic() >= deadline_s:
                    return messages

    def commit(self) -> None:
        with self._lock:
            self._check_open()
            self._decoder.keep(self._flush)
            offsets = {
                partition: max(offset, self._reached.get(partition, 0))
                for partition, offset in self._returned.items()
                if partition in self._listener.assigned
            }
            if offsets:
                with self._clients.guard("committing"):
                    try:
                        self._consumer.commit(
                            {partition: OffsetAndMetadata(offset, "", -1) for partition, offset in offsets.items()},
                            timeout_ms=self._timeout_ms,
                        )
                    except _NOT_OURS_ANY_MORE:
                        # The group is being shared out anew: whoever gets the partition reads these records again.
                        return
                self._heard_s = time.monotonic()
                self._kept.update(offsets)
                self._returned.clear()

    def committed(self) -> Mapping[tuple[str, int], int]:
        with self._lock:
            self._check_open()
            kept = self._committed()
            return {self._place(partition): offset for partition, offset in kept.items()}

    def seek_to_time(self, time_s: float) -> None:
        with self._lock:
            self._check_open()
            partitions = self._listener.assigned
            if not partitions:
                return
            kept = self._committed()
            with self._clients.guard("seeking"):
                starts = offsets_at(self._consumer, partitions, time_s, self._timeout_ms)
                for partition, offset in starts.items():
                    self._consumer.seek(partition, offset)
            for partition in partitions:
                high = max(kept.get(partition, 0), self._returned.get(partition, 0))
                self._reached[partition] = max(self._reached.get(partition, 0), high)
            self._buffer.clear()

    def assignment(self) -> frozenset[tuple[str, int]]:
        with self._lock:
            return frozenset(self._place(partition) for partition in self._listener.assigned)

    def lag(self) -> int:
        with self._lock:
            self._check_open()
            partitions = self._listener.assigned
            if not partitions:
                return 0
            with self._clients.guard("measuring the lag"):
                ends = self._consumer.end_offsets(partitions, timeout_ms=self._timeout_ms)
                lag = len(self._buffer)
                for partition, end in ends.items():
                    position = self._consumer.position(partition, timeout_ms=self._timeout_ms)
                    lag += max(0, end - (end if position is None else position))
            self._heard_s = time.monotonic()
            return lag

    def close(self) -> None:
        with self._lock:
            if not self.closed:
                self.closed = True
                self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)

    def _check_open(self) -> None:
        if self.closed:
            raise BusError("the consumer is closed")

    def _fetch(self, timeout_s: float, max_records: int) -> None:
        with self._clients.guard("polling"):
            batches = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=max_records)
        now_s = time.monotonic()
        if batches:
            self._heard_s = now_s
            self._buffer.extend(by_time(batches.values()))
        elif now_s - self._heard_s >= _PROBE_INTERVAL_S:
            # The library goes on trying without a word while the broker is away, so ask.
            with self._clients.guard("polling"):
                self._consumer.end_offsets([self._probe], timeout_ms=min(2_000, self._timeout_ms))
            self._heard_s = now_s

    def _take_assignment(self) -> None:
        """The library starts every partition at its committed offset again, also those that this member keeps."""
        self._seen_changes = self._listener.changes
        for table in (self._returned, self._reached, self._kept):
            table.clear()
        assigned = self._listener.assigned
        self._buffer = deque(raw for raw in self._buffer if TopicPartition(raw.topic, raw.partition) in assigned)

    def _decoded(self, max_records: int) -> list[Message]:
        messages: list[Message] = []
        while self._buffer and len(messages) < max_records:
            raw = self._buffer[0]
            partition = TopicPartition(raw.topic, raw.partition)
            try:
                message = message_of(raw, self._place(partition)[0], self._decoder)
            except BusUnavailable:
                if messages:  # what was decoded goes out; the next poll meets this record again
                    return messages
                raise
            self._buffer.popleft()
            self._returned[partition] = raw.offset + 1
            if message is not None:
                messages.append(message)
        return messages

    def _committed(self) -> dict[TopicPartition, int]:
        with self._clients.guard("reading committed offsets"):
            for partition in self._listener.assigned:
                if partition not in self._kept:
                    self._kept[partition] = self._consumer.committed(partition, timeout_ms=self._timeout_ms)
        return {
            partition: offset
            for partition in self._listener.assigned
            if (offset := self._kept[partition]) is not None and offset >= 0
        }

    def _place(self, partition: TopicPartition) -> tuple[str, int]:
        return partition.topic[len(self._clients.config.topic_prefix) :], partition.partition


def read_all(clients: Clients, topic: Topic[Any], from_time_s: float | None, decoder: Decoder) -> Iterator[Message]:
    """Everything kept of one topic when called; see `trainwarden.protocols.Bus.read`."""
    timeout_ms = int(clients.config.request_timeout_s * 1000)
    name = clients.topic_name(topic)
    clients.reach()
    with clients.guard("reading"):
        consumer = KafkaConsumer(**clients.consumer(), auto_offset_reset="earliest")
        try:
            partitions = [TopicPartition(name, number) for number in sorted(consumer.partitions_for_topic(name))]
            ends = consumer.end_offsets(partitions, timeout_ms=timeout_ms)
            if from_time_s is None:
                starts = consumer.beginning_offsets(partitions, timeout_ms=timeout_ms)
            else:
                starts = offsets_at(consumer, partitions, from_time_s, timeout_ms)
            left = {partition for partition in partitions if starts[partition] < ends[partition]}
            consumer.assign(sorted(left))
            for partition in left:
                consumer.seek(partition, starts[partition])
        except BaseException:
            consumer.close(timeout_ms=_CLOSE_TIMEOUT_MS)
            raise
    messages = _read_to(clients, consumer, topic, left, ends, decoder)
    # A generator that nobody began would never reach its own `finally`.
    weakref.finalize(messages, consumer.close, timeout_ms=_CLOSE_TIMEOUT_MS)
    return messages


def _read_to(
    clients: Clients,
    consumer: KafkaConsumer,
    topic: Topic[Any],
    left: set[TopicPartition],
    ends: Mapping[TopicPartition, int],
    decoder: Decoder,
) -> Iterator[Message]:
    try:
        while left:
            with clients.guard("reading"):
                batches = consumer.poll(timeout_ms=int(clients.config.request_timeout_s * 1000))
            for raw in by_time(batches.values()):
                if raw.offset < ends[TopicPartition(raw.topic, raw.partition)]:
                    message = message_of(raw, topic.name, decoder)
                    if message is not None:
                        yield message
            done = {partition for partition in left if (consumer.position(partition) or 0) >= ends[partition]}
            if not batches and not done:
                raise BusUnavailable(f"kafka {','.join(clients.servers)}: reading {topic.name} came to a halt")
            left -= done
            consumer.pause(*done)
    finally:
        consumer.close(timeout_ms=_CLOSE_TIMEOUT_MS)


def by_time(batches: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """Records of several partitions, merged by time; the order within a partition stays."""
    return heapq.merge(*batches, key=lambda raw: raw.timestamp)


def message_of(raw: Any, topic: str, decoder: Decoder) -> Message | None:
    """kafka-python's record as a message; None if it went to dead letters."""
    record = decoder.decode(topic, raw.partition, raw.offset, raw.value)
    if record is None:
        return None
    key = (raw.key or b"").decode(errors="replace")
    return Message(topic, raw.partition, raw.offset, raw.timestamp / 1000, key, record)


def offsets_at(
    consumer: KafkaConsumer, partitions: Iterable[TopicPartition], time_s: float, timeout_ms: int
) -> dict[TopicPartition, int]:
    """First offset written at or after `time_s` per partition; its end if there is none."""
    partitions = list(partitions)
    # Kafka counts whole milliseconds: rounding down may give a record too many, never one too few.
    wanted = dict.fromkeys(partitions, max(0, int(time_s * 1000)))
    found = consumer.offsets_for_times(wanted, timeout_ms=timeout_ms)
    ends = consumer.end_offsets(partitions, timeout_ms=timeout_ms)
    return {
        partition: ends[partition] if found.get(partition) is None else found[partition].offset
        for partition in partitions
    }
