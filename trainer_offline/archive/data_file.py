"""One data file of the archive: its name, its footer, and how it is written, synced."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from pyarrow import parquet

from trainwarden.errors import DataError

ROW_GROUP_ROWS: Final = 262_144  # some ten MB decoded: a reader of one row group at a time stays small
_PART = re.compile(r"^part-(\d{1,9})-(\d{1,19})-(\d{1,19})(?:-(\d{1,9}))?\.parquet$")


class Part(NamedTuple):
    """One data file by its name: records `first` to `last` of one bus partition that belong to this job and day.

    `turn` > 1 tells apart files of equal offsets, which exist if the bus was made anew and counts from 0 again.
    """

    partition: int
    first: int
    last: int
    turn: int = 1

    @property
    def name(self) -> str:
        """The file's name."""
        turn = "" if self.turn == 1 else f"-{self.turn}"
        return f"part-{self.partition}-{self.first}-{self.last}{turn}.parquet"


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """What a data file says of itself, as JSON under the key ``trainwarden`` of its Parquet metadata."""

    topic: str
    job: str
    day: str
    written_from_s: float
    written_to_s: float
    from_s: float
    to_s: float
    schema_version: int = 1


def part_of(name: str) -> Part | None:
    """The part called `name`; None if this is no data file.

    Examples
    --------
    >>> part_of("part-3-100-250.parquet")
    Part(partition=3, first=100, last=250, turn=1)
    >>> part_of("notes.txt") is None
    True
    """
    found = _PART.match(name)
    if found is None:
        return None
    partition, first, last, turn = found.groups()
    return Part(int(partition), int(first), int(last), int(turn or 1))


def free_part(folder: Path, part: Part) -> Part:
    """`part`, or with another turn if `folder` has a file of its name (from before the bus was made anew)."""
    while (folder / part.name).exists():
        part = part._replace(turn=part.turn + 1)
    return part


def read_footer(path: Path) -> Footer:
    """What the data file at `path` says of itself.

    Raises
    ------
    DataError
        If it is no data file of ours or damaged.
    """
    try:
        raw = (parquet.read_metadata(str(path)).metadata or {}).get(b"trainwarden", b"")
        return msgspec.json.decode(raw, type=Footer)
    except (pa.ArrowException, OSError, msgspec.DecodeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise DataError(f"archive file '{path}' is damaged or none of ours ({str(error).splitlines()[0]})") from error


def write_file(path: Path, tables: Iterable[Any], schema: Any, footer: Footer) -> None:
    """Write `tables` as one synced Parquet file; each becomes row groups of at most `ROW_GROUP_ROWS` rows."""
    meta: Mapping[bytes, bytes] = {b"trainwarden": msgspec.json.encode(footer)}
    schema = schema.with_metadata(meta)
    with path.open("wb") as file:
        with parquet.ParquetWriter(file, schema, compression="zstd", write_statistics=True) as writer:
            for table in tables:
                writer.write_table(table.replace_schema_metadata(meta), row_group_size=ROW_GROUP_ROWS)
        file.flush()
        os.fsync(file.fileno())
