"""Columns of a recorded Parquet table, whole or some rows at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trainwarden.errors import DataError
from trainwarden.recorded.columns import MAX_CELLS, Columns, Roles, Texts, arrow_texts, checked_names, parse_number
from trainwarden.recorded.files import reading, shown
from trainwarden.recorded.job import Floats

MAX_BLOCK_ROWS = 262_144
MAX_BLOCK_CELLS = 4_000_000  # 32 MB as floats
MAX_TEXT_BYTES = 65_536  # of an id or a time stamp
FREE_BYTES = 2**30  # that any file may expand to
MAX_TIMES = 1_000  # and above that so many times its own size: recorded tables expand 2 to 50 times


def read_parquet(path: Path, file: str, roles: Roles) -> Columns:
    """As `trainwarden.recorded.csv_columns.read_csv`, for ``.parquet``.

    Raises
    ------
    DataError
        One sentence with file, row (from 1) and column.
    """
    with _opened(path, file) as source:
        names, wanted, kinds = _wanted(source, file, roles)
        if source.metadata.num_rows * max(1, len(names)) > MAX_CELLS:
            raise DataError(f"{file}: the table has more than {MAX_CELLS:,} cells")
        _check_size(source, file, len(wanted), path.stat().st_size)
        return _columns(source.read(columns=wanted), file, names, kinds, None)


def read_blocks(path: Path, file: str, roles: Roles) -> Iterator[Columns]:
    """The same, some rows at a time, whatever the size of the file; `Columns.origin` says which.

    Raises
    ------
    DataError
        As `read_parquet`.
    """
    with _opened(path, file) as source:
        from pyarrow import Table

        names, wanted, kinds = _wanted(source, file, roles)
        _check_size(source, file, len(wanted), path.stat().st_size)
        rows = max(1, min(MAX_BLOCK_ROWS, MAX_BLOCK_CELLS // max(1, len(wanted))))
        first = 0
        for batch in source.iter_batches(batch_size=rows, columns=wanted):
            yield _columns(Table.from_batches([batch]), file, names, kinds, first)
            first += batch.num_rows


def cells(path: Path, file: str) -> int:
    """Rows times columns, by the footer.

    Raises
    ------
    DataError
        If it is no Parquet file.
    """
    with _opened(path, file) as source:
        return int(source.metadata.num_rows) * int(source.metadata.num_columns)


@contextmanager
def _opened(path: Path, file: str) -> Iterator[Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise DataError(
            f"{file} needs pyarrow (pip install 'trainwarden[train]'), or write the table as CSV"
        ) from error
    with reading(file):
        if path.stat().st_size == 0:
            raise DataError(f"{file} is empty")
        try:
            with parquet.ParquetFile(str(path), memory_map=False) as source:
                texts = [field.name for field in source.schema_arrow if pa.types.is_string(field.type)]
                about = source.metadata
            # A text that stands in every row is kept once, as in the file.
            with parquet.ParquetFile(str(path), memory_map=False, metadata=about, read_dictionary=texts) as source:
                yield source
        except (pa.ArrowException, OverflowError, UnicodeDecodeError) as error:
            raise DataError(f"{file} is no sound Parquet file ({_one_line(error)})") from error
        except OSError as error:  # pyarrow reports damaged pages as OSError without a code
            if error.errno is not None:
                raise
            raise DataError(f"{file} is no sound Parquet file ({_one_line(error)})") from error


def _check_size(source: Any, file: str, columns: int, size: int) -> None:
    """Refuse a file that says itself that it is much larger than it looks: it would fill the memory."""
    about = source.metadata
    groups = (about.row_group(number) for number in range(about.num_row_groups))
    pages = sum(group.column(number).total_uncompressed_size for group in groups for number in range(group.num_columns))
    expanded = max(pages, 8 * about.num_rows * columns)
    if expanded > max(FREE_BYTES, MAX_TIMES * size):
        raise DataError(f"{file} has {size:,} bytes and would expand to {expanded:,}; nothing recorded does")


def _wanted(source: Any, file: str, roles: Roles) -> tuple[tuple[str, ...], list[str], dict[str, str]]:
    """All names of the file, those that are read as they are written, and the kind of each."""
    schema = source.schema_arrow
    names = checked_names(file, "", schema.names)
    kinds = {name: roles(name) for name in names if name and not name.startswith("__index_level_")}
    wanted = [written for written, name in zip(schema.names, names, strict=True) if kinds.get(name, "skip") != "skip"]
    return names, wanted, kinds


def _columns(table: Any, file: str, names: tuple[str, ...], kinds: Mapping[str, str], first: int | None) -> Columns:
    """Columns of `table`, whose rows are those of the file from `first` on; None: it is the whole file."""
    origin = None if first is None else np.arange(first, first + table.num_rows)
    found = Columns(file, names, table.num_rows, origin=origin)
    for written in table.schema.names:
        name = written.strip()
        column = table.column(written)
        if kinds[name] == "number":
            found.numbers[name] = _numbers(column, file, name, first or 0)
        else:
            found.texts[name] = _texts(column, file, name)
    return found


def _numbers(column: Any, file: str, name: str, first: int) -> Floats:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind) and _is_text(kind.value_type):
        return _said_numbers(column, file, name, first)
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if _is_text(kind):
        return _said_numbers(column.dictionary_encode(), file, name, first)
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise DataError(f"{file}, column {name}: a column of type {kind} holds no numbers")
    values_array: Floats = column.cast(pa.float64(), safe=False).to_numpy()
    return values_array


def _said_numbers(column: Any, file: str, name: str, first: int) -> Floats:
    """Numbers that are written as text; each text is read once."""
    _check_texts(column, file, name)
    if not column.num_chunks:
        return np.empty(0)
    merged = column.unify_dictionaries().combine_chunks()
    texts = merged.dictionary.to_pylist()
    codes = merged.indices.fill_null(len(texts)).to_numpy().astype(np.int64)
    values = [None if text is None else parse_number(text) for text in texts]
    wrong = [code for code, text in enumerate(texts) if text is not None and values[code] is None]
    if (rows := np.flatnonzero(np.isin(codes, wrong))).size:
        row = int(rows[0])
        raise DataError(f"{file} row {first + row + 1}, column {name}: {shown(texts[codes[row]])} is not a number")
    numbers = np.array([*(np.nan if value is None else value for value in values), np.nan], np.float64)
    found: Floats = numbers[codes]
    return found


def _texts(column: Any, file: str, name: str) -> Texts:
    """Ids and time stamps; numbers among them as text, whole ones without a fraction."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        if _is_text(kind.value_type):
            _check_texts(column, file, name)
            return arrow_texts(column)
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", tz="UTC"), safe=False).cast(pa.string())
    elif pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise DataError(f"{file}, column {name}: a column of type {kind} holds no text")
    else:
        column = column.cast(pa.string())
    return arrow_texts(column.dictionary_encode())


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _check_texts(column: Any, file: str, name: str) -> None:
    """Refuse texts that are too long for what they are."""
    import pyarrow.compute as pc

    longest = max((pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0 for chunk in column.chunks), default=0)
    if longest > MAX_TEXT_BYTES:
        raise DataError(f"{file}, column {name}: a text of {longest:,} bytes; {MAX_TEXT_BYTES:,} are the most")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
