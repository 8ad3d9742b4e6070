"""The reading side of the Kafka engine: what a Kafka group assigns to one member, as the library tells it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    RebalanceInProgressError,
    TopicAuthorizationFailedError,
    UnknownMemberIdError,
)
from kafka.structs import OffsetAndMetadata

from trainwarden.bus.dead_letters import Decoder
from trainwarden.bus.kafka.buffers import Buffers
from trainwarden.bus.kafka.client import Clients, is_about
from trainwarden.bus.kafka.membership import Coordinator, Listener
from trainwarden.bus.kafka.read import let_go, message_of, offsets_at
from trainwarden.errors import BusError, BusUnavailable
from trainwarden.protocols import Message
from trainwarden.topics import Topic

log = logging.getLogger("trainwarden.bus")

_NOT_OURS_ANY_MORE = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)
_PROBE_INTERVAL_S = 5.0  # a broker that has said nothing for so long is asked whether it is there
_MERGE_WAIT_S = 1.0  # longest that one partition which does not come holds back the others
_BARRED_S = 30.0  # between two tries to read a topic that is not permitted
_ALL = 2**31 - 1
_SLICE_S = 0.1  # the library's poll does not return when the assignment changes, so ask in slices


class GroupConsumer:
    """One member of a group; see `trainwarden.protocols.Consumer`. Made by `KafkaBus.consumer`.

    The group joins at the first polls. Partitions are shared out by range, so that partition p of every topic, and
    with it every record of a key, meets in one member. Records of all its partitions come in the order of the times
    at which they were written, as far as the cluster delivers them: a partition that is known to hold more, but does
    not come, holds back the others for a second at most. A `poll` at which the assignment changed returns nothing, so
    that a caller sees the change before any record that follows from it; one that was put out of its group, or is given
    the same partitions again, sees that it lost everything first. At every assignment each partition, also one that
    this member keeps, is placed where the group has committed, and resumed. A topic that was deleted and made again is
    read from its first record; its member sees that it lost everything, too. After `seek_to_time` a `commit` does not
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
        missing: Callable[[Collection[str]], None],
    ) -> None:
        self._clients = clients
        self._decoder = decoder
        self._flush = flush
        self._missing = missing
        self._latest = start == "latest"
        self._timeout_ms = int(clients.config.request_timeout_s * 1000)
        self._lock = threading.RLock()
        self._listener = Listener()
        self._seen_changes = 0
        self._shows_loss = False
        self._followed: frozenset[TopicPartition] = frozenset()
        self._buffers = Buffers()
        self._next: dict[TopicPartition, int] = {}
        self._stood: dict[TopicPartition, int] = {}
        self._started_s = time.monotonic()
        self._held_back_s: float | None = None
        self._returned: dict[TopicPartition, int] = {}
        self._reached: dict[TopicPartition, int] = {}
        self._kept: dict[TopicPartition, int | None] = {}
        self._due: dict[TopicPartition, int] = {}  # the first record that this group has not been given yet
        self._gone: dict[TopicPartition, int] = {}  # records before it were counted as lost
        self._lost: Counter[str] = Counter()
        self._barred: dict[str, float] = {}  # topics that may not be read, until when they are left alone
        self._hidden: frozenset[TopicPartition] = frozenset()  # partitions of which not even offsets are told
        self._lives: dict[str, Any] = {}  # the cluster's own id of each topic, another one once it is made again
        self._heard_s = self._joined_s = time.monotonic()
        self._member_s = self._joined_s  # when the last heartbeat that was answered was sent
        self._asked_s = float("-inf")  # when the newest that was looked at was sent
        self.closed = False
        self._names = [clients.topic_name(topic) for topic in topics]
        self._compact = frozenset(clients.topic_name(topic) for topic in topics if topic.compact)
        clients.reach()
        self._consumer = self._connected(group)

    @property
    def dead_letters(self) -> int:
        """Undecodable records met so far."""
        return self._decoder.dead_letters

    @property
    def lost(self) -> Mapping[str, int]:
        """By topic, records that were gone before they could be read."""
        return self._lost

    def poll(self, timeout_s: float, max_records: int = 1000) -> list[Message]:
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            self._check_open()
            while True:
                left_s = max(0.0, deadline_s - time.monotonic())
                # Also with records at hand: the library answers a rebalance, which waits for this member, in its poll.
                at_hand = bool(self._buffers) and not self._held_back() and not self._is_unheard()
                self._fetch(0.0 if at_hand else min(left_s, _SLICE_S))
                if self._listener.changes != self._seen_changes or self._shows_loss:
                    lost = self._listener.lost or (not self._shows_loss and self._comes_back())
                    self._shows_loss, self._listener.lost = lost, False
                    self._take_assignment()
                    return []
                messages = self._decoded(max_records)
                if messages or time.monotonic() >= deadline_s:
                    return messages

    def commit(self) -> None:
        with self._lock:
            self._check_open()
            self._decoder.flush(self._flush)
            offsets = {
                partition: max(offset, self._reached.get(partition, 0))
                for partition, offset in self._returned.items()
                if partition in self._mine
            }
            if offsets:
                with self._clients.guard("committing"):
                    try:
                        self._consumer.commit(
                            {one: OffsetAndMetadata(offset, self._life(one), -1) for one, offset in offsets.items()},
                            timeout_ms=self._timeout_ms,
                        )
                    except TopicAuthorizationFailedError as error:
                        self._bar(error)
                        for partition in offsets.keys() & self._left_alone():
                            del self._returned[partition]  # whoever may read it again begins at the last commit
                        return self.commit()
                    except _NOT_OURS_ANY_MORE:
                        # The group is being shared out anew: whoever gets the partition reads these records again.
                        return
                self._heard_s = time.monotonic()
                self._kept.update(offsets)
                self._returned.clear()

    def committed(self) -> Mapping[tuple[str, int], int]:
        with self._lock:
            self._check_open()
            return {self._place(partition): offset for partition, offset in self._committed().items()}

    def seek_to_time(self, time_s: float) -> None:
        with self._lock:
            self._check_open()
            if not (partitions := self._mine):
                return
            with self._clients.guard("seeking"):
                starts = offsets_at(self._consumer, partitions, time_s, self._timeout_ms)
            kept = self._committed()
            self._move({partition: min(start, kept.get(partition, start)) for partition, start in starts.items()})

    def seek(self, offsets: Mapping[tuple[str, int], int]) -> None:
        with self._lock:
            self._check_open()
            places = {partition: self._place(partition) for partition in self._mine}
            self._move({partition: offsets[place] for partition, place in places.items() if place in offsets})

    def _move(self, starts: Mapping[TopicPartition, int]) -> None:
        """Go on from `starts`; what the group had reached before is not forgotten."""
        kept = self._committed()
        with self._clients.guard("seeking"):
            for partition, offset in starts.items():
                self._consumer.seek(partition, offset)
        for partition, offset in starts.items():
            high = max(kept.get(partition, 0), self._returned.get(partition, 0))
            self._reached[partition] = max(self._reached.get(partition, 0), high)
            self._next[partition] = offset
        self._buffers.keep_only(self._mine - starts.keys())
        self._begin_merge()

    def assignment(self) -> frozenset[tuple[str, int]]:
        with self._lock:
            return frozenset(self._place(partition) for partition in self._mine)

    def lag(self) -> int | None:
        with self._lock:
            self._check_open()
            partitions = self._mine - self._left_alone()
            if not partitions:
                return None
            with self._clients.guard("measuring the lag"):
                try:
                    ends: dict[TopicPartition, int] = self._consumer.end_offsets(
                        partitions, timeout_ms=self._timeout_ms
                    )
                except TopicAuthorizationFailedError as error:
                    self._bar(error)
                    return self.lag()
                left = [max(0, end - self._first_left(partition, end)) for partition, end in ends.items()]
            self._heard_s = time.monotonic()
            return sum(left)

    def _first_left(self, partition: TopicPartition, end: int) -> int:
        """Offset of the first record that `poll` has not returned, of a partition that ends before `end`."""
        first = self._buffers.first_offset(partition)
        if first is None and self._next[partition] < end:  # or all from there to the end is gone, or no record
            position = self._consumer.position(partition, timeout_ms=self._timeout_ms)
            self._next[partition] = self._next[partition] if position is None else position
        return self._next[partition] if first is None else first

    def close(self) -> None:
        with self._lock:
            if not self.closed:
                self.closed = True
                let_go(self._consumer, autocommit=False)

    def _check_open(self) -> None:
        if self.closed:
            raise BusError("the consumer is closed")

    def _fetch(self, timeout_s: float) -> None:
        with self._clients.guard("polling"):
            full, paused = (self._buffers.full() | self._left_alone()) & self._mine, self._consumer.paused()
            self._consumer.pause(*(full - paused))
            self._consumer.resume(*(paused - full))
            # All that was fetched, always: kafka-python 3.0 does not give back a part of a fetch that it had to park
            # because its partition was paused in between. The fetch sizes bound what this can be.
            try:
                batches = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=_ALL)
            except TopicAuthorizationFailedError as error:
                self._bar(error)
                return
        self._follow_topics()
        now_s = time.monotonic()
        if batches:
            self._heard_s = now_s
            for partition, records in batches.items():
                self._barred.pop(partition.topic, None)
                if records[0].offset < self._next.get(partition, 0):
                    # The library had to begin anew: the topic was made again, and counts from the beginning.
                    self._returned.pop(partition, None)
                    self._reached.pop(partition, None)
                self._pass_over(partition, self._due.get(partition), records[0].offset)
                self._buffers.add(partition, records)
                self._next[partition] = records[-1].offset + 1
                self._due[partition] = max(self._due.get(partition, 0), self._next[partition])
        elif now_s - self._heard_s >= _PROBE_INTERVAL_S:
            # The library goes on trying without a word while the broker is away, so ask.
            with self._clients.guard("polling"):
                known = self._consumer._cluster
                there = next((name for name in self._names if known.partitions_for_topic(name)), self._names[0])
                try:
                    self._consumer.end_offsets([TopicPartition(there, 0)], timeout_ms=min(2_000, self._timeout_ms))
                except TopicAuthorizationFailedError as error:
                    self._bar(error)
            self._heard_s = now_s

    def _connected(self, group: str) -> KafkaConsumer:
        """A member of `group` that has subscribed, once it knows its topics."""
        clients, names = self._clients, self._names
        session_ms = int(clients.config.session_timeout_s * 1000)
        with clients.guard("connecting"):
            consumer = KafkaConsumer(
                **clients.consumer(),
                group_id=clients.config.topic_prefix + group,
                group_instance_id=clients.config.instance_id,
                auto_offset_reset="earliest",  # `_starts` says where to begin; this is for what retention has passed
                session_timeout_ms=session_ms,
                heartbeat_interval_ms=max(100, session_ms // 5),
                partition_assignment_strategy=[RangePartitionAssignor],
            )
            consumer._coordinator.__class__ = Coordinator  # the library makes its own
            consumer.subscribe(names, listener=self._listener)
            # Wait for the topics' metadata before joining: if it comes while the group is being shared out,
            # kafka-python 3.0 keeps an empty assignment for good.
            try:
                consumer.end_offsets([TopicPartition(name, 0) for name in names], timeout_ms=self._timeout_ms)
            except (TopicAuthorizationFailedError, KeyError) as error:  # the library gives no offsets of hidden topics
                if not (hidden := consumer._cluster.unauthorized_topics):
                    raise
                self._bar(TopicAuthorizationFailedError(set(hidden)), error)
        return consumer

    def _bar(self, error: TopicAuthorizationFailedError, cause: BaseException | None = None) -> None:
        """Leave topics alone that may not be read, and go on with the others; `error` goes on where there are none."""
        names = {name for name in self._names if is_about(error, name)}
        if not names or names | self._barred.keys() >= set(self._names):
            raise error from cause
        for name in names - self._barred.keys():
            topic = name[len(self._clients.config.topic_prefix) :]
            log.error("topic may not be read", extra={"fields": {"topic": topic, "operation": "read or describe"}})
        self._barred.update(dict.fromkeys(names, time.monotonic() + _BARRED_S))

    def _left_alone(self) -> set[TopicPartition]:
        now_s = time.monotonic()
        return {one for one in self._mine if self._barred.get(one.topic, now_s) > now_s}

    def _follow_topics(self) -> None:
        """Have topics made again that are gone, and begin anew with those that were made again.

        Offsets of a topic's earlier life say nothing of its present one. The library would go on from them.
        """
        cluster = self._consumer._cluster
        gone = {name for name in self._names if cluster.partitions_for_topic(name) is None}
        if gone - cluster.unauthorized_topics:
            self._missing(gone - cluster.unauthorized_topics)
        again = {name for name, life in self._lives.items() if cluster.topic_id(name) not in (None, life)}
        for name in again:
            del self._lives[name]
            unread = 0
            for partition in [one for one in self._next if one.topic == name]:
                end, first = self._consumer.highwater(partition) or 0, self._buffers.first_offset(partition)
                following = self._next.pop(partition)
                unread += max(0, end - (following if first is None else first))
                self._due.pop(partition, None)
                self._gone.pop(partition, None)
                self._stood[partition] = 0
            topic = name[len(self._clients.config.topic_prefix) :]
            self._lost[topic] += unread
            fields = {"topic": topic, "unread_records": unread}
            log.warning("topic was made again: it is read from its first record", extra={"fields": fields})
        if again:
            self._listener.changes += 1
            self._listener.lost = True

    def _life(self, partition: TopicPartition) -> str:
        """Which life of its topic a partition belongs to, to be kept beside offsets; empty where brokers do not say."""
        life = self._consumer._cluster.topic_id(partition.topic)
        return "" if life is None else str(life)

    def _pass_over(self, partition: TopicPartition, due: int | None, first: int) -> None:
        """Count what retention has removed before this group was given it: from `due` to `first`."""
        start = first if due is None else max(due, self._gone.get(partition, 0))
        if start >= first or partition.topic in self._compact:
            return
        self._gone[partition] = first
        topic, number = self._place(partition)
        self._lost[topic] += first - start
        fields = {"topic": topic, "partition": number, "records": first - start}
        log.warning("records were removed before they were read", extra={"fields": fields})

    def _is_unheard(self) -> bool:
        """Whether no heartbeat of a session's time was answered: what is at hand may be another member's by now.

        After a stop such records lie in the socket, and an earlier heartbeat's answer: it is as old as its question.
        """
        beat = self._consumer._coordinator.heartbeat
        before_s, self._asked_s = self._asked_s, beat.last_send  # the newest may be under way
        self._member_s = max([self._member_s, *(s for s in (before_s, self._asked_s) if s <= beat.last_receive)])
        return time.monotonic() - max(self._member_s, self._joined_s) > self._clients.config.session_timeout_s

    def _held_back(self) -> bool:
        """Whether some partition is known to hold records that may be older than those at hand."""
        now_s = time.monotonic()
        behind = any(self._behind(one) for one in self._mine if self._buffers.first_offset(one) is None)
        if not behind:
            self._held_back_s = None
            return False
        if self._held_back_s is None:
            self._held_back_s = now_s
        return now_s - self._held_back_s < _MERGE_WAIT_S

    def _behind(self, partition: TopicPartition) -> bool:
        with self._clients.guard("polling"):
            end: int | None = self._consumer.highwater(partition)
        if end is None:  # not heard of since the assignment; after a while it has nothing to say
            return time.monotonic() - self._started_s < _MERGE_WAIT_S
        return self._next[partition] < end

    def _begin_merge(self) -> None:
        self._started_s = time.monotonic()
        self._held_back_s = None

    @property
    def _mine(self) -> frozenset[TopicPartition]:
        """Partitions that this member has taken over; none from a change of the group until it has been followed."""
        followed = self._listener.changes == self._seen_changes and not self._shows_loss
        return self._listener.assigned - self._hidden if followed else frozenset()

    def _comes_back(self) -> bool:
        """Whether a rebalance has given back just what this member had.

        Each partition begins at the group's commit then, also one that the caller had moved back to rebuild its memory.
        A caller that saw no change would take that for the place where it had gone to.
        """
        return bool(self._followed) and self._listener.assigned == self._followed

    def _take_assignment(self) -> None:
        """Follow the group: begin each partition where it has committed.

        The library keeps position and pause of partitions that stay, also over a revocation that was seen in an
        earlier poll. What it has handed out and this member has not would be passed over.
        """
        changes, assigned = self._listener.changes, self._listener.assigned
        for partition, following in self._next.items():
            first = self._buffers.first_offset(partition)
            self._stood.setdefault(partition, following if first is None else first)
        for table in (self._returned, self._reached, self._kept, self._next):
            table.clear()
        self._buffers.keep_only(())
        if assigned and not self._shows_loss:
            starts = self._starts(assigned)
            with self._clients.guard("seeking"):
                for partition, offset in starts.items():
                    self._consumer.seek(partition, offset)
                self._consumer.resume(*assigned)
            self._hidden = assigned - starts.keys()
            self._next.update(starts)
            self._stood.clear()
        if not self._shows_loss:
            self._followed = assigned
        self._begin_merge()
        self._seen_changes, self._joined_s = changes, self._consumer._coordinator.answered_s

    def _starts(self, assigned: frozenset[TopicPartition]) -> dict[TopicPartition, int]:
        """Where the group goes on in each of its partitions; without a commit, where it begins."""
        assigned -= {one for one in assigned if one.topic in self._consumer._cluster.unauthorized_topics}
        kept = self._committed(assigned)
        with self._clients.guard("reading offsets"):
            firsts = self._consumer.beginning_offsets(assigned, timeout_ms=self._timeout_ms)
            ends = self._consumer.end_offsets(assigned, timeout_ms=self._timeout_ms)
        starts = {}
        for partition in assigned:
            fresh = self._stood.get(partition, ends[partition]) if self._latest else firsts[partition]
            start = kept.get(partition, fresh)
            # Retention may have passed the group; a topic that was made again counts from the beginning.
            starts[partition] = firsts[partition] if start > ends[partition] else max(start, firsts[partition])
            self._pass_over(partition, kept.get(partition), starts[partition])
            self._due[partition] = starts[partition]
        self._lives = {one.topic: life for one in assigned if (life := self._consumer._cluster.topic_id(one.topic))}
        return starts

    def _decoded(self, max_records: int) -> list[Message]:
        messages: list[Message] = []
        if self._held_back() or self._is_unheard():
            return messages
        while len(messages) < max_records and (head := self._buffers.peek()) is not None:
            partition, raw = head
            try:
                message = message_of(raw, self._place(partition)[0], self._decoder)
            except BusUnavailable:
                if messages:  # what was decoded goes out; the next poll meets this record again
                    return messages
                raise
            self._buffers.pop_all()
            self._returned[partition] = raw.offset + 1
            if message is not None:
                messages.append(message)
            if self._held_back_s is None and self._buffers.first_offset(partition) is None and self._behind(partition):
                break
        return messages

    def _committed(self, partitions: frozenset[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        partitions = self._mine if partitions is None else partitions
        with self._clients.guard("reading committed offsets"):
            for partition in partitions:
                if partition not in self._kept:
                    found = self._consumer.committed(partition, metadata=True, timeout_ms=self._timeout_ms)
                    life = self._life(partition)
                    earlier = found is not None and found.metadata and life and found.metadata != life
                    self._kept[partition] = None if found is None or earlier else found.offset
        return {
            partition: offset
            for partition in partitions
            if (offset := self._kept[partition]) is not None and offset >= 0
        }

    def _place(self, partition: TopicPartition) -> tuple[str, int]:
        return partition.topic[len(self._clients.config.topic_prefix) :], partition.partition
