"""One data file of the archive: a name that is free, and Parquet with our footer, synced."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from pyarrow import parquet

from trainer_offline.archive.files import Footer, Part

ROW_GROUP_ROWS: Final = 262_144  # some ten MB decoded: a reader of one row group at a time stays small


def free_part(folder: Path, part: Part) -> Part:
    """`part`, or with another turn if `folder` has a file of its name (from before the bus was made anew)."""
    while (folder / part.name).exists():
        part = part._replace(turn=part.turn + 1)
    return part


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
