"""The file of scores: one row for each time and entity, one column for each detector and the ensemble."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from trainwarden.errors import ConfigError


class ScoresFile:
    """Rows of all jobs in their order; csv, csv.gz or parquet by the file's name.

    Jobs need not have the same columns: one has no peers, another no model of some kind. Each job's rows wait on disk
    until all columns are known; what a job does not have is empty.

    Raises
    ------
    ConfigError
        If the name ends in nothing of these, or the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting = tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.absolute().parent)
        self._parts: list[Path] = []
        self._schemas: list[Any] = []

    @classmethod
    def open(cls, path: Path) -> ScoresFile:
        """Check the name and the folder before the work starts."""
        if not path.name.endswith((".csv", ".csv.gz", ".parquet")):
            raise ConfigError(f"--scores: '{path}' must end in .csv, .csv.gz or .parquet")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"--scores: folder '{path.absolute().parent}' does not exist")
        try:
            return cls(path)
        except OSError as error:
            raise ConfigError(f"--scores: '{path}' cannot be written ({error.strerror})") from error

    def add(self, job: str, columns: Mapping[str, Any]) -> None:
        """Append one job's rows; `columns` are arrays of one length, NaN = abstained."""
        import pandas as pd
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pandas(pd.DataFrame({"job": job, **columns}), preserve_index=False)
        part = Path(self._waiting.name, f"{len(self._parts)}.parquet")
        self._write(lambda: pq.write_table(table, part))
        self._parts.append(part)
        self._schemas.append(table.schema)

    def close(self) -> None:
        """Write the file under its name; without any row there is a file with the least columns."""
        import pandas as pd

        if not self._parts:
            self.add("", {name: pd.Series(dtype="float64") for name in ("time_s", "training", "ensemble")})
        self._write(self._join)
        self._waiting.cleanup()

    def _join(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = _last(pa.unify_schemas(self._schemas, promote_options="permissive"), "ensemble")
        done = Path(self._waiting.name, self._path.name)
        compression: Literal["gzip"] | None = "gzip" if self._path.suffix == ".gz" else None
        parquet = pq.ParquetWriter(done, schema) if self._path.suffix == ".parquet" else None
        for part in self._parts:
            table = pq.read_table(part)
            for field in schema:
                if field.name not in table.column_names:
                    table = table.append_column(field, pa.nulls(len(table), field.type))
            table = table.select(schema.names)
            if parquet is not None:
                parquet.write_table(table.cast(schema))
            else:
                first = part == self._parts[0]
                table.to_pandas().to_csv(
                    done, mode="wb" if first else "ab", header=first, index=False, compression=compression
                )
        if parquet is not None:
            parquet.close()
        done.replace(self._path)

    def _write(self, how: Any) -> None:
        try:
            how()
        except OSError as error:
            raise ConfigError(f"--scores: '{self._path}' cannot be written ({error.strerror})") from error


def _last(schema: Any, name: str) -> Any:
    """`schema` with its field `name` at the end, as every job has it."""
    place = schema.get_field_index(name)
    return schema if place < 0 else schema.remove(place).append(schema.field(place))
