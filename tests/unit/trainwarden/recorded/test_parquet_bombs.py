"""A tiny Parquet file that expands hugely is refused before it fills the memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from trainwarden.errors import DataError
from trainwarden.recorded import parquet_columns
from trainwarden.recorded.parquet_columns import read_blocks, read_parquet

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

ROWS = 200_000


def roles(name: str) -> str:
    return "text" if name == "job" else "number"


def written(path: Path, **columns: object) -> Path:
    parquet.write_table(pa.table(columns), path, compression="zstd", row_group_size=10**9)
    return path


def repeated(text: str, rows: int = ROWS) -> object:
    """A column in which one text stands in every row, written once."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([text]))


def test_a_long_text_in_every_row_is_refused_and_never_unfolded(tmp_path: Path) -> None:
    """1 MB written once and meant 200,000 times would be 200 GB."""
    path = written(tmp_path / "t.parquet", timestamp=np.arange(ROWS), job=repeated("x" * 2**20))
    assert path.stat().st_size < 2**20
    before = pa.total_allocated_bytes()
    for read in (lambda: read_parquet(path, "t", roles), lambda: list(read_blocks(path, "t", roles))):
        with pytest.raises(DataError, match="column job: a text of 1,048,576 bytes; 65,536 are the most"):
            read()
    assert pa.total_allocated_bytes() - before < 2**27


def test_numbers_as_text_are_read_once_each_whatever_the_rows(tmp_path: Path) -> None:
    path = written(tmp_path / "t.parquet", value=repeated("x" * 60_000))
    tracemalloc.start()
    try:
        with pytest.raises(DataError, match="row 1, column value"):
            read_parquet(path, "t", roles)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_rows_of_next_to_nothing_are_refused_by_the_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_columns, "FREE_BYTES", 2**20)
    path = written(tmp_path / "t.parquet", value=np.zeros(1_000_000, np.int8))
    assert path.stat().st_size < 2**12
    for read in (lambda: read_parquet(path, "t", roles), lambda: next(iter(read_blocks(path, "t", roles)))):
        with pytest.raises(DataError, match=r"would expand to 8,000,000; nothing recorded does"):
            read()
    monkeypatch.setattr(parquet_columns, "FREE_BYTES", 2**23)
    assert len(read_parquet(path, "t", roles).numbers["value"]) == 1_000_000


def test_what_is_recorded_is_read_as_it_was(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.parquet",
        job=pa.array(["a ", None, "b", "a "]),
        value=pa.array(["1", " 2.5", None, "nan"]),
        other=pa.array([1, 2, 3, None]),
        large=pa.array(["3", "4", None, "5"]).cast(pa.large_string()),
    )
    found = read_parquet(path, "t", roles)
    assert [found.texts["job"].values[code] for code in found.texts["job"].codes] == ["a", None, "b", "a"]
    np.testing.assert_array_equal(found.numbers["value"], [1.0, 2.5, np.nan, np.nan])
    np.testing.assert_array_equal(found.numbers["large"], [3.0, 4.0, np.nan, 5.0])
    np.testing.assert_array_equal(found.numbers["other"], [1.0, 2.0, 3.0, np.nan])
