"""What a Kafka group assigns to one member, as the library tells it."""

from __future__ import annotations

from kafka import TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Notes what the group assigns; called from inside `poll` on the library's own loop."""

    def __init__(self) -> None:
        self.assigned: frozenset[TopicPartition] = frozenset()
        self.changes = 0
        self.lost = False  # the group had put us out: others may have read on

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.assigned = frozenset()
        self.changes += 1

    def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        self.on_partitions_revoked(list(lost))
        self.lost = True

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self.assigned = frozenset(assigned)
        self.changes += 1
