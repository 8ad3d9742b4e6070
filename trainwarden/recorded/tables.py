"""The two tables of a recorded folder: metrics and iterations, checked and in time order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from trainwarden.catalogue import lookup
from trainwarden.errors import DataError
from trainwarden.recorded.columns import Columns, is_csv, parse_number, read_columns
from trainwarden.recorded.files import shown
from trainwarden.recorded.job import Floats, Ints, IterationTable, MetricTable
from trainwarden.recorded.log_stamps import iso_time_s
from trainwarden.recorded.part import ReadLimit
from trainwarden.recorded.sample import columns_within

ID_COLUMNS = ("node", "rank", "device")
MAX_RANK = 1_000_000  # exclusive, as in `trainwarden.records.Rank`
_MAX_WHOLE = 2.0**53  # above it floats skip whole numbers
_MAX_TIME_S = 1e15  # more are micro- or nanoseconds
_MAX_DURATION_S = 1e9  # 30 years
_TIME_COLUMNS = ("time_s", "timestamp")
_SPLIT_COLUMNS = ("compute_s", "wait_s", "pause_s", "micro_batches")
_ITERATION_NUMBERS = frozenset({"time_s", "step", "duration_s", "steps", *_SPLIT_COLUMNS})
_ITERATION_TEXTS = frozenset({"timestamp", "rank", "node", "incarnation"})


@dataclass(frozen=True, slots=True)
class _Owners:
    """Who the rows are about: `code[row]` is the place in the lists."""

    code: Ints
    nodes: tuple[str | None, ...]
    ranks: tuple[int | None, ...]
    devices: tuple[str | None, ...]


def read_metrics(path: Path, file: str, limit: ReadLimit | None = None) -> MetricTable | None:
    """Read `metrics`, as far as `limit` allows; None if it has a header and no rows.

    A catalogue alias is renamed and scaled. Where a table has one metric under several of its names, the catalogue's
    own name is believed first, then the aliases in the order of the columns, cell by cell.

    Raises
    ------
    DataError
        One sentence with file, line and column.
    """

    def role(name: str) -> str:
        return "text" if name in ID_COLUMNS or name == "timestamp" else "number"

    part = None if limit is None else columns_within(path, file, role, limit, _checked_times_s)
    columns, share, ranks = part or (read_columns(path, file, role), 1.0, set[str]())
    _require(columns, _TIME_COLUMNS)
    if columns.rows == 0:
        return None
    if not any(name not in _TIME_COLUMNS for name in columns.numbers):
        raise DataError(f"{file} has no column with a metric")
    times_s = _times_s(columns)
    owners = _owners(columns, ID_COLUMNS)
    order = np.argsort(times_s, kind="stable")
    kept = order[_last_of_each(times_s[order], owners.code[order])]
    names, values = _metric_values(columns, kept)
    code, first = _by_appearance(owners.code[kept])
    return MetricTable(
        times_s=times_s[kept],
        entity=code,
        nodes=tuple(owners.nodes[place] for place in first),
        ranks=tuple(owners.ranks[place] for place in first),
        devices=tuple(owners.devices[place] for place in first),
        id_columns=tuple(name for name in columns.names if name in ID_COLUMNS),
        names=names,
        values=values,
        replaced=columns.rows - len(kept),
        share=share,
        last_rank=max((rank for rank in (*map(_rank_of, ranks), *owners.ranks) if rank is not None), default=None),
    )


def read_iterations(path: Path, file: str) -> IterationTable | None:
    """Read `iterations`; None if it has a header and no rows. Columns that the contract does not name are ignored.

    Without times the end of each step is counted up from zero: a gap in the step numbers counts as steps of the
    duration that follows it. Ranks share their ends; where a rank has a step twice (it was restarted) each rank counts
    for itself, in the order of its rows.

    Raises
    ------
    DataError
        One sentence with file, line and column.
    """

    def role(name: str) -> str:
        return "number" if name in _ITERATION_NUMBERS else "text" if name in _ITERATION_TEXTS else "skip"

    columns = read_columns(path, file, role)
    _require(columns, ("step",))
    _require(columns, ("duration_s",))
    if columns.rows == 0:
        return None
    step = _whole(columns, "step", columns.numbers["step"], 0)
    duration_s = _checked_durations(columns)
    steps = _whole(columns, "steps", columns.numbers["steps"], 1, missing=1) if "steps" in columns.numbers else None
    steps = np.ones(columns.rows, np.int64) if steps is None else steps
    owners = _owners(columns, ("node", "rank"))
    timed = _has_times(columns)
    end_s = _times_s(columns) if timed else _counted_s(owners.code, step, duration_s, steps)
    order = np.argsort(end_s, kind="stable")
    code, first = _by_appearance(owners.code[order])
    splits = {name: _not_negative(columns, name)[order] for name in _SPLIT_COLUMNS}
    incarnation = columns.texts.get("incarnation")
    return IterationTable(
        rank=code,
        ranks=tuple(owners.ranks[place] for place in first),
        nodes=tuple(owners.nodes[place] for place in first),
        step=step[order],
        end_s=end_s[order],
        duration_s=duration_s[order],
        compute_s=splits["compute_s"],
        wait_s=splits["wait_s"],
        pause_s=splits["pause_s"],
        micro_batches=splits["micro_batches"],
        steps=steps[order],
        timed=timed,
        incarnation=tuple(incarnation.values[place] or "" for place in incarnation.codes[order]) if incarnation else (),
    )


def _require(columns: Columns, one_of: Sequence[str]) -> None:
    if not any(name in columns.names for name in one_of):
        place = f"{columns.file} line 1" if is_csv(columns.path) else columns.file
        raise DataError(f"{place}: there is no column {' or '.join(one_of)}")


def _checked_times_s(columns: Columns) -> Floats:
    _require(columns, _TIME_COLUMNS)
    return _times_s(columns)


def _fail(columns: Columns, row: int, column: str, what: str) -> NoReturn:
    raise DataError(f"{columns.at(row, column)}: {what}")


def _refuse(columns: Columns, column: str, wrong: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], rule: str) -> None:
    """Raise at the first row for which `wrong` is true."""
    if wrong.any():
        row = int(np.argmax(wrong))
        value = float(columns.numbers[column][row])
        _fail(columns, row, column, "the cell is empty" if np.isnan(value) else f"{value:g} {rule}")


def _has_times(columns: Columns) -> bool:
    """Whether a time is given; a column of nothing but empty cells gives none."""
    if "time_s" in columns.numbers:
        return not bool(np.isnan(columns.numbers["time_s"]).all())
    stamps = columns.texts.get("timestamp")
    return stamps is not None and any(value is not None for value in stamps.values)


def _times_s(columns: Columns) -> Floats:
    """`time_s`, else `timestamp` as seconds since the Unix epoch; every row must have one."""
    if "time_s" in columns.numbers:
        times_s = columns.numbers["time_s"]
        _refuse(columns, "time_s", ~(np.abs(times_s) < _MAX_TIME_S), "is not a time in seconds")
        return times_s
    stamps = columns.texts["timestamp"]
    parsed = np.array([np.nan if value is None else iso_time_s(value) for value in stamps.values], np.float64)
    times_s = parsed[stamps.codes]
    wrong = np.isnan(times_s)
    if wrong.any():
        row = int(np.argmax(wrong))
        text = stamps.values[int(stamps.codes[row])]
        what = "the cell is empty" if text is None else f"{shown(text)} is not an ISO 8601 time"
        _fail(columns, row, "timestamp", what)
    return times_s


def _checked_durations(columns: Columns) -> Floats:
    duration_s = columns.numbers["duration_s"]
    wrong = ~((duration_s > 0.0) & (duration_s < _MAX_DURATION_S))
    _refuse(columns, "duration_s", wrong, "is not a duration above zero, in seconds")
    return duration_s


def _not_negative(columns: Columns, name: str) -> Floats:
    """An optional column of amounts: NaN where nothing finite was measured."""
    values = columns.numbers.get(name)
    if values is None:
        return np.full(columns.rows, np.nan)
    _refuse(columns, name, values < 0.0, "is below zero")
    return np.where(np.isfinite(values), values, np.nan)


def _whole(columns: Columns, name: str, values: Floats, low: int, missing: int | None = None) -> Ints:
    wrong = ~(np.isfinite(values) & (values >= low) & (values < _MAX_WHOLE) & (np.floor(values) == values))
    if missing is not None:
        absent = np.isnan(values)
        wrong &= ~absent
        values = np.where(absent, missing, values)
    _refuse(columns, name, wrong, f"is not a whole number from {low}")
    return values.astype(np.int64)


def _rank_of(text: str | None) -> int | None:
    """Rank of a cell, also as ``3.0`` (pandas writes whole numbers so beside empty cells); -1 if it is none."""
    number = parse_number(text or "")
    if number is not None and math.isnan(number):
        return None
    if number is None or not 0 <= number < MAX_RANK or number != int(number):
        return -1
    return int(number)


def _owners(columns: Columns, names: Sequence[str]) -> _Owners:
    """Number the different (node, rank, device) that the rows name."""
    key = np.zeros(columns.rows, np.int64)
    for name in names:
        column = columns.texts.get(name)
        if column is None:
            continue
        codebook: dict[str | int | None, int] = {}
        values = [_rank_of(value) for value in column.values] if name == "rank" else column.values
        places = np.array([codebook.setdefault(value, len(codebook)) for value in values], np.int64)
        code = places[column.codes]
        if -1 in codebook:
            row = int(np.argmax(code == codebook[-1]))
            text = column.values[int(column.codes[row])]
            _fail(columns, row, name, f"{shown(text)} is not a rank (a whole number from 0)")
        # Renumbered at each turn, so that the key stays below rows x distinct values.
        key = np.unique(key * len(codebook) + code, return_inverse=True)[1].astype(np.int64)
    _, first = np.unique(key, return_index=True)

    def cells(name: str) -> tuple[str | None, ...]:
        column = columns.texts.get(name) if name in names else None
        return tuple(column.values[int(column.codes[row])] if column else None for row in first)

    return _Owners(key, cells("node"), tuple(map(_rank_of, cells("rank"))), cells("device"))


def _by_appearance(code: Ints) -> tuple[Ints, list[int]]:
    """Codes renumbered by first appearance, and the old code of each new one."""
    old, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    new = np.empty(len(old), np.int64)
    new[order] = np.arange(len(old))
    return new[inverse], [int(place) for place in old[order]]


def _last_of_each(times_s: Floats, code: Ints) -> Ints:
    """Places of the rows that no later row of the same time and owner replaces; `times_s` is sorted."""
    order = np.lexsort((code, times_s))
    same = (times_s[order][1:] == times_s[order][:-1]) & (code[order][1:] == code[order][:-1])
    keep = np.ones(len(order), np.bool_)
    keep[order[:-1][same]] = False
    return np.flatnonzero(keep)


def _metric_values(columns: Columns, kept: Ints) -> tuple[tuple[str, ...], Floats]:
    """Metrics by catalogue name and unit; several columns of one metric are laid over one another."""
    written = [name for name in columns.numbers if name not in _TIME_COLUMNS]
    sources: dict[str, list[str]] = {}
    for name in written:
        metric = lookup(name)
        sources.setdefault(metric.name if metric else name, []).append(name)
    values = np.empty((len(kept), len(sources)))
    for place, (name, columns_of) in enumerate(sources.items()):
        best = np.full(len(kept), np.nan)
        for source in sorted(columns_of, key=lambda source: source != name):
            metric = lookup(source)
            scale = metric.alias_scale if metric and source != name else 1.0
            column = columns.numbers[source][kept] * scale
            usable = np.isnan(best) & np.isfinite(column)
            best[usable] = column[usable]
        values[:, place] = best
    return tuple(sources), values


def _counted_s(code: Ints, step: Ints, duration_s: Floats, steps: Ints) -> Floats:
    """End of every step counted up from zero; see `read_iterations`.

    Ranks that repeat no step share their ends, a step taking what it takes the median rank: a clock of each rank's own
    would drift from the others', although they step together.
    """
    order = np.lexsort((step, code))
    repeated = (np.diff(code[order]) == 0) & (np.diff(step[order]) == 0)
    if repeated.any():
        return _counted_each_s(code, step, duration_s, steps)
    number, place = np.unique(step, return_inverse=True)
    order = np.lexsort((duration_s, place))
    first = np.searchsorted(place[order], np.arange(number.size + 1))
    low, high = order[(first[:-1] + first[1:] - 1) // 2], order[(first[:-1] + first[1:]) // 2]
    counts = steps[low]
    gap = np.diff(number, prepend=number[0] - counts[0])
    ends_s = np.cumsum((duration_s[low] + duration_s[high]) / 2.0 * np.maximum(gap, counts))
    return np.asarray(ends_s[place])


def _counted_each_s(code: Ints, step: Ints, duration_s: Floats, steps: Ints) -> Floats:
    """The same for each rank by itself, in the order of the file where a rank repeats a step."""
    end_s = np.empty(len(step))
    order = np.argsort(code, kind="stable")
    bounds = np.flatnonzero(np.diff(code[order])) + 1
    for rows in np.split(order, bounds):
        by_step = rows[np.argsort(step[rows], kind="stable")]
        repeated = bool((np.diff(step[by_step]) == 0).any())
        taken = rows if repeated else by_step
        gap = np.diff(step[taken], prepend=step[taken[0]] - steps[taken[0]])
        passed = np.maximum(gap, steps[taken])
        end_s[taken] = np.cumsum(duration_s[taken] * passed)
    return end_s
