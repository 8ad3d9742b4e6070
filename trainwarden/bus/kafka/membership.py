"""What a group says of one member: the partitions that it assigns, and the answer to the member's question to join."""

from __future__ import annotations

import time
from typing import Any

from kafka import TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.consumer import ConsumerCoordinator


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


class Coordinator(ConsumerCoordinator):  # type: ignore[misc]
    """The library's coordinator, which here uses the group's answer also where it comes between two polls.

    kafka-python 3.0.12 drops such an answer and joins again at the next poll (coordinator/base.py, join_group_async).
    The leader of a group that joins again has all others join again, and where polls are short and apart, the group is
    shared out for ever. An answer is used for half a session at most: until then the member sends no heartbeat.
    """

    _answer: tuple[Any, Any] | None = None  # generation and assignment that no poll has used yet
    answered_s = float("-inf")  # by the monotonic clock, when the group answered last

    async def _do_join_and_sync_async(self) -> Any:
        answer, self._answer = self._answer, None
        fresh = time.monotonic() - self.answered_s < self.config["session_timeout_ms"] / 2000
        if answer is not None and fresh and answer[0] is self._generation:
            return answer[1]
        assignment = await super()._do_join_and_sync_async()
        self._answer, self.answered_s = (self._generation, assignment), time.monotonic()
        return assignment

    async def _on_join_complete_async(self, *about: Any) -> None:
        self._answer = None
        await super()._on_join_complete_async(*about)
