"""Fetched records of several partitions, handed out in the order of their times."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable
from typing import Any

MAX_BUFFER_BYTES = 1024 * 1024  # per partition; a fuller one is paused, so that the others are fetched meanwhile
MAX_BUFFER_RECORDS = 2_000


class Buffers:
    """One queue per partition and a heap over their heads; the order within a partition always stays.

    Examples
    --------
    >>> from types import SimpleNamespace as Raw
    >>> buffers = Buffers()
    >>> buffers.add("p0", [Raw(timestamp=1, value=b"a"), Raw(timestamp=4, value=b"d")])
    >>> buffers.add("p1", [Raw(timestamp=2, value=b"b")])
    >>> [buffers.pop_all().value for _ in range(3)]
    [b'a', b'b', b'd']
    """

    def __init__(self) -> None:
        self._queues: dict[Any, deque[Any]] = {}
        self._bytes: dict[Any, int] = {}
        self._heads: list[tuple[int, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._heads)

    def add(self, partition: Any, records: Iterable[Any]) -> None:
        """Append `records` of `partition`."""
        queue = self._queues.setdefault(partition, deque())
        was_empty = not queue
        records = list(records)
        queue.extend(records)
        self._bytes[partition] = self._bytes.get(partition, 0) + sum(map(_size, records))
        if was_empty and queue:
            heapq.heappush(self._heads, (queue[0].timestamp, partition))

    def peek(self) -> tuple[Any, Any] | None:
        """Partition and record that `pop_all` would give."""
        if not self._heads:
            return None
        partition = self._heads[0][1]
        return partition, self._queues[partition][0]

    def pop_all(self) -> Any:
        """The oldest of the partitions' first records; there must be one."""
        partition = self._heads[0][1]
        queue = self._queues[partition]
        raw = queue.popleft()
        self._bytes[partition] -= _size(raw)
        if queue:
            heapq.heapreplace(self._heads, (queue[0].timestamp, partition))
        else:
            heapq.heappop(self._heads)
        return raw

    def first_offset(self, partition: Any) -> int | None:
        """Offset of the partition's next record here; None if there is none."""
        queue = self._queues.get(partition)
        return int(queue[0].offset) if queue else None

    def full(self) -> set[Any]:
        """Partitions that need not be fetched for now."""
        return {
            partition
            for partition, queue in self._queues.items()
            if len(queue) >= MAX_BUFFER_RECORDS or self._bytes[partition] >= MAX_BUFFER_BYTES
        }

    def keep_only(self, partitions: Collection[Any]) -> None:
        """Forget all other partitions."""
        for partition in [partition for partition in self._queues if partition not in partitions]:
            del self._queues[partition], self._bytes[partition]
        self._heads = [(queue[0].timestamp, partition) for partition, queue in self._queues.items() if queue]
        heapq.heapify(self._heads)


def _size(raw: Any) -> int:
    return len(raw.value or b"")
