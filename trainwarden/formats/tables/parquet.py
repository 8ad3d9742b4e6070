"""Format: Parquet, ours or that of trackers and own scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainwarden.errors import DataError
from trainwarden.formats.interpret import interpreted
from trainwarden.formats.protocol import LIKELY, NEVER, Found
from trainwarden.formats.source import Source
from trainwarden.formats.table import Table
from trainwarden.formats.tables.ours import OurTable, parquet_kind

MAX_VALUES: Final = 50_000_000  # as columns of numbers 400 MB
MAX_WORDS: Final = 128 * 1024 * 1024  # bytes


class ParquetTable:
    """Columns of numbers, words and times; nested ones are left out."""

    name = "parquet table"

    def sniff(self, name: str, head: str) -> float:
        """By the first bytes or the name."""
        return LIKELY if head.startswith("PAR1") or name.endswith(".parquet") else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        if parquet_kind(source) and not columns:
            return OurTable().read(source, columns)
        import pyarrow as pa
        from pyarrow import parquet

        path = source.plain_path()
        try:
            schema = parquet.read_schema(path)
            if len(set(schema.names)) < len(schema.names):
                raise DataError(f"{source.name} names a column twice: give each a name of its own")
            flat = [one.name for one in schema if not pa.types.is_nested(one.type)
                    and not pa.types.is_binary(one.type) and not one.name.startswith("__index_level_")]  # fmt: skip
            words = [one.name for one in schema if pa.types.is_string(one.type) or pa.types.is_large_string(one.type)]
            # A dictionary keeps words once that a file holds once and repeats in each row.
            with parquet.ParquetFile(path, read_dictionary=words) as file:
                rows = file.metadata.num_rows
                groups = _that_fit(file.metadata, len(flat), set(words))
                if rows and not groups:
                    raise DataError(
                        f"{source.name} holds in its first row group more than {MAX_VALUES:,} values, or more than "
                        f"{MAX_WORDS:,} bytes of words: write smaller ones, or leave columns out"
                    )
                # Without pandas' own account of the columns, which may name what is not there.
                frame = file.read_row_groups(groups, columns=flat).to_pandas(ignore_metadata=True)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise DataError(f"{source.name} is no sound Parquet file ({str(error)[:120]}): write it again") from error
        if not flat or not rows:
            raise DataError(f"{source.name} holds no column of numbers or words: export the metrics as columns")
        frame = frame.astype(object).where(frame.notna(), None)
        found = interpreted(Table(source.name, frame, columns))
        if len(frame) < rows:
            found.notes.append(
                f"the first {len(frame):,} of {rows:,} rows are read: leave columns out, or cut the file"
            )
        return found


def _that_fit(metadata: Any, columns: int, words: set[str]) -> list[int]:
    """The first row groups whose values and bytes of words, as the file's footer says, are within the limits."""
    found: list[int] = []
    rows = size = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        parts = [group.column(place) for place in range(group.num_columns)]
        rows += group.num_rows
        size += sum(int(part.total_uncompressed_size) for part in parts if part.path_in_schema in words)
        if rows * max(1, columns) > MAX_VALUES or size > MAX_WORDS:
            break
        found.append(number)
    return found
