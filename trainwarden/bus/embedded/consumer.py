"""The reading side of the embedded engine."""

from __future__ import annotations

import heapq
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from trainwarden.bus.dead_letters import Decoder
from trainwarden.bus.embedded.group import Membership
from trainwarden.bus.embedded.store import Row, Store, Stream
from trainwarden.clock import Clock
from trainwarden.errors import BusError, BusUnavailable
from trainwarden.protocols import Message
from trainwarden.topics import Topic

log = logging.getLogger("trainwarden.bus")

MAX_POLL_BYTES = 16 * 1024 * 1024  # one poll returns no more than this, however large its records
_FIRST_WAIT_S = 0.002
_LONGEST_WAIT_S = 0.016  # between two looks while idle, which cost 1 to 2 % of a core: no record waits longer
_MEMBERS_INTERVAL_S = 1.0  # between two looks at whether other members are alive


class EmbeddedConsumer:
    """One member of a group; see `trainwarden.protocols.Consumer`. Made by `EmbeddedBus.consumer`.

    Records of all its partitions come in the order of the times at which they were written. A `poll` at which the
    assignment changed returns nothing, so that a caller sees the change before any record that follows from it.
    After `seek_to_time` a `commit` does not fall behind what the group had reached before.
    """

    def __init__(
        self,
        open_store: Callable[[], Store],
        guard: Callable[[Store], Any],
        topics: Sequence[Topic[Any]],
        group: str,
        *,
        start: str,
        clock: Clock,
        decoder: Decoder,
        flush: Callable[[], None],
        lease_s: float,
    ) -> None:
        self._guard = guard
        self._clock = clock
        self._decoder = decoder
        self._flush = flush
        self._start = start
        self._lock = threading.RLock()
        self.closed = False
        self._since: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._returned: dict[int, int] = {}
        self._reached: dict[int, int] = {}
        self._names: dict[int, tuple[str, int]] = {}
        self._due: dict[int, int] = {}  # the first record that this group has not been given yet
        self._lost: Counter[str] = Counter()
        self._compact = frozenset(topic.name for topic in topics if topic.compact)
        self._version = -1
        self._more = True
        self._wait_s = _FIRST_WAIT_S
        self._members_due_s = clock.monotonic_s() + _MEMBERS_INTERVAL_S
        self._store = open_store()
        self._members = Membership(self._store, group, [topic.name for topic in topics], lease_s)
        try:
            with self._guard(self._store):
                self._members.join(clock.now_s())
                self._take_assignment()
        except BaseException:
            self._members.release()
            self._store.close()
            raise

    @property
    def dead_letters(self) -> int:
        """Undecodable records met so far."""
        return self._decoder.dead_letters

    @property
    def lost(self) -> Mapping[str, int]:
        """By topic, records that were gone before they could be read."""
        return self._lost

    def poll(self, timeout_s: float, max_records: int = 1000) -> list[Message]:
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            with self._lock, self._guard(self._store):
                self._check_open()
                if self._follow_group():
                    return []
                messages = self._next(max_records)
            if messages:
                self._wait_s = _FIRST_WAIT_S
                return messages
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return []
            self._clock.sleep(min(self._wait_s, left_s))
            self._wait_s = min(2 * self._wait_s, _LONGEST_WAIT_S)

    def commit(self) -> None:
        with self._lock:
            self._check_open()
            self._decoder.flush(self._flush)
            if self._returned:
                with self._guard(self._store):
                    kept = {
                        stream: max(offset, self._reached.get(stream, 0)) for stream, offset in self._returned.items()
                    }
                    self._members.commit(kept, self._since)
                    self._returned.clear()

    def committed(self) -> Mapping[tuple[str, int], int]:
        with self._lock, self._guard(self._store):
            self._check_open()
            kept = self._members.committed()
            return {self._names[stream]: kept[stream] for stream in self._positions if stream in kept}

    def seek_to_time(self, time_s: float) -> None:
        with self._lock, self._guard(self._store):
            self._check_open()
            kept = self._members.committed()
            with self._store.snapshot():
                starts = {stream.id: self._store.offset_at(stream, time_s) for stream in self._mine()}
            self._move({stream: min(start, kept.get(stream, start)) for stream, start in starts.items()})

    def seek(self, offsets: Mapping[tuple[str, int], int]) -> None:
        with self._lock, self._guard(self._store):
            self._check_open()
            places = {stream: self._names[stream] for stream in self._positions}
            self._move({stream: offsets[place] for stream, place in places.items() if place in offsets})

    def _move(self, positions: Mapping[int, int]) -> None:
        """Go on from `positions`, by stream; what the group had reached before is not forgotten."""
        kept = self._members.committed()
        for stream, position in positions.items():
            high = max(kept.get(stream, 0), self._returned.get(stream, 0))
            self._reached[stream] = max(self._reached.get(stream, 0), high)
            self._positions[stream] = position
        self._more = True

    def assignment(self) -> frozenset[tuple[str, int]]:
        with self._lock:
            return frozenset(self._names[stream] for stream in self._positions)

    def lag(self) -> int | None:
        with self._lock, self._guard(self._store):
            self._check_open()
            if not self._positions:
                return None
            return sum(max(0, stream.next - max(self._positions[stream.id], stream.first)) for stream in self._mine())

    def close(self) -> None:
        with self._lock:
            if self.closed:
                return
            self.closed = True
            try:
                with self._guard(self._store):
                    self._members.leave(self._clock.now_s())
            finally:
                self._store.close()

    def _check_open(self) -> None:
        if self.closed:
            raise BusError("the consumer is closed")

    def _mine(self) -> list[Stream]:
        return [stream for stream in self._store.streams() if stream.id in self._positions]

    def _follow_group(self) -> bool:
        """Keep membership alive and take over what changed; whether the assignment did."""
        now_s = self._clock.now_s()
        self._members.seen(now_s)
        if self._clock.monotonic_s() >= self._members_due_s:
            self._members_due_s = self._clock.monotonic_s() + _MEMBERS_INTERVAL_S
            self._members.expel_dead(now_s)
        version = self._store.version()
        if version != self._version:
            self._version = version
            self._more = True
        return self._members.moved() and self._take_assignment()

    def _take_assignment(self) -> bool:
        owned = self._members.owned()
        if owned is None and self._since:
            owned = {}  # others have read on: the caller sees the loss, though the same partitions may come back
        elif owned is None:
            self._members.join(self._clock.now_s())
            owned = self._members.owned() or {}
        if owned == self._since:
            return False
        gained = {stream for stream, since in owned.items() if self._since.get(stream) != since}
        for table in (self._positions, self._returned, self._reached):
            for lost in [number for number in table if number not in owned or number in gained]:
                del table[lost]
        kept = self._members.committed()
        for stream in self._store.streams():
            if stream.id in gained:
                self._names[stream.id] = (stream.topic, stream.partition)
                fresh = stream.next if self._start == "latest" else stream.first
                self._positions[stream.id] = self._due[stream.id] = kept.get(stream.id, fresh)
        self._since = owned
        self._more = True
        return True

    def _next(self, max_records: int) -> list[Message]:
        """Decoded messages from the present positions; empty at once if nothing was written since it was so."""
        while self._more:
            rows = self._fetch(max_records)
            self._more = bool(rows)
            messages: list[Message] = []
            for row in rows:
                topic, partition = self._names[row.stream]
                try:
                    record = self._decoder.decode(topic, partition, row.offset, row.value)
                except BusUnavailable:
                    if messages:  # what was decoded goes out; the next poll meets this row again
                        return messages
                    raise
                self._positions[row.stream] = self._returned[row.stream] = row.offset + 1
                self._due[row.stream] = max(self._due[row.stream], row.offset + 1)
                if record is not None:
                    place = (topic, partition, row.offset)
                    messages.append(Message(*place, row.time_s, row.key, record, clock_s=row.clock_s))
            if messages:
                return messages
        return []

    def _fetch(self, max_records: int) -> list[Row]:
        """Next rows of all streams, merged by time, at most `max_records` and `MAX_POLL_BYTES` (but at least one)."""
        rows: list[Row] = []
        size = 0
        with self._store.snapshot():
            streams = self._mine()
            waiting = [
                self._store.rows(stream.id, self._positions[stream.id], stream.next, max_records)
                for stream in streams
                if stream.next > self._positions[stream.id]
            ]
            for row in heapq.merge(*waiting):
                size += len(row.value)
                if rows and (size > MAX_POLL_BYTES or len(rows) == max_records):
                    break
                rows.append(row)
        self._pass_over(streams)
        return rows

    def _pass_over(self, streams: Iterable[Stream]) -> None:
        """Count what retention has removed before this group was given it."""
        for stream in streams:
            lost = stream.first - self._due[stream.id]
            if lost > 0:
                self._due[stream.id] = stream.first
            if lost > 0 and stream.topic not in self._compact:
                self._lost[stream.topic] += lost
                fields = {"topic": stream.topic, "partition": stream.partition, "records": lost}
                log.warning("records were removed before they were read", extra={"fields": fields})
