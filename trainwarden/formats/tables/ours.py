"""Format: the documented tables of a recorded folder (docs/data.md), read strictly, in CSV or Parquet."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence

from trainwarden.catalogue import lookup
from trainwarden.formats import names
from trainwarden.formats.building import too_many
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.series import series_of
from trainwarden.formats.source import Source
from trainwarden.formats.steps import is_loss
from trainwarden.formats.tables.plain import PlainTable
from trainwarden.formats.vocabulary import SHORT
from trainwarden.recorded.columns import ID_COLUMNS, TIME_COLUMNS
from trainwarden.recorded.iterations import read_collectives, read_iterations
from trainwarden.recorded.job import MetricTable
from trainwarden.recorded.metrics import read_metrics

_OTHERS = (*names.TIME, *names.NODE, *names.DEVICE, *names.RANK, *names.MODEL, *names.VALUE)
_OURS = frozenset({*TIME_COLUMNS, *ID_COLUMNS, "model"})
_CALLS = frozenset({"step", "rank", "comm", "func", "seq", "bytes", "device_s"})


class OurTable:
    """`metrics`, `iterations` or `collectives`."""

    name = "recorded table"

    def sniff(self, name: str, head: str) -> float:
        """Sure where the header is ours throughout."""
        if name.endswith(".parquet"):
            return NEVER  # by `parquet_kind`, which needs the whole file
        return SURE if kind_of(header_of(head)) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        kind = parquet_kind(source) if source.stem.endswith(".parquet") else kind_of(header_of(source.head))
        found = Found()
        if kind == "metrics" and (metrics := read_metrics(source.path, source.name)) is not None:
            refuse_collapsed(source, metrics, columns)
            found.metrics.append(metrics)
            found.rows = int(metrics.times_s.size)
        elif kind == "iterations" and (iterations := read_iterations(source.path, source.name)) is not None:
            found.iterations.append(iterations)
            found.rows = int(iterations.step.size)
        elif kind == "collectives" and (calls := read_collectives(source.path, source.name)) is not None:
            found.collectives.append(calls)
            found.rows = int(calls.step.size)
        return found


def refuse_collapsed(source: Source, table: MetricTable, columns: Mapping[str, str]) -> None:
    """Raise where so many rows contradict others that a column which says whose they are must be missing.

    Raises
    ------
    DataError
        With the column that looks like it.
    """
    if too_many(table.replaced, table.times_s.size + table.replaced) and not source.stem.endswith(".parquet"):
        PlainTable().read(source, columns)


def header_of(head: str) -> tuple[str, ...]:
    """Names of the columns of a CSV table."""
    try:
        return tuple(name.strip() for name in next(csv.reader([head.split("\n", 1)[0]]), []))
    except csv.Error:
        return ()


def parquet_kind(source: Source) -> str:
    """As `kind_of`, of a Parquet file; "" where it cannot be opened."""
    try:
        import pyarrow as pa
        from pyarrow import parquet

        return kind_of(tuple(parquet.read_schema(source.path).names))
    except (ImportError, pa.ArrowException, OSError):
        return ""


def kind_of(header: Sequence[str]) -> str:
    """``metrics``, ``iterations`` or ``collectives``; "" for a table that is not in our layout.

    Examples
    --------
    >>> kind_of(("time_s", "node", "device", "load")), kind_of(("step", "duration_s")), kind_of(("time_s", "gpu", "x"))
    ('metrics', 'iterations', '')
    >>> kind_of(("timestamp", "temperature.gpu")), kind_of(("time_s", "temp_gpu0", "temp_gpu1"))
    ('', '')
    """
    if set(header) >= _CALLS:
        return "collectives"
    if {"step", "duration_s"} <= set(header):
        return "iterations"
    if not set(header) & set(TIME_COLUMNS):
        return ""
    rest = [name for name in header if name not in _OURS]
    gpus = "device" in header
    wide = sum(series_of(name).device is not None and series_of(name).metric is not None for name in rest)
    foreign = any(
        names.plain(name) in _OTHERS or (lookup(name) is None and names.metric_of(name) is not None
                                         and (gpus or names.plain(name) not in SHORT))
        for name in rest
    )  # fmt: skip
    steps = any(names.known(name, names.STEP) for name in rest) and any(
        names.duration_factor(name) is not None or names.is_rate(name) or is_loss(name) for name in rest
    )
    return "" if foreign or wide > 1 or steps else "metrics"
