"""What nodes measure and see as rows: metrics, steps, collective calls and lines, of which a record has many.

Metrics and collective calls, most of the rows of an archive, are made from whole columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from trainwarden.errors import RecordError
from trainwarden.protocols import Message
from trainwarden.records import CollectivesRecord, IterationRecord, LogRecord, MetricsRecord
from trainwarden.trainer_offline.archive.schema import SCHEMAS

_RANK = pa.int32()


class _Words:
    """Codes of repeated words, and those of a column's rows."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._rows: list[np.ndarray[Any, np.dtype[np.int32]]] = []

    def add(self, words: Sequence[str], rows: Any) -> None:
        """`rows` are places in `words`."""
        codes = self._codes
        self._rows.append(np.array([codes.setdefault(word, len(codes)) for word in words], np.int32)[rows])

    def column(self, *, empty_is_unknown: bool = False) -> Any:
        rows = np.concatenate(self._rows)
        unknown = self._codes.get("") if empty_is_unknown else None
        return pa.DictionaryArray.from_arrays(
            pa.array(rows, mask=None if unknown is None else rows == unknown), pa.array(list(self._codes), pa.string())
        )


class _Origins:
    """Where rows come from: the last three columns of every topic."""

    def __init__(self) -> None:
        self._of: list[tuple[float, int, int]] = []
        self.sizes: list[int] = []

    def add(self, message: Message, rows: int) -> None:
        """`rows` rows were made of `message`."""
        self._of.append((message.time_s, message.partition, message.offset))
        self.sizes.append(rows)

    def columns(self) -> list[Any]:
        columns = zip(*self._of, strict=True)
        types = (pa.float64(), _RANK, pa.int64())
        return [pa.array(np.repeat(cells, self.sizes), kind) for cells, kind in zip(columns, types, strict=True)]


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
    for what, of_devices in (("ranks", record.ranks), ("models", record.models)):
        if of_devices and len(of_devices) != width:
            raise RecordError(f"the {what} of a metrics record are not one for each device")
    values = np.array(record.values, np.float64).reshape(-1)
    there = np.flatnonzero(~np.isnan(values))
    return there, values[there]


def metrics(messages: Sequence[Message]) -> Any | None:
    """Long rows, in the order record, name, device; vectorised over the cells of a record."""
    nodes, devices, names, models = _Words(), _Words(), _Words(), _Words()
    ranks: list[Any] = []
    found: list[Any] = []
    origins = _Origins()
    times: list[float] = []
    for message in messages:
        record = message.record
        assert isinstance(record, MetricsRecord)
        there, values = _measured(record)
        origins.add(message, len(there))
        times.append(record.time_s)
        if not len(there):
            continue
        width = len(record.devices)
        device = there % width
        nodes.add([record.node], np.zeros(len(there), np.int64))
        devices.add(record.devices, device)
        names.add(record.names, there // width)
        models.add(record.models or ("",) * width, device)
        ranks.append(np.array([-1 if one is None else one for one in record.ranks] or [-1] * width, np.int32)[device])
        found.append(values)
    if not found:
        return None
    rank = np.concatenate(ranks)
    columns = [
        pa.array(np.repeat(np.array(times, np.float64), origins.sizes)), nodes.column(), devices.column(),
        pa.array(rank, _RANK, mask=rank < 0), names.column(), pa.array(np.concatenate(found)),
        models.column(empty_is_unknown=True),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays([*columns, *origins.columns()], schema=SCHEMAS["metrics"])


def iterations(messages: Sequence[Message]) -> Any | None:
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
    return row_batch("iterations", rows)


def logs(messages: Sequence[Message]) -> Any | None:
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
    return row_batch("logs", rows)


_OF_CALLS = ("of", "functions", "steps", "call_bytes")
_OF_CALLS_IF_TOLD = ("device_s", "enqueued_s", "peers")
_OF_COMMS_IF_TOLD = ("groups", "sizes", "node_counts")


def _check_calls(record: CollectivesRecord) -> None:
    calls, comms = len(record.seqs), len(record.comms)
    lanes = [(name, calls, False) for name in _OF_CALLS] + [(name, calls, True) for name in _OF_CALLS_IF_TOLD]
    lanes += [("places", comms, False)] + [(name, comms, True) for name in _OF_COMMS_IF_TOLD]
    for name, size, may_be_empty in lanes:
        found = len(getattr(record, name))
        if found != size and not (may_be_empty and not found):
            raise RecordError(f"the {name} of a collectives record are {found}, not {size}")
    if calls and not 0 <= min(record.of) <= max(record.of) < comms:
        raise RecordError("a call of a collectives record is of a communicator that it does not name")


def collectives(messages: Sequence[Message]) -> Any | None:
    """One row a call; a record that tells counts alone has none."""
    words = {name: _Words() for name in ("node", "incarnation", "comm", "group", "func")}
    cells: dict[str, list[Any]] = {name: [] for name in SCHEMAS["collectives"].names if name not in words}
    origins = _Origins()
    for message in messages:
        record = message.record
        assert isinstance(record, CollectivesRecord)
        _check_calls(record)
        calls = len(record.seqs)
        origins.add(message, calls)
        if not calls:
            continue
        of, every = np.array(record.of, np.int64), np.zeros(calls, np.int64)
        words["node"].add([record.node], every)
        words["incarnation"].add([record.incarnation], every)
        words["comm"].add(record.comms, of)
        words["group"].add(record.groups or ("",) * len(record.comms), of)
        words["func"].add(record.functions, np.arange(calls))
        _add_numbers(cells, record, of)
    if not sum(origins.sizes):
        return None
    schema = SCHEMAS["collectives"]
    made = {name: column.column(empty_is_unknown=name == "group") for name, column in words.items()}
    made |= {name: pa.concat_arrays(parts) for name, parts in cells.items() if parts}
    made |= dict(zip(schema.names[-3:], origins.columns(), strict=True))
    return pa.RecordBatch.from_arrays([made[name] for name in schema.names], schema=schema)


def _add_numbers(cells: dict[str, list[Any]], record: CollectivesRecord, of: Any) -> None:
    """The columns of a record's calls that are no words; what is not told is null, as are 0 ranks or nodes."""
    calls, schema = len(record.seqs), SCHEMAS["collectives"]
    of_comm = {"size": record.sizes, "place": record.places, "nodes": record.node_counts}
    of_call = {
        "seq": record.seqs, "step": record.steps, "bytes": record.call_bytes, "device_s": record.device_s,
        "enqueued_s": record.enqueued_s, "peer": record.peers,
    }  # fmt: skip
    alike: dict[str, Any] = {"time_s": record.time_s, "rank": record.rank}
    for name, told in of_comm.items():
        known = [value if value or name == "place" else None for value in told] or [None] * len(record.comms)
        cells[name].append(pa.array(known, schema.field(name).type).take(pa.array(of)))
    for name, values in of_call.items():
        cells[name].append(pa.array(values or (None,) * calls, schema.field(name).type))
    for name, value in alike.items():
        cells[name].append(pa.array(np.full(calls, value), schema.field(name).type))


def row_batch(topic: str, rows: Sequence[tuple[Any, ...]]) -> Any | None:
    """`rows` of Python values in the columns of `topic`; None if there are none."""
    if not rows:
        return None
    schema = SCHEMAS[topic]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
