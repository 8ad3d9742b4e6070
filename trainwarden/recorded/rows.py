"""What the rows of both tables have in common: times, whole numbers, and who they are about, each checked.

Every refusal is one sentence with file, line and column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import numpy as np

from trainwarden.errors import DataError
from trainwarden.recorded.columns import Columns, Roles, is_csv, parse_number
from trainwarden.recorded.csv_columns import read_csv
from trainwarden.recorded.files import shown
from trainwarden.recorded.job import Floats, Ints
from trainwarden.recorded.log_stamps import iso_time_s
from trainwarden.recorded.parquet_columns import read_parquet

MAX_RANK = 1_000_000  # exclusive, as in `trainwarden.records.Rank`
_MAX_WHOLE = 2.0**53  # above it floats skip whole numbers
_MAX_TIME_S = 1e20  # more is no time in any unit
# From here on a number is no time in that unit: 1e11 s is the year 5138, 1e11 ms was in 1973.
_EPOCHS = (
    (1e11, 1.0, "seconds"), (1e14, 1e-3, "milliseconds"), (1e17, 1e-6, "microseconds"), (1e20, 1e-9, "nanoseconds"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Owners:
    """Who the rows are about: `code[row]` is the place in the lists."""

    code: Ints
    nodes: tuple[str | None, ...]
    ranks: tuple[int | None, ...]
    devices: tuple[str | None, ...]


def read_columns(path: Path, file: str, roles: Roles) -> Columns:
    """Read a table.

    Parameters
    ----------
    path : Path
        ``.csv``, ``.csv.gz`` or ``.parquet``.
    file : str
        Its name in messages.
    roles : callable
        ``roles(column name)`` is ``"number"``, ``"text"`` or ``"skip"``.

    Raises
    ------
    DataError
        One sentence with file, line and column.
    """
    return read_csv(path, file, roles) if is_csv(path) else read_parquet(path, file, roles)


def require(columns: Columns, one_of: Sequence[str]) -> None:
    """Raise unless the file has one of these columns."""
    if not any(name in columns.names for name in one_of):
        place = columns.file if columns.line_of is None else f"{columns.file} line 1"
        raise DataError(f"{place}: there is no column {' or '.join(one_of)}")


def fail(columns: Columns, row: int, column: str, what: str) -> NoReturn:
    """Raise with the place of a cell and `what` is wrong there."""
    raise DataError(f"{columns.at(row, column)}: {what}")


def refuse(columns: Columns, column: str, wrong: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], rule: str) -> None:
    """Raise at the first row for which `wrong` is true."""
    if wrong.any():
        row = int(np.argmax(wrong))
        value = float(columns.numbers[column][row])
        fail(columns, row, column, "the cell is empty" if np.isnan(value) else f"{value:g} {rule}")


def has_times(columns: Columns) -> bool:
    """Whether a time is given; a column of nothing but empty cells gives none."""
    if "time_s" in columns.numbers:
        return not bool(np.isnan(columns.numbers["time_s"]).all())
    stamps = columns.texts.get("timestamp")
    return stamps is not None and any(value is not None for value in stamps.values)


def times_s_of(columns: Columns) -> Floats:
    """`time_s`, else `timestamp` as seconds since the Unix epoch; every row must have one.

    Numbers too large for seconds are taken for milli-, micro- or nanoseconds (`epoch_factor`).
    """
    if "time_s" in columns.numbers:
        times_s = columns.numbers["time_s"]
        refuse(columns, "time_s", ~(np.abs(times_s) < _MAX_TIME_S), "is not a time in seconds")
        return times_s * epoch_factor(times_s)[0]
    stamps = columns.texts["timestamp"]
    parsed = np.array([np.nan if value is None else iso_time_s(value) for value in stamps.values], np.float64)
    times_s = parsed[stamps.codes]
    wrong = np.isnan(times_s)
    if wrong.any():
        row = int(np.argmax(wrong))
        text = stamps.values[int(stamps.codes[row])]
        what = "the cell is empty" if text is None else f"{shown(text)} is not an ISO 8601 time"
        fail(columns, row, "timestamp", what)
    return times_s


def epoch_factor(times: Floats) -> tuple[float, str]:
    """What `times` are to be multiplied by to be seconds, and the unit that they are taken for by their magnitude.

    Examples
    --------
    >>> [epoch_factor(np.array([one]))[1] for one in (12.5, 1.79e9, 1.79e12, 1.79e15, 1.79e18)]
    ['seconds', 'seconds', 'milliseconds', 'microseconds', 'nanoseconds']
    """
    known = np.abs(times[np.isfinite(times)])
    middle = float(np.median(known)) if known.size else 0.0
    return next(((factor, unit) for most, factor, unit in _EPOCHS if middle < most), (1.0, "seconds"))


def time_notes(columns: Columns) -> tuple[str, ...]:
    """What `times_s_of` assumed of the times of a table."""
    if "time_s" not in columns.numbers:
        return ()
    unit = epoch_factor(columns.numbers["time_s"])[1]
    return () if unit == "seconds" else (f"{columns.file}: times taken for {unit} since 1970",)


def not_negative(columns: Columns, name: str) -> Floats:
    """An optional column of amounts: NaN where nothing finite was measured."""
    values = columns.numbers.get(name)
    if values is None:
        return np.full(columns.rows, np.nan)
    refuse(columns, name, values < 0.0, "is below zero")
    return np.where(np.isfinite(values), values, np.nan)


def whole(columns: Columns, name: str, values: Floats, low: int, missing: int | None = None) -> Ints:
    """`values` of column `name` as whole numbers from `low` on; an empty cell is `missing`, or wrong without it."""
    wrong = ~(np.isfinite(values) & (values >= low) & (values < _MAX_WHOLE) & (np.floor(values) == values))
    if missing is not None:
        absent = np.isnan(values)
        wrong &= ~absent
        values = np.where(absent, missing, values)
    refuse(columns, name, wrong, f"is not a whole number from {low}")
    return values.astype(np.int64)


def rank_of(text: str | None) -> int | None:
    """Rank of a cell, also as ``3.0`` (pandas writes whole numbers so beside empty cells); -1 if it is none."""
    number = parse_number(text or "")
    if number is not None and math.isnan(number):
        return None
    if number is None or not 0 <= number < MAX_RANK or number != int(number):
        return -1
    return int(number)


def owners_of(columns: Columns, names: Sequence[str]) -> Owners:
    """Number the different (node, rank, device) that the rows name, in the order in which they appear."""
    import pandas as pd  # as in `by_appearance`

    key = np.zeros(columns.rows, np.int64)
    for name in names:
        column = columns.texts.get(name)
        if column is None:
            continue
        codebook: dict[str | int | None, int] = {}
        values = [rank_of(value) for value in column.values] if name == "rank" else column.values
        places = np.array([codebook.setdefault(value, len(codebook)) for value in values], np.int64)
        code = places[column.codes]
        if -1 in codebook:
            row = int(np.argmax(code == codebook[-1]))
            text = column.values[int(column.codes[row])]
            fail(columns, row, name, f"{shown(text)} is not a rank (a whole number from 0)")
        # Renumbered at each turn, so that the key stays below rows x distinct values.
        key = pd.factorize(key * len(codebook) + code)[0]
    first = np.flatnonzero(~pd.Series(key).duplicated())

    def cells(name: str) -> tuple[str | None, ...]:
        column = columns.texts.get(name) if name in names else None
        return tuple(column.values[int(column.codes[row])] if column else None for row in first)

    return Owners(key, cells("node"), tuple(map(rank_of, cells("rank"))), cells("device"))


def by_appearance(code: Ints) -> tuple[Ints, list[int]]:
    """Codes renumbered by first appearance, and the old code of each new one."""
    import pandas as pd  # costs 0.4 s, which those that only write a recording need not pay

    new, old = pd.factorize(code)
    return new, old.tolist()
