"""A job of the archive as a recorded folder that `detect --data` and `train --data` read; streaming, in bounded memory.

Facts that the bus holds twice (it delivers at least once, and an agent that was killed reads its sources again) are
written once: metrics rows that are equal, steps by (rank, incarnation, step) and, where a script's numbers begin again,
by their ends, log lines by their place in the source.
Collective calls carry their number, by which whoever joins them knows one that comes twice.
"""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import parquet

from trainwarden.errors import DataError
from trainwarden.trainer_offline.archive.atomic import disk, whole_file
from trainwarden.trainer_offline.archive.export_calls import export_calls
from trainwarden.trainer_offline.archive.export_metrics import export_metrics
from trainwarden.trainer_offline.archive.layout import TOPIC_FOLDERS, job_folder
from trainwarden.trainer_offline.archive.reader import batches

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
