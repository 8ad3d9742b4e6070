"""The Kafka engine, by kafka-python: for more than one machine."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from kafka import KafkaAdminClient
from kafka.errors import (
    ClusterAuthorizationFailedError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from trainwarden.bus.dead_letters import Decoder
from trainwarden.bus.kafka.client import Clients, KafkaConfig
from trainwarden.bus.kafka.consumer import GroupConsumer
from trainwarden.bus.kafka.producer import OrderedProducer
from trainwarden.bus.kafka.read import read_all
from trainwarden.errors import BusError
from trainwarden.protocols import Message
from trainwarden.records import DeadLetter, Record
from trainwarden.topics import DEAD_LETTERS, TOPICS, Topic

__all__ = ["KafkaBus", "KafkaConfig"]

log = logging.getLogger("trainwarden.bus")

_CLOSE_TIMEOUT_S = 5.0
_HIDDEN = (TopicAuthorizationFailedError.errno,)
_REFUSED = (*_HIDDEN, ClusterAuthorizationFailedError.errno)
_COMPACT_SEGMENT_S = 600.0  # a segment that is still written to is never compacted
_SEGMENTS = 8  # a topic's time is kept in so many files per partition: retention removes whole ones
_LONGEST_SEGMENT_S = 86_400.0
_AGAIN_S = 5.0  # between two tries to make topics again that somebody has deleted


class KafkaBus:
    """A `trainwarden.protocols.Bus` on an Apache Kafka cluster (2.5 or newer).

    Topics that are missing are made on connecting, and again where they are deleted later, with ``retention.ms`` from
    `Topic.keep_s` and times stamped by the broker, so that no node's wrong clock reorders them. What `flush` returned
    for is held by all in-sync replicas.

    Parameters
    ----------
    servers : list of str
        ``host:port`` of some brokers.
    config : KafkaConfig
        Settings.

    Raises
    ------
    ConfigError
        If the settings contradict each other.
    BusUnavailable
        If no broker answers within `KafkaConfig.connect_timeout_s`.
    BusError
        If the cluster refuses the credentials or the making of topics.
    """

    def __init__(self, servers: list[str], config: KafkaConfig) -> None:
        self._clients = Clients(servers, config)
        self._lock = threading.RLock()
        self._topics: dict[str, Topic[Any]] = {}  # by their names on the cluster
        self._hidden: set[str] = set()  # topics that we may neither see nor make
        self._again_s = 0.0
        self._refused = False
        self._consumers: list[GroupConsumer] = []
        self._closed = False
        self._make_topics(list(TOPICS.values()))
        self._producer = OrderedProducer(self._clients, self._make_again)

    def publish(self, topic: Topic[Any], key: str, record: Record) -> None:
        """Queue `record`; it is sent in the background.

        Raises
        ------
        RecordError
            If the record does not fit the topic.
        BusUnavailable
            If the broker is away and the queue is full; the record was not taken.
        """
        value = topic.encode(record)
        name = self._topic(topic)
        if self._closed:
            raise BusError("the bus is closed")
        self._producer.send(name, key, value)

    def flush(self, timeout_s: float = 30.0) -> None:
        self._producer.flush(timeout_s)

    def consumer(self, topics: Sequence[Topic[Any]], group: str, *, start: str = "earliest") -> GroupConsumer:
        if start not in ("earliest", "latest"):
            raise ValueError(f"start is 'earliest' or 'latest', not {start!r}")
        for topic in topics:
            self._topic(topic)
        decoder = Decoder({topic.name: topic for topic in topics}, self._publish_dead_letter)
        consumer = GroupConsumer(
            self._clients,
            topics,
            group,
            start=start,
            decoder=decoder,
            flush=self.flush,
            missing=self._make_again,
        )
        self._consumers = [*(one for one in self._consumers if not one.closed), consumer]
        return consumer

    def read(self, topic: Topic[Any], *, from_time_s: float | None = None) -> Iterable[Message]:
        """Everything kept of one topic when called; undecodable records are skipped and logged."""
        self._topic(topic)
        return read_all(self._clients, topic, from_time_s, Decoder({topic.name: topic}, None))

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        for consumer in self._consumers:
            consumer.close()
        self._producer.close(_CLOSE_TIMEOUT_S)

    def _publish_dead_letter(self, letter: DeadLetter) -> None:
        self.publish(DEAD_LETTERS, letter.topic, letter)

    def _topic(self, topic: Topic[Any]) -> str:
        """The topic's name on the cluster, made there if it is missing."""
        name = self._clients.topic_name(topic)
        if name not in self._topics:
            with self._lock:
                self._make_topics([topic])
        return name

    def _make_again(self, names: Collection[str]) -> None:
        """Make topics again that the cluster says are not there any more; called while that is so."""
        with self._lock:
            if self._closed or time.monotonic() < self._again_s:
                return
            self._again_s = time.monotonic() + _AGAIN_S
            try:
                made = self._make_topics([self._topics[name] for name in names if name in self._topics])
            except BusError as error:
                if not self._refused:
                    self._refused = True
                    fields = {"topics": sorted(names), "error": str(error)}
                    log.error("topics are gone and cannot be made again", extra={"fields": fields})
                return
            self._refused = False
        if made:
            log.warning("topics were gone and are made again", extra={"fields": {"topics": made}})

    def _make_topics(self, topics: Sequence[Topic[Any]]) -> list[str]:
        """Make those of `topics` that are missing; which."""
        names = {self._clients.topic_name(topic): topic for topic in topics}
        self._clients.reach()
        with self._clients.guard("making topics"):
            admin = KafkaAdminClient(**self._clients.common())
            try:
                there = set(admin.list_topics())
                missing = {name: topic for name, topic in names.items() if name not in there}
                if missing and (expected := self._create(admin, missing)):
                    admin.wait_for_topics(expected, timeout_ms=self._clients.config.connect_timeout_s * 1000)
            finally:
                admin.close()
        self._topics.update(names)
        return sorted(missing.keys() - self._hidden)

    def _create(self, admin: KafkaAdminClient, missing: Mapping[str, Topic[Any]]) -> list[str]:
        """Ask for `missing` topics; those that will be there. Others may be hidden from us or not be ours to make."""
        asked = admin.create_topics({name: self._options(topic) for name, topic in missing.items()}, raise_errors=False)
        hidden = {one["name"] for one in admin.describe_topics(list(missing)) if one["error_code"] in _HIDDEN}
        for one in asked["topics"]:
            if one["error_code"] in _REFUSED:
                hidden.add(one["name"])
            elif one["error_code"] not in (0, TopicAlreadyExistsError.errno):  # another process has made it
                raise for_code(one["error_code"])(one["error_message"])
        if new := hidden - self._hidden:
            self._hidden |= new
            fields = {"topics": sorted(new), "operation": "describe or create"}
            log.error(
                "topics are not permitted: nothing is read from them or written to them", extra={"fields": fields}
            )
        if hidden == missing.keys() == {self._clients.topic_name(topic) for topic in TOPICS.values()}:
            raise TopicAuthorizationFailedError(hidden)
        return sorted(missing.keys() - hidden)

    def _options(self, topic: Topic[Any]) -> dict[str, Any]:
        segment_s = min(topic.keep_s / _SEGMENTS, _LONGEST_SEGMENT_S)
        if topic.compact:
            segment_s = min(segment_s, _COMPACT_SEGMENT_S)
        return {
            "num_partitions": self._clients.config.partitions,
            "replication_factor": self._clients.config.replication_factor or -1,
            "configs": {
                "retention.ms": "-1" if topic.keep_s == inf else str(int(topic.keep_s * 1000)),
                "segment.ms": str(max(1_000, int(segment_s * 1000))),
                "message.timestamp.type": "LogAppendTime",
                "cleanup.policy": "compact,delete" if topic.compact else "delete",
            },
        }
