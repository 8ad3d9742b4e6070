"""A bus in memory whose groups work as the real ones do, and that fails at every place where a real one can.

Members of a group share partitions out, are put out when they stand still, and read again from the last commit whatever
was not committed. A flush can fail before it wrote, half way, or after it: what was not acknowledged is written again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import Any, Final

from trainwarden.errors import BusUnavailable, RecordsRefused
from trainwarden.protocols import Message
from trainwarden.records import Record
from trainwarden.topics import Topic

Place = tuple[str, int]
PARTITIONS: Final = 2
MEMBER_S: Final = 10.0  # a member that has not polled for so long is put out
FLUSH_LOST: Final = 0.02  # shares of all flushes
FLUSH_UNACKNOWLEDGED: Final = 0.02


class Group:
    """Who reads what, and how far all of them together have come."""

    def __init__(self) -> None:
        self.members: dict[ChaosConsumer, float] = {}  # when each polled last
        self.committed: dict[Place, int] = {}

    def owner(self, place: Place) -> ChaosConsumer | None:
        members = list(self.members)
        return members[place[1] % len(members)] if members else None


class ChaosLog:
    """What is kept, shared by all processes.

    Attributes
    ----------
    away_until_s, deaf_until_s : float
        Nothing answers until then; nobody is let into a group until then.
    held_until_s : float
        The groups are being shared out anew until then, which a slow member holds open: nobody has any partition.
    refuses : dict of str to int
        By topic, how many bytes a record of it may have: larger ones are refused for good.
    calm : bool
        Nothing fails by chance any more.
    """

    def __init__(self, random: Random, now_s: Callable[[], float]) -> None:
        self.random, self.now_s = random, now_s
        self.kept: dict[Place, list[Message]] = {}
        self.groups: dict[str, Group] = {}
        self.away_until_s = self.deaf_until_s = self.held_until_s = float("-inf")
        self.generation = 0  # of all groups
        self.refuses: dict[str, int] = {}
        self.calm = False
        self.ahead_s = 0.0  # of the clock, for one record
        self._stamp_s = 0.0

    def reach(self) -> None:
        if self.now_s() < self.away_until_s:
            raise BusUnavailable("away")

    def chance(self, share: float) -> bool:
        return not self.calm and self.random.random() < share

    def share_out_anew(self, seconds: float) -> None:
        """Every member loses all it has, and gets others' partitions `seconds` from now."""
        self.generation += 1
        self.held_until_s = self.now_s() + seconds
        for group in self.groups.values():
            group.members = dict(reversed(group.members.items()))

    def append(self, topic: Topic[Any], key: str, value: bytes) -> None:
        place = topic.name, partition_of(key)
        kept = self.kept.setdefault(place, [])
        self._stamp_s, self.ahead_s = max(self._stamp_s + 1e-6, self.now_s() + self.ahead_s), 0.0
        kept.append(Message(topic.name, place[1], len(kept), self._stamp_s, key, topic.decode(value)))

    def read(self, topic: Topic[Any]) -> list[Message]:
        """All of one topic, in the order of its stamps."""
        kept = [one for place in range(PARTITIONS) for one in self.kept.get((topic.name, place), ())]
        return sorted(kept, key=lambda one: one.time_s)


def partition_of(key: str) -> int:
    """Where records of `key` lie."""
    return zlib.crc32(key.encode()) % PARTITIONS


