"""Format: answers of Prometheus' HTTP API (`query_range`, `query`) as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trainwarden.errors import DataError
from trainwarden.formats import names
from trainwarden.formats.exporters.exposition import found_of
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.series import labelled
from trainwarden.formats.source import Source

MAX_BYTES: Final = 512 * 1024 * 1024


class _Series(msgspec.Struct):
    metric: dict[str, str] = {}
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


class _Data(msgspec.Struct):
    result: list[_Series] = []


class _Answer(msgspec.Struct):
    data: _Data
    status: str = "success"
    error: str = ""


class QueryRange:
    """A matrix or a vector; the metric is in ``__name__``, else in the file's name or `--columns metric=NAME`."""

    name = "prometheus json"

    def sniff(self, name: str, head: str) -> float:
        """By the keys of an answer."""
        del name
        start = head.lstrip()[:2_000]
        bare = start.startswith("[") and '"metric"' in start and ('"values"' in start or '"value"' in start)
        return SURE if bare or (start.startswith("{") and '"resultType"' in start) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        if source.head.lstrip().startswith("["):  # the result alone, as `jq .data.result` and clients keep it
            answer = _Answer(_Data(decoded_json(source, list[_Series])))
        else:
            answer = decoded_json(source, _Answer)
        if answer.status != "success":
            raise DataError(f"{source.name}: the query failed: {answer.error}")
        default = columns.get("metric") or source.stem.partition(".")[0]
        rows: list[tuple[float, str | None, str | None, str, float]] = []
        unknown: set[str] = set()
        for series in answer.data.result:
            name = series.metric.get("__name__") or default
            heading = names.metric_of(name)
            points = series.values or ([series.value] if series.value is not None else [])
            if heading is None:
                unknown.add(name)
                continue
            told = labelled(heading, series.metric)
            if told.metric is None:
                continue
            for time_s, text in points:
                rows.append((time_s, told.node, told.device, heading.name, _float(text) * heading.factor))
        return found_of(source, rows, unknown, "; name it: --columns metric=gpu_temperature_celsius")


def decoded_json(source: Source, kind: Any) -> Any:
    """The JSON of a file.

    Raises
    ------
    DataError
        If it is none, or of another form.
    """
    try:
        return msgspec.json.decode(source.data(MAX_BYTES), type=kind, strict=False)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{source.name} is not the JSON that it looks like: {error}") from error


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
