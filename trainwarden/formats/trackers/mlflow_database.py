"""Format: MLflow's own database, an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from typing import Final
from urllib.parse import quote

import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.interpret import interpreted
from trainwarden.formats.protocol import LIKELY, NEVER, Found
from trainwarden.formats.source import Source
from trainwarden.formats.table import Table

MAX_ROWS: Final = 5_000_000
_NEWEST: Final = "SELECT run_uuid, COUNT(*) FROM metrics GROUP BY run_uuid ORDER BY MAX(timestamp) DESC"
_ROWS: Final = "SELECT timestamp, step, key, value, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp LIMIT ?"


class MlflowDatabase:
    """The metrics of the run that was written last; another one is exported by its id."""

    name = "mlflow database"

    def sniff(self, name: str, head: str) -> float:
        """By the first bytes, which are those of every SQLite file."""
        del name
        return LIKELY if head.startswith("SQLite format 3") else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        # Read as it lies there: neither a lock nor a journal is left beside it.
        address = f"file:{quote(str(source.path.resolve()))}?mode=ro&immutable=1"
        try:
            with closing(sqlite3.connect(address, uri=True)) as database:
                tables = {str(name) for (name,) in database.execute("SELECT name FROM sqlite_master LIMIT 10000")}
                if not {"metrics", "runs"} <= tables:
                    raise DataError(f"{source.name} is an SQLite database {_remedy(tables)}")
                runs = database.execute(_NEWEST).fetchmany(2)
                rows = database.execute(_ROWS, (runs[0][0], MAX_ROWS)).fetchall() if runs else []
        except sqlite3.Error as error:
            raise DataError(f"{source.name} is no sound SQLite file ({error}): copy it while nobody writes") from error
        if not rows:
            raise DataError(f"{source.name} holds no metrics of any run")
        frame = pd.DataFrame(rows, columns=["timestamp", "step", "metric", "value", "is_nan"])
        frame["value"] = frame["value"].astype(object).mask(frame.pop("is_nan").astype(bool), "NaN")
        found = interpreted(Table(source.name, frame.astype(object), columns))
        if len(runs) > 1:
            found.notes.append(f"of several runs the one written last is read: {runs[0][0]}")
        return found


def _remedy(tables: set[str]) -> str:
    if any(name.startswith("CUPTI_") for name in tables):
        return "of Nsight Systems, a timeline of one process: give PyTorch's trace or NCCL inspector's lines"
    return "without MLflow's metrics: export the metrics as CSV"
