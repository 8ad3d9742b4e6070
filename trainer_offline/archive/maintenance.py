"""What the archive does beside writing: days joined when they are worth it, and removed when they are too old.

One process works at a time, whoever it is (a worker's tick, ``trainwarden archive compact``): it holds the compaction
lock. Writers go on meanwhile; what they add to a day is kept in either case, since folders change and vanish under the
topic's lock, looked at once more.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from trainwarden.clock import Clock, SystemClock
from trainwarden.errors import DataError
from trainwarden.settings import ArchiveSettings
from trainwarden.trainer_offline.archive.atomic import disk, locked, make_folder, sync_folder
from trainwarden.trainer_offline.archive.compaction import compact_day, compaction_lock, discard, held_in
from trainwarden.trainer_offline.archive.data_file import part_of
from trainwarden.trainer_offline.archive.layout import COMPACTION, STAGING, TOPIC_FOLDERS, day_folders, day_of

log = logging.getLogger("trainwarden.archive")

KEEP_DAYS: Final[Mapping[str, int]] = {
    # What training needs is kept for a year; metrics, calls and logs, most of the bytes, for a quarter.
    "metrics": 90, "iterations": 365, "collectives": 90, "logs": 90, "events": 365, "verdicts": 365, "incidents": 3650,
    "actions": 3650,
}  # fmt: skip
_DAY_CLOSED_AFTER_S = 3_600.0  # agents that were cut off have sent most of what they spooled by then
_LOOK_S = 0.05  # longest that one `Maintenance.step` looks for work
_WAIT_S = 30.0  # a worker's piece of compaction is over by then
_ASK_AGAIN_S = 0.2


def expire_day(root: Path, topic: str, folder: Path, keep_days: int, now_s: float) -> bool:
    """Remove one day if all its records reached the bus more than `keep_days` ago; whether it was.

    A day of long ago whose records came lately (a recording that was played back) is kept as long as any other.
    """
    until_s = now_s - keep_days * 86_400.0
    with disk(root):
        if day_of(folder) >= _date(until_s) or not _all_came_before(folder, until_s):
            return False
        work = root / STAGING / COMPACTION / secrets.token_hex(8)
        make_folder(work)
        with locked(root, topic):
            # Looked at again: until the lock was held, a writer may have put records of that day here.
            removed = _all_came_before(folder, until_s)
            if removed:
                folder.rename(work / "old")
                with contextlib.suppress(OSError):  # the job has other days
                    folder.parent.rmdir()
                sync_folder(root / topic)
        discard(work)
    return removed


def _all_came_before(folder: Path, until_s: float) -> bool:
    """Whether the day exists and none of its records reached the bus after `until_s`."""
    return folder.is_dir() and all(one.footer.written_to_s <= until_s for one in held_in(folder))


def _date(time_s: float) -> datetime.date:
    return datetime.datetime.fromtimestamp(max(0.0, time_s), datetime.UTC).date()


def compact(root: Path, keep_days: Mapping[str, int], now_s: float, *, clock: Clock | None = None) -> tuple[int, int]:
    """Join every day's files into one and apply retention; the numbers of days joined and removed.

    Waits a while for another process that is compacting, as the archive service does now and then.

    Raises
    ------
    DataError
        If the other process does not end, or a folder cannot be worked on.
    """
    clock = clock or SystemClock()
    until_s = clock.monotonic_s() + _WAIT_S
    while True:
        with disk(root), compaction_lock(root) as ours:
            if ours:
                return _compact(root, keep_days, now_s)
        if clock.monotonic_s() >= until_s:
            raise DataError(f"archive '{root}': another process is compacting it now")
        clock.sleep(_ASK_AGAIN_S)


def _compact(root: Path, keep_days: Mapping[str, int], now_s: float) -> tuple[int, int]:
    joined = removed = 0
    for topic in TOPIC_FOLDERS:
        for folder in day_folders(root, topic):
            if expire_day(root, topic, folder, keep_days.get(topic, KEEP_DAYS[topic]), now_s):
                removed += 1
            elif compact_day(root, topic, folder):
                joined += 1
    return joined, removed


class Maintenance:
    """Compaction and retention in bounded pieces, from the service's tick.

    A day in progress is joined when it has `ArchiveSettings.compact_files` files, a day that is over whenever it has
    several. Files that have reached `compact_bytes` are left alone, so a row is rewritten a few times at most and
    one piece of work stays short; ``trainwarden archive compact`` joins them too.
    """

    def __init__(self, root: Path, settings: ArchiveSettings, clock: Clock) -> None:
        self._root = root
        self._settings = settings
        self._clock = clock
        self._walk: Iterator[tuple[str, Path]] = iter(())
        self._resting = False
        self._due_s = clock.monotonic_s()

    def step(self, now_s: float) -> int:
        """Look for work for a moment; folders changed (0 or 1). A folder that fails is logged and passed over."""
        if self._resting and self._clock.monotonic_s() < self._due_s:
            return 0
        self._resting = False
        until_s = self._clock.monotonic_s() + _LOOK_S
        while self._clock.monotonic_s() <= until_s:
            found = next(self._walk, None)
            if found is None:
                self._rest()
                return 0
            topic, folder = found
            if self._is_due(folder, now_s) or self._is_old(topic, folder, now_s):
                return self._work(topic, folder, now_s)
        return 0

    def _rest(self) -> None:
        self._walk = ((topic, folder) for topic in TOPIC_FOLDERS for folder in day_folders(self._root, topic))
        self._due_s = self._clock.monotonic_s() + self._settings.maintain_every_s
        self._resting = True

    def _is_due(self, folder: Path, now_s: float) -> bool:
        number = sum(part_of(name) is not None for name in _names(folder))
        closed = day_of(folder) < _date(now_s - _DAY_CLOSED_AFTER_S)
        return number >= self._settings.compact_files or (closed and number > 1)

    def _is_old(self, topic: str, folder: Path, now_s: float) -> bool:
        return day_of(folder) < _date(now_s - self._keep_days(topic) * 86_400.0)

    def _keep_days(self, topic: str) -> int:
        given: Mapping[Any, int] = self._settings.keep_days
        return given.get(topic, KEEP_DAYS[topic])

    def _work(self, topic: str, folder: Path, now_s: float) -> int:
        """One folder. The one place where a failing folder is passed over."""
        try:
            with disk(self._root), compaction_lock(self._root) as ours:
                if not ours:
                    return 0
                if expire_day(self._root, topic, folder, self._keep_days(topic), now_s):
                    return 1
                return int(compact_day(self._root, topic, folder, limit_bytes=self._settings.compact_bytes))
        except DataError as error:
            fields = {"folder": str(folder), "error": str(error)}
            log.warning("folder cannot be maintained", extra={"fields": fields})
            return 0


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
