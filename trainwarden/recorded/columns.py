"""Columns of a recorded table, CSV or Parquet: numbers as float arrays, texts as codes into distinct values.

CSV is read by pyarrow where it is installed. Whatever it refuses, and everything where it is missing, is read again by
the standard library's reader, which follows the same rules and knows the line of every cell.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainwarden.errors import DataError
from trainwarden.recorded.files import bounded_lines, opened, reading, shown
from trainwarden.recorded.job import Floats, Ints

MAX_LINE_BYTES = 4 * 1024 * 1024  # 200,000 columns of 20 characters
MAX_CELLS = 2_000_000_000  # 16 GB as floats; more is a mistake or an attack, not a recording
_BLOCK_BYTES = 2 * MAX_LINE_BYTES
# What exporters, pandas and nvidia-smi write where nothing was measured.
NOT_MEASURED = ("", "nan", "NaN", "NAN", "-nan", "-NaN", "NA", "N/A", "[N/A]", "null", "NULL", "None", "<NA>")
_NOT_MEASURED = frozenset(NOT_MEASURED)


class _Undecided(Exception):
    """The fast reader does not take this file; the exact one shall say why, or read it."""


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
    """

    file: str
    path: Path
    names: tuple[str, ...]
    rows: int
    numbers: dict[str, Floats] = field(default_factory=dict)
    texts: dict[str, Texts] = field(default_factory=dict)
    origin: Ints | None = None

    def at(self, row: int, column: str) -> str:
        """Where a cell stands: file, line (of Parquet: row, from 1) and column."""
        row = row if self.origin is None else int(self.origin[row])
        place = f"line {_line_of(self, row)}" if is_csv(self.path) else f"row {row + 1}"
        return f"{self.file} {place}, column {column}"


def is_csv(path: Path) -> bool:
    """Whether a table has lines; else it is Parquet."""
    return path.suffix != ".parquet"


def read_columns(path: Path, file: str, roles: Callable[[str], str]) -> Columns:
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
    if not is_csv(path):
        from trainwarden.recorded.parquet import read_parquet

        return read_parquet(path, file, roles)
    with reading(file):
        names = _header(path, file)
        try:
            return _read_fast(path, file, names, roles)
        except _Undecided:
            return _read_exact(path, file, names, roles)


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


def _header(path: Path, file: str) -> tuple[str, ...]:
    with opened(path) as stream:
        first = next(bounded_lines(stream, file, MAX_LINE_BYTES), b"")
    if not first:
        raise DataError(f"{file} is empty")
    try:
        names = next(csv.reader([first.decode("utf-8-sig")], strict=True), [])
    except UnicodeDecodeError as error:
        raise DataError(f"{file} line 1: not UTF-8 text at byte {error.start + 1}") from error
    except csv.Error as error:
        raise DataError(f"{file} line 1: {error}") from error
    if not any(name.strip() for name in names):
        raise DataError(f"{file} line 1: there are no column names")
    return checked_names(file, " line 1", names)


def _read_fast(path: Path, file: str, names: tuple[str, ...], roles: Callable[[str], str]) -> Columns:
    try:
        import pyarrow as pa
        from pyarrow import csv as arrow_csv
    except ImportError as error:
        raise _Undecided from error
    keys = [f"c{place}" for place in range(len(names))]
    kinds = {key: roles(name) if name else "skip" for key, name in zip(keys, names, strict=True)}
    types = {"number": pa.float64(), "text": pa.dictionary(pa.int32(), pa.string())}
    wanted = [key for key in keys if kinds[key] != "skip"]
    if not wanted:
        raise _Undecided
    convert = arrow_csv.ConvertOptions(
        column_types={key: types[kinds[key]] for key in wanted},
        include_columns=wanted,
        null_values=list(NOT_MEASURED),
        strings_can_be_null=False,
        check_utf8=True,
    )
    read = arrow_csv.ReadOptions(column_names=keys, skip_rows=1, block_size=_BLOCK_BYTES)
    try:
        with pa.input_stream(str(path), compression="gzip" if path.suffix == ".gz" else None) as stream:
            table = arrow_csv.read_csv(stream, read_options=read, convert_options=convert)
    except (pa.ArrowException, OSError) as error:
        raise _Undecided from error
    found = Columns(file, path, names, table.num_rows)
    for key, name in zip(keys, names, strict=True):
        if kinds[key] == "number":
            found.numbers[name] = table.column(key).to_numpy()
        elif kinds[key] == "text":
            found.texts[name] = arrow_texts(table.column(key))
    return found


def arrow_texts(column: Any) -> Texts:
    """`Texts` of a dictionary column of pyarrow."""
    merged = column.unify_dictionaries().combine_chunks() if column.num_chunks else column
    if not column.num_chunks:
        return Texts(np.empty(0, np.int64), ())
    values = [value.strip() if value else None for value in merged.dictionary.to_pylist()]
    codes = merged.indices.fill_null(len(values)).to_numpy().astype(np.int64)
    return Texts(codes, (*(value or None for value in values), None))


def _records(path: Path, file: str, names: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of every row after the header; blank lines are no rows."""
    with opened(path) as stream:
        lines = bounded_lines(stream, file, MAX_LINE_BYTES)
        next(lines)
        reader = csv.reader(_decoded(lines, file), strict=True)
        try:
            for cells in reader:
                if not cells:
                    continue
                line = reader.line_num + 1
                if len(cells) != len(names):
                    raise DataError(f"{file} line {line}: {len(cells)} cells, but the header has {len(names)} columns")
                yield line, cells
        except csv.Error as error:
            raise DataError(f"{file} line {reader.line_num + 1}: {error}") from error


def _decoded(lines: Iterator[bytes], file: str) -> Iterator[str]:
    for number, line in enumerate(lines, 2):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"{file} line {number}: not UTF-8 text at byte {error.start + 1}") from error


def _read_exact(path: Path, file: str, names: tuple[str, ...], roles: Callable[[str], str]) -> Columns:
    """The plain twin of `_read_fast`: slower by far, exact about lines."""
    kinds = [(place, name, roles(name)) for place, name in enumerate(names) if name]
    numbers = [(place, name, array("d")) for place, name, kind in kinds if kind == "number"]
    texts: list[tuple[int, str, array[int], dict[str, int]]]
    texts = [(place, name, array("q"), {}) for place, name, kind in kinds if kind == "text"]
    rows = 0
    for line, cells in _records(path, file, names):
        rows += 1
        for place, name, values in numbers:
            number = parse_number(cells[place])
            if number is None:
                raise DataError(f"{file} line {line}, column {name}: {shown(cells[place])} is not a number")
            values.append(number)
        for place, _, codes, codebook in texts:
            codes.append(codebook.setdefault(cells[place].strip(), len(codebook)))
        if rows * max(1, len(names)) > MAX_CELLS:
            raise DataError(f"{file} line {line}: the table has more than {MAX_CELLS:,} cells")
    found = Columns(file, path, names, rows)
    for _, name, values in numbers:
        found.numbers[name] = np.array(values, np.float64)
    for _, name, codes, codebook in texts:
        found.texts[name] = Texts(np.array(codes, np.int64), tuple(text or None for text in codebook))
    return found


def _line_of(columns: Columns, row: int) -> int:
    """Line of a row; read again, since blank lines are no rows and a cell may span lines."""
    with reading(columns.file):
        for place, (line, _) in enumerate(_records(columns.path, columns.file, columns.names)):
            if place == row:
                return line
    return row + 2
