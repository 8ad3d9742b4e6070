"""The embedded engine against a model of a few lines, over any interleaving of what several processes may do."""

from __future__ import annotations

import tempfile
import zlib
from collections import defaultdict
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from tests.doubles import ManualClock
from tests.examples import examples
from trainwarden.bus.embedded.consumer import EmbeddedConsumer
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.records import EventRecord, LogRecord, Record
from trainwarden.topics import EVENTS, LOGS

PARTITIONS = 3
GROUPS = ("g", "h")
KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
Place = tuple[str, int]


def record_of(topic: str, number: int) -> Record:
    if topic == LOGS.name:
        return LogRecord(job="j", node="n", source=str(number), ends=(), lines=(), times_s=())
    return EventRecord(id=str(number), job="j", node="n", time_s=0.0, kind="phase")


def number_of(record: Record) -> int:
    return int(record.source if isinstance(record, LogRecord) else record.id)  # type: ignore[attr-defined]


class BusMachine(RuleBasedStateMachine):
    """Two connections to one file; `log` is what must be kept, `committed` where each group must resume."""

    consumers = Bundle("consumers")

    @initialize()
    def open(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.clock = ManualClock(1_000.0)
        self.buses = [self.connect(), self.connect()]
        self.queued: list[list[tuple[str, str, int]]] = [[], []]
        self.log: dict[Place, list[int]] = defaultdict(list)
        self.times: dict[Place, list[float]] = defaultdict(list)
        self.committed: dict[tuple[str, Place], int] = {}
        self.returned: dict[EmbeddedConsumer, dict[Place, int]] = {}
        self.reached: dict[EmbeddedConsumer, dict[Place, int]] = {}
        self.position: dict[EmbeddedConsumer, dict[Place, int]] = {}
        self.group: dict[EmbeddedConsumer, str] = {}
        self.next = 0
        for key in "abcdeabcde":  # something to read from the first step on
            self.publish(0, key, EVENTS)
        self.flush(0)

    def connect(self) -> EmbeddedBus:
        return EmbeddedBus(str(Path(self.folder.name) / "bus.db"), clock=self.clock, partitions=PARTITIONS)

    @rule(bus=st.integers(0, 1), key=KEYS, topic=st.sampled_from([EVENTS, LOGS]))
    def publish(self, bus: int, key: str, topic: object) -> None:
        self.buses[bus].publish(topic, key, record_of(topic.name, self.next))  # type: ignore[arg-type, attr-defined]
        self.queued[bus].append((topic.name, key, self.next))  # type: ignore[attr-defined]
        self.next += 1

    @rule(bus=st.integers(0, 1))
    def flush(self, bus: int) -> None:
        self.buses[bus].flush()
        for topic, key, number in self.queued[bus]:
            place = (topic, zlib.crc32(key.encode()) % PARTITIONS)
            self.log[place].append(number)
        self.queued[bus].clear()

    @rule(bus=st.integers(0, 1))
    def crash_of_a_producer(self, bus: int) -> None:
        """What was not flushed may be lost, what was flushed may not."""
        lost = self.buses[bus]
        mine = [consumer for consumer in self.group if consumer in lost._consumers]
        for consumer in mine:
            self.crash(consumer)
        lost._store.close()
        self.queued[bus].clear()
        self.buses[bus] = self.connect()

    @rule(target=consumers, bus=st.integers(0, 1), group=st.sampled_from(GROUPS))
    def join(self, bus: int, group: str) -> EmbeddedConsumer:
        consumer = self.buses[bus].consumer([EVENTS, LOGS], group)
        self.group[consumer] = group
        self.returned[consumer] = {}
        self.reached[consumer] = {}
        self.position[consumer] = {}
        self.start(consumer, consumer.assignment())
        return consumer

    def start(self, consumer: EmbeddedConsumer, assigned: frozenset[Place]) -> None:
        """Where `consumer` must read on after its assignment became `assigned`."""
        group = self.group[consumer]
        kept = consumer._since
        before = getattr(consumer, "_model_since", {})
        names = {stream: consumer._names[stream] for stream in kept}
        gained = {names[stream] for stream, since in kept.items() if before.get(stream) != since}
        for table in (self.returned[consumer], self.reached[consumer], self.position[consumer]):
            for place in [place for place in table if place not in assigned or place in gained]:
                del table[place]
        for place in gained:
            self.position[consumer][place] = self.committed.get((group, place), 0)
        consumer._model_since = dict(kept)  # type: ignore[attr-defined]

    @rule(consumer=consumers, limit=st.integers(1, 5))
    def poll(self, consumer: EmbeddedConsumer, limit: int) -> None:
        if consumer not in self.group:
            return
        before = dict(consumer._since)
        messages = consumer.poll(0.0, max_records=limit)
        if consumer._since != before:
            assert messages == []
            self.start(consumer, consumer.assignment())
            return
        position = self.position[consumer]
        for message in messages:
            place = (message.topic, message.partition)
            assert message.offset == position[place], "in order, without a gap"
            assert number_of(message.record) == self.log[place][message.offset]
            position[place] = self.returned[consumer][place] = message.offset + 1
        behind = sum(len(self.log[place]) - position[place] for place in position)
        assert len(messages) == limit or behind == 0, "all that there is, up to the limit"
        assert consumer.lag() == (behind if position else None)

    @rule(consumer=consumers)
    def commit(self, consumer: EmbeddedConsumer) -> None:
        if consumer not in self.group:
            return
        consumer.commit()
        owned = consumer._members._owned(consumer._store.db)
        still = {consumer._names[stream] for stream, since in owned.items() if consumer._since.get(stream) == since}
        for place, offset in self.returned[consumer].items():
            if place in still:
                reached = self.reached[consumer].get(place, 0)
                self.committed[self.group[consumer], place] = max(offset, reached)
        self.returned[consumer].clear()
        assert dict(consumer.committed()) == {
            place: self.committed[self.group[consumer], place]
            for place in consumer.assignment()
            if (self.group[consumer], place) in self.committed
        }

    @rule(consumer=consumers)
    def rewind(self, consumer: EmbeddedConsumer) -> None:
        if consumer not in self.group:
            return
        consumer.seek_to_time(0.0)
        for place in self.position[consumer]:
            high = max(
                self.committed.get((self.group[consumer], place), 0),
                self.returned[consumer].get(place, 0),
                self.reached[consumer].get(place, 0),
            )
            self.reached[consumer][place] = high
            self.position[consumer][place] = 0

    @rule(consumer=consumes(consumers))
    def close(self, consumer: EmbeddedConsumer) -> None:
        if self.group.pop(consumer, None) is not None:
            consumer.close()

    @rule(consumer=consumes(consumers))
    def crash_of_a_consumer(self, consumer: EmbeddedConsumer) -> None:
        if consumer in self.group:
            self.crash(consumer)

    def crash(self, consumer: EmbeddedConsumer) -> None:
        """What the kernel does at a kill: locks and files go, nothing is written."""
        del self.group[consumer]
        consumer._members.release()
        consumer._store.close()
        consumer.closed = True

    @rule(seconds=st.sampled_from([0.0, 0.5, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.sleep(seconds)

    @invariant()
    def all_that_was_flushed_is_kept_in_order(self) -> None:
        for topic in (EVENTS, LOGS):
            found: dict[Place, list[int]] = defaultdict(list)
            for message in self.buses[0].read(topic):
                assert message.offset == len(found[topic.name, message.partition])
                found[topic.name, message.partition].append(number_of(message.record))
            assert found == {place: log for place, log in self.log.items() if place[0] == topic.name and log}

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        for group in GROUPS:
            members = [consumer for consumer, name in self.group.items() if name == group]
            owned = [consumer._members._owned(consumer._store.db) for consumer in members]
            assert sum(map(len, owned)) == len({stream for streams in owned for stream in streams})

    def teardown(self) -> None:
        if not hasattr(self, "buses"):
            return
        # In the end one reader of a new group finds everything, once, and each group finds what it did not commit.
        for group in GROUPS:
            for consumer in [consumer for consumer, name in self.group.items() if name == group]:
                consumer.close()
            last = self.buses[0].consumer([EVENTS, LOGS], group)
            found: dict[Place, list[int]] = defaultdict(list)
            while messages := last.poll(0.0):
                for message in messages:
                    found[message.topic, message.partition].append(number_of(message.record))
            rest = {place: log[self.committed.get((group, place), 0) :] for place, log in self.log.items()}
            assert found == {place: numbers for place, numbers in rest.items() if numbers}
        for bus in self.buses:
            bus.close()
        self.folder.cleanup()


TestBusMachine = BusMachine.TestCase
TestBusMachine.settings = settings(examples(60), stateful_step_count=40)
