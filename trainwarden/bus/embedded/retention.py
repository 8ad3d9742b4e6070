"""Retention of the embedded engine: what is older than its topic keeps goes, and what does not fit in the file.

Of a compact topic only the newest record of each key is kept. An older one is emptied in its place, as streams have no
gaps; readers pass over it.

Each call removes a bounded number of records, so that a flush which happens to prune stays short.
"""

from __future__ import annotations

from math import inf

from trainwarden.bus.embedded.store import OFFSET_BITS, Store, Stream
from trainwarden.topics import TOPICS

PRUNE_RECORDS = 5_000  # most records removed by one call: tens of milliseconds
_STEP_RECORDS = 250


def prune(store: Store, now_s: float, limit_bytes: int | None) -> int:
    """Remove what need not be kept; the number of records removed (at most `PRUNE_RECORDS`).

    Parameters
    ----------
    limit_bytes : int, optional
        Most bytes in use. Above it, the records that have lived the largest share of their topic's time go first,
        so that a day of actions (kept 90 days) outlives a day of metrics (kept 7).
    """
    with store.transaction() as db:
        keep_s = {int(row[0]): float(row[1]) for row in db.execute("SELECT id, keep_s FROM streams")}
        removed = 0
        for stream in store.streams():
            room = PRUNE_RECORDS - removed
            if room > 0 and stream.first < stream.next:
                end = store.offset_at(stream, now_s - keep_s[stream.id])
                removed += _remove(store, stream, min(end, stream.first + room))
            topic = TOPICS.get(stream.topic)
            if topic is not None and topic.compact:
                removed += _compact(store, stream, max(0, PRUNE_RECORDS - removed))
        while limit_bytes is not None and removed < PRUNE_RECORDS and used_bytes(store) > limit_bytes:
            oldest = _most_lived(store, now_s, keep_s)
            if oldest is None:
                break
            removed += _remove(store, oldest, min(oldest.next, oldest.first + _STEP_RECORDS))
    return removed


def _remove(store: Store, stream: Stream, end: int) -> int:
    if end <= stream.first:
        return 0
    base = stream.id << OFFSET_BITS
    store.db.execute("DELETE FROM records WHERE id>=? AND id<?", (base | stream.first, base | end))
    store.db.execute("UPDATE streams SET first=? WHERE id=?", (end, stream.id))
    return end - stream.first


def _compact(store: Store, stream: Stream, room: int) -> int:
    """Empty at most `room` records after which another of their key has come; how many."""
    base = stream.id << OFFSET_BITS
    found = store.db.execute(
        "UPDATE records SET value=x'' WHERE id IN (SELECT id FROM (SELECT id, length(value) AS size,"
        " row_number() OVER (PARTITION BY key ORDER BY id DESC) AS age FROM records WHERE id>=? AND id<?)"
        " WHERE age>1 AND size>0 LIMIT ?)",
        (base | stream.first, base | stream.next, room),
    )
    emptied = int(found.rowcount)
    oldest = next(store.rows(stream.id, stream.first, stream.next, 1), None)
    if oldest is not None:
        _remove(store, stream, oldest.offset)  # there, no gap is left
    return emptied


def used_bytes(store: Store) -> int:
    pages, free, page_bytes = (
        int(store.db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * page_bytes


def _most_lived(store: Store, now_s: float, keep_s: dict[int, float]) -> Stream | None:
    found: tuple[float, Stream] | None = None
    for stream in store.streams():
        if keep_s[stream.id] == inf:
            continue  # people's words never make room for measurements
        head = next(store.rows(stream.id, stream.first, stream.next, 1), None)
        if head is not None:
            lived = (now_s - head.time_s) / keep_s[stream.id]
            if found is None or lived > found[0]:
                found = (lived, stream)
    return None if found is None else found[1]
