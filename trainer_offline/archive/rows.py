"""Records as rows of their topic, and those that cannot be rows.

What nodes measure is columnar and gets many rows a record (`measured_rows`); a fact is one row, with all of it as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from trainwarden.errors import RecordError
from trainwarden.protocols import Message
from trainwarden.records import IncidentRecord, Suspect, VerdictRecord
from trainwarden.trainer_offline.archive.measured_rows import collectives, iterations, logs, metrics, row_batch
from trainwarden.trainer_offline.archive.schema import SCHEMAS, time_of

Rejected = tuple[Message, str]
_ORIGIN = ("written_s", "bus_partition", "bus_offset")


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
    names = [name for name in SCHEMAS[topic].names if name not in _ORIGIN]

    def make(messages: Sequence[Message]) -> Any | None:
        rows: list[tuple[Any, ...]] = []
        for message in messages:
            record: Any = message.record
            extra: dict[str, Any] = {"time_s": time_of(record), "record": msgspec.json.encode(record).decode()}
            if isinstance(record, VerdictRecord | IncidentRecord):
                extra.update(_suspect(record.suspects))
            cells = [extra[name] if name in extra else getattr(record, name, None) for name in names]
            rows.append((*cells, message.time_s, message.partition, message.offset))
        return row_batch(topic, rows)

    return make


_MAKERS: dict[str, Callable[[Sequence[Message]], Any | None]] = {
    "metrics": metrics,
    "iterations": iterations,
    "collectives": collectives,
    "logs": logs,
    **{topic: _facts(topic) for topic in ("events", "verdicts", "incidents", "actions")},
}
