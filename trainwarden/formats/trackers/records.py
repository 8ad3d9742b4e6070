"""Format: JSON records, one a line or in a list, as trackers (W&B, MLflow) and own scripts write them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.interpret import interpreted
from trainwarden.formats.protocol import LIKELY, NEVER, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import Times
from trainwarden.formats.table import Table
from trainwarden.recorded.logs import LogRow, read_rows

MAX_BYTES: Final = 256 * 1024 * 1024
_LISTS: Final = ("metrics", "history", "rows", "records", "data", "log_history")
_WORDS: Final = (
    '"step"',
    '"_step"',
    '"timestamp"',
    '"_timestamp"',
    '"time"',
    '"time_s"',
    '"ts"',
    '"@timestamp"',
    '"iteration"',
    '"current_steps"',
    '"iter"',
    '"global_step"',
)
_TIMES: Final = ("ts", "time", "timestamp", "@timestamp", "_timestamp", "datetime", "date", "asctime", "time_s")
_FEWEST: Final = 3  # objects of a file of which other lines are no JSON
_OTHERS: Final = ('"traceEvents"', '"resultType"', '"pg_config"', '"communicators"', '"line"', '"coll_perf"')


class JsonRecords:
    """Objects whose keys are columns; nested ones are joined by dots."""

    name = "json records"

    def sniff(self, name: str, head: str) -> float:
        """Likely where objects name a step or a time, and no other format's keys."""
        start = head.lstrip()[:1]
        if start not in ("{", "[") or any(key in head for key in _OTHERS):
            return NEVER
        one = head[:4_000]
        if not any(word in one for word in _WORDS):
            return NEVER
        return LIKELY if name.endswith((".json", ".jsonl", ".ndjson", ".txt", ".log")) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        rows, texts = _rows(source)
        frame = pd.json_normalize(rows[:2_000_000]) if rows else pd.DataFrame()
        if not len(frame):
            raise DataError(f"{source.name} holds no records")
        frame = frame[[one for one in frame.columns if not frame[one].map(lambda cell: isinstance(cell, list)).any()]]
        found = interpreted(Table(source.name, frame, columns, range(1, len(frame) + 1)))
        if texts:
            found.logs.append(read_rows(_texts(rows, texts), source.name).table)
            found.notes.append(f"{len(texts)} lines that are no JSON are read as lines of a log")
        return found


def _texts(rows: Sequence[dict[str, Any]], texts: Sequence[tuple[int, str]]) -> list[LogRow]:
    """Lines between the records, each at the time of the record before it."""
    cells = [next((row[key] for key in _TIMES if row.get(key) not in (None, "")), None) for row in rows]
    times_s = Times(cells).values_s.tolist()
    at = [times_s[max(0, place - 1)] for place, _ in texts]
    return [LogRow(line, None if math.isnan(time_s) else time_s) for (_, line), time_s in zip(texts, at, strict=True)]


def _rows(source: Source) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    data = source.data(MAX_BYTES)
    try:
        whole = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        whole = with_nan(data)
    if whole is None:
        return _by_line(data, source.name)
    if isinstance(whole, dict) and isinstance(hits := whole.get("hits"), dict):  # Elasticsearch's answer
        whole = [one.get("_source") for one in hits.get("hits") or [] if isinstance(one, dict)]
    if isinstance(whole, dict):
        inner = next((whole[key] for key in _LISTS if isinstance(whole.get(key), list)), None)
        if inner is None and whole and all(isinstance(value, list) for value in whole.values()):
            even = len({len(value) for value in whole.values()}) == 1
            inner = [dict(zip(whole, row, strict=True)) for row in zip(*whole.values(), strict=True)] if even else None
        whole = [whole] if inner is None else inner
    if not isinstance(whole, list):
        raise DataError(f"{source.name} holds no list of records")
    return [row for row in whole if isinstance(row, dict)], []


def with_nan(data: bytes) -> Any:
    """JSON in which NaN and Infinity stand bare, as Python writes it, with these as words; None if it is none."""
    if b"NaN" not in data and b"Infinity" not in data:
        return None
    try:
        return json.loads(data, parse_constant=str)
    except (ValueError, RecursionError):
        return None


def answers_of(source: Source) -> Iterator[Any]:
    """The file's JSON, or that of each of its lines; one that was cut off while it was written is left out.

    Raises
    ------
    DataError
        If it is none.
    """
    data = source.data()
    try:
        yield msgspec.json.decode(data)
        return
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        whole = error
    if (loose := with_nan(data)) is not None:
        yield loose
        return
    lines = [line for line in data.split(b"\n") if line.strip()]
    for number, line in enumerate(lines, 1):
        try:
            yield msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if number == len(lines) and number > 1:
                return
            raise DataError(f"{source.name} is not JSON: {whole}") from error


def _by_line(data: bytes, name: str) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """The objects, and what else stands between them: how many came before it, and its words.

    A program's own records share its output with libraries that know no JSON. What begins like an object and is none
    is broken, and of that a file may hold little.
    """
    found: list[dict[str, Any]] = []
    texts: list[tuple[int, str]] = []
    bad = 0
    first = ""
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if isinstance(row := with_nan(line), dict):
                found.append(row)
                continue
            if line.lstrip()[:1] == b"{" or not line.strip(b"\0 \t\r"):
                bad += 1
            else:
                texts.append((len(found), line.decode("utf-8", "replace").rstrip("\r")))
            first = first or f"line {number}: {error}"
            continue
        if isinstance(row, dict):
            found.append(row)
    if bad > 1 + len(found) // 100 or (texts and len(found) < _FEWEST):
        raise DataError(f"{name} {first}; {bad + len(texts)} lines are no JSON")
    return found, texts
