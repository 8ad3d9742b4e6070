"""The archive's columns, and how records become rows.

Metrics are long: one row for each value that was measured. So every file has the same columns for ever, whatever
metrics a node has or a later version adds, and any reader sees all of them; in a wide table readers that take the first
file's columns (pandas and DuckDB by default) would silently drop the others. Absent stays absent: no row. Names,
nodes and devices are dictionary-encoded, so a row costs a few bytes on disk.

Every row ends with where it came from: `written_s` (the time at which the bus got the record), `bus_partition` and
`bus_offset`. All rows of one record lie in one file, under the day of the record's own last time in UTC.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from trainwarden.errors import RecordError
from trainwarden.protocols import Message
from trainwarden.records import (
    ActionRecord,
    IncidentRecord,
    IterationRecord,
    LogRecord,
    MetricsRecord,
    Suspect,
    VerdictRecord,
)

_WORD = pa.dictionary(pa.int32(), pa.string())
_TEXT, _REAL, _WHOLE, _RANK = pa.string(), pa.float64(), pa.int64(), pa.int32()
_ORIGIN = [("written_s", _REAL), ("bus_partition", _RANK), ("bus_offset", _WHOLE)]
_SUSPECT = [
    ("suspect_rank", _RANK), ("suspect_node", _TEXT), ("suspect_device", _TEXT), ("suspect_score", _REAL),
]  # fmt: skip
_COLUMNS: dict[str, list[tuple[str, Any]]] = {
    "metrics": [
        ("time_s", _REAL), ("node", _WORD), ("device", _WORD), ("rank", _RANK), ("name", _WORD), ("value", _REAL),
    ],
    "iterations": [
        ("time_s", _REAL), ("node", _WORD), ("rank", _RANK), ("incarnation", _WORD), ("step", _WHOLE),
        ("duration_s", _REAL), ("compute_s", _REAL), ("wait_s", _REAL), ("pause_s", _REAL), ("micro_batches", _WHOLE),
        ("basis", _WORD), ("role", _WORD),
    ],
    "logs": [
        ("time_s", _REAL), ("node", _WORD), ("source", _WORD), ("rank", _RANK), ("end", _WHOLE), ("count", _WHOLE),
        ("line", _TEXT),
    ],
    "events": [
        ("time_s", _REAL), ("id", _TEXT), ("node", _WORD), ("rank", _RANK), ("device", _TEXT), ("kind", _WORD),
        ("message", _TEXT), ("record", _TEXT),
    ],
    "verdicts": [
        ("time_s", _REAL), ("id", _TEXT), ("window_s", _REAL), ("anomalous", pa.bool_()), ("kind", _WORD),
        ("severity", _WORD), ("reason", _TEXT), ("phase", _WORD), ("step", _WHOLE), ("iteration_s", _REAL),
        *_SUSPECT, ("record", _TEXT),
    ],
    "incidents": [
        ("time_s", _REAL), ("id", _TEXT), ("revision", _WHOLE), ("state", _WORD), ("kind", _WORD),
        ("severity", _WORD), ("reason", _TEXT), ("opened_at_s", _REAL), ("closed_at_s", _REAL), ("onset_s", _REAL),
        ("onset_step", _WHOLE), ("opened_step", _WHOLE), *_SUSPECT, ("record", _TEXT),
    ],
    "actions": [
        ("time_s", _REAL), ("id", _TEXT), ("incident", _TEXT), ("kind", _WORD), ("outcome", _WORD), ("why", _TEXT),
        ("finished_at_s", _REAL), ("record", _TEXT),
    ],
}  # fmt: skip

SCHEMAS: dict[str, Any] = {topic: pa.schema([*columns, *_ORIGIN]) for topic, columns in _COLUMNS.items()}
"""Arrow schema of each topic's files."""

_MAX_AHEAD_S = 86_400.0  # a node's clock that is further ahead of the bus than a day is not believed
_EPOCH = datetime.date(1970, 1, 1)

