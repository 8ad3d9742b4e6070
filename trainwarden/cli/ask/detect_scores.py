"""The file of scores: one row for each time and entity, one column for each detector and the ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from trainwarden.errors import ConfigError


class ScoresFile:
    """Rows of all jobs, written job by job; csv, csv.gz or parquet by the file's name.

    Raises
    ------
    ConfigError
        If the name ends in nothing of these, or the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parquet: Any = None
        self._part = path.with_name(f".{path.name}.part")
        self._header = True

    @classmethod
    def open(cls, path: Path) -> ScoresFile:
        """Check the name and the folder before the work starts."""
        if not path.name.endswith((".csv", ".csv.gz", ".parquet")):
            raise ConfigError(f"--scores: '{path}' must end in .csv, .csv.gz or .parquet")
        if not path.absolute().parent.is_dir():
            raise ConfigError(f"--scores: folder '{path.absolute().parent}' does not exist")
        return cls(path)

    def add(self, job: str, columns: Mapping[str, Any]) -> None:
        """Append one job's rows; `columns` are arrays of one length, NaN = abstained."""
        import pandas as pd

        frame = pd.DataFrame({"job": job, **columns})
        try:
            if self._path.suffix == ".parquet":
                self._add_parquet(frame)
            else:
                mode: Literal["wb", "ab"] = "wb" if self._header else "ab"
                compression: Literal["gzip"] | None = "gzip" if self._path.suffix == ".gz" else None
                frame.to_csv(self._part, mode=mode, header=self._header, index=False, compression=compression)
        except OSError as error:
            raise ConfigError(f"--scores: '{self._path}' cannot be written ({error.strerror})") from error
        self._header = False

    def close(self) -> None:
        """Give the finished file its name; without any row there is a file with the least columns."""
        if self._header:
            import pandas as pd

            self.add("", {name: pd.Series(dtype="float64") for name in ("time_s", "training", "ensemble")})
        if self._parquet is not None:
            self._parquet.close()
        self._part.replace(self._path)

    def _add_parquet(self, frame: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        table = pa.Table.from_pandas(frame, preserve_index=False)
        if self._parquet is None:
            self._parquet = pq.ParquetWriter(self._part, table.schema)
        self._parquet.write_table(table.cast(self._parquet.schema))
