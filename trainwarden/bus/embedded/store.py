"""The file of the embedded engine: one SQLite database in WAL mode, a log per topic and partition.

A stream is one partition of one topic. A record's row id is ``stream << 40 | offset``, so one b-tree holds
all streams, each contiguous and in order, and needs no second index: offsets have no gaps and times never
fall, so a time is found by bisection. They do not fall from one stream to another either: whatever a clock does, what
was written later has the later time. Where that is not what the writer's clock said, its word is kept beside it.
"""

from __future__ import annotations

import fcntl
import math
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from trainwarden.errors import BusUnavailable, ConfigError

OFFSET_BITS = 40
OFFSET_MASK = (1 << OFFSET_BITS) - 1
_APPLICATION_ID = 0x54575742  # "TWWB" in SQLite's header says that the file is ours
_SCHEMA_VERSION = 1
_PAGE_BYTES = 8192  # an 8-GPU metrics record has 2-3 kB: two or three fill a page where 4,096 would waste a third
_WAL_BYTES = 16 * 1024 * 1024  # checkpoint after this much, so that bulk writes do not sync the main file each 4 MB
_SHORT_MS = 2_000  # shorter waits are for the one transaction that asked for them
_SET_S = 1.0  # a clock that is so far behind the last time was set; less is two processes writing at once
_BUSY_MS = 10_000  # longest wait for another process's write; one transaction holds tens of milliseconds at most
_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (
    id INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, keep_s REAL NOT NULL,
    first INTEGER NOT NULL DEFAULT 0, next INTEGER NOT NULL DEFAULT 0, last_s REAL NOT NULL DEFAULT 0,
    UNIQUE (topic, partition));
CREATE TABLE IF NOT EXISTS records (
    id INTEGER PRIMARY KEY, time_s REAL NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, clock_s REAL);
