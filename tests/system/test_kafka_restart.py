"""A real broker, killed and started again while records flow."""

from __future__ import annotations

import gc
import threading
import time
from collections import defaultdict
from collections.abc import Iterator

import pytest

from tests.contract.bus_harness import DEADLINE_S, event, ids, joined, poll_until, wait_until
from tests.servers.kafka import KafkaBroker
from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
from trainwarden.errors import BusError, BusUnavailable
from trainwarden.topics import EVENTS

pytestmark = [
    pytest.mark.system,
    pytest.mark.kafka,
]
KEYS = ("a", "b", "c")
CONFIG = KafkaConfig(partitions=4, connect_timeout_s=5.0, request_timeout_s=2.0, session_timeout_s=2.0)


@pytest.fixture(autouse=True)
def sockets_collected() -> Iterator[None]:
    yield
    gc.collect()


def keep_flushing(bus: KafkaBus, deadline_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + deadline_s
    while True:
        try:
            bus.flush(timeout_s=1.0)
            return
        except BusUnavailable:
            assert time.monotonic() < end, "the bus did not come back"


class Producing(threading.Thread):
    """Publishes 1, 2, 3, ... under every key until told to stop, then flushes what is left."""

    def __init__(self, bus: KafkaBus) -> None:
        super().__init__(daemon=True)
        self._bus = bus
        self._stop_asked = threading.Event()
        self.published = 0
        self.refused = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stop_asked.is_set():
                for key in KEYS:
                    self._bus.publish(EVENTS, key, event(key, self.published))
                self.published += 1
                try:
                    self._bus.flush(timeout_s=0.2)
                except BusUnavailable:
                    self.refused += 1
                time.sleep(0.002)
            keep_flushing(self._bus)
        except BaseException as error:
            self.failure = error

    def finish(self) -> None:
        self._stop_asked.set()
        self.join(DEADLINE_S)
        assert not self.is_alive()
        assert self.failure is None, self.failure


def test_a_killed_broker_loses_nothing_and_keeps_the_order(own_kafka_broker: KafkaBroker) -> None:
    bus = KafkaBus([own_kafka_broker.server], CONFIG)
    reader = KafkaBus([own_kafka_broker.server], CONFIG)
    consumer = joined(reader.consumer([EVENTS], "g"))
    producing = Producing(bus)
    producing.start()
    seen: dict[str, list[int]] = defaultdict(list)

    def read_on() -> None:
        try:
            for message in consumer.poll(0.1):
                seen[message.key].append(int(message.record.time_s))
            consumer.commit()
        except BusUnavailable:
            time.sleep(0.05)

    def read_until(number: int) -> None:
        end = time.monotonic() + DEADLINE_S
        while any(not seen[key] or max(seen[key]) < number for key in KEYS):
            read_on()
            assert time.monotonic() < end, f"{number} did not come: {own_kafka_broker.log_tail()}"

    for _ in range(2):
        read_until(producing.published + 50)
        own_kafka_broker.kill()
        at_kill = producing.published
        wait_until(lambda at_kill=at_kill: producing.published > at_kill + 5, "publishing on while the broker is away")
        own_kafka_broker.restart()
    read_until(producing.published + 50)
    producing.finish()
    assert producing.refused, "the broker was away, and flush must have said so"
    read_until(producing.published - 1)
    for key in KEYS:
        first = list(dict.fromkeys(seen[key]))
        assert first == list(range(producing.published)), "every record, first seen in its order"
    stored = [int(message.record.time_s) for message in reader.read(EVENTS) if message.key == "a"]
    assert stored == list(range(producing.published)), "the idempotent producer wrote none twice"
    consumer.close()
    bus.close()
    reader.close()


def test_while_the_broker_is_away_all_say_so_in_bounded_time_and_nothing_is_lost(own_kafka_broker: KafkaBroker) -> None:
    bus = KafkaBus([own_kafka_broker.server], CONFIG)
    consumer = joined(bus.consumer([EVENTS], "g"))
    bus.publish(EVENTS, "a", event("a", 0))
    bus.flush()
    assert ids(poll_until(consumer, 1)) == ["a/0"]
    own_kafka_broker.kill()

    started = time.monotonic()
    with pytest.raises(BusUnavailable):
        KafkaBus([own_kafka_broker.server], KafkaConfig(connect_timeout_s=1.0))
    assert time.monotonic() - started < 10.0
    bus.publish(EVENTS, "a", event("a", 1))
    with pytest.raises(BusUnavailable, match="1 records not acknowledged"):
        bus.flush(timeout_s=0.3)
    bus.publish(EVENTS, "a", event("a", 2))
    with pytest.raises(BusUnavailable, match="2 records not acknowledged"):
        bus.flush(timeout_s=0.3)
    with pytest.raises(BusUnavailable):
        consumer.commit()
    with pytest.raises(BusUnavailable):
        list(bus.read(EVENTS))

    def polls_until_it_says_so() -> None:
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            consumer.poll(0.2)

    with pytest.raises(BusUnavailable):
        polls_until_it_says_so()

    own_kafka_broker.restart()
    keep_flushing(bus)
    end = time.monotonic() + DEADLINE_S
    messages: list[str] = []
    while "a/2" not in messages:
        try:
            messages += ids(consumer.poll(0.2))
        except BusUnavailable:
            assert time.monotonic() < end
    assert [one for one in messages if one != "a/0"] == ["a/1", "a/2"]
    bus.close()


def test_the_queue_is_bounded_while_the_broker_is_away(own_kafka_broker: KafkaBroker) -> None:
    config = KafkaConfig(partitions=4, request_timeout_s=2.0, max_queue_bytes=1_048_576)
    bus = KafkaBus([own_kafka_broker.server], config)
    bus.publish(EVENTS, "a", event("a", 0))
    bus.flush()
    own_kafka_broker.kill()
    taken = 1

    def publish_on() -> None:
        nonlocal taken
        while taken < 100:
            bus.publish(EVENTS, "a", event("a", taken, message="x" * 50_000))
            taken += 1

    with pytest.raises(BusUnavailable, match="queue is full"):
        publish_on()
    assert 15 <= taken < 25
    own_kafka_broker.restart()
    keep_flushing(bus)
    bus.publish(EVENTS, "a", event("a", taken))
    bus.flush()
    assert ids(list(bus.read(EVENTS))) == [f"a/{number}" for number in range(taken + 1)]
    bus.close()


def test_records_that_a_producer_gave_up_are_sent_again_in_order_by_a_new_one(own_kafka_broker: KafkaBroker) -> None:
    bus = KafkaBus([own_kafka_broker.server], CONFIG)
    bus.publish(EVENTS, "a", event("a", 0))
    bus.flush()
    own_kafka_broker.kill()
    for number in range(1, 6):
        bus.publish(EVENTS, "a", event("a", number))
    # What kafka-python does on a fatal error: all it holds is aborted, and the producer is of no more use.
    bus._producer._producer._sender.force_close()
    bus._producer._producer._sender.join(5.0)
    for number in range(6, 9):
        bus.publish(EVENTS, "a", event("a", number))
    own_kafka_broker.restart()
    keep_flushing(bus)
    assert ids(list(bus.read(EVENTS))) == [f"a/{number}" for number in range(9)]
    bus.close()


def test_a_static_member_that_is_soon_back_disturbs_nobody(kafka_broker: KafkaBroker) -> None:
    def member(name: str) -> KafkaBus:
        config = KafkaConfig(partitions=4, topic_prefix="static-", session_timeout_s=10.0, instance_id=name)
        return KafkaBus([kafka_broker.server], config)

    buses = {name: member(name) for name in ("one", "other")}
    consumers = {name: bus.consumer([EVENTS], "g") for name, bus in buses.items()}

    def shared() -> bool:
        for consumer in consumers.values():
            consumer.poll(0.1)
        return all(len(consumer.assignment()) == 2 for consumer in consumers.values())

    wait_until(shared, "both have their share")
    stays, before = consumers["other"], consumers["one"].assignment()
    changes = stays._listener.changes
    buses["one"].close()
    buses["one"] = member("one")
    again = buses["one"].consumer([EVENTS], "g")
    wait_until(lambda: (again.poll(0.1), stays.poll(0.1), again.assignment())[2], "it is back")
    assert again.assignment() == before
    assert stays._listener.changes == changes, "nobody else has noticed"
    third = member("one")
    double = third.consumer([EVENTS], "g")
    wait_until(lambda: (double.poll(0.1), double.assignment())[1] == before, "the newer one has its place")

    def goes_on() -> None:
        for key in "abcdefgh":
            third.publish(EVENTS, key, event(key, 0))
        third.flush()
        if again.poll(0.5):
            again.commit()

    with pytest.raises(BusError, match="another process has the instance_id 'one'"):
        wait_until(goes_on, "the older one is refused")
    for bus in (*buses.values(), third):
        bus.close()
