"""Columns of a recorded CSV table.

Read by pyarrow where it is installed. Whatever it refuses, and everything where it is missing, is read again by the
standard library's reader, which follows the same rules and knows the line of every cell.
"""

from __future__ import annotations

import csv
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from trainwarden.errors import DataError
from trainwarden.recorded.columns import (
    MAX_CELLS,
    NOT_MEASURED,
    Columns,
    Roles,
    Texts,
    arrow_texts,
    checked_names,
    parse_number,
)
from trainwarden.recorded.files import bounded_lines, opened, reading, refuse_bomb, shown

MAX_LINE_BYTES = 4 * 1024 * 1024  # 200,000 columns of 20 characters
_BLOCK_BYTES = 2 * MAX_LINE_BYTES


class _Undecided(Exception):
    """The fast reader does not take this file; the exact one shall say why, or read it."""


def read_csv(path: Path, file: str, roles: Roles) -> Columns:
    """Read a table.

    Parameters
    ----------
    path : Path
        ``.csv`` or ``.csv.gz``.
    file : str
        Its name in messages.
    roles : callable

    Raises
    ------
    DataError
        One sentence with file, line and column.
    """
    with reading(file):
        names = _header(path, file)
        refuse_bomb(path, file)
        try:
            return _read_fast(path, file, names, roles)
        except _Undecided:
            return _read_exact(path, file, names, roles)


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


def _read_fast(path: Path, file: str, names: tuple[str, ...], roles: Roles) -> Columns:
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
    found = Columns(file, names, table.num_rows, line_of=partial(_line_of, path, file, names))
    for key, name in zip(keys, names, strict=True):
        if kinds[key] == "number":
            found.numbers[name] = table.column(key).to_numpy()
        elif kinds[key] == "text":
            found.texts[name] = arrow_texts(table.column(key))
    return found


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


def _read_exact(path: Path, file: str, names: tuple[str, ...], roles: Roles) -> Columns:
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
    found = Columns(file, names, rows, line_of=partial(_line_of, path, file, names))
    for _, name, values in numbers:
        found.numbers[name] = np.array(values, np.float64)
    for _, name, codes, codebook in texts:
        found.texts[name] = Texts(np.array(codes, np.int64), tuple(text or None for text in codebook))
    return found


def _line_of(path: Path, file: str, names: tuple[str, ...], row: int) -> int:
    """Line of a row; read again, since blank lines are no rows and a cell may span lines."""
    with reading(file):
        for place, (line, _) in enumerate(_records(path, file, names)):
            if place == row:
                return line
    return row + 2