CREATE TABLE IF NOT EXISTS groups (name TEXT PRIMARY KEY, generation INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS members (
    id INTEGER PRIMARY KEY AUTOINCREMENT, grp TEXT NOT NULL, topics TEXT NOT NULL, seen_s REAL NOT NULL);
CREATE TABLE IF NOT EXISTS owners (
    grp TEXT NOT NULL, stream INTEGER NOT NULL, member INTEGER NOT NULL, since INTEGER NOT NULL,
    PRIMARY KEY (grp, stream)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS offsets (
    grp TEXT NOT NULL, stream INTEGER NOT NULL, next INTEGER NOT NULL, PRIMARY KEY (grp, stream)) WITHOUT ROWID;
"""


_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_IN_USE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_ID_AT = 68  # where SQLite's header has the application id


class DamagedFile(BusUnavailable):
    """The content of the file is broken, which no waiting mends.

    Attributes
    ----------
    inode : int
        Of the file that was found so.
    """

    def __init__(self, text: str, inode: int) -> None:
        super().__init__(text)
        self.inode = inode


class Row(NamedTuple):
    """One stored record."""

    time_s: float
    stream: int
    offset: int
    key: str
    value: bytes
    clock_s: float | None = None


class Stream(NamedTuple):
    """One partition of one topic; offsets `first` up to but not including `next` are kept."""

    id: int
    topic: str
    partition: int
    first: int
    next: int


class Store:
    """One connection to the file. Not thread-safe: its owner holds a lock.

    Parameters
    ----------
    path : str
        The database file; made if absent, its folder is not.
    power_loss_safe : bool
        True: a commit waits for the disk (``synchronous=FULL``). False: a commit survives the death of any process
        but the last ones may be lost with the machine's power (``NORMAL``).

    Raises
    ------
    ConfigError
        If the folder does not exist or the file is not one of ours.
    BusUnavailable
        If the file cannot be opened now; `DamagedFile` if it is ours and damaged.
    """

    def __init__(self, path: str, *, power_loss_safe: bool) -> None:
        self.path = path
        self._safe = power_loss_safe
        self.inode: int | None = None
        self._open()

    def reopen(self) -> None:
        """Go on with the file that has the name now; raises as making a `Store` does."""
        self.close()
        self._open()

    def replaced(self) -> bool:
        """Whether the name leads to another file than the one that is open: that one was set aside as damaged."""
        try:
            return self.inode is not None and Path(self.path).stat().st_ino != self.inode
        except OSError:
            return False

    def _open(self) -> None:
        path = self.path
        self._busy_ms = _BUSY_MS
        _check_place(path)
        with file_lock(path, fcntl.LOCK_SH):
            try:
                _make_private(path)
                self.inode = Path(path).stat().st_ino
                self.db = sqlite3.connect(path, timeout=_BUSY_MS / 1000, isolation_level=None, check_same_thread=False)
            except (sqlite3.Error, OSError) as error:
                raise BusUnavailable(f"embedded bus {path}: {error}") from error
            try:
                self._prepare(self._safe)
            except sqlite3.Error as error:
                self.db.close()
                if is_damage(error):
                    if not _was_ours(path):
                        raise ConfigError(f"embedded bus {path}: the file is not a database of trainwarden") from error
                    raise DamagedFile(f"embedded bus {path}: the file is damaged: {error}", self.inode) from error
                raise BusUnavailable(f"embedded bus {path}: {error}") from error
            except ConfigError:
                self.db.close()
                raise

    def _prepare(self, power_loss_safe: bool) -> None:
        tables = self._one("SELECT count(*) FROM sqlite_master")
        if tables and self._one("PRAGMA application_id") != _APPLICATION_ID:
            raise ConfigError(f"embedded bus {self.path}: the file is a database, but not one of trainwarden")
        if self._one("PRAGMA user_version") > _SCHEMA_VERSION:
            raise ConfigError(f"embedded bus {self.path}: the file was written by a newer trainwarden")
        if not tables:
            self.db.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            self._enter_wal()
            with self.transaction():
                for statement in _SCHEMA.split(";"):
                    self.db.execute(statement)
                self.db.execute(f"PRAGMA application_id={_APPLICATION_ID}")
                self.db.execute(f"PRAGMA user_version={_SCHEMA_VERSION}")
        elif not self._keeps_clocks():
            with self.transaction():  # a file of an earlier version, which goes on reading and writing it
                if not self._keeps_clocks():
                    self.db.execute("ALTER TABLE records ADD COLUMN clock_s REAL")
        self.db.execute(f"PRAGMA synchronous={'FULL' if power_loss_safe else 'NORMAL'}")
        self.db.execute(f"PRAGMA wal_autocheckpoint={_WAL_BYTES // _PAGE_BYTES}")
        self.db.execute(f"PRAGMA journal_size_limit={4 * _WAL_BYTES}")

    def _enter_wal(self) -> None:
        """Switch to WAL; SQLite does not wait by itself where two processes make the file at the same time."""
        deadline = time.monotonic() + _BUSY_MS / 1000
        while True:
            try:
                self.db.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if _code(error) not in _IN_USE or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def _keeps_clocks(self) -> bool:
        return bool(self._one("SELECT count(*) FROM pragma_table_info('records') WHERE name='clock_s'"))

    def _one(self, statement: str) -> int:
        return int(self.db.execute(statement).fetchone()[0])

    @contextmanager
    def transaction(self, timeout_s: float = _BUSY_MS / 1000) -> Iterator[sqlite3.Connection]:
        """A write transaction, begun once no other process writes or refused after `timeout_s`."""
        # A pragma costs as much as a small commit; so what one sets stays, unless it would leave readers no time.
        self._wait_at_most(max(1, math.ceil(timeout_s * 1000)))
        try:
            self.db.execute("BEGIN IMMEDIATE")
        finally:
            if self._busy_ms < _SHORT_MS:
                self._wait_at_most(_BUSY_MS)
        try:
            yield self.db
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise

    def _wait_at_most(self, busy_ms: int) -> None:
        if busy_ms != self._busy_ms:
            self.db.execute(f"PRAGMA busy_timeout={busy_ms}")
            self._busy_ms = busy_ms

    @contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """One consistent view for several reads."""
        self.db.execute("BEGIN")
        try:
            yield self.db
        finally:
            if self.db.in_transaction:
                self.db.execute("COMMIT")

    def version(self) -> int:
        """A number that changes when another connection has committed anything; costs microseconds."""
        return self._one("PRAGMA data_version")

    def ensure_topic(self, name: str, partitions: int, keep_s: float) -> list[int]:
        """Stream ids of the topic by partition; an existing topic keeps its number of partitions."""
        statement = "SELECT id, keep_s FROM streams WHERE topic=? ORDER BY partition"
        known = self.db.execute(statement, (name,)).fetchall()
        if not known:
            with self.transaction() as db:
                if not db.execute(statement, (name,)).fetchall():  # no other process was faster
                    db.executemany(
                        "INSERT INTO streams (topic, partition, keep_s) VALUES (?, ?, ?)",
                        [(name, partition, keep_s) for partition in range(partitions)],
                    )
                known = db.execute(statement, (name,)).fetchall()
        if any(row[1] != keep_s for row in known):
            with self.transaction() as db:
                db.execute("UPDATE streams SET keep_s=? WHERE topic=?", (keep_s, name))
        return [int(row[0]) for row in known]

    def append(self, items: Sequence[tuple[int, float, str, bytes]], timeout_s: float) -> None:
        """Keep (stream, time, key, value) items, all or none, offsets in the order given."""
        with self.transaction(timeout_s) as db:
            ends: dict[int, tuple[int, float]] = {}
            rows = []
            last_s = -math.inf
            for stream, written_s, key, value in items:
                if stream not in ends:
                    end = "SELECT next, (SELECT max(last_s) FROM streams) FROM streams WHERE id=?"
                    ends[stream] = db.execute(end, (stream,)).fetchone()
                    last_s = max(last_s, ends[stream][1])
                clock_s = written_s if last_s - written_s > _SET_S else None
                # A clock set back must break neither the order that bisection needs nor that of what was said.
                last_s = written_s if written_s >= last_s else math.nextafter(last_s, math.inf)
                rows.append((stream << OFFSET_BITS | ends[stream][0], last_s, key, value, clock_s))
                ends[stream] = (ends[stream][0] + 1, last_s)
            db.executemany("INSERT INTO records (id, time_s, key, value, clock_s) VALUES (?, ?, ?, ?, ?)", rows)
            db.executemany(
                "UPDATE streams SET next=?, last_s=? WHERE id=?", [(*end, stream) for stream, end in ends.items()]
            )

    def streams(self, topic: str | None = None) -> list[Stream]:
        """All streams, or those of one topic, in the order of their partitions."""
        where, values = ("WHERE topic=?", (topic,)) if topic is not None else ("", ())
        found = self.db.execute(
            f"SELECT id, topic, partition, first, next FROM streams {where} ORDER BY id",  # noqa: S608 - constants only
            values,
        )
        return [Stream(*row) for row in found]

    def rows(self, stream: int, start: int, end: int, limit: int) -> Iterator[Row]:
        """Records of `stream` with start <= offset < end, in order, as they are asked for; emptied ones left out."""
        base = stream << OFFSET_BITS
        found = self.db.execute(
            "SELECT id, time_s, key, value, clock_s FROM records"
            " WHERE id>=? AND id<? AND length(value)>0 ORDER BY id LIMIT ?",
            (base | start, base | end, limit),
        )
        for row_id, time_s, key, value, clock_s in found:
            yield Row(time_s, stream, row_id & OFFSET_MASK, key, value, clock_s)

    def offset_at(self, stream: Stream, time_s: float) -> int:
        """Offset of the first record written at or after `time_s`; the stream's next offset if there is none."""
        low, high = stream.first, stream.next
        while low < high:
            middle = (low + high) // 2
            found = self._time_of(stream.id, middle)
            if found is None or found < time_s:
                low = middle + 1
            else:
                high = middle
        return low

    def _time_of(self, stream: int, offset: int) -> float | None:
        row = self.db.execute("SELECT time_s FROM records WHERE id=?", (stream << OFFSET_BITS | offset,)).fetchone()
        return None if row is None else float(row[0])

    def close(self) -> None:
        self.inode = None
        self.db.close()


def is_damage(error: sqlite3.Error) -> bool:
    """Whether `error` says that the content of the file is broken."""
    return _code(error) in _DAMAGED


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


@contextmanager
def file_lock(path: str, how: int) -> Iterator[None]:
    """Hold a lock of all processes (`fcntl.LOCK_SH` or ``LOCK_EX``) on which file has the name `path`."""
    try:
        make = os.O_CREAT if how == fcntl.LOCK_EX else 0  # beside a file that may not be a bus nothing is made
        lock = os.open(path + "-members", os.O_RDWR | make | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        fcntl.flock(lock, how)
        yield
    finally:
        os.close(lock)


def _was_ours(path: str) -> bool:
    """Whether a file that cannot be read was a bus, by its header or by who has locked members beside it."""
    try:
        with open(path, "rb") as file:
            header = file.read(_ID_AT + 4)
    except OSError:
        return False
    return header[_ID_AT:] == _APPLICATION_ID.to_bytes(4, "big") or Path(path + "-members").exists()


def _check_place(path: str) -> None:
    place = Path(path)
    if not place.parent.is_dir():
        raise ConfigError(f"embedded bus {path}: the folder {place.parent} does not exist")
    if place.is_dir():
        raise ConfigError(f"embedded bus {path}: this is a folder, not a file")


def _make_private(path: str) -> None:
    """Make an absent file its owner's alone: log lines are in it. SQLite gives ``-wal`` and ``-shm`` the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
