"""Writing a recorded folder: what was on the bus of one job, as plain files that `detect --data` reads.

The layout is fixed by contract: metrics.csv, iterations.csv, logs.jsonl, job.toml, and collectives.csv if there are
any. Beside them lie events.jsonl, heartbeats.jsonl, incidents.jsonl and actions.jsonl, one record a line as it was on
the bus.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from trainwarden.errors import DataError
from trainwarden.protocols import Bus
from trainwarden.records import CollectivesRecord, EventRecord, IterationRecord, LogRecord, MetricsRecord, Record
from trainwarden.topics import ACTIONS, COLLECTIVES, EVENTS, HEARTBEATS, INCIDENTS, ITERATIONS, LOGS, METRICS, Topic

R = TypeVar("R", bound=Record)


def write_recording(bus: Bus, job: str, folder: Path, from_s: float | None = None) -> int:
    """Write everything that `bus` keeps of `job` into `folder`, which is made if it does not exist.

    Duplicates (the bus delivers at least once) are dropped by identity.

    Parameters
    ----------
    from_s : float, optional
        Only what has reached the bus since then.

    Returns
    -------
    int
        Rows, lines and records written.

    Raises
    ------
    DataError
        If the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        records = _Records(bus, job, from_s)
        written = _write_metrics(records, folder / "metrics.csv")
        written += _write_iterations(records, folder / "iterations.csv")
        written += _write_calls(records, folder / "collectives.csv")
        written += _write_logs(records, folder / "logs.jsonl")
        for topic in (EVENTS, HEARTBEATS, INCIDENTS, ACTIONS):
            written += _write_records(records, topic, folder / f"{topic.name.rpartition('.')[2]}.jsonl")
        (folder / "job.toml").write_text(_job_toml(records), encoding="utf-8")
        return written
    except OSError as error:
        raise DataError(f"recorded folder '{folder}' cannot be written ({error.strerror})") from error


@dataclass(frozen=True, slots=True)
class _Records:
    """What the bus keeps of one job."""

    bus: Bus
    job: str
    from_s: float | None

    def of(self, topic: Topic[Any], kind: type[R]) -> Iterator[R]:
        for message in self.bus.read(topic, from_time_s=self.from_s):
            if isinstance(message.record, kind) and getattr(message.record, "job", None) == self.job:
                yield message.record


def _write_metrics(records: _Records, path: Path) -> int:
    """One row for each time and device; the columns are every metric that any record has.

    A device that was one rank's all the time is that rank's in every row: rows of who runs on it, and without, would be
    two entities.
    """
    names: dict[str, None] = {}
    ranks: dict[tuple[str, str], set[int]] = {}
    for record in records.of(METRICS, MetricsRecord):
        names.update(dict.fromkeys(("model", *record.names) if any(record.models) else record.names))
        for device, rank in zip(record.devices, record.ranks, strict=False):
            if rank is not None:
                ranks.setdefault((record.node, device), set()).add(rank)
    of_one = {who: str(*found) for who, found in ranks.items() if len(found) == 1}
    told = ["time_s", "node", "device", *(["rank"] if of_one else [])]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*told, *names], restval="")
        writer.writeheader()
        seen: set[tuple[str, float, tuple[str, ...], tuple[str, ...]]] = set()
        rows = 0
        for record in records.of(METRICS, MetricsRecord):
            identity = (record.node, record.time_s, record.devices, record.names)
            if identity in seen:
                continue
            seen.add(identity)
            for index, device in enumerate(record.devices):
                row = {name: row[index] for name, row in zip(record.names, record.values, strict=True)}
                measured = {name: repr(value) for name, value in row.items() if value is not None}
                if any(record.models):
                    measured["model"] = record.models[index]
                if (whose := of_one.get((record.node, device))) is not None:
                    measured["rank"] = whose
                writer.writerow({"time_s": repr(record.time_s), "node": record.node, "device": device, **measured})
            rows += len(record.devices)
    return rows


