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
                if rows * max(1, len(flat)) > MAX_VALUES:
                    raise DataError(f"{source.name} holds more than {MAX_VALUES:,} values: leave columns or rows out")
                if _bytes_of(file.metadata, set(words)) > MAX_WORDS:
                    raise DataError(f"{source.name} holds more than {MAX_WORDS:,} bytes of words: leave columns out")
                # Without pandas' own account of the columns, which may name what is not there.
                frame = file.read(columns=flat).to_pandas(ignore_metadata=True)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise DataError(f"{source.name} is no sound Parquet file ({str(error)[:120]}): write it again") from error
        if not flat or not rows:
            raise DataError(f"{source.name} holds no column of numbers or words: export the metrics as columns")
        frame = frame.astype(object).where(frame.notna(), None)
        return interpreted(Table(source.name, frame, columns))


def _bytes_of(metadata: Any, columns: set[str]) -> int:
    """Bytes of `columns` unpacked, as the file's footer says."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    parts = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sum(int(part.total_uncompressed_size) for part in parts if part.path_in_schema in columns)
