"""Tables of text as data frames of cells: delimiters, preambles and repeated headers."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass
from typing import Final

import pandas as pd

from trainwarden.errors import DataError
from trainwarden.recorded.columns import MAX_CELLS

_QUOTED: Final = re.compile(r'"(?:[^"]|""){0,4000}"')
DELIMITERS: Final = ("\t", ";", "|", ",")
PROBED_LINES: Final = 200
MAX_COLUMNS: Final = 50_000
MAX_ROWS: Final = 20_000_000


@dataclass(frozen=True, slots=True)
class Cells:
    """A table as it is written.

    Attributes
    ----------
    frame : DataFrame
        Text, a column for each of the header; blank cells are "".
    lines : list of int
        The line of each row.
    repeated : int
        Lines that repeat the header.
    ragged : list of (line, cells)
        Rows with another number of cells than the header has; these are not in `frame`.
    """

    frame: pd.DataFrame
    lines: list[int]
    delimiter: str
    repeated: int = 0
    ragged: tuple[tuple[int, int], ...] = ()


def delimiter_of(text: str) -> str:
    """What parts the cells of a table, "" if nothing does.

    Examples
    --------
    >>> [delimiter_of(text) for text in ("a;b\\n1,5;2,5\\n", "a,b\\n1,2\\n", "a\\tb\\n1\\t2", "one")]
    [';', ',', '\\t', '']
    """
    lines = [_unquoted(line) for line in text[:200_000].split("\n")[:PROBED_LINES] if line.strip()]
    best, score = "", 0.0
    for delimiter in DELIMITERS:
        counts = Counter(line.count(delimiter) for line in lines)
        counts.pop(0, None)
        if not counts:
            continue
        share = counts.most_common(1)[0][1] / len(lines)
        if share > score + 0.05:
            best, score = delimiter, share
    return best


def header_line(text: str, delimiter: str) -> int:
    """Place of the first line that has as many cells as most lines have."""
    lines = [_unquoted(line) for line in text[:400_000].split("\n")[:PROBED_LINES]]
    counts = Counter(line.count(delimiter) for line in lines if line.strip() and delimiter in line)
    usual = counts.most_common(1)[0][0] if counts else 0
    if len(counts) > 1 and len(lines) < 4:
        usual = lines[0].count(delimiter)
    return next((place for place, line in enumerate(lines) if line.count(delimiter) == usual and line.strip()), 0)


def header_cells(head: str) -> list[str]:
    """Names of the columns of the table that `head` begins; empty where it is none."""
    delimiter = delimiter_of(head)
    if not delimiter:
        return []
    line = head.split("\n")[header_line(head, delimiter)]
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])]
    except csv.Error:
        return []


def _unquoted(line: str) -> str:
    """`line` without what stands in quotes, where delimiters part nothing."""
    return _QUOTED.sub('""', line) if '"' in line else line


def read_cells(text: str, name: str) -> Cells:
    """The table that `text` holds.

    Raises
    ------
    DataError
        If it holds none, or is too large.
    """
    delimiter = delimiter_of(text)
    if not delimiter:
        raise DataError(f"{name} is no table: no comma, semicolon, tab or bar parts its lines")
    skip = header_line(text, delimiter)
    body = text.split("\n", skip)[skip] if skip else text
    reader = csv.reader(io.StringIO(body), delimiter=delimiter, skipinitialspace=True)
    header: list[str] = []
    rows: list[list[str]] = []
    lines: list[int] = []
    ragged: list[tuple[int, int]] = []
    repeated = 0
    try:
        for cells in reader:
            if not any(cells):
                continue
            if not header:
                header = _header(cells, name)
            elif [cell.strip() for cell in cells] == header:
                repeated += 1
            elif len(cells) != len(header):
                ragged.append((reader.line_num + skip, len(cells)))
            else:
                rows.append(cells)
                lines.append(reader.line_num + skip)
                if len(rows) > MAX_ROWS or len(rows) * len(header) > MAX_CELLS // 20:
                    raise DataError(f"{name} has too many cells to be read as text: write it as metrics.parquet")
    except csv.Error as error:
        raise DataError(f"{name} line {reader.line_num + skip}: {error}") from error
    frame = pd.DataFrame(rows, columns=pd.Index(_distinct(header)), dtype=object)
    return Cells(frame, lines, delimiter, repeated, tuple(ragged))


def _header(cells: list[str], name: str) -> list[str]:
    if len(cells) > MAX_COLUMNS:
        raise DataError(f"{name} has {len(cells):,} columns, more than {MAX_COLUMNS:,}")
    return [cell.strip() for cell in cells]


def _distinct(header: list[str]) -> list[str]:
    """Names of columns; one that stands twice gets its place behind it."""
    seen: Counter[str] = Counter()
    names = []
    for place, name in enumerate(header):
        shown = name or f"column {place + 1}"
        seen[shown] += 1
        names.append(shown if seen[shown] == 1 else f"{shown} ({seen[shown]})")
    return names
