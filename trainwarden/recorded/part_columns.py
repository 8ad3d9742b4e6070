"""Columns of a recorded table of metrics that is larger than memory: the rows of a `Part`, read in two passes."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import numpy as np

from trainwarden.recorded.columns import ID_COLUMNS, TIME_COLUMNS, Columns, Roles, Texts, is_csv
from trainwarden.recorded.job import Floats, Ints
from trainwarden.recorded.parquet_columns import cells, read_blocks
from trainwarden.recorded.part import Part, ReadLimit, Survey

Times = Callable[[Columns], Floats]


def columns_within(
    path: Path, file: str, roles: Roles, limit: ReadLimit, times_of: Times
) -> tuple[Columns, float, set[str]] | None:
    """Those rows of a table that `limit` allows.

    Parameters
    ----------
    roles : callable
        As `trainwarden.recorded.rows.read_columns`.
    times_of : callable
        Times of columns; what it raises names the row of the file.

    Returns
    -------
    tuple of Columns, float and set of str, or None
        The rows, their share of all cells, and every rank that the table names. None: all of it is allowed, or it is no
        Parquet table.

    Raises
    ------
    DataError
        As `trainwarden.recorded.rows.read_columns`.
    """
    if is_csv(path):
        return None
    wide = cells(path, file)
    if wide <= limit.cells:
        return None
    survey, ranks = Survey(), set[str]()
    columns = 0
    for block in read_blocks(path, file, lambda name: roles(name) if name in (*TIME_COLUMNS, *ID_COLUMNS) else "skip"):
        columns = len(block.names)
        place, names = _groups(block)
        group = np.array([survey.groups.setdefault(name, len(survey.groups)) for name in names], np.int64)[place]
        ids = {name: (texts.codes, texts.values) for name, texts in block.texts.items() if name in ID_COLUMNS}
        survey.named |= limit.places(group, ids)
        survey.add(times_of(block), group, _others(block, survey), block.rows * columns)
        if "rank" in block.texts:
            ranks |= {value for value in block.texts["rank"].values if value is not None}
    part = survey.part(limit)
    if part is None:
        return None
    kept = [_kept(block, part, times_of) for block in read_blocks(path, file, roles)]
    return _joined(kept), part.share, ranks


def _groups(block: Columns) -> tuple[Ints, list[Hashable]]:
    """Node of each row; where the table has no nodes, its rank or device."""
    for name in ID_COLUMNS:
        if name in block.texts:
            return block.texts[name].codes, list(block.texts[name].values)
    return np.zeros(block.rows, np.int64), [None]


def _others(block: Columns, survey: Survey) -> Ints:
    """Which of its group's entities a row is of."""
    place, width = np.zeros(block.rows, np.int64), 1
    keys: list[tuple[Hashable, ...]] = [()]
    for name in ID_COLUMNS:
        if name in block.texts and name != next(one for one in ID_COLUMNS if one in block.texts):
            texts = block.texts[name]
            place = place * len(texts.values) + texts.codes
            keys = [(*key, value) for key in keys for value in texts.values]
            width *= len(texts.values)
    there = np.flatnonzero(np.bincount(place, minlength=width))
    column = np.zeros(width, np.int64)
    for one in there.tolist():
        column[one] = survey.columns.setdefault(keys[one], len(survey.columns))
    return column[place]


def _kept(block: Columns, part: Part, times_of: Times) -> Columns:
    place, names = _groups(block)
    rows = np.flatnonzero(part.mask(times_of(block), place, names))
    assert block.origin is not None
    return Columns(
        block.file,
        block.names,
        len(rows),
        {name: values[rows] for name, values in block.numbers.items()},
        {name: Texts(texts.codes[rows], texts.values) for name, texts in block.texts.items()},
        block.origin[rows],
    )


def _joined(parts: Sequence[Columns]) -> Columns:
    """One after the other."""
    first = parts[0]
    found = Columns(
        first.file,
        first.names,
        sum(part.rows for part in parts),
        origin=np.concatenate([part.origin for part in parts if part.origin is not None]),
    )
    for name in list(first.numbers):
        found.numbers[name] = np.concatenate([part.numbers.pop(name) for part in parts])
    for name in list(first.texts):
        known: dict[str | None, int] = {}
        codes = []
        for part in parts:
            texts = part.texts.pop(name)
            codes.append(
                np.array([known.setdefault(value, len(known)) for value in texts.values] or [0], np.int64)[texts.codes]
            )
        found.texts[name] = Texts(np.concatenate(codes), tuple(known))
    return found
