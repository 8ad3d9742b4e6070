"""Rows in memory until they are worth a file, then on disk so that each record is there exactly once.

Rows wait per (topic, bus partition, job, day). `flush` writes each group to a file under `.staging`, syncs it, renames
it to ``part-<partition>-<first>-<last>.parquet`` and syncs the folder; only then may the offsets be committed. A kill
between two of these steps leaves some groups on disk and others not, and all of them come from the bus again. What is
on disk is recognised then: records of one group arrive in the order of their offsets, so a file of that group whose
offsets reach from below to above a record's offset holds it. Offsets of a bus that was made anew count from 0 again;
therefore the bus's time of the record must lie within the file's as well.

While a process owns a bus partition it holds a lock of that name. A process that was expelled from its group without
knowing (stopped, wedged) keeps the lock until it notices, and its successor waits, so two never write the same record.

Records as rows of their topic, and those that cannot be rows.

What nodes measure is columnar and gets many rows a record (`measured_rows`); a fact is one row, with all of it as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from trainwarden.errors import DataError, RecordError
from trainwarden.protocols import Message
from trainwarden.records import IncidentRecord, Suspect, VerdictRecord
from trainwarden.trainer_offline.archive.atomic import disk, flock, locked, make_folder, sync_folder
from trainwarden.trainer_offline.archive.data_file import Footer, Part, free_part, part_of, read_footer, write_file
from trainwarden.trainer_offline.archive.layout import FOLDER_OF, LOCKS, STAGING, job_folder
from trainwarden.trainer_offline.archive.measured_rows import collectives, iterations, logs, metrics, row_batch
from trainwarden.trainer_offline.archive.schema import SCHEMAS, day_of_message, time_of

Rejected = tuple[Message, str]
_ORIGIN = ("written_s", "bus_partition", "bus_offset")


def to_batch(topic: str, messages: Sequence[Message]) -> tuple[Any | None, list[Rejected]]:
    """Rows of `messages`, and those whose record contradicts itself (columns of unequal length, numbers too large).

    Parameters
    ----------
    topic : str
        Folder name of the topic (`SCHEMAS`).
    messages : sequence of Message
        Records of that topic.

    Returns
    -------
    batch : pyarrow.RecordBatch or None
        None if there is no row.
    rejected : list of (message, reason)
    """
    try:
        return _MAKERS[topic](messages), []
    except (RecordError, pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        if len(messages) == 1:
            return None, [(messages[0], str(error).splitlines()[0] if str(error) else type(error).__name__)]
    rejected: list[Rejected] = []
    tables = []
    middle = len(messages) // 2
    for half in (messages[:middle], messages[middle:]):
        batch, bad = to_batch(topic, half)
        rejected += bad
        if batch is not None:
            tables.append(pa.Table.from_batches([batch]))
    if not tables:
        return None, rejected
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks().to_batches()[0], rejected


def _suspect(suspects: tuple[Suspect, ...]) -> dict[str, Any]:
    """The most likely suspect; the others are in `record`."""
    if not suspects:
        return {}
    first = suspects[0]
    return {
        "suspect_rank": first.rank,
        "suspect_node": first.node,
        "suspect_device": first.device,
        "suspect_score": first.score,
    }


def _facts(topic: str) -> Callable[[Sequence[Message]], Any | None]:
    """One row a record: its plain fields, its first suspect, and all of it as JSON in `record`."""
    names = [name for name in SCHEMAS[topic].names if name not in _ORIGIN]

    def make(messages: Sequence[Message]) -> Any | None:
        rows: list[tuple[Any, ...]] = []
        for message in messages:
            record: Any = message.record
            extra: dict[str, Any] = {"time_s": time_of(record), "record": msgspec.json.encode(record).decode()}
            if isinstance(record, VerdictRecord | IncidentRecord):
                extra.update(_suspect(record.suspects))
            cells = [extra[name] if name in extra else getattr(record, name, None) for name in names]
            rows.append((*cells, message.time_s, message.partition, message.offset))
        return row_batch(topic, rows)

    return make


_MAKERS: dict[str, Callable[[Sequence[Message]], Any | None]] = {
    "metrics": metrics,
    "iterations": iterations,
    "collectives": collectives,
    "logs": logs,
    **{topic: _facts(topic) for topic in ("events", "verdicts", "incidents", "actions")},
}


_LOOKS = 10  # a day is not joined so often between a listing and the next
_MAX_KNOWN = 20_000  # day folders whose contents are remembered; beyond it they are looked up again

Place = tuple[str, int]
"""Topic name and partition."""


class _Group(msgspec.Struct, frozen=True):
    """Rows that go to one file."""

    topic: str
    partition: int
    job: str
    day: str

    def folder(self, root: Path) -> Path:
        return root / self.topic / job_folder(self.job) / f"day={self.day}"


@dataclass
class _Rows:
    batches: list[Any] = field(default_factory=list)
    first: int = -1
    last: int = -1
    from_s: float = 0.0
    to_s: float = 0.0


@dataclass(frozen=True)
class _Staged:
    path: Path
    group: _Group
    part: Part


class ArchiveWriter:
    """Writes the archive at `root`; not thread-safe.

    Parameters
    ----------
    root : Path
        The archive's folder; made when the first partition is owned.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._locks: dict[Place, int] = {}
        self._ready: set[Place] = set()
        self._synced: set[Path] = set()
        self._groups: dict[_Group, _Rows] = {}
        self._reached: dict[Place, tuple[int, float]] = {}
        self._known: dict[_Group, list[tuple[Part, Footer | None]]] = {}
        self.nbytes = 0
        self.waiting = 0

    @property
    def is_flushed(self) -> bool:
        """Whether everything that was taken in is on disk."""
        return not self.waiting

    def own(self, places: Iterable[Place], *, afresh: bool) -> None:
        """Write these partitions from now on, and no others.

        Parameters
        ----------
        afresh : bool
            Everything that was not committed will come again, also of partitions owned already.

        Raises
        ------
        DataError
            If another process still writes one of them, or the disk refuses; call again later.
        """
        wanted = set(places)
        if afresh:
            self._forget(set(self._locks))
        lost = set(self._locks) - wanted
        self._forget(lost)
        self._known.clear()
        for place in lost:
            os.close(self._locks.pop(place))
        self._ready &= set() if afresh else wanted
        with disk(self._root):
            make_folder(self._root / LOCKS)
            for topic, partition in sorted(wanted if afresh else wanted - self._ready):
                self._lock(topic, partition)
                staging = self._root / STAGING / f"{FOLDER_OF[topic]}-{partition}"
                make_folder(staging)
                for left in staging.iterdir():  # what was not finished comes from the bus again
                    left.unlink()
                self._ready.add((topic, partition))

    def _lock(self, topic: str, partition: int) -> None:
        if (topic, partition) in self._locks:
            return
        name = f"{FOLDER_OF[topic]}-{partition}"
        number = flock(self._root / LOCKS / f"{name}.lock", wait=False)
        if number is None:
            raise DataError(f"archive '{self._root}': another process still writes partition {partition} of {topic}")
        self._locks[(topic, partition)] = number

    def _forget(self, places: set[Place]) -> None:
        folders = {(FOLDER_OF[topic], partition) for topic, partition in places}
        for group in [one for one in self._groups if (one.topic, one.partition) in folders]:
            del self._groups[group]
        for place in places:
            self._reached.pop(place, None)
        self.nbytes = sum(batch.nbytes for rows in self._groups.values() for batch in rows.batches)
        self.waiting = len(self._groups)

    def close(self) -> None:
        """Let go of all partitions; what was not flushed is forgotten and comes again. Safe twice."""
        self.own((), afresh=True)

    def add(self, messages: Sequence[Message]) -> list[Rejected]:
        """Apply messages in the order of the bus; those that are archived already are passed over.

        Returns
        -------
        list of (message, reason)
            Records that cannot be rows.
        """
        fresh: dict[_Group, list[Message]] = {}
        for message in messages:
            if self._is_new(message):
                job = getattr(message.record, "job", "")
                group = _Group(FOLDER_OF[message.topic], message.partition, job, day_of_message(message))
                if not self._covered(group, message):
                    fresh.setdefault(group, []).append(message)
        rejected: list[Rejected] = []
        for group, found in fresh.items():
            batch, bad = to_batch(group.topic, found)
            rejected += bad
            if batch is None:
                continue
            rows = self._groups.setdefault(group, _Rows())
            if rows.first < 0:
                rows.first, rows.from_s, rows.to_s = found[0].offset, found[0].time_s, found[0].time_s
            rows.last = found[-1].offset
            rows.from_s = min(rows.from_s, *(message.time_s for message in found))
            rows.to_s = max(rows.to_s, *(message.time_s for message in found))
            rows.batches.append(batch)
            self.nbytes += batch.nbytes
        self.waiting = len(self._groups)
        return rejected

    def _is_new(self, message: Message) -> bool:
        """False for what this process has taken in already: some buses go back to the last commit at a rebalance."""
        place = (message.topic, message.partition)
        reached, time_s = self._reached.get(place, (-1, 0.0))
        if message.offset <= reached and message.time_s <= time_s:
            return False
        if message.offset <= reached:  # the bus was made anew: files of one group hold ascending offsets only
            self.flush()
        self._reached[place] = (message.offset, max(time_s, message.time_s))
        return True

    def _covered(self, group: _Group, message: Message) -> bool:
        for _ in range(_LOOKS):
            parts = self._known.get(group)
            if parts is None:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                parts = self._known[group] = self._look(group)
            try:
                return self._holds(group, parts, message)
            except FileNotFoundError:  # another worker has joined the day's files since they were listed
                del self._known[group]
        raise DataError(f"archive '{group.folder(self._root)}': files vanish while they are looked at")

    def _holds(self, group: _Group, parts: list[tuple[Part, Footer | None]], message: Message) -> bool:
        for index, (part, known) in enumerate(parts):
            if part.first <= message.offset <= part.last:
                footer = known
                if footer is None:
                    footer = read_footer(group.folder(self._root) / part.name)
                    parts[index] = (part, footer)
                if footer.written_from_s <= message.time_s <= footer.written_to_s:
                    return True
        return False

    def _look(self, group: _Group) -> list[tuple[Part, Footer | None]]:
        with disk(self._root):
            try:
                names = os.listdir(group.folder(self._root))
            except FileNotFoundError:
                return []
        found = (part_of(name) for name in names)
        return [(part, None) for part in found if part is not None and part.partition == group.partition]

    # -- to disk ---------------------------------------------------------------------------------------------------

    def flush(self) -> int:
        """Put everything on disk; the number of files written. Returns only once all of it would survive a power cut.

        Raises
        ------
        DataError
            If the disk refuses; some of it may be there, and all of it must come again after `own`.
        """
        if not self._groups:
            return 0
        with disk(self._root):
            staged: dict[str, list[_Staged]] = {}
            for number, (group, rows) in enumerate(self._groups.items()):
                staged.setdefault(group.topic, []).append(self._stage(group, rows, number))
            for topic, files in staged.items():
                self._place(topic, files)
        files_written = len(self._groups)
        self._groups = {}
        self._known.clear()
        self.nbytes = self.waiting = 0
        return files_written

    def _stage(self, group: _Group, rows: _Rows, number: int) -> _Staged:
        table = pa.Table.from_batches(rows.batches[:1])
        if len(rows.batches) > 1:
            table = pa.concat_tables([pa.Table.from_batches([batch]) for batch in rows.batches]).unify_dictionaries()
        times = table.column("time_s").to_numpy()
        footer = Footer(
            topic=group.topic,
            job=group.job,
            day=group.day,
            written_from_s=rows.from_s,
            written_to_s=rows.to_s,
            from_s=float(times.min()),
            to_s=float(times.max()),
        )
        part = Part(group.partition, rows.first, rows.last)
        path = self._root / STAGING / f"{group.topic}-{group.partition}" / f"{number}-{part.name}"
        write_file(path, [table], table.schema, footer)
        return _Staged(path, group, part)

    def _place(self, topic: str, files: Sequence[_Staged]) -> None:
        """Rename into sight, under the topic's lock: no compaction replaces a folder at the same moment."""
        with locked(self._root, topic):
            folders: dict[Path, None] = {}
            for file in files:
                folder = file.group.folder(self._root)
                make_folder(folder)
                file.path.replace(folder / free_part(folder, file.part).name)
                folders[folder] = None
            for folder in folders:
                sync_folder(folder)
                self._sync_parents(folder)

    def _sync_parents(self, folder: Path) -> None:
        """Once in this life: whoever made the folder may have died before its name was safe."""
        if folder not in self._synced:
            for parent in (folder.parent, folder.parent.parent, self._root):
                sync_folder(parent)
            if len(self._synced) >= _MAX_KNOWN:
                self._synced.clear()
            self._synced.add(folder)
