"""Writing a recorded folder: what was on the bus of one job, as plain files that `detect --data` reads.

The layout is fixed by contract: metrics.csv, iterations.csv, logs.jsonl, job.toml. Beside them lie
events.jsonl, heartbeats.jsonl, incidents.jsonl and actions.jsonl, one record a line as it was on the bus.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from trainwarden.errors import DataError
from trainwarden.protocols import Bus
from trainwarden.records import EventRecord, IterationRecord, LogRecord, MetricsRecord, Record
from trainwarden.topics import ACTIONS, EVENTS, HEARTBEATS, INCIDENTS, ITERATIONS, LOGS, METRICS, Topic

R = TypeVar("R", bound=Record)


def write_recording(bus: Bus, job: str, folder: Path) -> None:
    """Write everything that `bus` keeps of `job` into `folder`, which is made if it does not exist.

    Duplicates (the bus delivers at least once) are dropped by identity.

    Raises
    ------
    DataError
        If the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write_metrics(bus, job, folder / "metrics.csv")
        _write_iterations(bus, job, folder / "iterations.csv")
        _write_logs(bus, job, folder / "logs.jsonl")
        for topic in (EVENTS, HEARTBEATS, INCIDENTS, ACTIONS):
            _write_records(bus, job, topic, folder / f"{topic.name.rpartition('.')[2]}.jsonl")
        (folder / "job.toml").write_text(_job_toml(bus, job), encoding="utf-8")
    except OSError as error:
        raise DataError(f"recorded folder '{folder}' cannot be written ({error.strerror})") from error


def _records(bus: Bus, job: str, topic: Topic[Any], kind: type[R]) -> Iterator[R]:
    for message in bus.read(topic):
        if isinstance(message.record, kind) and getattr(message.record, "job", None) == job:
            yield message.record


def _write_metrics(bus: Bus, job: str, path: Path) -> None:
    """One row for each time and device; the columns are every metric that any record has."""
    names: dict[str, None] = {}
    for record in _records(bus, job, METRICS, MetricsRecord):
        names.update(dict.fromkeys(record.names))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["time_s", "node", "device", *names], restval="")
        writer.writeheader()
        seen: set[tuple[str, float, tuple[str, ...]]] = set()
        for record in _records(bus, job, METRICS, MetricsRecord):
            identity = (record.node, record.time_s, record.devices)
            if identity in seen:
                continue
            seen.add(identity)
            for index, device in enumerate(record.devices):
                row = {name: row[index] for name, row in zip(record.names, record.values, strict=True)}
                measured = {name: repr(value) for name, value in row.items() if value is not None}
                writer.writerow({"time_s": repr(record.time_s), "node": record.node, "device": device, **measured})


def _write_iterations(bus: Bus, job: str, path: Path) -> None:
    columns = ["time_s", "node", "rank", "incarnation", "step", "duration_s", "compute_s", "wait_s", "pause_s"]
    columns.append("micro_batches")
    seen: set[tuple[int, str, int]] = set()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for record in _records(bus, job, ITERATIONS, IterationRecord):
            optional = (record.compute_s, record.wait_s, record.pause_s, record.micro_batches)
            for index, step in enumerate(record.steps):
                identity = (record.rank, record.incarnation, step)
                if identity in seen:
                    continue
                seen.add(identity)
                cells = [values[index] if values else None for values in optional]
                row = [
                    record.end_s[index],
                    record.node,
                    record.rank,
                    record.incarnation,
                    step,
                    record.duration_s[index],
                ]
                writer.writerow([*row, *("" if cell is None else cell for cell in cells)])


def _write_logs(bus: Bus, job: str, path: Path) -> None:
    read_to: dict[tuple[str, str], int] = {}
    with path.open("wb") as file:
        for record in _records(bus, job, LOGS, LogRecord):
            source = (record.node, record.source)
            for end, line, time_s in zip(record.ends, record.lines, record.times_s, strict=True):
                if end <= read_to.get(source, -1):
                    continue
                read_to[source] = end
                row = {"time_s": time_s, "node": record.node, "rank": record.rank, "line": line}
                file.write(msgspec.json.encode(row) + b"\n")


def _write_records(bus: Bus, job: str, topic: Topic[Any], path: Path) -> None:
    with path.open("wb") as file:
        for record in _records(bus, job, topic, topic.record_type):
            file.write(msgspec.json.encode(record) + b"\n")


def _job_toml(bus: Bus, job: str) -> str:
    """Name and planned changes: an adopted micro-batch plan changes the step time on purpose."""
    lines = [f'name = "{job}"']
    planned: dict[tuple[int, str], None] = {}
    for event in _records(bus, job, EVENTS, EventRecord):
        if event.kind == "microbatch_plan" and isinstance(event.fields.get("step"), int):
            planned[(int(str(event.fields["step"])), f"micro-batch plan {event.fields.get('number')}")] = None
    for step, what in planned:
        lines += ["", "[[planned_change]]", f"step = {step}", f'what = "{what}"']
    return "\n".join(lines) + "\n"
