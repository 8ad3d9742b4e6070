"""Format: log lines as services keep them, JSON or CSV: CloudWatch, Loki, Elasticsearch, journald, Docker."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.frames import header_cells, read_cells
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import Times
from trainwarden.recorded.logs import LogRow, read_rows

_LINE: Final = ("log", "message", "@message", "msg", "line", "textpayload", "jsonpayload.message", "content", "body",
         "event")  # fmt: skip
_TIME: Final = (
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "date",
    "datetime",
    "_time",
    "__realtime_timestamp",
    "asctime",
    "tsns",
)
_NODE: Final = (
    "node", "host", "hostname", "_hostname", "node_name", "kubernetes.host", "kubernetes.node_name", "pod", "pod_name",
    "kubernetes.pod_name", "resource.labels.pod_name", "logstreamname",
    *(f"labels.{word}" for word in ("node", "node_name", "nodename", "host", "hostname", "_hostname", "instance",
                                    "exported_instance", "kubernetes_node", "k8s_node_name", "k8s.node.name",
                                    "host_name", "host.name", "pod", "pod_name", "kubernetes_pod_name",
                                    "k8s_pod_name")),
    "@logstream",
)  # fmt: skip
_RANK: Final = ("rank", "global_rank", "process_rank", "labels.rank", "extra.rank", "jsonpayload.rank")
# Where loggers put a traceback.
_RAISED: Final = ("exc_info", "exception", "exc_text", "exc", "traceback", "stack_trace", "stack", "error.stack_trace",
                  "error.stack")  # fmt: skip
_LISTS: Final = ("events", "logs", "entries", "results", "data", "hits", "rows")
_KEY: Final = re.compile(r'"(?:log|message|@message|msg|line|textPayload|MESSAGE|body|content)"\s{0,3}:\s{0,3}"[^"]')
_AT: Final = re.compile(
    r'"(?:time|timestamp|@timestamp|ts|date|_time|__REALTIME_TIMESTAMP|asctime|level|levelname|severity|rank)"\s{0,3}:'
)
_STREAMS: Final = '"resultType":"streams"'
_CERTAIN: Final = SURE + 0.05  # a column of words is no metric, whatever else the header names
_TIMES: Final = 1e11  # numbers as large are times and names, not what a trainer tells
_MOST_DIGITS: Final = 6  # of a rank
_MOST_NUMBERS: Final = 40  # fields of one record that are shown behind its words


class LogRecords:
    """Lines with their times; other numbers of a record stand behind its words, as trainers print them."""

    name = "log records"

    def sniff(self, name: str, head: str) -> float:
        """Sure where records hold words and a time, or a header names both."""
        start = head.lstrip()[:1]
        if start in {"{", "["}:
            own = '"coll_perf"' in head or '"traceEvents"' in head or ('"line"' in head and name.startswith("logs"))
            told = _KEY.search(head) is not None and _AT.search(head) is not None
            streams = _STREAMS in head.replace(" ", "")[:4_000]
            return _CERTAIN if (told and not own) or streams else NEVER
        if not name.endswith((".csv", ".tsv", ".txt")):
            return NEVER
        cells = [cell.strip().lower() for cell in header_cells(head)]
        told = any(cell in _LINE for cell in cells) and any(cell in _TIME for cell in cells)
        return _CERTAIN if told else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text()
        records = list(_of_json(text) if text.lstrip()[:1] in {"{", "["} else _of_table(text, source.name))
        if not records:
            raise DataError(f"{source.name} holds no log lines")
        table = read_rows(_rows(records), source.name).table
        return Found(rows=len(table.lines), logs=[table])


def _of_table(text: str, name: str) -> Iterator[dict[str, Any]]:
    frame = read_cells(text, name).frame
    keys = [str(column).strip().lower() for column in frame.columns]
    yield from (dict(zip(keys, row, strict=True)) for row in frame.to_numpy().tolist())


def _of_json(text: str) -> Iterator[dict[str, Any]]:
    try:
        whole = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        for line in text.split("\n"):
            try:
                one = msgspec.json.decode(line) if line.strip() else None
            except (msgspec.DecodeError, RecursionError):
                one = {"line": line}  # a program that writes past its logger
            yield from _records(one)
        return
    yield from _records(whole)


def _records(found: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Records in lists within lists, streams of Loki as records of their own."""
    if isinstance(found, list):
        for one in found:
            yield from _records(one, depth)
        return
    if not isinstance(found, dict):
        return
    if isinstance(found.get("values"), list) and isinstance(found.get("stream"), dict):
        for pair in found["values"]:
            if isinstance(pair, list) and len(pair) >= 2:
                yield _flat({"labels": found["stream"], "time": pair[0], "line": pair[1]})
        return
    inner = next((found[key] for key in (*_LISTS, "result") if isinstance(found.get(key), list | dict)), None)
    if inner is not None and depth < 3 and not any(key in found for key in ("message", "log", "msg", "line")):
        yield from _records(inner, depth + 1)
        return
    yield _flat(found["_source"] if isinstance(found.get("_source"), dict) else found)


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """`record` with the keys of what is nested joined by dots, in lower case; two levels down."""
    flat: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{before}{key}".lower()
        if isinstance(value, dict):
            flat.update(_flat(value, f"{name}.") if name.count(".") < 2 else {})
        else:
            flat[name] = value
    return flat


def _rows(records: Sequence[dict[str, Any]]) -> list[LogRow]:
    """Rows in the order of their times; what services list newest first is turned round."""
    times_s = Times([_first(record, _TIME) for record in records]).values_s
    rows = [
        [
            LogRow(line, None if np.isnan(time_s) else float(time_s), _text(_first(record, _NODE)), _rank(record))
            for line in _lines(record)
        ]
        for record, time_s in zip(records, times_s.tolist(), strict=True)
    ]
    known = times_s[np.isfinite(times_s)]
    newest_first = known.size > 1 and known[0] > known[-1] and float((np.diff(known) <= 0.0).mean()) > 0.5
    return [row for said in (rows[::-1] if newest_first else rows) for row in said]


def _first(record: Mapping[str, Any], keys: Iterable[str]) -> Any:
    return next((record[key] for key in keys if record.get(key) not in (None, "")), None)


def _rank(record: Mapping[str, Any]) -> int | None:
    told = str(_first(record, _RANK))
    return int(told) if told.isdecimal() and len(told) <= _MOST_DIGITS else None


def _lines(record: Mapping[str, Any]) -> list[str]:
    """The words of a record, a traceback behind them."""
    more = [str(record[key]) for key in _RAISED if isinstance(record.get(key), str)]
    return [line for text in (_line(record), *more) for line in text.split("\n")]


def _line(record: Mapping[str, Any]) -> str:
    said = _text(_first(record, _LINE)) or ""
    taken = {*_LINE, *_TIME, *_NODE, *_RANK}
    numbers = [
        f"{key}: {value}"
        for key, value in record.items()
        if key not in taken and isinstance(value, int | float) and not isinstance(value, bool) and value < _TIMES
    ][:_MOST_NUMBERS]
    return " | ".join([said.rstrip("\n"), *numbers])


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
