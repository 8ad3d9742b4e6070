"""Format: Parquet, ours or that of trackers and own scripts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from trainwarden.errors import DataError
from trainwarden.formats.interpret import interpreted
from trainwarden.formats.protocol import LIKELY, NEVER, Found
from trainwarden.formats.source import Source
from trainwarden.formats.table import Table
from trainwarden.formats.tables.ours import OurTable, parquet_kind

MAX_VALUES: Final = 50_000_000  # as columns of numbers 400 MB


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

        try:
            with parquet.ParquetFile(source.path) as file:
                flat = [one.name for one in file.schema_arrow if not pa.types.is_nested(one.type)
                        and not pa.types.is_binary(one.type)]  # fmt: skip
                rows = file.metadata.num_rows
                if rows * max(1, len(flat)) > MAX_VALUES:
                    raise DataError(f"{source.name} holds more than {MAX_VALUES:,} values: leave columns or rows out")
                frame = file.read(columns=flat).to_pandas(ignore_metadata=False).reset_index()
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise DataError(f"{source.name} is no sound Parquet file ({str(error)[:120]}): write it again") from error
        if not flat or not rows:
            raise DataError(f"{source.name} holds no column of numbers or words: export the metrics as columns")
        frame = frame.drop(columns=[one for one in ("index", "level_0") if one in frame.columns and one not in flat])
        frame = frame.astype(object).where(frame.notna(), None)
        return interpreted(Table(source.name, frame, columns))
