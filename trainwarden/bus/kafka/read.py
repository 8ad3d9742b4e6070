"""Reading one topic of a Kafka cluster from end to end, without a group; and what all reading shares."""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from trainwarden.bus.dead_letters import Decoder
from trainwarden.bus.kafka.client import LIBRARYS, Clients
from trainwarden.errors import BusUnavailable
from trainwarden.protocols import Message
from trainwarden.topics import Topic

CLOSE_TIMEOUT_MS = 3_000
_BY_BUS = 1  # LogAppendTime; topics that others have made may hold the sender's CreateTime


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
            let_go(consumer)
            raise
    messages = _read_to(clients, consumer, topic, {partition: ends[partition] for partition in left}, decoder)
    # A generator that nobody began would never reach its own `finally`.
    weakref.finalize(messages, let_go, consumer)
    return messages


def _read_to(
    clients: Clients,
    consumer: KafkaConsumer,
    topic: Topic[Any],
    ends: Mapping[TopicPartition, int],
    decoder: Decoder,
) -> Iterator[Message]:
    left = set(ends)
    try:
        while left:
            with clients.guard("reading"):
                batches = consumer.poll(timeout_ms=int(clients.config.request_timeout_s * 1000))
            for raw in _by_time(batches.values()):
                if raw.offset < ends[TopicPartition(raw.topic, raw.partition)]:
                    message = message_of(raw, topic.name, decoder)
                    if message is not None:
                        yield message
            with clients.guard("reading"):
                done = {partition for partition in left if (consumer.position(partition) or 0) >= ends[partition]}
                consumer.pause(*done)
            if not batches and not done:
                raise BusUnavailable(f"kafka {','.join(clients.servers)}: reading {topic.name} came to a halt")
            left -= done
    finally:
        let_go(consumer)


def let_go(consumer: KafkaConsumer, **options: Any) -> None:
    """Let go of it; what it says then changes nothing of what was read."""
    with suppress(*LIBRARYS):
        consumer.close(timeout_ms=CLOSE_TIMEOUT_MS, **options)


def _by_time(batches: Iterable[Sequence[Any]]) -> Iterator[Any]:
    """Records of several partitions, merged by time; the order within a partition stays."""
    return heapq.merge(*batches, key=lambda raw: raw.timestamp)


def message_of(raw: Any, topic: str, decoder: Decoder) -> Message | None:
    """kafka-python's record as a message; None if it went to dead letters."""
    record = decoder.decode(topic, raw.partition, raw.offset, raw.value)
    if record is None:
        return None
    key = (raw.key or b"").decode(errors="replace")
    stamped = raw.timestamp_type == _BY_BUS
    return Message(topic, raw.partition, raw.offset, raw.timestamp / 1000, key, record, stamped)


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
