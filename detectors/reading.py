"""Tracks how far a member of the detection group has read, and what others had handled before."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from trainwarden.protocols import Consumer, Message

Place = tuple[str, int]
Standing = Literal["old", "late", "live"]


class Reading:
    """Offsets of one member.

    A partition that comes to this member is *caught up with* first: what the group had handled before is read again
    silently (*old*), what it had missed is told (*late*), both in event time. Then its records are *live*.

    Attributes
    ----------
    catching : frozenset of int
        Partitions that are being caught up with.
    """

    def __init__(self) -> None:
        self.catching: frozenset[int] = frozenset()
        self._assigned: frozenset[int] = frozenset()
        self._places: frozenset[Place] = frozenset()
        self._next: dict[Place, int] = {}
        self._had: dict[Place, int] = {}  # offsets below had been handled by the group when the partition came
        self._until: dict[Place, int] = {}  # the same, while it is being caught up with
        self._left: int | None = 0

    @property
    def assigned(self) -> frozenset[int]:
        """Partitions of this member."""
        return self._assigned

    def take_over(
        self, assigned: Collection[Place], committed: Mapping[Place, int]
    ) -> tuple[frozenset[int], frozenset[int]]:
        """Follow a new assignment: partitions whose memory is still right, and those that are new to this member.

        Memory outlives a moment without any assignment, as groups are shared out anew that way, unless somebody else
        has read on in between.
        """
        partitions = frozenset(partition for _, partition in assigned)
        self._assigned, self._places = partitions, frozenset(assigned)
        if not partitions:
            return frozenset(), frozenset()
        known = {partition for _, partition in self._next} - self.catching
        kept = frozenset(
            partition for partition in partitions & known
            if all(self._goes_on(place, committed) for place in self._places if place[1] == partition)
        )  # fmt: skip
        self._next = {place: offset for place, offset in self._next.items() if place[1] in kept}
        self._had = {place: offset for place, offset in self._had.items() if place[1] in kept}
        self._until = {}
        self.catching = frozenset()
        return kept, partitions - kept

    def forget(self) -> None:
        """What was read last broke midway: no memory is right any more, whatever offsets say."""
        self._next.clear()
        self._had.clear()

    def catch_up(self, gained: frozenset[int], committed: Mapping[Place, int], consumer: Consumer) -> None:
        """Begin with `gained`, now that `consumer` stands where their memory begins."""
        self._until = {place: offset for place, offset in committed.items() if place[1] in gained and offset > 0}
        self._had |= self._until
        self._left = consumer.lag() if gained else 0
        self.catching = gained if self._until or self._left else frozenset()

    def standing(self, message: Message) -> Standing:
        """What `message` is to this member, and note that it was handled."""
        place = (message.topic, message.partition)
        if self._left is not None:
            self._left -= 1
        self._next[place] = message.offset + 1
        if message.partition not in self.catching:
            return "live"
        return "old" if message.offset < self._until.get(place, 0) else "late"

    def caught_up(self, consumer: Consumer) -> bool:
        """Whether all that was there at the beginning has been read; true once."""
        if not self.catching or not consumer.assignment():
            return False  # a member between two assignments has read nothing of what waits for it
        if self._left is None or (self._left > 0 and consumer.lag() != 0):
            return False
        self.catching = frozenset()
        self._until = {}
        return True

    def places(self, partitions: frozenset[int]) -> dict[Place, int]:
        """Where this member goes on in `partitions` that it has kept."""
        return {place: self._reached(place) for place in self._next.keys() | self._had.keys() if place[1] in partitions}

    def positions(self, partition: int) -> dict[str, int]:
        """The next offset of each topic's `partition`; 0 where nothing has come yet."""
        return {place[0]: self._reached(place) for place in self._places if place[1] == partition}

    def _goes_on(self, place: Place, committed: Mapping[Place, int]) -> bool:
        """Whether what was read of `place` is what the group has committed: nobody has read on, no topic began anew."""
        if place not in committed:
            return self._reached(place) == 0
        return self._had.get(place, 0) <= committed[place] <= self._reached(place)

    def _reached(self, place: Place) -> int:
        return max(self._next.get(place, 0), self._had.get(place, 0))