def _write_iterations(records: _Records, path: Path) -> int:
    columns = ["time_s", "node", "rank", "incarnation", "step", "duration_s", "compute_s", "wait_s", "pause_s"]
    columns += ["micro_batches", "basis"]
    seen: set[tuple[int, str, int]] = set()
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        for record in records.of(ITERATIONS, IterationRecord):
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
                writer.writerow([*row, *("" if cell is None else cell for cell in cells), record.basis])
    return len(seen)


def _write_calls(records: _Records, path: Path) -> int:
    """One row for each collective call; a call says its peer by a place, which that rank's own calls explain."""
    path.unlink(missing_ok=True)
    ranks: dict[tuple[str, int], int] = {}
    for record in records.of(COLLECTIVES, CollectivesRecord):
        ranks.update(((comm, place), record.rank) for comm, place in zip(record.comms, record.places, strict=False))
    if not ranks:
        return 0
    columns = ["step", "rank", "comm", "func", "seq", "bytes", "device_s", "enqueued_s", "nodes", "size", "group"]
    rows = 0
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "node", "peer"])
        for record in records.of(COLLECTIVES, CollectivesRecord):
            made = list(_calls(record, ranks))
            writer.writerows(made)
            rows += len(made)
    return rows


def _calls(record: CollectivesRecord, ranks: dict[tuple[str, int], int]) -> Iterator[list[object]]:
    """Rows of `_write_calls`; none of a record whose columns do not fit each other."""
    nothing = (None,) * len(record.seqs)
    optional = [lane or nothing for lane in (record.device_s, record.enqueued_s, record.peers)]
    of_comm = [lane or (None,) * len(record.comms) for lane in (record.node_counts, record.sizes, record.groups)]
    lanes = [record.steps, record.of, record.functions, record.seqs, record.call_bytes, *optional]
    fit = all(len(lane) == len(record.seqs) for lane in lanes) and all(
        len(lane) == len(record.comms) for lane in of_comm
    )
    if not fit or any(not 0 <= comm < len(record.comms) for comm in record.of):
        return
    for step, comm, func, seq, nbytes, device_s, enqueued_s, peer in zip(*lanes, strict=True):
        name = record.comms[comm]
        other = None if peer is None else ranks.get((name, peer))
        told = [lane[comm] or None for lane in of_comm]
        yield [step, record.rank, name, func, seq, nbytes, device_s, enqueued_s, *told, record.node, other]


def _write_logs(records: _Records, path: Path) -> int:
    read_to: dict[tuple[str, str], int] = {}
    lines = 0
    with path.open("wb") as file:
        for record in records.of(LOGS, LogRecord):
            source = (record.node, record.source)
            for end, line, time_s in zip(record.ends, record.lines, record.times_s, strict=True):
                if end <= read_to.get(source, -1):
                    continue
                read_to[source] = end
                row = {"time_s": time_s, "node": record.node, "rank": record.rank, "line": line}
                file.write(msgspec.json.encode(row) + b"\n")
                lines += 1
    return lines


def _write_records(records: _Records, topic: Topic[Any], path: Path) -> int:
    written = 0
    with path.open("wb") as file:
        for record in records.of(topic, topic.record_type):
            file.write(msgspec.json.encode(record) + b"\n")
            written += 1
    return written


def _job_toml(records: _Records) -> str:
    """Name and planned changes: an adopted micro-batch plan changes the step time on purpose."""
    lines = [f"name = {msgspec.json.encode(records.job).decode()}"]
    planned: dict[tuple[int, str], None] = {}
    for event in records.of(EVENTS, EventRecord):
        if event.kind == "microbatch_plan" and isinstance(event.fields.get("step"), int):
            planned[(int(str(event.fields["step"])), f"micro-batch plan {event.fields.get('number')}")] = None
    for step, what in planned:
        lines += ["", "[[planned_change]]", f"step = {step}", f'what = "{what}"']
    return "\n".join(lines) + "\n"