Rejected = tuple[Message, str]


def day_of_message(message: Message) -> str:
    """The day (UTC) under which a record is kept: of its own last time, if that can be true, else of the bus's time.

    It follows from the message alone, so a record that comes again is looked for in the same place.
    """
    time_s = _time_of(message.record)
    if time_s is None or not 0.0 <= time_s <= message.time_s + _MAX_AHEAD_S:
        time_s = max(0.0, message.time_s)
    return (_EPOCH + datetime.timedelta(days=int(time_s // 86_400))).isoformat()


def _time_of(record: Any) -> float | None:
    if isinstance(record, IterationRecord):
        return record.end_s[-1] if record.end_s else None
    if isinstance(record, LogRecord):
        return record.times_s[-1] if record.times_s else None
    if isinstance(record, IncidentRecord):
        return record.updated_at_s
    if isinstance(record, ActionRecord):
        return record.at_s
    found: float = record.time_s
    return found


def to_batch(topic: str, messages: Sequence[Message]) -> tuple[Any | None, list[Rejected]]:
    """Rows of `messages`, and those whose record contradicts itself (columns of unequal length, numbers too large).

    Parameters
    ----------
    topic : str
        Folder name of the topic (`SCHEMAS`).
    messages : sequence of Message
        Records of that topic.

    Returns
    -------
    batch : pyarrow.RecordBatch or None
        None if there is no row.
    rejected : list of (message, reason)
    """
    try:
        return _MAKERS[topic](messages), []
    except (RecordError, pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        if len(messages) == 1:
            return None, [(messages[0], str(error).splitlines()[0] if str(error) else type(error).__name__)]
    rejected: list[Rejected] = []
    tables = []
    middle = len(messages) // 2
    for half in (messages[:middle], messages[middle:]):
        batch, bad = to_batch(topic, half)
        rejected += bad
        if batch is not None:
            tables.append(pa.Table.from_batches([batch]))
    if not tables:
        return None, rejected
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks().to_batches()[0], rejected


class _Words:
    """Codes of repeated words."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}

    def of(self, words: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int32]]:
        codes = self.codes
        return np.array([codes.setdefault(word, len(codes)) for word in words], np.int32)

    def column(self, indices: Sequence[Any]) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(np.concatenate(indices)), pa.array(list(self.codes), _TEXT))


def _measured(record: MetricsRecord) -> tuple[Any, Any]:
    """Places in names x devices at which something was measured, and the values there.

    Raises
    ------
    RecordError
        If the record contradicts itself.
    """
    width = len(record.devices)
    if len(record.values) != len(record.names) or any(len(row) != width for row in record.values):
        raise RecordError("the values of a metrics record are not names x devices")
    if record.ranks and len(record.ranks) != width:
        raise RecordError("the ranks of a metrics record are not one for each device")
    values = np.array(record.values, np.float64).reshape(-1)
    there = np.flatnonzero(~np.isnan(values))
    return there, values[there]


def _metrics(messages: Sequence[Message]) -> Any | None:
    """Long rows, in the order record, name, device; vectorised over the cells of a record."""
    nodes, devices, names = _Words(), _Words(), _Words()
    parts: list[list[Any]] = [[] for _ in range(6)]
    origin: list[tuple[float, int, int]] = []
    sizes: list[int] = []
    times: list[float] = []
    for message in messages:
        record = message.record
        assert isinstance(record, MetricsRecord)
        there, values = _measured(record)
        width = len(record.devices)
        ranks = np.array([-1 if rank is None else rank for rank in record.ranks] or [-1] * width, np.int32)
        parts[0].append(nodes.of([record.node]).repeat(len(there)))
        if width:
            parts[1].append(devices.of(record.devices)[there % width])
            parts[2].append(ranks[there % width])
            parts[3].append(names.of(record.names)[there // width])
            parts[4].append(values)
        sizes.append(len(there))
        times.append(record.time_s)
        origin.append((message.time_s, message.partition, message.offset))
    if not sum(sizes):
        return None
    rank = np.concatenate(parts[2])
    written, partitions, offsets = (np.array(column) for column in zip(*origin, strict=True))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.repeat(np.array(times, np.float64), sizes)),
            nodes.column(parts[0]),
            devices.column(parts[1]),
            pa.array(rank, _RANK, mask=rank < 0),
            names.column(parts[3]),
            pa.array(np.concatenate(parts[4])),
            pa.array(np.repeat(written, sizes), _REAL),
            pa.array(np.repeat(partitions, sizes), _RANK),
            pa.array(np.repeat(offsets, sizes), _WHOLE),
        ],
        schema=SCHEMAS["metrics"],
    )


def _iterations(messages: Sequence[Message]) -> Any | None:
    rows: list[tuple[Any, ...]] = []
    for message in messages:
        record = message.record
        assert isinstance(record, IterationRecord)
        number = len(record.steps)
        nothing = (None,) * number
        optional = (record.compute_s, record.wait_s, record.pause_s, record.micro_batches)
        columns = (record.end_s, record.steps, record.duration_s, *(values or nothing for values in optional))
        if any(len(column) != number for column in columns):
            raise RecordError("the columns of an iterations record have unequal lengths")
        head, tail = (record.node, record.rank, record.incarnation), (record.basis, record.role)
        origin = (message.time_s, message.partition, message.offset)
        rows.extend((cells[0], *head, *cells[1:], *tail, *origin) for cells in zip(*columns, strict=True))
    return _batch("iterations", rows)


def _logs(messages: Sequence[Message]) -> Any | None:
    rows: list[tuple[Any, ...]] = []
    for message in messages:
        record = message.record
        assert isinstance(record, LogRecord)
        counts = record.counts or (1,) * len(record.lines)
        if not len(record.ends) == len(record.lines) == len(record.times_s) == len(counts):
            raise RecordError("the columns of a log record have unequal lengths")
        origin = (message.time_s, message.partition, message.offset)
        rows.extend(
            (time_s, record.node, record.source, record.rank, end, count, line, *origin)
            for time_s, end, count, line in zip(record.times_s, record.ends, counts, record.lines, strict=True)
        )
    return _batch("logs", rows)


def _suspect(suspects: tuple[Suspect, ...]) -> dict[str, Any]:
    """The most likely suspect; the others are in `record`."""
    if not suspects:
        return {}
    first = suspects[0]
    return {
        "suspect_rank": first.rank,
        "suspect_node": first.node,
        "suspect_device": first.device,
        "suspect_score": first.score,
    }


def _facts(topic: str) -> Callable[[Sequence[Message]], Any | None]:
    """One row a record: its plain fields, its first suspect, and all of it as JSON in `record`."""
    names = [name for name, _ in _COLUMNS[topic]]

    def make(messages: Sequence[Message]) -> Any | None:
        rows: list[tuple[Any, ...]] = []
        for message in messages:
            record: Any = message.record
            extra: dict[str, Any] = {"time_s": _time_of(record), "record": msgspec.json.encode(record).decode()}
            if isinstance(record, VerdictRecord | IncidentRecord):
                extra.update(_suspect(record.suspects))
            cells = [extra[name] if name in extra else getattr(record, name, None) for name in names]
            rows.append((*cells, message.time_s, message.partition, message.offset))
        return _batch(topic, rows)

    return make


def _batch(topic: str, rows: Sequence[tuple[Any, ...]]) -> Any | None:
    if not rows:
        return None
    schema = SCHEMAS[topic]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_MAKERS: dict[str, Callable[[Sequence[Message]], Any | None]] = {
    "metrics": _metrics,
    "iterations": _iterations,
    "logs": _logs,
    **{topic: _facts(topic) for topic in ("events", "verdicts", "incidents", "actions")},
}
