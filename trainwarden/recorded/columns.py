"""Columns of a recorded table: numbers as float arrays, texts as codes into distinct values.

Read from CSV by `trainwarden.recorded.csv_columns`, from Parquet by `trainwarden.recorded.parquet_columns`; what counts
as a number and as not measured is here, so that both agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainwarden.errors import DataError
from trainwarden.recorded.files import shown
from trainwarden.recorded.job import Floats, Ints

ID_COLUMNS = ("node", "rank", "device")
TIME_COLUMNS = ("time_s", "timestamp")
MAX_CELLS = 2_000_000_000  # 16 GB as floats; more is a mistake or an attack, not a recording
# What exporters, pandas and nvidia-smi write where nothing was measured.
NOT_MEASURED = ("", "nan", "NaN", "NAN", "-nan", "-NaN", "NA", "N/A", "[N/A]", "null", "NULL", "None", "<NA>")
_NOT_MEASURED = frozenset(NOT_MEASURED)

Roles = Callable[[str], str]
"""What a column is read as by its name: ``"number"``, ``"text"`` or ``"skip"``."""


@dataclass(frozen=True, slots=True)
class Texts:
    """A column of text: `codes[row]` is the place in `values`; an empty cell is None there."""

    codes: Ints
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Columns:
    """What a table holds, in the order of its rows.

    Attributes
    ----------
    file : str
        Name for messages.
    names : tuple of str
        All columns of the file, in its order.
    numbers : dict of float arrays [rows]
        NaN where a cell is empty; infinities as written.
    texts : dict of Texts
    origin : int array [rows] or None
        Row of the file that each row was, where not all were read.
    line_of : callable or None
        The line of a row of the file; None where it has no lines (Parquet).
    """

    file: str
    names: tuple[str, ...]
    rows: int
    numbers: dict[str, Floats] = field(default_factory=dict)
    texts: dict[str, Texts] = field(default_factory=dict)
    origin: Ints | None = None
    line_of: Callable[[int], int] | None = None

    def at(self, row: int, column: str) -> str:
        """Where a cell stands: file, line (of Parquet: row, from 1) and column."""
        row = row if self.origin is None else int(self.origin[row])
        place = f"row {row + 1}" if self.line_of is None else f"line {self.line_of(row)}"
        return f"{self.file} {place}, column {column}"


def is_csv(path: Path) -> bool:
    """Whether a table has lines; else it is Parquet."""
    return path.suffix != ".parquet"


def checked_names(file: str, place: str, names: Sequence[str]) -> tuple[str, ...]:
    """Column names without blanks around; a name that stands twice is an error, a column without name is skipped."""
    stripped = tuple(name.strip() for name in names)
    seen: set[str] = set()
    for name in stripped:
        if name and name in seen:
            raise DataError(f"{file}{place}: two columns are called {shown(name)}")
        seen.add(name)
    return stripped


def parse_number(cell: str) -> float | None:
    """The number that `cell` holds, NaN if it says that nothing was measured, None if it is no number.

    Examples
    --------
    >>> parse_number(" 1.5e3 "), parse_number("N/A"), parse_number("1_0"), parse_number("abc")
    (1500.0, nan, None, None)
    """
    try:
        number = float(cell)
    except ValueError:
        return math.nan if cell.strip() in _NOT_MEASURED else None
    return number if "_" not in cell and cell.isascii() else None  # Python's own spellings


def arrow_texts(column: Any) -> Texts:
    """`Texts` of a dictionary column of pyarrow."""
    merged = column.unify_dictionaries().combine_chunks() if column.num_chunks else column
    if not column.num_chunks:
        return Texts(np.empty(0, np.int64), ())
    values = [value.strip() if value else None for value in merged.dictionary.to_pylist()]
    codes = merged.indices.fill_null(len(values)).to_numpy().astype(np.int64)
    return Texts(codes, (*(value or None for value in values), None))
