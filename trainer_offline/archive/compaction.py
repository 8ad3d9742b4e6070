"""Joining a day's small files into one.

A day folder is never changed file by file where that could be seen half done. Its files are joined into a new folder
under ``.staging/compaction``; then, with the topic's lock held so that no writer adds a file at that moment, the two
folders change places in one step (``renameat2``, ``RENAME_EXCHANGE``). Whoever lists the day sees the old files or the
new one, never both or neither. The old folder is removed once none of our readers holds it. A reader of another make
that listed the old names and opens one after the change gets "no such file" and reads again; it gets no row twice.

Killed anywhere: before the change the staged folder is rubbish, after it the old one is, and the next compaction
removes either. File systems without that call (NFS) get two renames and a note by which the next compaction undoes a
half done change.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import parquet

from trainwarden.errors import DataError
from trainwarden.trainer_offline.archive.atomic import (
    disk,
    exchange,
    flock,
    locked,
    make_folder,
    remove_unless_read,
    sync_folder,
)
from trainwarden.trainer_offline.archive.data_file import (
    ROW_GROUP_ROWS,
    Footer,
    Part,
    free_part,
    part_of,
    read_footer,
    write_file,
)
from trainwarden.trainer_offline.archive.layout import COMPACTION, LOCKS, STAGING
from trainwarden.trainer_offline.archive.schema import SCHEMAS

_BATCH_ROWS = 65_536


class Held(msgspec.Struct, frozen=True):
    """One data file of a day folder."""

    part: Part
    footer: Footer
    nbytes: int


@contextlib.contextmanager
def compaction_lock(root: Path) -> Iterator[bool]:
    """Whether this process may compact now (one at a time); what a killed one left is put right first."""
    make_folder(root / LOCKS)
    number = flock(root / LOCKS / f"{COMPACTION}.lock", wait=False)
    if number is None:
        yield False
        return
    try:
        recover(root)
        yield True
    finally:
        os.close(number)


def recover(root: Path) -> None:
    """Complete or undo what a killed compaction left; the caller holds the compaction lock."""
    staging = root / STAGING / COMPACTION
    make_folder(staging)
    for work in sorted(staging.iterdir()):
        note = work / "target"
        if note.exists() and (work / "old").is_dir() and (work / "new").is_dir():
            _put_back(root, root / note.read_text(encoding="utf-8"), work)
        discard(work)


def _put_back(root: Path, target: Path, work: Path) -> None:
    """Undo half of a change in two renames; a writer may have made the day's folder anew meanwhile."""
    with locked(root, target.relative_to(root).parts[0]):
        make_folder(target)
        for name in os.listdir(work / "old"):
            part = part_of(name)
            if part is not None and not _same(work / "old" / name, target / name):
                os.link(work / "old" / name, target / free_part(target, part).name)
        sync_folder(target)
        (work / "target").unlink()


def _same(one: Path, other: Path) -> bool:
    return other.exists() and one.samefile(other)


def discard(work: Path) -> None:
    """Remove a work folder; if a reader still holds a day in it, the next recovery does."""
    if all([remove_unless_read(folder) for folder in (work / "new", work / "old")]):
        shutil.rmtree(work)


def held_in(folder: Path) -> list[Held]:
    """Data files of a day folder in the order in which the bus got their records; none if the folder is gone."""
    found = []
    for name in os.listdir(folder) if folder.is_dir() else ():
        part = part_of(name)
        if part is not None:
            path = folder / name
            found.append(Held(part, read_footer(path), path.stat().st_size))
    return sorted(found, key=lambda one: (one.part.partition, one.footer.written_from_s, one.part.first))


def runs_of(files: Sequence[Held], limit_bytes: int | None) -> list[list[Held]]:
    """`files` in runs to be joined: one bus partition, offsets ascending, at most `limit_bytes` (None: any size).

    Where the offsets begin again the bus was made anew: a joined file would claim offsets that it does not hold.

    Raises
    ------
    DataError
        If two files claim the same record.
    """
    runs: list[list[Held]] = []
    size = 0
    for one in files:
        last = runs[-1][-1] if runs else None
        follows = last is not None and last.part.partition == one.part.partition and last.part.last < one.part.first
        if last is not None and last.part.partition == one.part.partition and not follows:
            overlap = last.part.last >= one.part.first and last.part.first <= one.part.last
            if overlap and one.footer.written_from_s <= last.footer.written_to_s:
                raise DataError(f"archive files {last.part.name} and {one.part.name} hold the same records")
        if follows and (limit_bytes is None or size + one.nbytes <= limit_bytes):
            runs[-1].append(one)
            size += one.nbytes
        else:
            runs.append([one])
            size = one.nbytes
    return runs


