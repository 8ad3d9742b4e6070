"""A recorded folder is read to the letter of its contract, and every mistake in it is one sentence with its place."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.errors import DataError
from trainwarden.recorded import csv_columns
from trainwarden.recorded.folder import is_batch, jobs_in, read_folder
from trainwarden.recorded.job import IterationTable, MetricTable, PlannedChange
from trainwarden.recorded.writing import write_recording
from trainwarden.records import EventRecord, IterationRecord, LogRecord, MetricsRecord, Record
from trainwarden.topics import topic_of


def put(folder: Path, name: str, text: str | bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def metrics(folder: Path, text: str | bytes, name: str = "metrics.csv") -> MetricTable:
    put(folder, name, text)
    table = read_folder(folder).metrics
    assert table is not None
    return table


def iterations(folder: Path, text: str) -> IterationTable:
    put(folder, "iterations.csv", text)
    table = read_folder(folder).iterations
    assert table is not None
    return table


def mistake(folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        read_folder(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) not in message
    return message


def test_the_basis_of_each_step_is_kept(tmp_path: Path) -> None:
    table = iterations(tmp_path, "step,rank,duration_s,time_s,basis\n2,0,1,2,device_step\n1,0,1,1,host\n3,0,1,3,\n")
    assert table.basis == ("host", "device_step", "")


# metrics


def test_metrics_come_in_time_order_and_the_last_of_equal_rows_wins(tmp_path: Path) -> None:
    table = metrics(
        tmp_path,
        "device,load,time_s,rank,node\ngpu0,1,20,3,b\ngpu0,2,10,3,b\n,3,20,,a\ngpu0,4,20,3,b\ngpu1,,15.5,3,b\n",
    )
    assert table.times_s.tolist() == [10.0, 15.5, 20.0, 20.0]
    owners = [(table.nodes[e], table.ranks[e], table.devices[e]) for e in table.entity]
    assert owners == [("b", 3, "gpu0"), ("b", 3, "gpu1"), ("a", None, None), ("b", 3, "gpu0")]
    assert len(table.nodes) == len(table.ranks) == len(table.devices) == 3
    assert table.names == ("load",)
    np.testing.assert_array_equal(table.values[:, 0], [2.0, np.nan, 3.0, 4.0])
    assert table.replaced == 1


def test_a_table_without_ids_is_about_one_entity(tmp_path: Path) -> None:
    table = metrics(tmp_path, "time_s,x\n0,1\n1,2\n")
    assert (table.nodes, table.ranks, table.devices) == ((None,), (None,), (None,))


@pytest.mark.parametrize(
    ("stamp", "time_s"),
    [
        ("2024-01-02T03:04:05Z", 1_704_164_645.0),
        ("2024-01-02 03:04:05", 1_704_164_645.0),
        ("2024-01-02T03:04:05.250+02:00", 1_704_157_445.25),
        ("2024-01-02 03:04:05.123456789", 1_704_164_645.123456),
        ("2024-01-02", 1_704_153_600.0),
    ],
)
def test_time_stamps_are_utc_unless_they_say_otherwise(tmp_path: Path, stamp: str, time_s: float) -> None:
    assert metrics(tmp_path, f"timestamp,x\n{stamp},1\n").times_s[0] == pytest.approx(time_s, abs=1e-6)


def test_seconds_are_believed_before_a_stamp(tmp_path: Path) -> None:
    table = metrics(tmp_path, "timestamp,time_s,x\nyesterday,5,1\n")
    assert table.times_s.tolist() == [5.0]
    assert table.names == ("x",)


def test_what_was_not_measured_is_a_hole(tmp_path: Path) -> None:
    table = metrics(tmp_path, "time_s,x\n0,\n1,NaN\n2,inf\n3,-inf\n4,N/A\n5, 1.5 \n6,[N/A]\n7,null\n")
    assert np.isnan(table.values[[0, 1, 2, 3, 4, 6, 7], 0]).all()
    assert table.values[5, 0] == 1.5


@pytest.mark.parametrize("cell", ["", "nan", "inf", "-inf", "1e999"])
def test_a_time_of_a_call_that_is_no_number_is_not_known(cell: str, tmp_path: Path) -> None:
    put(tmp_path, "iterations.csv", "step,rank,duration_s\n3,0,1\n")
    head = "step,rank,comm,func,seq,bytes,device_s,enqueued_s"
    put(tmp_path, "collectives.csv", f"{head}\n3,0,c,AllReduce,1,8,0.5,{cell}\n3,0,c,AllReduce,2,8,0.5,7\n")
    table = read_folder(tmp_path).collectives
    assert table is not None
    np.testing.assert_array_equal(table.enqueued_s, [np.nan, 7.0])


def test_an_exporter_column_gets_our_name_and_unit(tmp_path: Path) -> None:
    table = metrics(tmp_path, "time_s,DCGM_FI_DEV_GPU_UTIL,DCGM_FI_DEV_SM_CLOCK,made_up\n0,50,1980,7\n")
    assert table.names == ("gpu_utilization_ratio", "gpu_sm_clock_hertz", "made_up")
    assert table.values.tolist() == [[0.5, 1.98e9, 7.0]]


def test_one_metric_under_two_names_is_one_metric_and_our_name_goes_first(tmp_path: Path) -> None:
    table = metrics(tmp_path, "time_s,DCGM_FI_DEV_GPU_UTIL,gpu_utilization_ratio\n0,50,0.25\n1,50,\n2,,0.75\n")
    assert table.names == ("gpu_utilization_ratio",)
    assert table.values[:, 0].tolist() == [0.25, 0.5, 0.75]


def test_marks_of_dcgm_for_what_it_does_not_know_are_holes(tmp_path: Path) -> None:
    marks = "2147483632", "2147483635", "9223372036854775794", "140737488355328"
    rows = "".join(f"{place},{mark}.0,{mark}.0\n" for place, mark in enumerate(marks))
    table = metrics(tmp_path, f"time_s,DCGM_FI_DEV_ROW_REMAP_FAILURE,made_up\n{rows}9,0,0\n")
    assert np.isnan(table.values[:4, 0]).all()
    assert table.values[4].tolist() == [0.0, 0.0]
    assert np.isfinite(table.values[:, 1]).all()  # what nobody knows may be as large as it likes


def test_a_ratio_that_holds_percents_does_so_on_all_gpus_of_its_node(tmp_path: Path) -> None:
    head = "time_s,node,device,DCGM_FI_DEV_GPU_UTIL_RATIO\n"
    table = metrics(tmp_path, f"{head}0,a,0,97\n0,a,1,1\n0,b,0,0.5\n1,b,0,1\n")
    assert table.values[:, 0].tolist() == [0.97, 0.01, 0.5, 1.0]
    assert metrics(tmp_path, "time_s,DCGM_FI_DEV_GPU_UTIL_RATIO\n0,50\n1,1\n").values[:, 0].tolist() == [0.5, 0.01]


def test_the_mask_of_clock_event_reasons_tells_the_throttle_states(tmp_path: Path) -> None:
    table = metrics(tmp_path, "time_s,DCGM_FI_DEV_CLOCKS_EVENT_REASONS\n0,4\n1,64\n2,\n")
    assert table.names[1:] == (
        "gpu_throttle_thermal_state", "gpu_throttle_hardware_state", "gpu_throttle_power_state",
    )  # fmt: skip
    assert table.values[:2, 1:].tolist() == [[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]]
    assert np.isnan(table.values[2]).all()
    own = metrics(tmp_path, "time_s,DCGM_FI_DEV_CLOCK_THROTTLE_REASONS,gpu_throttle_thermal_state\n0,64,0\n")
    assert own.values[0, own.names.index("gpu_throttle_thermal_state")] == 0.0


def test_a_rank_as_pandas_writes_it(tmp_path: Path) -> None:
    assert metrics(tmp_path, "time_s,rank,x\n0,3.0,1\n1,,1\n2,3,1\n3,NaN,1\n").ranks == (3, None)


def test_a_byte_order_mark_blank_lines_crlf_quotes_and_an_index_column_do_no_harm(tmp_path: Path) -> None:
    table = metrics(tmp_path, '\ufeff,time_s, "x",node\r\na,0,1,"n,1"\r\n\r\nb,"1",2,"n,1"\r\n'.replace(' "x"', " x"))
    assert table.names == ("x",)
    assert table.nodes == ("n,1",)
    assert table.values[:, 0].tolist() == [1.0, 2.0]


def test_a_table_of_a_header_alone_holds_nothing(tmp_path: Path) -> None:
    put(tmp_path, "metrics.csv", "time_s,node,device\n")
    put(tmp_path, "iterations.csv", "step,duration_s\n")
    job = read_folder(tmp_path)
    assert job.metrics is None
    assert job.iterations is None


def test_gzip_and_parquet_hold_the_same_as_csv(tmp_path: Path) -> None:
    text = "time_s,node,rank,x,y\n2,a,0,1.5,\n1,b,1,,2\n1,,,3,4\n"
    plain = metrics(tmp_path / "a", text)
    packed = metrics(tmp_path / "b", text, "metrics.csv.gz")
    columns = {
        "time_s": [2, 1, 1],
        "node": ["a", "b", None],
        "rank": [0, 1, None],
        "x": [1.5, None, 3],
        "y": [None, 2, 4],
    }
    (tmp_path / "c").mkdir()
    pq.write_table(pa.table(columns), tmp_path / "c" / "metrics.parquet")
    stored = read_folder(tmp_path / "c").metrics
    assert stored is not None
    for other in (packed, stored):
        assert (other.nodes, other.ranks, other.devices) == (plain.nodes, plain.ranks, plain.devices)
        assert (other.names, other.replaced) == (plain.names, plain.replaced)
        np.testing.assert_array_equal(other.values, plain.values)
        np.testing.assert_array_equal(other.times_s, plain.times_s)
        np.testing.assert_array_equal(other.entity, plain.entity)


def test_parquet_columns_of_other_types(tmp_path: Path) -> None:
    stamps = pa.array([1_000_000, 2_500_000], pa.timestamp("us"))
    columns = {
        "timestamp": stamps,
        "rank": pa.array([1.0, 2.0]),
        "node": pa.array(["a", "b"]).dictionary_encode(),
        "up": pa.array([True, None]),
        "text": pa.array(["1", " 2.5"]),
        "none": pa.nulls(2),
    }
    pq.write_table(pa.table(columns), tmp_path / "metrics.parquet")
    table = read_folder(tmp_path).metrics
    assert table is not None
    assert table.times_s.tolist() == [1.0, 2.5]
    assert table.ranks == (1, 2)
    assert table.nodes == ("a", "b")
    np.testing.assert_array_equal(table.values, [[1.0, 1.0, np.nan], [np.nan, 2.5, np.nan]])


def test_the_exact_reader_is_the_fast_reader_s_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "time_s,node,x,y\n" + "".join(f"{i % 7},n{i % 3},{i / 7!r},{'' if i % 5 else i}\n" for i in range(200))
    fast = metrics(tmp_path, text)

    def refuse(*_: object) -> None:
        raise csv_columns._Undecided

    monkeypatch.setattr(csv_columns, "_read_fast", refuse)
    exact = metrics(tmp_path, text)
    np.testing.assert_array_equal(exact.values, fast.values)
    np.testing.assert_array_equal(exact.entity, fast.entity)
    assert (exact.nodes, exact.replaced) == (fast.nodes, fast.replaced)


def test_csv_needs_no_pyarrow_and_parquet_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_module("pandas")  # first: it remembers for ever whether pyarrow was there
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert metrics(tmp_path / "a", "time_s,x\n0,1\n").values.tolist() == [[1.0]]
    put(tmp_path, "metrics.parquet", "x")
    assert mistake(tmp_path).startswith("metrics.parquet needs pyarrow")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("time_s,x\n0,1\n1,abc\n", "metrics.csv line 3, column x: 'abc' is not a number"),
        ("time_s,x\n0,1\n\n1,1_000\n", "metrics.csv line 4, column x: '1_000' is not a number"),
        ("time_s,x\n,1\n", "metrics.csv line 2, column time_s: the cell is empty"),
        ("time_s,x\n0,1\n\ninf,1\n", "metrics.csv line 4, column time_s: inf is not a time in seconds"),
        ("time_s,x\n1.7e24,1\n", "metrics.csv line 2, column time_s: 1.7e+24 is not a time in seconds"),
        ("timestamp,x\n1.1.2024,1\n", "metrics.csv line 2, column timestamp: '1.1.2024' is not an ISO 8601 time"),
        ("timestamp,x\n,1\n", "metrics.csv line 2, column timestamp: the cell is empty"),
        ("x,y\n0,1\n", "metrics.csv line 1: there is no column time_s or timestamp"),
        ("time_s,x,x\n0,1,2\n", "metrics.csv line 1: two columns are called 'x'"),
        ("time_s,x\n0,1,2\n", "metrics.csv line 2: 3 cells, but the header has 2 columns"),
        ("time_s,x\n0\n", "metrics.csv line 2: 1 cells, but the header has 2 columns"),
        (
            "time_s,rank,x\n0,0,1\n0,-1,1\n",
            "metrics.csv line 3, column rank: '-1' is not a rank (a whole number from 0)",
        ),
        ("time_s,rank,x\n0,1.5,1\n", "metrics.csv line 2, column rank: '1.5' is not a rank (a whole number from 0)"),
        ("time_s,rank,x\n0,r1,1\n", "metrics.csv line 2, column rank: 'r1' is not a rank (a whole number from 0)"),
        ("time_s,node\n0,a\n", "metrics.csv has no column with a metric"),
        ("", "metrics.csv is empty"),
        ("\n", "metrics.csv line 1: there are no column names"),
        (b"time_s,x\n0,1\n1,\xff\n", "metrics.csv line 3: not UTF-8 text at byte 3"),
        (b"time_s,\xff\n0,1\n", "metrics.csv line 1: not UTF-8 text at byte 8"),
    ],
)
def test_a_mistake_in_metrics_is_one_sentence(tmp_path: Path, text: str | bytes, sentence: str) -> None:
    put(tmp_path, "metrics.csv", text)
    assert mistake(tmp_path) == sentence


def test_damaged_files_are_one_sentence(tmp_path: Path) -> None:
    whole = gzip.compress(b"time_s,x\n" + b"".join(b"%d,%d\n" % (i, i * i) for i in range(5000)))
    (tmp_path / "metrics.csv.gz").write_bytes(whole[:-2000])
    assert mistake(tmp_path) == "metrics.csv.gz is cut short: its gzip data ends too early"
    (tmp_path / "metrics.csv.gz").write_bytes(b"time_s,x\n0,1\n")
    assert mistake(tmp_path).startswith("metrics.csv.gz is no sound gzip file")
    (tmp_path / "metrics.csv.gz").unlink()
    (tmp_path / "metrics.parquet").write_bytes(b"PAR1 and so on PAR1")
    assert mistake(tmp_path).startswith("metrics.parquet is no sound Parquet file")
    (tmp_path / "metrics.parquet").write_bytes(b"")
    assert mistake(tmp_path) == "metrics.parquet is empty"


def test_a_parquet_mistake_names_the_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"time_s": [1.0, 2.0], "x": ["1", "abc"]}), tmp_path / "metrics.parquet")
    assert mistake(tmp_path) == "metrics.parquet row 2, column x: 'abc' is not a number"
    pq.write_table(pa.table({"time_s": [1.0, None], "x": [1, 2]}), tmp_path / "metrics.parquet")
    assert mistake(tmp_path) == "metrics.parquet row 2, column time_s: the cell is empty"
    pq.write_table(pa.table({"time_s": [1.0], "x": [[1]]}), tmp_path / "metrics.parquet")
    assert mistake(tmp_path).startswith("metrics.parquet, column x: a column of type list<")


def test_a_line_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_columns, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(csv_columns, "_BLOCK_BYTES", 200)
    put(tmp_path, "metrics.csv", "time_s,x\n0,1\n1," + "1" * 1000 + "\n")
    assert mistake(tmp_path) == "metrics.csv line 3 is longer than 100 bytes"


def test_two_files_of_one_table_are_refused(tmp_path: Path) -> None:
    put(tmp_path, "metrics.csv", "time_s,x\n0,1\n")
    put(tmp_path, "metrics.csv.gz", "time_s,x\n0,1\n")
    assert mistake(tmp_path) == "metrics.csv and metrics.csv.gz are both there; keep one of them"


# iterations


def test_iterations_keep_every_column_of_ours(tmp_path: Path) -> None:
    table = iterations(
        tmp_path,
        "time_s,node,rank,incarnation,step,duration_s,compute_s,wait_s,pause_s,micro_batches,steps,extra\n"
        "12,n,1,7-7,2,0.5,0.4,0.1,,4,1,hello\n11,n,0,8-8,1,0.5,,,0.2,,10,x\n",
    )
    assert table.end_s.tolist() == [11.0, 12.0]
    assert [table.ranks[r] for r in table.rank] == [0, 1]
    assert table.nodes == ("n", "n")
    assert table.step.tolist() == [1, 2]
    assert table.steps.tolist() == [10, 1]
    np.testing.assert_array_equal(table.compute_s, [np.nan, 0.4])
    np.testing.assert_array_equal(table.wait_s, [np.nan, 0.1])
    np.testing.assert_array_equal(table.pause_s, [0.2, np.nan])
    np.testing.assert_array_equal(table.micro_batches, [np.nan, 4.0])
    assert table.incarnation == ("8-8", "7-7")
    assert table.timed


def test_without_times_the_end_is_counted_up_for_all_ranks_together(tmp_path: Path) -> None:
    table = iterations(tmp_path, "rank,step,duration_s\n0,0,1\n0,1,2\n1,0,4\n1,1,1\n")
    assert not table.timed
    ends = {(table.ranks[r], int(s)): float(t) for r, s, t in zip(table.rank, table.step, table.end_s, strict=True)}
    assert ends == {(0, 0): 2.5, (1, 0): 2.5, (0, 1): 4.0, (1, 1): 4.0}
    assert table.end_s.tolist() == sorted(table.end_s.tolist())


def test_sampled_steps_count_for_those_between_them(tmp_path: Path) -> None:
    table = iterations(tmp_path, "step,duration_s\n100,1\n105,2\n205,1\n")
    assert table.ranks == (None,)
    assert table.end_s.tolist() == [1.0, 11.0, 111.0]
    assert table.steps.tolist() == [1, 1, 1]
    means = iterations(tmp_path, "step,duration_s,steps\n10,1,10\n20,2,\n")
    assert means.end_s.tolist() == [10.0, 30.0]
    assert means.steps.tolist() == [10, 1]


def test_a_restart_is_taken_as_it_stands_and_shuffled_rows_by_step(tmp_path: Path) -> None:
    assert iterations(tmp_path, "step,duration_s\n1,1\n2,1\n3,1\n2,5\n3,5\n").step.tolist() == [1, 2, 3, 2, 3]
    assert iterations(tmp_path, "step,duration_s\n3,1\n1,1\n2,1\n").end_s.tolist() == [1.0, 2.0, 3.0]


def test_copies_of_rows_are_no_restart(tmp_path: Path) -> None:
    table = iterations(tmp_path, "step,duration_s\n3,4\n1,1\n3,4\n2,2\n1,1\n")
    assert table.step.tolist() == [1, 1, 2, 3, 3]
    assert table.end_s.tolist() == [1.0, 1.0, 3.0, 7.0, 7.0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "step,duration_s\n1,0\n",
            "iterations.csv line 2, column duration_s: 0 is not a duration above zero, in seconds",
        ),
        (
            "step,duration_s\n1,1\n2,-1\n",
            "iterations.csv line 3, column duration_s: -1 is not a duration above zero, in seconds",
        ),
        (
            "step,duration_s\n1,inf\n",
            "iterations.csv line 2, column duration_s: inf is not a duration above zero, in seconds",
        ),
        ("step,duration_s\n1,nan\n", "iterations.csv line 2, column duration_s: the cell is empty"),
        ("step,duration_s\n1.5,1\n", "iterations.csv line 2, column step: 1.5 is not a whole number from 0"),
        ("step,duration_s\n,1\n", "iterations.csv line 2, column step: the cell is empty"),
        ("step,duration_s,steps\n1,1,0\n", "iterations.csv line 2, column steps: 0 is not a whole number from 1"),
        ("step,duration_s,wait_s\n1,1,-2\n", "iterations.csv line 2, column wait_s: -2 is below zero"),
        ("step,duration_s,time_s\n1,1,5\n2,1,\n", "iterations.csv line 3, column time_s: the cell is empty"),
        ("step,rank\n1,1\n", "iterations.csv line 1: there is no column duration_s"),
        ("duration_s\n1\n", "iterations.csv line 1: there is no column step"),
    ],
)
def test_a_mistake_in_iterations_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    put(tmp_path, "iterations.csv", text)
    assert mistake(tmp_path) == sentence


# job.toml, flight recorder, folders


def test_job_toml_says_what_the_files_cannot(tmp_path: Path) -> None:
    put(tmp_path, "iterations.csv", "step,duration_s\n1,1\n")
    put(
        tmp_path,
        "job.toml",
        'name = "llama"\nnormal_until_s = 60\n[parallel]\ntp = 2\ndp = 4\n'
        '[[planned_change]]\nstep = 5\nwhat = "batch"\n',
    )
    job = read_folder(tmp_path)
    assert (job.name, job.normal_until_s, job.parallel) == ("llama", 60.0, {"tp": 2, "dp": 4})
    assert job.planned == (PlannedChange(5, "batch"),)
    assert read_folder(tmp_path, "by folder").name == "by folder"
    (tmp_path / "job.toml").unlink()
    assert read_folder(tmp_path).name == tmp_path.name


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("nmae = 'x'", "job.toml: Object contains unknown field `nmae`"),
        ("[parallel]\nzp = 2", "job.toml, key parallel: Object contains unknown field `zp`"),
        ("[parallel]\ntp = '2'", "job.toml, key parallel.tp: Expected `int | null`, got `str`"),
        ("normal_until_s = nan", "job.toml, key normal_until_s: the time is not finite"),
        ("[[planned_change]]\nstep = 1", "job.toml, key planned_change[0]: Object missing required field `what`"),
        ("name = ", "job.toml is not TOML: Invalid value (at end of document)"),
        ("name = ''", "job.toml, key name: Expected `str` of length >= 1"),
    ],
)
def test_a_mistake_in_job_toml_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    put(tmp_path, "metrics.csv", "time_s,x\n0,1\n")
    put(tmp_path, "job.toml", text)
    assert mistake(tmp_path) == sentence


def test_flight_recorder_dumps_by_rank_empty_ones_too(tmp_path: Path) -> None:
    put(tmp_path, "flight_recorder/rank_10.json", json.dumps({"entries": [{"seq": 1}]}))
    put(tmp_path, "flight_recorder/rank_2.json", "{}")
    put(tmp_path, "flight_recorder/README.md", "not a dump")
    assert jobs_in(tmp_path) == [tmp_path]
    job = read_folder(tmp_path)
    assert dict(job.flight) == {2: {}, 10: {"entries": [{"seq": 1}]}}
    assert list(job.flight) == [2, 10]
    put(tmp_path, "flight_recorder/rank_3.json", "{}")
    put(tmp_path, "flight_recorder/rank_03.json", "{}")
    assert mistake(tmp_path) == "flight_recorder/rank_3.json: rank 3 has a second dump"


@pytest.mark.parametrize(
    ("text", "why"),
    [('{"entries": [', "is not JSON: "), ("[" * 100_000, "is not JSON: "), ("", "is empty")],
)
def test_a_broken_dump_refuses_no_other_and_alone_is_an_error(tmp_path: Path, text: str, why: str) -> None:
    put(tmp_path, "flight_recorder/rank_3.json", text)
    assert mistake(tmp_path).startswith(f"flight_recorder/rank_3.json {why}")
    put(tmp_path, "flight_recorder/rank_2.json", "{}")
    job = read_folder(tmp_path)
    assert dict(job.flight) == {2: {}}
    assert job.broken[3].startswith(f"flight_recorder/rank_3.json {why}")


@pytest.mark.parametrize("factor", [1e3, 1e6, 1e9])
def test_times_in_other_units_are_told_by_their_magnitude(tmp_path: Path, factor: float) -> None:
    table = metrics(tmp_path, f"time_s,x\n{1.79e9 * factor:.0f},1\n{(1.79e9 + 10) * factor:.0f},2\n")
    np.testing.assert_allclose(table.times_s, [1.79e9, 1.79e9 + 10.0])
    assert "seconds since 1970" in table.notes[0]


def test_a_batch_is_its_subfolders_by_name(tmp_path: Path) -> None:
    put(tmp_path, "b/metrics.csv", "")
    put(tmp_path, "a/logs-7.jsonl.gz", "")
    put(tmp_path, "c/notes.txt", "")
    assert jobs_in(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert is_batch(tmp_path)
    assert not is_batch(tmp_path / "a")
    put(tmp_path, "iterations.parquet", "")
    assert jobs_in(tmp_path) == [tmp_path]


def test_a_folder_of_a_batch_that_cannot_be_looked_into_is_a_job_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path, "a/metrics.csv", "time_s,x\n0,1\n")
    put(tmp_path, "b/metrics.csv", "time_s,x\n0,1\n")
    look = Path.iterdir

    def refuse(self: Path) -> Iterator[Path]:
        if self.name == "b":
            raise PermissionError(13, "Permission denied")
        return look(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert jobs_in(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(DataError, match=r"^folder 'b' cannot be read \(Permission denied\)$"):
        read_folder(tmp_path / "b")


def test_a_folder_with_nothing_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "c/notes.txt", "")
    put(tmp_path, "job.toml", "name = 'x'")
    with pytest.raises(
        DataError, match=r"^neither .* holds metrics, iterations, collectives, logs or flight_recorder files"
    ):
        jobs_in(tmp_path)
    with pytest.raises(DataError, match=r"^there is no folder"):
        jobs_in(tmp_path / "missing")
    with pytest.raises(DataError, match=r"is no folder$"):
        jobs_in(tmp_path / "job.toml")


def test_what_we_record_is_what_we_read(tmp_path: Path) -> None:
    records: list[Record] = [
        MetricsRecord(
            job="j", node="n", time_s=1.5, devices=("gpu0", "gpu1"), names=("a", "b"), values=((1.0, None), (2.0, 3.0))
        ),
        IterationRecord(
            job="j", node="n", rank=0, incarnation="7-7", steps=(1, 2), end_s=(1.0, 2.0), duration_s=(0.5, 0.6),
            compute_s=(0.4, None), micro_batches=(4, None),
        ),
        LogRecord(job="j", node="n", source="f", ends=(4, 9), lines=("abc", "défg"), times_s=(1.0, 1.25), rank=0),
        EventRecord(id="p", job="j", node="n", time_s=2.0, kind="microbatch_plan", fields={"step": 2, "number": 1}),
    ]  # fmt: skip
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    for record in records:
        bus.publish(topic_of(record), "j", record)
    bus.flush()
    write_recording(bus, "j", tmp_path / "kept")
    bus.close()
    job = read_folder(tmp_path / "kept")
    assert job.name == "j"
    assert job.metrics is not None
    assert job.metrics.names == ("a", "b")
    assert job.metrics.devices == ("gpu0", "gpu1")
    np.testing.assert_array_equal(job.metrics.values, [[1.0, 2.0], [np.nan, 3.0]])
    assert job.iterations is not None
    assert job.iterations.timed
    np.testing.assert_array_equal(job.iterations.compute_s, [0.4, np.nan])
    np.testing.assert_array_equal(job.iterations.micro_batches, [4.0, np.nan])
    assert job.iterations.incarnation == ("7-7", "7-7")
    assert [log.lines for log in job.logs] == [["abc", "défg"]]
    assert job.logs[0].times_s.tolist() == [1.0, 1.25]
    assert (job.logs[0].nodes, job.logs[0].ranks) == (("n", "n"), (0, 0))
    assert job.planned == (PlannedChange(2, "micro-batch plan 1"),)
