"""Databases, Parquet and JSON of trackers that are damaged, hostile or packed are refused in one sentence."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from trainwarden.errors import DataError
from trainwarden.formats.exporters import service_json
from trainwarden.formats.interpret import interpreted
from trainwarden.formats.reading import read_job
from trainwarden.formats.source import Source
from trainwarden.formats.table import Table
from trainwarden.formats.tables import parquet as parquet_format
from trainwarden.formats.trackers import mlflow_database

T0 = 1_790_000_000
ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x"


def why(path: Path) -> str:
    (unread,) = read_job(path).unread
    return unread.why


def database(folder: Path, *statements: str) -> Path:
    path = folder / "mlflow.db"
    with closing(sqlite3.connect(path)) as one, one:
        one.execute("CREATE TABLE runs (run_uuid TEXT)")
        for statement in statements:
            one.execute(statement)
    return path


def test_a_view_is_no_table_of_metrics(tmp_path: Path):
    columns = "AS timestamp, 1 AS step, 'loss' AS key, 1.0 AS value, 0 AS is_nan, 'r' AS run_uuid FROM n"
    path = database(tmp_path, f"CREATE VIEW metrics AS {ENDLESS} {columns}")
    assert "without MLflow's metrics" in why(path)


TABLE = "CREATE TABLE metrics (timestamp INT, step INT, key TEXT, value REAL, is_nan INT, run_uuid TEXT)"
VALUES = (
    "INSERT INTO metrics WITH RECURSIVE n(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM n WHERE x < 99) "
    f"SELECT ({T0} + x) * 1000, x, 'loss', 2.0 - x / 100.0, 0, 'r' FROM n"
)


def test_a_search_that_does_not_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mlflow_database, "MAX_OPERATIONS", 100)
    monkeypatch.setattr(mlflow_database, "_BETWEEN", 10)
    assert "too large to be searched" in why(database(tmp_path, TABLE, VALUES))


def test_of_too_many_rows_the_newest_are_read_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mlflow_database, "MAX_ROWS", 20)
    job = read_job(database(tmp_path, TABLE, VALUES))
    assert job.iterations is not None
    assert (job.iterations.step.min(), job.iterations.step.max()) == (81, 99)  # the first has no duration
    assert any("the newest 20 are read" in note for note in job.notes)


@pytest.mark.parametrize("name", ["mlflow.db", "history.parquet"])
def test_a_packed_file_is_to_be_unpacked(tmp_path: Path, name: str):
    plain = database(tmp_path, TABLE, VALUES) if name == "mlflow.db" else tmp_path / name
    if name != "mlflow.db":
        parquet.write_table(pa.table({"step": [1, 2]}), plain)
    packed = tmp_path / f"{name}.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert why(packed).endswith("is packed: unpack it")


def test_a_column_named_twice_is_refused(tmp_path: Path):
    path = tmp_path / "h.parquet"
    parquet.write_table(pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["loss", "loss"]), path)
    assert "names a column twice" in why(path)


def test_what_pandas_says_of_the_columns_is_not_trusted(tmp_path: Path):
    told = {"pandas": json.dumps({"index_columns": [5], "columns": [1]})}
    table = pa.table({"step": range(30), "step_time_s": [1.0] * 30}).replace_schema_metadata(told)
    parquet.write_table(table, tmp_path / "h.parquet")
    found = read_job(tmp_path / "h.parquet").iterations
    assert found is not None
    assert found.step.size == 30


def test_bytes_of_words_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parquet_format, "MAX_WORDS", 1_000_000)
    words = pa.table({"step": range(40), "note": [f"{row}" + "a" * 50_000 for row in range(40)]})
    parquet.write_table(words, tmp_path / "h.parquet", use_dictionary=False, compression="zstd")
    assert (tmp_path / "h.parquet").stat().st_size < 50_000
    assert "more than 1,000,000 bytes of words" in why(tmp_path / "h.parquet")


def test_of_a_table_that_is_too_large_the_row_groups_that_fit_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "h.parquet"
    parquet.write_table(pa.table({"step": range(90), "step_time_s": [1.0] * 90}), path, row_group_size=30)
    monkeypatch.setattr(parquet_format, "MAX_VALUES", 130)
    job = read_job(path)
    assert job.iterations is not None
    assert job.iterations.step.size == 60
    assert "the first 60 of 90 rows are read" in job.notes[0]
    monkeypatch.setattr(parquet_format, "MAX_VALUES", 50)
    assert "its first row group more than 50 values" in why(path)


def test_tags_become_columns_where_they_name_an_owner_alone():
    tags = ["", *[f"gpu:{gpu},host:a1,key{gpu}:x" for gpu in range(200)]]
    frame = pd.DataFrame({"time": [T0] * 201, "tags": tags, "power.draw [W]": ["300"] * 201}, dtype=object)
    table = Table("t.csv", frame)
    (metrics,) = interpreted(table).metrics
    assert list(table.frame.columns) == ["time", "power.draw [W]", "gpu", "host"]
    assert set(metrics.devices) == {None, *(f"gpu{gpu}" for gpu in range(200))}


def scalars(folder: Path, whole: object) -> Path:
    path = folder / "scalars.json"
    path.write_text(json.dumps(whole))
    return path


def test_scalars_of_many_series_that_share_no_step_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(service_json, "MAX_CELLS", 1_000)
    whole = {"a": {f"s{one}": {"x": [one * 10, one * 10 + 1], "y": [1, 2]} for one in range(40)}}
    assert "more than 1,000 steps of series" in why(scalars(tmp_path, whole))


@pytest.mark.parametrize("rest", [5, [1], {"b": 3}, {"b": {"x": 1, "y": None}}])
def test_scalars_of_another_form_are_refused_by_the_format_itself(tmp_path: Path, rest: object):
    path = scalars(tmp_path, {"a": {"b": {"x": [1, 2], "y": [1, 2]}}, "c": rest})
    with pytest.raises(DataError, match=r"^scalars\.json"):
        service_json.ServiceJson().read(Source(path, path.name), {})


def test_a_number_of_400_digits_is_none(tmp_path: Path):
    whole = [{"target": "gpu0.power.draw", "datapoints": [[10**400, T0 + one] for one in range(3)]}]
    path = scalars(tmp_path, whole)
    assert service_json.ServiceJson().read(Source(path, path.name), {}).rows == 3


@pytest.mark.parametrize("error", [AttributeError, MemoryError, RecursionError, AssertionError, OverflowError])
def test_what_no_reader_foresaw_is_named_and_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
):
    def broken(*_: object) -> None:
        raise error("first line\nsecond")

    path = scalars(tmp_path, {"a": {"b": {"x": [1, 2], "y": [1, 2]}}})
    monkeypatch.setattr(service_json.ServiceJson, "read", broken)
    assert why(path) == f"it cannot be read as service json ({error.__name__}: first line second)"
