"""Consumer groups of the embedded engine: who is a member, who is alive, who reads which partition.

Everything is rows in the bus file, changed in one write transaction, so members agree without talking to each
other. A living member holds a lock on one byte of ``PATH-members``; the kernel lets go of it the moment the
process dies, however it dies, so no heartbeat has to be written to be seen alive. A member that lives but has
not polled for `LEASE_S` (stopped, wedged) loses its partitions too, and learns so at its next poll.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import struct
from collections.abc import Sequence

from trainwarden.bus.embedded.store import Store

LEASE_S = 60.0  # a handler may take this long between two polls; Kafka's max.poll.interval.ms plays the same part
_FLOCK = "hhqqi4x"  # struct flock of Linux on 64-bit machines: type, whence, start, length, pid


class Membership:
    """One member of one group.

    Parameters
    ----------
    store : Store
        The consumer's own connection.
    group : str
        The group's name.
    topics : sequence of str
        Topics that this member reads.
    lease_s : float
        Time without a poll after which a living member loses its partitions.
    """

    def __init__(self, store: Store, group: str, topics: Sequence[str], lease_s: float) -> None:
        self._store = store
        self._group = group
        self._topics = list(topics)
        self._lease_s = lease_s
        self._lock_file = os.open(store.path + "-members", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._seen_s = 0.0
        self.generation = -1
        self.id = 0

    def join(self, now_s: float) -> None:
        """Become a member, as a new one if this one was put out."""
        with self._store.transaction() as db:
            if self.id:
                self._unlock(self.id)
            row = (self._group, json.dumps(self._topics), now_s)
            self.id = int(db.execute("INSERT INTO members (grp, topics, seen_s) VALUES (?, ?, ?)", row).lastrowid or 0)
            # Before the commit, so that nobody ever sees this member without its lock.
            fcntl.fcntl(self._lock_file, fcntl.F_OFD_SETLK, _flock(fcntl.F_WRLCK, self.id))
            self._assign(db, now_s)
        self._seen_s = now_s

    def leave(self, now_s: float) -> None:
        """Hand the partitions to the others at once; without the bus the released lock tells them soon."""
        if self._lock_file < 0:
            return
        try:
            with self._store.transaction(timeout_s=2.0) as db:
                db.execute("DELETE FROM members WHERE id=?", (self.id,))
                self._assign(db, now_s)
        finally:
            self.release()

    def release(self) -> None:
        """Let go of the lock: from now on the others see this member as dead. Safe twice."""
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1

    def seen(self, now_s: float) -> None:
        """Renew the lease where a sixth of it has gone by."""
        if abs(now_s - self._seen_s) >= self._lease_s / 6:
            with self._store.transaction() as db:
                db.execute("UPDATE members SET seen_s=? WHERE id=?", (now_s, self.id))
            self._seen_s = now_s

    def expel_dead(self, now_s: float) -> None:
        """Share out the partitions of members that have died or stalled."""
        others = self._store.db.execute(
            "SELECT id, seen_s FROM members WHERE grp=? AND id<>?", (self._group, self.id)
        ).fetchall()
        if any(not self._alive(member, seen_s, now_s) for member, seen_s in others):
            with self._store.transaction() as db:
                self._assign(db, now_s)

    def owned(self) -> dict[int, int] | None:
        """Generation at which this member got each of its streams; None if it was put out of the group.

        Also notes the group's present `generation`; of a group that it is not in, a member knows none.
        """
        with self._store.snapshot() as db:
            row = db.execute("SELECT generation FROM groups WHERE name=?", (self._group,)).fetchone()
            there = db.execute("SELECT 1 FROM members WHERE id=?", (self.id,)).fetchone() is not None
            self.generation = int(row[0]) if there else -1
            return self._owned(db) if there else None

    def moved(self) -> bool:
        """Whether the group was shared out anew since the last `owned`."""
        row = self._store.db.execute("SELECT generation FROM groups WHERE name=?", (self._group,)).fetchone()
        return row is None or int(row[0]) != self.generation

    def committed(self) -> dict[int, int]:
        """Next offset by stream, as last committed by the group."""
        found = self._store.db.execute("SELECT stream, next FROM offsets WHERE grp=?", (self._group,))
        return {int(stream): int(offset) for stream, offset in found}

    def commit(self, positions: dict[int, int], since: dict[int, int]) -> None:
        """Keep next offsets of those streams that are still this member's, since the same generation."""
        with self._store.transaction() as db:
            owned = self._owned(db)
            db.executemany(
                "INSERT INTO offsets (grp, stream, next) VALUES (?, ?, ?)"
                " ON CONFLICT (grp, stream) DO UPDATE SET next=excluded.next",
                [
                    (self._group, stream, offset)
                    for stream, offset in positions.items()
                    if stream in owned and owned[stream] == since.get(stream)
                ],
            )

    def _owned(self, db: sqlite3.Connection) -> dict[int, int]:
        found = db.execute("SELECT stream, since FROM owners WHERE grp=? AND member=?", (self._group, self.id))
        return {int(stream): int(since) for stream, since in found}

    def _assign(self, db: sqlite3.Connection, now_s: float) -> None:
        """Within a write transaction: drop the dead and share all partitions out among the living.

        By range: partition p of every topic goes to the same member, so that all records of a key, whatever their
        topic, meet in one place.
        """
        members: list[tuple[int, list[str]]] = []
        for member, topics, seen_s in db.execute(
            "SELECT id, topics, seen_s FROM members WHERE grp=? ORDER BY id", (self._group,)
        ).fetchall():
            if member == self.id or self._alive(member, seen_s, now_s):
                members.append((member, json.loads(topics)))
            else:
                db.execute("DELETE FROM members WHERE id=?", (member,))
        db.execute(
            "INSERT INTO groups (name, generation) VALUES (?, 1)"
            " ON CONFLICT (name) DO UPDATE SET generation=generation+1",
            (self._group,),
        )
        generation = db.execute("SELECT generation FROM groups WHERE name=?", (self._group,)).fetchone()[0]
        before = {
            stream: (member, since)
            for stream, member, since in db.execute(
                "SELECT stream, member, since FROM owners WHERE grp=?", (self._group,)
            ).fetchall()
        }
        db.execute("DELETE FROM owners WHERE grp=?", (self._group,))
        rows = []
        counts = dict(db.execute("SELECT topic, count(*) FROM streams GROUP BY topic").fetchall())
        for stream, topic, partition in db.execute("SELECT id, topic, partition FROM streams").fetchall():
            readers = [member for member, topics in members if topic in topics]
            if readers:
                member = readers[partition * len(readers) // counts[topic]]
                old = before.get(stream)
                since = old[1] if old is not None and old[0] == member else generation
                rows.append((self._group, stream, member, since))
        db.executemany("INSERT INTO owners (grp, stream, member, since) VALUES (?, ?, ?, ?)", rows)

    def _alive(self, member: int, seen_s: float, now_s: float) -> bool:
        # More than a lease in the future: the clock was set back, so the note says nothing.
        if abs(now_s - seen_s) > self._lease_s:
            return False
        answer = fcntl.fcntl(self._lock_file, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK, member))
        return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)

    def _unlock(self, member: int) -> None:
        fcntl.fcntl(self._lock_file, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK, member))


def _flock(kind: int, member: int) -> bytes:
    return struct.pack(_FLOCK, kind, 0, member, 1, 0)
