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
_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' LIMIT 10000"
_NEWEST: Final = "SELECT run_uuid, COUNT(*) FROM metrics GROUP BY run_uuid ORDER BY MAX(timestamp) DESC"
_ROWS: Final = (
    "SELECT timestamp, step, key, value, is_nan FROM metrics WHERE run_uuid = ? "
    "ORDER BY timestamp DESC, step DESC LIMIT ?"
)
# A view or a generated column can compute for ever: what the database's own machine may do, in its operations.
MAX_OPERATIONS: Final = 2_000_000_000
_BETWEEN: Final = 100_000


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
        address = f"file:{quote(str(source.plain_path().resolve()))}?mode=ro&immutable=1"
        budget = iter(range(MAX_OPERATIONS // _BETWEEN))
        try:
            with closing(sqlite3.connect(address, uri=True)) as database:
                database.set_progress_handler(lambda: next(budget, None) is None, _BETWEEN)
                tables = {str(name) for (name,) in database.execute(_TABLES)}
                if not {"metrics", "runs"} <= tables:
                    raise DataError(f"{source.name} is an SQLite database {_remedy(tables)}")
                runs = database.execute(_NEWEST).fetchmany(2)
                rows = database.execute(_ROWS, (runs[0][0], MAX_ROWS)).fetchall()[::-1] if runs else []
        except sqlite3.OperationalError as error:
            if next(budget, None) is not None:
                raise DataError(_unsound(source.name, error)) from error
            raise DataError(f"{source.name} is too large to be searched: export the run's metrics as CSV") from error
        except sqlite3.Error as error:
            raise DataError(_unsound(source.name, error)) from error
        if not rows:
            raise DataError(f"{source.name} holds no metrics of any run")
        frame = pd.DataFrame(rows, columns=["timestamp", "step", "metric", "value", "is_nan"])
        frame["value"] = frame["value"].astype(object).mask(frame.pop("is_nan").astype(bool), "NaN")
        found = interpreted(Table(source.name, frame.astype(object), columns))
        if len(rows) == MAX_ROWS:
            found.notes.append(f"of the run's values the newest {MAX_ROWS:,} are read")
        if len(runs) > 1:
            found.notes.append(f"of several runs the one written last is read: {runs[0][0]}")
        return found


def _unsound(name: str, error: Exception) -> str:
    return f"{name} is no sound SQLite file ({error}): copy it while nobody writes"


def _remedy(tables: set[str]) -> str:
    if any(name.startswith("CUPTI_") for name in tables):
        return "of Nsight Systems, a timeline of one process: give PyTorch's trace or NCCL inspector's lines"
    return "without MLflow's metrics: export the metrics as CSV"
