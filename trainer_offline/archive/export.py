"""A job of the archive as a recorded folder that `detect --data` and `train --data` read; streaming, in bounded memory.

Facts that the bus holds twice (it delivers at least once, and an agent that was killed reads its sources again) are
written once: metrics rows that are equal, steps by (rank, incarnation, step) and, where a script's numbers begin again,
by their ends, log lines by their place in the source.
Collective calls carry their number, by which whoever joins them knows one that comes twice.

One archived job's collective calls as a table of a recorded folder, in two streamed passes.

A call says by its place in the communicator who its other rank is; who has that place is told by that rank's own calls.
The first pass gathers these, so that the table names ranks.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import parquet

from trainwarden.errors import DataError
from trainwarden.trainer_offline.archive.atomic import disk, whole_file
from trainwarden.trainer_offline.archive.export_metrics import export_metrics
from trainwarden.trainer_offline.archive.layout import TOPIC_FOLDERS, job_folder
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


_STEP_COLUMNS = (
    "time_s", "node", "rank", "incarnation", "step", "duration_s", "compute_s", "wait_s", "pause_s", "micro_batches",
    "basis",
)  # fmt: skip


def export(folder: Path, job: str, to: Path, days: Sequence[str] | None = None) -> dict[str, int]:
    """Write `job` into the folder `to`, which is made if it does not exist.

    Parameters
    ----------
    folder : Path
        The archive.
    job : str
        Name of the job.
    to : Path
        Gets ``metrics.parquet``, ``iterations.parquet``, ``collectives.parquet``, ``logs.jsonl.gz``,
        ``events.jsonl``, ``incidents.jsonl``, ``actions.jsonl`` and ``job.toml``; each file appears whole.
    days : sequence of str, optional
        Only these days (``YYYY-MM-DD``).

    Returns
    -------
    dict
        Rows written for each file.

    Raises
    ------
    DataError
        If the archive has nothing of the job on these days, or `to` cannot be written.
    """
    places = [folder / topic / job_folder(job) for topic in TOPIC_FOLDERS]
    if not any(place.is_dir() for place in places):
        raise DataError(f"archive '{folder}' has nothing of a job '{job}'")
    if days is not None and not any((place / f"day={day}").is_dir() for place in places for day in days):
        raise DataError(f"archive '{folder}' has nothing of job '{job}' on {', '.join(days)}")
    written: dict[str, int] = {}
    with disk(to):
        to.mkdir(parents=True, exist_ok=True)
        written["metrics.parquet"] = export_metrics(folder, job, to / "metrics.parquet", days)
        written["iterations.parquet"] = export_iterations(folder, job, to / "iterations.parquet", days)
        written["collectives.parquet"] = export_calls(folder, job, to / "collectives.parquet", days)
        written["logs.jsonl.gz"] = _logs(folder, job, to / "logs.jsonl.gz", days)
        for topic in ("events", "incidents", "actions"):
            written[f"{topic}.jsonl"] = _facts(folder, topic, job, to / f"{topic}.jsonl", days)
        with whole_file(to / "job.toml") as file:
            file.write(_job_toml(folder, job, days).encode())
        for name in ("metrics.parquet", "iterations.parquet", "collectives.parquet", "logs.jsonl.gz"):
            if not written[name]:  # of a job that was exported here before
                (to / name).unlink(missing_ok=True)
    return {name: rows for name, rows in written.items() if rows}


# -- iterations, logs, facts ---------------------------------------------------------------------------------------


class Steps:
    """Which steps were there already, as ranges: steps of one process follow each other, so it stays small.

    Examples
    --------
    >>> steps = Steps()
    >>> [steps.add(step) for step in (1, 2, 3, 2, 7, 7)]
    [True, True, True, False, True, False]
    >>> steps.ranges
    [(1, 3), (7, 7)]
    """

    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def add(self, step: int) -> bool:
        """Note `step`; whether it is new."""
        place = bisect_right(self.ranges, (step, 2**63))
        if place and self.ranges[place - 1][1] >= step:
            return False
        low = high = step
        if place < len(self.ranges) and self.ranges[place][0] == step + 1:
            high = self.ranges.pop(place)[1]
        if place and self.ranges[place - 1][1] == step - 1:
            place -= 1
            low = self.ranges.pop(place)[0]
        self.ranges.insert(place, (low, high))
        return True


class Laps:
    """Which steps of one process were there already, though its script's numbers may begin again, as in each epoch.

    Examples
    --------
    >>> laps = Laps()
    >>> [laps.add(step, at) for step, at in ((0, 1.0), (1, 2.0), (0, 3.0), (1, 4.0), (1, 2.0), (0, 3.0), (2, 5.0))]
    [True, True, True, True, False, False, True]
    """

    def __init__(self) -> None:
        self._from_s: list[float] = []
        self._steps: list[Steps] = []
        self._newest_s, self._newest = float("-inf"), -1

    def add(self, step: int, end_s: float) -> bool:
        """Note `step`, which ended at `end_s`; whether it is new."""
        if end_s > self._newest_s:
            if step <= self._newest or not self._steps:
                self._from_s.append(end_s)
                self._steps.append(Steps())
            self._newest_s, self._newest = end_s, step
        return self._steps[max(0, bisect_right(self._from_s, end_s) - 1)].add(step)


def export_iterations(folder: Path, job: str, path: Path, days: Sequence[str] | None = None) -> int:
    """One row for each step of each process; how many, and no file if there are none."""
    found = batches(folder, "iterations", job, days=days, columns=_STEP_COLUMNS)
    seen: dict[tuple[int, str], Laps] = {}
    rows = 0
    first = next(found, None)
    if first is None:
        return 0
    schema = pa.schema(
        [(one.name, pa.string() if pa.types.is_dictionary(one.type) else one.type) for one in first.schema]
    )
    with whole_file(path) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in _chained(first, found):
            named = ("rank", "incarnation", "step", "time_s")
            keys = zip(*(batch.column(name).to_pylist() for name in named), strict=True)
            new = [seen.setdefault((rank, process), Laps()).add(step, end_s) for rank, process, step, end_s in keys]
            table = pa.Table.from_batches([batch]).cast(schema).filter(pa.array(new, pa.bool_()))
            writer.write_table(table)
            rows += table.num_rows
    return rows


def _chained(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from others


def _logs(folder: Path, job: str, path: Path, days: Sequence[str] | None) -> int:
    read_to: dict[tuple[str, str], int] = {}
    columns = ("node", "source", "end", "time_s", "rank", "line")
    rows = 0
    found = batches(folder, "logs", job, days=days, columns=columns, rows=8_192)
    first = next(found, None)
    if first is None:
        return 0
    with whole_file(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
        for batch in _chained(first, found):
            for node, source, end, time_s, rank, line in zip(
                *(batch.column(name).to_pylist() for name in columns), strict=True
            ):
                if end > read_to.get((node, source), -1):
                    read_to[(node, source)] = end
                    row = {"time_s": time_s, "node": node, "rank": rank, "line": line}
                    packed.write(msgspec.json.encode(row) + b"\n")
                    rows += 1
    return rows


def _facts(folder: Path, topic: str, job: str, path: Path, days: Sequence[str] | None) -> int:
    """Records as they were on the bus, one a line."""
    rows = 0
    with whole_file(path) as file:
        for batch in batches(folder, topic, job, days=days, columns=["record"], rows=8_192):
            for record in batch.column(0).to_pylist():
                file.write(record.encode() + b"\n")
                rows += 1
    return rows


def _job_toml(folder: Path, job: str, days: Sequence[str] | None) -> str:
    """Name and planned changes: an adopted micro-batch plan changes the step time on purpose."""
    planned: dict[tuple[int, str], None] = {}
    for batch in batches(folder, "events", job, days=days, columns=["kind", "record"], rows=8_192):
        for kind, record in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            fields = msgspec.json.decode(record).get("fields", {}) if kind == "microbatch_plan" else {}
            if isinstance(fields.get("step"), int):
                planned[(fields["step"], f"micro-batch plan {fields.get('number')}")] = None
    # A JSON string is a TOML basic string.
    lines = [f"name = {json.dumps(job, ensure_ascii=False)}"]
    for step, what in planned:
        lines += ["", "[[planned_change]]", f"step = {step}", f"what = {json.dumps(what)}"]
    return "\n".join(lines) + "\n"