class ChaosBus:
    """One process's way to the log; `point` is called wherever that process may be killed or stand still."""

    def __init__(
        self, log: ChaosLog, point: Callable[[], None] = lambda: None, is_cut_off: Callable[[], bool] = lambda: False
    ) -> None:
        self.log, self._point, self._is_cut_off = log, point, is_cut_off
        self._queued: list[tuple[Topic[Any], str, bytes]] = []

    def reach(self) -> None:
        """Raise if this process cannot reach the log, or nobody can."""
        if self._is_cut_off():
            raise BusUnavailable("no route")
        self.log.reach()

    @property
    def waits(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._queued)

    def publish(self, topic: Topic[Any], key: str, record: Record) -> None:
        self._point()
        self._queued.append((topic, key, topic.encode(record)))

    def flush(self, timeout_s: float = 30.0) -> None:
        if not self._queued:
            return
        self._point()
        log = self.log
        self.reach()
        if log.chance(FLUSH_LOST):
            raise BusUnavailable("lost on the way there")
        waiting = list(self._queued)
        if unacknowledged := log.chance(FLUSH_UNACKNOWLEDGED):
            waiting = waiting[: log.random.randint(1, len(waiting))]
        refused = [one for one in waiting if len(one[2]) > log.refuses.get(one[0].name, len(one[2]))]
        for one in waiting:
            if one not in refused:
                log.append(*one)
        if unacknowledged:
            raise BusUnavailable("lost on the way back")
        del self._queued[: len(waiting)]
        if refused:
            raise RecordsRefused("too large", tuple((topic.name, key, value) for topic, key, value in refused))
        self._point()

    def consumer(self, topics: Sequence[Topic[Any]], group: str, *, start: str = "earliest") -> ChaosConsumer:
        self._point()
        self.reach()
        return ChaosConsumer(self, topics, group, self._point)

    def read(self, topic: Topic[Any], *, from_time_s: float | None = None) -> Iterable[Message]:
        self._point()
        self.reach()
        since_s = float("-inf") if from_time_s is None else from_time_s
        return [one for one in self.log.read(topic) if one.time_s >= since_s]

    def close(self) -> None:
        self._queued.clear()


class ChaosConsumer:
    """One member of a group."""

    dead_letters = 0
    lost: Mapping[str, int] = MappingProxyType({})

    def __init__(self, bus: ChaosBus, topics: Sequence[Topic[Any]], group: str, point: Callable[[], None]) -> None:
        self._bus, self._log, self._point = bus, bus.log, point
        self._topics = tuple(topic.name for topic in topics)
        self._group = bus.log.groups.setdefault(group, Group())
        self._group.members[self] = bus.log.now_s()
        self._at: dict[Place, int] = {}
        self._generation = bus.log.generation
        self._known: list[ChaosConsumer] = []  # members, by whom the partitions are shared out

    def poll(self, timeout_s: float, max_records: int = 1000) -> list[Message]:
        self._point()
        self._bus.reach()
        if self._follow():
            return []
        waiting = [one for place, at in self._at.items() for one in self._log.kept.get(place, ())[at:]]
        found = sorted(waiting, key=lambda one: one.time_s)[: self._log.random.choice((1, 3, max_records))]
        for one in found:
            self._at[one.topic, one.partition] = one.offset + 1
        return found

    def _follow(self) -> bool:
        """Be alive, put out who is not, and take over what changed; whether something did."""
        now_s, members = self._log.now_s(), self._group.members
        deaf = now_s < self._log.deaf_until_s
        if deaf:
            members.pop(self, None)
        else:
            put_out = self not in members
            members[self] = now_s
            for one in [one for one, seen_s in members.items() if now_s - seen_s > MEMBER_S]:
                del members[one]
            if put_out and self._at:  # the caller sees the loss, though the same partitions may come back
                self._at, self._known = {}, []
                return True
        if self._generation != self._log.generation:
            self._generation, self._known = self._log.generation, []
            if self._at:
                self._at = {}
                return True
        if now_s < self._log.held_until_s or self._known == (now := list(members)):
            return False
        self._known = now
        places = [(topic, part) for topic in self._topics for part in range(PARTITIONS)]
        owned = set() if deaf else {place for place in places if self._group.owner(place) is self}
        if owned == self._at.keys():
            return False
        kept = self._group.committed
        self._at = {place: kept.get(place, 0) for place in sorted(owned)}  # also where this member has been further
        return True

    def commit(self) -> None:
        self._point()
        self._bus.reach()
        if self in self._group.members and self._generation == self._log.generation:
            for place, at in self._at.items():
                if self._group.owner(place) is self:
                    self._group.committed[place] = max(at, self._group.committed.get(place, 0))

    def committed(self) -> Mapping[Place, int]:
        return {place: self._group.committed[place] for place in self._at if place in self._group.committed}

    def seek_to_time(self, time_s: float) -> None:
        for place in self._at:
            kept = self._log.kept.get(place, ())
            first = sum(one.time_s < time_s for one in kept)
            self._at[place] = min(first, self._group.committed.get(place, first))

    def seek(self, offsets: Mapping[Place, int]) -> None:
        self._at.update({place: at for place, at in offsets.items() if place in self._at})

    def assignment(self) -> frozenset[Place]:
        return frozenset(self._at)

    def lag(self) -> int:
        return sum(len(self._log.kept.get(place, ())) - at for place, at in self._at.items())

    def close(self) -> None:
        self._group.members.pop(self, None)
