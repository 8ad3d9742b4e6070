"""The archive's columns, and the day under which a record is kept. How records become rows is in `rows`.

Metrics are long: one row for each value that was measured. So every file has the same columns for ever, whatever
metrics a node has or a later version adds, and any reader sees all of them; in a wide table readers that take the first
file's columns (pandas and DuckDB by default) would silently drop the others. Absent stays absent: no row. Names,
nodes and devices are dictionary-encoded, so a row costs a few bytes on disk.

Every row ends with where it came from: `written_s` (the time at which the bus got the record), `bus_partition` and
`bus_offset`. All rows of one record lie in one file, under the day of the record's own last time in UTC.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa

from trainwarden.protocols import Message
from trainwarden.records import ActionRecord, IncidentRecord, IterationRecord, LogRecord

_WORD = pa.dictionary(pa.int32(), pa.string())
_TEXT, _REAL, _WHOLE, _RANK = pa.string(), pa.float64(), pa.int64(), pa.int32()
_ORIGIN = [("written_s", _REAL), ("bus_partition", _RANK), ("bus_offset", _WHOLE)]
_SUSPECT = [
    ("suspect_rank", _RANK), ("suspect_node", _TEXT), ("suspect_device", _TEXT), ("suspect_score", _REAL),
]  # fmt: skip
_COLUMNS: dict[str, list[tuple[str, Any]]] = {
    "metrics": [
        ("time_s", _REAL), ("node", _WORD), ("device", _WORD), ("rank", _RANK), ("name", _WORD), ("value", _REAL),
        ("model", _WORD),
    ],
    "iterations": [
        ("time_s", _REAL), ("node", _WORD), ("rank", _RANK), ("incarnation", _WORD), ("step", _WHOLE),
        ("duration_s", _REAL), ("compute_s", _REAL), ("wait_s", _REAL), ("pause_s", _REAL), ("micro_batches", _WHOLE),
        ("basis", _WORD), ("role", _WORD),
    ],
    "collectives": [
        ("time_s", _REAL), ("node", _WORD), ("rank", _RANK), ("incarnation", _WORD), ("comm", _WORD),
        ("group", _WORD), ("size", _RANK), ("place", _RANK), ("nodes", _RANK), ("func", _WORD), ("seq", _WHOLE),
        ("step", _WHOLE), ("bytes", _WHOLE), ("device_s", _REAL), ("enqueued_s", _REAL), ("peer", _RANK),
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


def day_of_message(message: Message) -> str:
    """The day (UTC) under which a record is kept: of its own last time, if that can be true, else of the bus's time.

    It follows from the message alone, so a record that comes again is looked for in the same place.
    """
    time_s = time_of(message.record)
    if time_s is None or not 0.0 <= time_s <= message.time_s + _MAX_AHEAD_S:
        time_s = max(0.0, message.time_s)
    return (_EPOCH + datetime.timedelta(days=int(time_s // 86_400))).isoformat()


def time_of(record: Any) -> float | None:
    """The last time that `record` itself tells, Unix seconds; None if it tells none."""
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