def compact_day(root: Path, topic: str, folder: Path, *, limit_bytes: int | None = None) -> bool:
    """Join the files of one day folder; whether anything was done. The caller holds the compaction lock.

    Parameters
    ----------
    limit_bytes : int, optional
        No file is made larger than this; None joins all files of a bus partition into one.

    Raises
    ------
    DataError
        If a file is damaged, newer than this version, or the disk refuses; the folder stays as it was.
    """
    with disk(root):
        files = held_in(folder)
        runs = runs_of(files, limit_bytes)
        if all(len(run) == 1 for run in runs):
            return False
        work = root / STAGING / COMPACTION / secrets.token_hex(8)
        new = work / "new"
        make_folder(new)
        for run in runs:
            if len(run) == 1:
                os.link(folder / run[0].part.name, new / free_part(new, run[0].part).name)
            else:
                _join(topic, folder, run, new)
        done = _swap(root, topic, folder, work, {one.part.name for one in files})
        discard(work)
    return done


def _join(topic: str, folder: Path, run: Sequence[Held], new: Path) -> None:
    first, last = run[0], run[-1]
    part = free_part(new, Part(first.part.partition, first.part.first, last.part.last))
    footer = msgspec.structs.replace(
        first.footer,
        written_from_s=min(one.footer.written_from_s for one in run),
        written_to_s=max(one.footer.written_to_s for one in run),
        from_s=min(one.footer.from_s for one in run),
        to_s=max(one.footer.to_s for one in run),
    )
    schema = SCHEMAS[topic]
    tables = _row_groups((folder / one.part.name for one in run), schema)
    write_file(new / part.name, tables, schema, footer)


def _row_groups(paths: Iterator[Path], schema: Any) -> Iterator[Any]:
    """The rows of several files in full row groups; memory holds one of them."""
    waiting: list[Any] = []
    rows = 0
    for path in paths:
        with parquet.ParquetFile(str(path)) as source:
            for batch in source.iter_batches(batch_size=_BATCH_ROWS):
                waiting.append(conform(pa.Table.from_batches([batch]), schema))
                rows += batch.num_rows
                if rows >= ROW_GROUP_ROWS:
                    yield pa.concat_tables(waiting).unify_dictionaries()
                    waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting).unify_dictionaries()


def conform(table: Any, schema: Any) -> Any:
    """`table` with the columns of `schema`; what an older version did not have yet is null.

    Raises
    ------
    DataError
        If it has a column that this version does not know: a newer version wrote it.
    """
    unknown = set(table.schema.names) - set(schema.names)
    if unknown:
        raise DataError(f"an archive file has columns of a newer version ({', '.join(sorted(unknown))})")
    columns = [
        table.column(one.name).cast(one.type) if one.name in table.schema.names else pa.nulls(table.num_rows, one.type)
        for one in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema.remove_metadata())


def _swap(root: Path, topic: str, folder: Path, work: Path, joined: set[str]) -> bool:
    """Put ``work/new`` in the place of `folder`, with whatever a writer has added to `folder` meanwhile."""
    new = work / "new"
    with locked(root, topic):
        if not folder.is_dir():
            return False
        for name in set(os.listdir(folder)) - joined:
            part = part_of(name)
            target = new / (name if part is None else free_part(new, part).name)
            os.link(folder / name, target)
        sync_folder(new)
        sync_folder(work)
        if not exchange(new, folder):
            with (work / "target").open("w", encoding="utf-8") as note:
                note.write(str(folder.relative_to(root)))
                note.flush()
                os.fsync(note.fileno())
            sync_folder(work)
            folder.rename(work / "old")
            new.rename(folder)
        sync_folder(folder.parent)
        sync_folder(work)
    return True
