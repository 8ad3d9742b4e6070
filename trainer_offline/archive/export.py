"""A job of the archive as a recorded folder that `detect --data` and `train --data` read; streaming, in bounded memory.

Facts that the bus holds twice (it delivers at least once, and an agent that was killed reads its sources again) are
written once: metrics rows that are equal, steps by (rank, incarnation, step), log lines by their place in the source.
"""

from __future__ import annotations

import gzip
import json
import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from trainer_offline.archive.atomic import disk
from trainer_offline.archive.layout import TOPIC_FOLDERS, job_folder
from trainer_offline.archive.reader import batches
from trainwarden.errors import DataError

_MAX_CELLS = 4_000_000  # of a wide block in memory: 32 MB
_SEEN_ROWS = 262_144  # metrics rows remembered to know one that comes twice: minutes of a large job
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
        Gets ``metrics.parquet``, ``iterations.parquet``, ``logs.jsonl.gz``, ``events.jsonl``, ``incidents.jsonl``,
        ``actions.jsonl`` and ``job.toml``; each file appears whole.
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
        written["metrics.parquet"] = _metrics(folder, job, to / "metrics.parquet", days)
        written["iterations.parquet"] = _iterations(folder, job, to / "iterations.parquet", days)
        written["logs.jsonl.gz"] = _logs(folder, job, to / "logs.jsonl.gz", days)
        for topic in ("events", "incidents", "actions"):
            written[f"{topic}.jsonl"] = _facts(folder, topic, job, to / f"{topic}.jsonl", days)
        with _whole(to / "job.toml") as file:
            file.write(_job_toml(folder, job, days).encode())
        for name in ("metrics.parquet", "iterations.parquet", "logs.jsonl.gz"):
            if not written[name]:  # of a job that was exported here before
                (to / name).unlink(missing_ok=True)
    return {name: rows for name, rows in written.items() if rows}


@contextmanager
def _whole(path: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name only once it is complete."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


# -- metrics -------------------------------------------------------------------------------------------------------


def _metrics(folder: Path, job: str, path: Path, days: Sequence[str] | None) -> int:
    """One row for each record and device, one column for each metric that the job has anywhere."""
    names: dict[str, int] = {}
    for batch in batches(folder, "metrics", job, days=days, columns=["name"]):
        for name in batch.column(0).dictionary_decode().unique().to_pylist():
            names.setdefault(name, len(names))
    return write_metrics(batches(folder, "metrics", job, days=days), list(names), path) if names else 0


def write_metrics(found: Iterator[Any], metrics: Sequence[str], path: Path) -> int:
    """Write rows of the archive's metrics, in the order of the bus, as a table with a column for each of `metrics`.

    Returns
    -------
    int
        Rows written.
    """
    names = {name: place for place, name in enumerate(metrics)}
    ids = [("time_s", pa.float64()), ("node", pa.string()), ("device", pa.string())]
    schema = pa.schema([*ids, *((name, pa.float64()) for name in names)])
    seen: OrderedDict[int, None] = OrderedDict()
    rows = 0
    with _whole(path) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in _whole_records(found):
            for wide in _wide(table, names, schema, seen):
                writer.write_table(wide)
                rows += wide.num_rows
    return rows


def _whole_records(found: Iterator[Any]) -> Iterator[Any]:
    """Tables that end where a record ends: the cells of one record lie together, but batches cut anywhere."""
    held: Any | None = None
    for batch in found:
        table = pa.Table.from_batches([batch])
        if held is not None:
            table = pa.concat_tables([held, table])
        offsets = table.column("bus_offset").to_numpy()
        last = int(np.searchsorted(offsets[::-1] != offsets[-1], True)) if len(offsets) else 0
        cut = len(offsets) - last
        if cut:
            yield table.slice(0, cut)
        held = table.slice(cut)
    if held is not None and held.num_rows:
        yield held


def _wide(table: Any, names: dict[str, int], schema: Any, seen: OrderedDict[int, None]) -> Iterator[Any]:
    table = table.unify_dictionaries().combine_chunks()
    offsets = table.column("bus_offset").to_numpy()
    partitions = table.column("bus_partition").to_numpy()
    record = np.concatenate([[0], np.cumsum((np.diff(offsets) != 0) | (np.diff(partitions) != 0))])
    nodes, devices, metrics = (table.column(name).chunk(0) for name in ("node", "device", "name"))
    device = devices.indices.to_numpy()
    key = record * len(devices.dictionary) + device
    row, first = pd.factorize(key)[0], np.flatnonzero(~pd.Series(key).duplicated())
    code = np.array([names[name] for name in metrics.dictionary.to_pylist()], np.int64)[metrics.indices.to_numpy()]
    values = table.column("value").to_numpy()
    times = table.column("time_s").to_numpy()[first]
    heads = nodes.take(pa.array(first)), devices.take(pa.array(first))
    by_row = np.argsort(row, kind="stable")
    bounds = np.searchsorted(row[by_row], np.arange(len(first) + 1))
    step = max(1, _MAX_CELLS // len(names))
    for start in range(0, len(first), step):
        end = min(start + step, len(first))
        cells = by_row[bounds[start] : bounds[end]]
        block = np.full((end - start, len(names)), np.nan)
        block[row[cells] - start, code[cells]] = values[cells]
        ids = [pa.array(times[start:end]), *(head.slice(start, end - start).dictionary_decode() for head in heads)]
        new = _unseen(block, ids, seen)
        columns = [pa.array(block[:, index], mask=np.isnan(block[:, index])) for index in range(len(names))]
        yield pa.Table.from_arrays([*ids, *columns], schema=schema).filter(pa.array(new))


def _unseen(block: Any, ids: Sequence[Any], seen: OrderedDict[int, None]) -> Any:
    """Which rows were not written lately with the same values."""
    new = np.ones(len(block), bool)
    for index, head in enumerate(zip(*(one.to_pylist() for one in ids), strict=True)):
        key = hash((head, block[index].tobytes()))
        if key in seen:
            new[index] = False
            continue
        seen[key] = None
        if len(seen) > _SEEN_ROWS:
            seen.popitem(last=False)
    return new


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


def _iterations(folder: Path, job: str, path: Path, days: Sequence[str] | None) -> int:
    found = batches(folder, "iterations", job, days=days, columns=_STEP_COLUMNS)
    seen: dict[tuple[int, str], Steps] = {}
    rows = 0
    first = next(found, None)
    if first is None:
        return 0
    schema = pa.schema(
        [(one.name, pa.string() if pa.types.is_dictionary(one.type) else one.type) for one in first.schema]
    )
    with _whole(path) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in _chained(first, found):
            keys = zip(*(batch.column(name).to_pylist() for name in ("rank", "incarnation", "step")), strict=True)
            new = [seen.setdefault((rank, process), Steps()).add(step) for rank, process, step in keys]
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
    with _whole(path) as file, gzip.GzipFile("", "wb", 6, file, mtime=0) as packed:
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
    with _whole(path) as file:
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
