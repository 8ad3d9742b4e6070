"""One archived job's collective calls as a table of a recorded folder, in two streamed passes.

A call says by its place in the communicator who its other rank is; who has that place is told by that rank's own calls.
The first pass gathers these, so that the table names ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from trainwarden.trainer_offline.archive.atomic import whole_file
from trainwarden.trainer_offline.archive.reader import batches

Ints = npt.NDArray[np.int64]
_MAX_PLACES: Final = 1 << 20  # of a communicator, as many as there may be ranks (`trainwarden.records.Rank`)
_COLUMNS: Final = {
    "step": pa.int64(), "rank": pa.int32(), "comm": pa.string(), "func": pa.string(), "seq": pa.int64(),
    "bytes": pa.int64(), "device_s": pa.float64(), "enqueued_s": pa.float64(), "nodes": pa.int32(),
    "size": pa.int32(), "group": pa.string(), "node": pa.string(), "peer": pa.int32(),
}  # fmt: skip


def export_calls(folder: Path, job: str, path: Path, days: Sequence[str] | None) -> int:
    """Write the collective calls of `job` to `path` as ``collectives.parquet`` of a recorded folder.

    Parameters
    ----------
    folder : Path
        The archive.
    job : str
    path : Path
    days : sequence of str or None
        Only these days (``YYYY-MM-DD``).

    Returns
    -------
    int
        Rows written; without any there is no file.
    """
    seats, rows = _Seats(), 0
    for batch in batches(folder, "collectives", job, days=days, columns=["comm", "place", "rank"]):
        seats.apply(batch)
        rows += batch.num_rows
    if not rows:
        return 0
    schema = pa.schema(_COLUMNS)
    with whole_file(path) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches(folder, "collectives", job, days=days):
            peers = seats.of(batch.column("comm"), batch.column("peer"))
            columns = [
                peers if name == "peer" else batch.column(name).cast(kind) for name, kind in _COLUMNS.items()
            ]  # fmt: skip
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
    return rows


class _Seats:
    """Which rank has which place in which communicator."""

    def __init__(self) -> None:
        self._comms: dict[str, int] = {}
        self._taken: dict[int, int] = {}  # rank by communicator and place; -1 is nowhere, and nobody's
        self._keys: Ints | None = None
        self._ranks: Ints = np.zeros(0, np.int64)

    def apply(self, batch: Any) -> None:
        """What the rows of `batch` say of their own ranks."""
        keys, first = np.unique(self._key(batch.column("comm"), batch.column("place")), return_index=True)
        ranks = batch.column("rank").to_numpy()[first]
        self._taken.update(zip(keys.tolist(), ranks.tolist(), strict=True))

    def of(self, comms: Any, places: Any) -> Any:
        """The rank at each of `places`; null where there is no place, or none has told to be there."""
        if self._keys is None:
            self._keys = np.array(sorted(self._taken), np.int64)
            self._ranks = np.array([self._taken[key] for key in self._keys.tolist()], np.int64)
        wanted = self._key(comms, places)
        at = np.minimum(np.searchsorted(self._keys, wanted), self._keys.size - 1)
        return pa.array(self._ranks[at], pa.int32(), mask=(self._keys[at] != wanted) | (wanted < 0))

    def _key(self, comms: Any, places: Any) -> Ints:
        codes = [self._comms.setdefault(comm, len(self._comms)) for comm in comms.dictionary.to_pylist()]
        code = np.array(codes, np.int64)[comms.indices.to_numpy()]
        place = places.fill_null(-1).to_numpy().astype(np.int64)
        sound = (place >= 0) & (place < _MAX_PLACES)
        return np.where(sound, code * _MAX_PLACES + place, -1)
