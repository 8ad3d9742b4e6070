"""Access lists of a real broker: what one topic refuses is said with the topic, and all others go on."""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLFilter, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from tests.conftest import started_kafka
from tests.contract.bus_harness import DEADLINE_S, event, joined, wait_until
from tests.servers.kafka import GUARDED, KafkaBroker
from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
from trainwarden.errors import BusError, RecordsRefused
from trainwarden.protocols import Consumer
from trainwarden.records import HeartbeatRecord
from trainwarden.topics import EVENTS, HEARTBEATS

pytestmark = [
    pytest.mark.system,
    pytest.mark.kafka,
]
READING = (ACLOperation.READ, ACLOperation.DESCRIBE)
WRITING = (ACLOperation.WRITE, ACLOperation.DESCRIBE)


class Guarded:
    """A broker with access lists, and an administrator."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.server = broker.server
        self.admin = KafkaAdminClient(bootstrap_servers=self.server)
        self.buses: list[KafkaBus] = []

    def open(self) -> KafkaBus:
        config = KafkaConfig(partitions=1, session_timeout_s=2.0, request_timeout_s=4.0)
        self.buses.append(KafkaBus([self.server], config))
        return self.buses[-1]

    def allow(self, *operations: ACLOperation) -> None:
        """From now on everybody may do these with the topic of events, and nothing else."""
        where = ResourcePattern(ResourceType.TOPIC, EVENTS.name)
        self.lift()
        self.admin.create_acls([
            ACL(principal="User:*", host="*", operation=one, permission_type=ACLPermissionType.ALLOW,
                resource_pattern=where)
            for one in operations
        ])  # fmt: skip

    def lift(self) -> None:
        where = ResourcePattern(ResourceType.TOPIC, EVENTS.name)
        self.admin.delete_acls([
            ACLFilter(principal=None, host=None, operation=ACLOperation.ANY, permission_type=ACLPermissionType.ANY,
                      resource_pattern=where)
        ])  # fmt: skip

    def close(self) -> None:
        for bus in self.buses:
            bus.close()
        self.admin.close()
        gc.collect()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    with started_kafka(Path(tmp_path_factory.mktemp("guarded")), GUARDED) as one:
        yield one


@pytest.fixture
def guarded(broker: KafkaBroker) -> Iterator[Guarded]:
    made = Guarded(broker)
    yield made
    made.lift()
    made.close()


class Saying:
    """Publishes an event and a heartbeat at a time, and keeps what is refused."""

    def __init__(self, bus: KafkaBus) -> None:
        self.bus, self.number, self.refused = bus, 0, list[str]()
        self.repeated: list[bool] = []  # of each refusal, whether it says nothing new

    def both(self) -> str:
        """One of each; the node of the heartbeat."""
        self.number += 1
        node = f"n{self.number}"
        self.bus.publish(EVENTS, "k", event("k", self.number))
        self.bus.publish(HEARTBEATS, "k", HeartbeatRecord(job="k", node=node, time_s=time.time()))
        while True:
            try:
                self.bus.flush(10.0)
                return node
            except RecordsRefused as error:
                self.repeated.append(error.is_repeated)
                self.refused += [f"{topic} {'writing is not permitted' in str(error)}" for topic, _, _ in error.records]


def until(consumer: Consumer, true: Callable[[set[str]], bool]) -> set[str]:
    """What has come, as ids of events and nodes of heartbeats, once `true` of it. No poll may fail."""
    found: set[str] = set()
    end = time.monotonic() + DEADLINE_S
    while not true(found):
        assert time.monotonic() < end, f"came: {sorted(found)}"
        found |= {getattr(one.record, "id", None) or one.record.node for one in consumer.poll(0.2)}  # type: ignore[attr-defined]
        consumer.commit()
        consumer.lag()
    return found


def test_a_topic_that_may_not_be_written_is_said_and_others_are_written(guarded: Guarded) -> None:
    says, consumer = Saying(guarded.open()), joined(guarded.open().consumer([EVENTS, HEARTBEATS], "w"))
    first = says.both()
    until(consumer, lambda came: {first, "k/1"} <= came)
    guarded.allow(*READING)
    wait_until(lambda: says.both() and says.refused, "a refusal")
    last = says.both()
    assert set(says.refused) == {f"{EVENTS.name} True"}
    assert says.repeated == [False, True]
    until(consumer, lambda came: last in came)
    guarded.lift()
    before = len(says.refused)

    def taken() -> bool:
        nonlocal before
        says.both()
        before, same = len(says.refused), len(says.refused) == before
        return same

    wait_until(taken, "a record that is taken again")
    until(consumer, lambda came: f"k/{says.number}" in came)
    guarded.allow(*READING)
    before = len(says.refused)
    wait_until(lambda: says.both() and len(says.refused) > before, "a refusal")
    assert says.repeated[before:] == [False]


def test_a_topic_that_may_not_be_read_is_said_and_others_are_read(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    says, consumer = Saying(guarded.open()), joined(guarded.open().consumer([EVENTS, HEARTBEATS], "r"))
    first = says.both()
    until(consumer, lambda came: {first, f"k/{says.number}"} <= came)
    guarded.allow(*WRITING)
    for _ in range(3):
        last = says.both()
        until(consumer, lambda came, last=last: last in came)  # type: ignore[misc]
    assert not says.refused
    wait_until(lambda: until(consumer, lambda _: True) is not None and "topic may not be read" in caplog.messages, "it")
    (said,) = [one for one in caplog.records if one.message == "topic may not be read"]
    assert said.fields == {"topic": EVENTS.name, "operation": "read or describe"}  # type: ignore[attr-defined]
    late = joined(guarded.open().consumer([EVENTS, HEARTBEATS], "late"))
    until(late, lambda came: last in came)


def test_a_topic_that_is_hidden_keeps_no_service_from_starting(
    guarded: Guarded, caplog: pytest.LogCaptureFixture
) -> None:
    Saying(guarded.open()).both()
    guarded.allow(ACLOperation.ALTER_CONFIGS)
    caplog.set_level(logging.ERROR, "trainwarden.bus")

    def opened() -> KafkaBus | None:
        caplog.clear()
        bus = guarded.open()
        return bus if caplog.records else None

    wait_until(opened, "the list to be in force")
    assert caplog.records[0].fields == {"topics": [EVENTS.name], "operation": "describe or create"}  # type: ignore[attr-defined]
    bus = guarded.open()
    says = Saying(bus)
    says.number = 100
    node = says.both()
    assert says.refused == [f"{EVENTS.name} True"]
    until(joined(bus.consumer([EVENTS, HEARTBEATS], "h")), lambda came: node in came)


def test_who_may_do_nothing_is_told_at_the_start(guarded: Guarded) -> None:
    from trainwarden.topics import TOPICS

    guarded.open()
    acls = [
        ACL(principal="User:*", host="*", operation=ACLOperation.ALL, permission_type=ACLPermissionType.DENY,
            resource_pattern=ResourcePattern(ResourceType.TOPIC, name))
        for name in TOPICS
    ]  # fmt: skip
    guarded.admin.create_acls(acls)

    def refused() -> bool:
        try:
            guarded.open()
        except BusError as error:
            return "not permitted" in str(error)
        return False

    try:
        wait_until(refused, "a refusal")
    finally:
        guarded.admin.delete_acls([
            ACLFilter(principal=None, host=None, operation=ACLOperation.ANY, permission_type=ACLPermissionType.ANY,
                      resource_pattern=one.resource_pattern)
            for one in acls
        ])  # fmt: skip
