"""Reading the archive: which jobs it has, and their rows in bounded memory.

A reader holds each day's folder while it reads it, so a compaction at the same moment neither hides nor doubles a row.
pandas, DuckDB and others read the same files without us; see ``docs/archive.md``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import compute, parquet

from trainwarden.errors import DataError
from trainwarden.trainer_offline.archive.atomic import disk, held_open
from trainwarden.trainer_offline.archive.compaction import conform
from trainwarden.trainer_offline.archive.data_file import part_of, read_footer
from trainwarden.trainer_offline.archive.layout import TOPIC_FOLDERS, day_folders, job_days, job_folder
from trainwarden.trainer_offline.archive.schema import SCHEMAS

BATCH_ROWS = 65_536


class TopicSummary(msgspec.Struct, frozen=True):
    """What the archive has of one topic of one job."""

    rows: int
    files: int
    nbytes: int
    days: tuple[str, ...]


class JobSummary(msgspec.Struct, frozen=True):
    """What the archive has of one job; `from_s`, `to_s` are the records' own times."""

    job: str
    from_s: float
    to_s: float
    topics: dict[str, TopicSummary]


def jobs(folder: Path) -> list[JobSummary]:
    """Every job of the archive, by name; reads the files' footers only.

    Raises
    ------
    DataError
        If `folder` does not exist or a file is damaged.
    """
    if not folder.is_dir():
        raise DataError(f"archive '{folder}' does not exist")
    found: dict[str, tuple[list[float], dict[str, list[Any]]]] = {}
    for topic in TOPIC_FOLDERS:
        for day in day_folders(folder, topic):
            with disk(folder), held_open(day) as number:
                for name in _parts(number):
                    path = Path(f"/proc/self/fd/{number}") / name
                    footer = read_footer(path)
                    rows = parquet.read_metadata(str(path)).num_rows
                    times, topics = found.setdefault(footer.job, ([], {}))
                    times += [footer.from_s, footer.to_s]
                    topics.setdefault(topic, []).append((rows, path.stat().st_size, footer.day))
    return [
        JobSummary(
            job=job,
            from_s=min(times),
            to_s=max(times),
            topics={topic: _summed(files) for topic, files in topics.items()},
        )
        for job, (times, topics) in sorted(found.items())
    ]


def _summed(files: Sequence[tuple[int, int, str]]) -> TopicSummary:
    days = tuple(sorted({day for _, _, day in files}))
    return TopicSummary(sum(one[0] for one in files), len(files), sum(one[1] for one in files), days)


def _parts(number: int | None) -> list[str]:
    """Data files of a held folder in the order of the bus."""
    if number is None:
        return []
    found = [(part, name) for name in os.listdir(number) if (part := part_of(name)) is not None]
    return [name for _, name in sorted(found)]


def batches(
    folder: Path,
    topic: str,
    job: str,
    *,
    from_s: float | None = None,
    to_s: float | None = None,
    days: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    rows: int = BATCH_ROWS,
) -> Iterator[Any]:
    """Rows of one topic of one job as record batches, day after day, each day in the order of the bus.

    Memory holds one batch and one row group's columns, whatever the size of the archive.

    Parameters
    ----------
    folder : Path
        The archive.
    topic : str
        One of `SCHEMAS`.
    job : str
        Name of the job.
    from_s, to_s : float, optional
        Only rows with ``from_s <= time_s < to_s``; row groups outside are not read.
    days : sequence of str, optional
        Only these days (``YYYY-MM-DD``).
    columns : sequence of str, optional
        Only these columns.
    rows : int
        Most rows of a batch.

    Raises
    ------
    DataError
        If there is no such topic, or a file is damaged.
    """
    if topic not in SCHEMAS:
        raise DataError(f"the archive has no topic '{topic}', only {', '.join(SCHEMAS)}")
    schema = SCHEMAS[topic]
    if columns is not None:
        schema = pa.schema([schema.field(name) for name in columns])
    for day in job_days(folder / topic / job_folder(job)):
        if days is None or day.name.removeprefix("day=") in days:
            with disk(folder), held_open(day) as number:
                for name in _by_time(number):
                    yield from _of_file(f"/proc/self/fd/{number}/{name}", schema, from_s, to_s, rows)


def _by_time(number: int | None) -> list[str]:
    """Data files by the time at which the bus got them, so that a bus that was made anew comes after its forerunner."""
    names = _parts(number)
    if len(names) < 2:
        return names
    footers = {name: read_footer(Path(f"/proc/self/fd/{number}/{name}")) for name in names}
    return sorted(names, key=lambda name: (footers[name].written_from_s, names.index(name)))


def _of_file(path: str, schema: Any, from_s: float | None, to_s: float | None, rows: int) -> Iterator[Any]:
    with parquet.ParquetFile(path) as source:
        wanted = [
            index for index in range(source.num_row_groups) if _may_hold(source.metadata.row_group(index), from_s, to_s)
        ]
        names = [name for name in schema.names if name in source.schema_arrow.names]
        if (from_s is not None or to_s is not None) and "time_s" not in names:
            names.append("time_s")
        if not wanted:
            return
        for batch in source.iter_batches(batch_size=rows, row_groups=wanted, columns=names):
            table = _cut(pa.Table.from_batches([batch]), from_s, to_s)
            if table.num_rows:
                yield from conform(
                    table.select([one for one in table.schema.names if one in schema.names]), schema
                ).to_batches()


def _may_hold(group: Any, from_s: float | None, to_s: float | None) -> bool:
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == "time_s" and column.statistics is not None and column.statistics.has_min_max:
            if from_s is not None and column.statistics.max < from_s:
                return False
            return not (to_s is not None and column.statistics.min >= to_s)
    return True


def _cut(table: Any, from_s: float | None, to_s: float | None) -> Any:
    if from_s is not None:
        table = table.filter(compute.greater_equal(table.column("time_s"), from_s))
    if to_s is not None:
        table = table.filter(compute.less(table.column("time_s"), to_s))
    return table
