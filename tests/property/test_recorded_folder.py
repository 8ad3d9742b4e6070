"""Whatever lies in a recorded folder: it is read as it was written, or refused with one sentence."""

from __future__ import annotations

import gzip
import math
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden.errors import DataError
from trainwarden.recorded.columns import parse_number
from trainwarden.recorded.files import bounded_lines
from trainwarden.recorded.folder import read_folder
from trainwarden.recorded.job import RecordedJob
from trainwarden.recorded.log_stamps import Stamps, iso_time_s
from trainwarden.records import MAX_LINE_CHARS

_TIMES = st.floats(-1e10, 1e10, allow_nan=False).map(lambda time_s: time_s + 0.0)
_NAMES = st.sampled_from(["n0", "NA", "null", "ü,\"x", "3"])  # fmt: skip
_ROW = st.fixed_dictionaries(
    {
        "time_s": st.one_of(_TIMES, st.sampled_from([0.0, 1.0, 2.0])),
        "node": st.one_of(st.none(), _NAMES),
        "rank": st.one_of(st.none(), st.integers(0, 3)),
        "device": st.one_of(st.none(), st.just("gpu0")),
        "x": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        "y": st.one_of(st.none(), st.integers(-(2**40), 2**40).map(float)),
    }
)
_COLUMNS = ("time_s", "node", "rank", "device", "x", "y")
# Bytes of the kind that tables and logs are made of, so that more than the first check is reached.
_JUNK = st.one_of(
    st.binary(max_size=300),
    st.text("timestamp_drkxyn,0123456789.-+e\"' \r\n\t{}[]:", max_size=300).map(str.encode),
    st.text('0123456789.,-e"\r\n nai', max_size=200).map(lambda text: ("time_s,rank,x\n" + text).encode()),
    st.text('0123456789.,-e"\r\n nai', max_size=200).map(lambda text: ("step,rank,duration_s\n" + text).encode()),
)
_FILES = st.sampled_from(
    [
        "metrics.csv", "metrics.csv.gz", "metrics.parquet", "iterations.csv", "iterations.csv.gz", "iterations.parquet",
        "logs.txt", "logs.txt.gz", "logs.jsonl", "logs.jsonl.gz", "flight_recorder/rank_0.json", "job.toml",
    ]
)  # fmt: skip


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return '"' + value.replace('"', '""') + '"'
    return repr(value)


def _expected(rows: list[dict[str, object]]) -> tuple[list[tuple[object, ...]], int]:
    """The slow plain twin: the last row of each time and entity, by time."""
    last: dict[tuple[object, ...], int] = {}
    for place, row in enumerate(rows):
        last[tuple(row[name] for name in _COLUMNS[:4])] = place
    kept = sorted(last.values(), key=lambda place: (rows[place]["time_s"], place))
    return [tuple(rows[place][name] for name in _COLUMNS) for place in kept], len(rows) - len(last)


def _job_or_sentence(folder: Path) -> RecordedJob | str:
    try:
        return read_folder(folder)
    except DataError as error:
        return str(error)


@examples(60)
@given(
    st.lists(_ROW, min_size=1, max_size=20),
    st.permutations(_COLUMNS),
    st.sampled_from(["metrics.csv", "metrics.csv.gz", "metrics.parquet"]),
)
def test_a_table_is_read_as_it_was_written(rows: list[dict[str, object]], columns: list[str], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        if name.endswith(".parquet"):
            pq.write_table(pa.table({column: pa.array([row[column] for row in rows]) for column in columns}), path)
        else:
            lines = [",".join(columns), *(",".join(_cell(row[column]) for column in columns) for row in rows)]
            data = ("\n".join(lines) + "\n").encode()
            path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        table = read_folder(Path(folder)).metrics
    assert table is not None
    expected, replaced = _expected(rows)
    assert table.replaced == replaced
    x, y = table.names.index("x"), table.names.index("y")
    found = [
        (time_s, table.nodes[e], table.ranks[e], table.devices[e], *(None if math.isnan(v) else v for v in row[[x, y]]))
        for time_s, e, row in zip(table.times_s, table.entity, table.values, strict=True)
    ]
    assert found == expected
    assert len(set(zip(table.nodes, table.ranks, table.devices, strict=True))) == len(table.nodes)


@examples(300)
@given(_FILES, _JUNK, st.booleans())
def test_whatever_lies_there_nothing_but_a_sentence_is_raised(name: str, data: bytes, packed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(gzip.compress(data) if packed else data)
        job = _job_or_sentence(Path(folder))
    if isinstance(job, str):
        assert "\n" not in job
        assert Path(name).name in job
        return
    for log in job.logs:
        assert len(log.lines) == len(log.nodes) == len(log.ranks) == len(log.times_s)
        assert all(len(line) <= MAX_LINE_CHARS for line in log.lines)
        if name == "logs.txt" and not packed:
            assert len(log.lines) == data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    if job.metrics is not None:
        assert np.isfinite(job.metrics.times_s).all()
        assert (np.diff(job.metrics.times_s) >= 0).all()
    if job.iterations is not None:
        assert (job.iterations.duration_s > 0).all()


@examples(100)
@given(st.data())
def test_a_damaged_parquet_file_is_refused_or_read(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "metrics.parquet"
        pq.write_table(pa.table({"time_s": [1.0, 2.0], "node": ["a", "b"], "x": [3.0, None]}), path)
        damaged = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
        job = _job_or_sentence(Path(folder))
    assert not isinstance(job, str) or job.startswith("metrics.parquet")


@given(st.text("0123456789+-.eE_infnaINFNA \t", max_size=12))
def test_a_number_is_what_python_calls_one(text: str) -> None:
    number = parse_number(text)
    try:
        known = float(text) if "_" not in text else None
    except ValueError:
        known = None
    if known is None or math.isnan(known):
        assert number is None or math.isnan(number)
    else:
        assert number == known


@given(
    st.datetimes(datetime(1971, 1, 1), datetime(2200, 1, 1)),
    st.sampled_from(["", "Z", "+05:30"]),
    st.sampled_from("T "),
)
def test_a_stamp_in_a_log_is_the_same_as_in_a_table(moment: datetime, zone: str, between: str) -> None:
    text = moment.isoformat(between) + zone
    time_s = moment.replace(tzinfo=UTC).timestamp() - (19_800 if zone == "+05:30" else 0)
    assert iso_time_s(text) == pytest.approx(time_s, abs=1e-5)
    assert Stamps().read(f"[{text}] x")[0] == pytest.approx(time_s, abs=1e-5)


@pytest.mark.thorough
@settings(max_examples=300)
@given(st.text("0123456789[](): -,/.TZJanSuE|\n<>stdourk;", max_size=60), st.one_of(st.none(), _TIMES))
def test_no_line_upsets_the_stamps(line: str, reference_s: float | None) -> None:
    time_s, end, clock = Stamps(reference_s).read(line)
    assert 0 <= end <= len(line)
    assert (end > 0) == (not math.isnan(time_s))
    assert end > 0 or clock == "utc"


@given(st.binary(max_size=60), st.integers(1, 80))
def test_bounded_lines_are_the_lines(data: bytes, most: int) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        expected = [line + b"\n" for line in data.split(b"\n")]
        expected[-1] = expected[-1][:-1]
        if max(map(len, expected)) > most:
            with pytest.raises(DataError, match=r"^f line \d+ is longer than"):
                list(bounded_lines(file, "f", most))
        else:
            assert list(bounded_lines(file, "f", most)) == [line for line in expected if line]
