"""A damaged bus file is set aside under a name that is said, and a new one begins with what can be read of it.

The new file is made beside the damaged one and then takes its name, so that a name is never without a file. Processes
that have the damaged one open see that the name leads to another file (`Store.replaced`) and open that.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

from trainwarden.bus.embedded.store import OFFSET_BITS, OFFSET_MASK, DamagedFile, Store, file_lock
from trainwarden.errors import BusUnavailable

log = logging.getLogger("trainwarden.bus")

_PARTS: Final = ("", "-wal", "-shm")
_ROW = tuple[int, float, str, bytes, float | None]


def opened(path: str, *, power_loss_safe: bool) -> Store:
    """The store at `path`, a new one if the file there is damaged; raises as `Store` does."""
    try:
        return Store(path, power_loss_safe=power_loss_safe)
    except DamagedFile as damaged:
        set_aside(path, damaged.inode)
        return Store(path, power_loss_safe=power_loss_safe)


def set_aside(path: str, inode: int | None) -> None:
    """Begin a new bus file at `path` with what can be read of the damaged one, which gets another name.

    Parameters
    ----------
    inode : int or None
        Of the file that was found damaged: if another process has set it aside meanwhile, nothing is left to do.

    Raises
    ------
    BusUnavailable
        If the disk refuses; the damaged file stays where it is.
    """
    try:
        with file_lock(path, fcntl.LOCK_EX):
            if Path(path).stat().st_ino != inode:
                return
            made = f"{path}.new"
            for part in _PARTS:
                Path(made + part).unlink(missing_ok=True)
            carried, missing = _carry_over(path, made)
            aside = _free_name(path)
            os.link(path, aside)
            for part in _PARTS[1:]:
                with suppress(FileNotFoundError):
                    Path(path + part).replace(aside + part)
            Path(made).replace(path)
            Path(made + "-members").unlink(missing_ok=True)
    except (OSError, sqlite3.Error) as error:
        raise BusUnavailable(f"embedded bus {path}: damaged, and no new file can be begun: {error}") from error
    fields = {"file": path, "set_aside": aside, "records_kept": carried, "records_lost": missing}
    log.error("bus file is damaged: it was set aside, and a new one begun", extra={"fields": fields})


def _free_name(path: str) -> str:
    stem = f"{path}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    names = (stem, *(f"{stem}-{number}" for number in range(1, 1_000)))
    return next(name for name in names if not Path(name).exists())


def _carry_over(path: str, made: str) -> tuple[int, int]:
    """Make the file `made` with what `path` holds; records that are kept, and records that cannot be read."""
    with closing(Store(made, power_loss_safe=True)) as new:
        with closing(sqlite3.connect(path, timeout=5.0, isolation_level=None)) as old:
            streams = _readable(old, "SELECT id, topic, partition, keep_s, first, next, last_s FROM streams")
            offsets = _readable(old, "SELECT grp, stream, next FROM offsets")
            carried = missing = 0
            with new.transaction() as db:
                # Members come back by themselves; none may get the number of one whose lock is still held.
                db.execute("INSERT INTO members (id, grp, topics, seen_s) VALUES (?, '', '[]', 0)", (int(time.time()),))
                db.execute("DELETE FROM members")
                db.executemany("INSERT OR IGNORE INTO streams VALUES (?, ?, ?, ?, ?, ?, ?)", streams)
                db.executemany("INSERT OR IGNORE INTO offsets VALUES (?, ?, ?)", offsets)
                for stream, *_, first, end, last_s in streams:
                    kept, lost = _carry_stream(old, db, stream << OFFSET_BITS, range(first, end), last_s)
                    carried, missing = carried + kept, missing + lost
        new.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return carried, missing


def _carry_stream(
    old: sqlite3.Connection, db: sqlite3.Connection, base: int, offsets: range, last_s: float
) -> tuple[int, int]:
    """Carry one partition over; in the place of what cannot be read come empty records, so that offsets have no gap."""
    following, kept, time_s = offsets.start, 0, 0.0
    for row in _rows(old, base | offsets.start, base | offsets.stop):
        offset = row[0] & OFFSET_MASK
        time_s = time_s or row[1]
        _fill(db, base, range(following, offset), time_s)
        db.execute("INSERT INTO records (id, time_s, key, value, clock_s) VALUES (?, ?, ?, ?, ?)", row)
        following, time_s, kept = offset + 1, row[1], kept + 1
    _fill(db, base, range(following, offsets.stop), time_s or last_s)
    return kept, len(offsets) - kept


def _fill(db: sqlite3.Connection, base: int, offsets: Iterable[int], time_s: float) -> None:
    blank = "INSERT INTO records (id, time_s, key, value) VALUES (?, ?, '', x'')"
    db.executemany(blank, ((base | offset, time_s) for offset in offsets))


def _rows(old: sqlite3.Connection, start: int, end: int) -> Iterator[_ROW]:
    """Records of `start` <= id < `end`: from the beginning to the damage, and behind the damage to the end."""
    clock = "clock_s" if _readable(old, "SELECT 1 FROM pragma_table_info('records') WHERE name='clock_s'") else "NULL"
    what = f"SELECT id, time_s, key, value, {clock} FROM records WHERE id>=? AND id<? ORDER BY id"  # noqa: S608 - constants only
    reached = start
    for row in _until_damage(old.execute(what, (start, end))):
        yield row
        reached = row[0] + 1
    behind = list(_until_damage(old.execute(f"{what} DESC", (reached, end))))
    yield from reversed(behind)


def _until_damage(found: Iterable[Any]) -> Iterator[_ROW]:
    with suppress(sqlite3.Error):
        for row in found:
            if isinstance(row[3], bytes) and isinstance(row[2], str) and isinstance(row[1], float):
                yield row


def _readable(old: sqlite3.Connection, statement: str) -> list[Any]:
    try:
        return old.execute(statement).fetchall()
    except sqlite3.Error:
        return []
