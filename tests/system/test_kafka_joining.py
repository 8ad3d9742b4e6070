"""Members of a Kafka group that ask now and then: each answer of the group is used, whenever it comes."""

from __future__ import annotations

import time

import pytest

from tests.contract.bus_harness import wait_until
from tests.servers.kafka import KafkaBroker
from trainwarden.bus.kafka.engine import KafkaBus, KafkaConfig
from trainwarden.topics import EVENTS

pytestmark = [pytest.mark.system, pytest.mark.kafka]
APART_S = 0.3  # between two polls, which last one millisecond: nearly every answer comes in between


def test_members_whose_polls_are_short_and_apart_share_a_group_and_stay_so(kafka_broker: KafkaBroker) -> None:
    config = KafkaConfig(partitions=4, topic_prefix="apart-", session_timeout_s=6.0)
    buses = [KafkaBus([kafka_broker.server], config) for _ in range(2)]
    members = [bus.consumer([EVENTS], "g") for bus in buses]

    def shared() -> bool:
        time.sleep(APART_S)
        for member in members:
            member.poll(0.001)
        return all(len(member.assignment()) == 2 for member in members)

    wait_until(shared, "each has its share", 60.0)
    changes = [member._listener.changes for member in members]
    until_s = time.monotonic() + 2 * config.session_timeout_s
    wait_until(lambda: not shared() or time.monotonic() > until_s, "two sessions")
    assert [member._listener.changes for member in members] == changes
    for bus in buses:
        bus.close()
