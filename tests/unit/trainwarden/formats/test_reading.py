"""Whatever lies at a path is read, or named with the reason."""

from __future__ import annotations

import gzip
import json
import math
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
from openpyxl import Workbook

from tests.places import ROOT
from trainwarden.detectors.recorded.exporter_facts import exporter_events
from trainwarden.errors import DataError
from trainwarden.formats.reading import read_job
from trainwarden.formats.survey import jobs_at
from trainwarden.recorded.job import MetricTable, RecordedJob

T0 = 1_790_000_000


def put(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows(column: str, moments: int = 6, gpus: int = 8, **kinds: str) -> str:
    text = f"time_s,node,{column},DCGM_FI_DEV_GPU_TEMP,slot_power_w\n"
    for moment in range(moments):
        text += "".join(f"{T0 + 10 * moment},a1,{gpu},{60 + gpu + moment},{600 + gpu}\n" for gpu in range(gpus))
    return text


def metrics(job: RecordedJob) -> MetricTable:
    assert job.metrics is not None
    return job.metrics


@pytest.mark.parametrize("column", ["gpu", "index", "gpu_index", "gpu_id", "local_rank", "GPU", "card"])
def test_identity_columns_are_identities_and_no_metrics(tmp_path: Path, column: str) -> None:
    put(tmp_path, "metrics.csv", rows(column))
    table = metrics(read_job(tmp_path))
    assert sorted(table.devices) == [f"gpu{number}" for number in range(8)]
    assert table.names == ("gpu_temperature_celsius", "slot_power_w")
    assert table.replaced == 0


@pytest.mark.parametrize("name", ["metrics.csv", "fleet.csv"])
def test_eight_gpus_on_one_row_is_an_error_that_names_the_column(tmp_path: Path, name: str) -> None:
    put(tmp_path, name, rows("slot"))
    with pytest.raises(DataError, match=r"42 of 48 rows .*--columns device=slot"):
        read_job(tmp_path)
    job = read_job(tmp_path, None, {"device": "slot"})
    assert len(metrics(job).devices) == 8


def test_all_problems_are_told_at_once_with_line_column_and_remedy(tmp_path: Path) -> None:
    text = "timestamp,gpu,power.draw [W],temperature.gpu\n"
    text += "".join(f"2026/09/21 14:53:{second:02d},0,600 W,{60 + second}\n" for second in range(20))
    text = text.replace("600 W,63", "much,63").replace("600 W,65", "600 W,warm").replace("14:53:08", "late")
    put(tmp_path, "smi.csv", text)
    with pytest.raises(DataError) as caught:
        read_job(tmp_path / "smi.csv")
    said = str(caught.value)
    for part in ("line 5, column power.draw [W]: 'much' is not a number", "line 7, column temperature.gpu: 'warm'",
                 "line 10, column timestamp: '2026/09/21 late' is no time", "leave the cell empty"):  # fmt: skip
        assert part in said


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda text: text.encode("utf-16"), "a.csv"),
        (lambda text: b"\xef\xbb\xbf" + text.encode(), "a.csv"),
        (lambda text: text.replace(",", "\t").encode(), "a.tsv"),
        (lambda text: text.replace(",", ";").replace(".5", ",5").encode(), "a.csv"),
        (lambda text: gzip.compress(text.encode()), "a.csv.gz"),
        (lambda text: text.replace("\n", "\r\n").encode(), "a.csv"),
        (lambda text: (text + text).encode(), "a.csv"),
    ],
    ids=["utf-16", "bom", "tab", "semicolon and decimal comma", "gz", "crlf", "repeated header"],
)
def test_spellings_of_one_table_are_one_table(tmp_path: Path, write, name: str) -> None:
    text = "timestamp, index, temperature.gpu, power.draw [W], clocks_event_reasons.active\n"
    text += "".join(f"2026-09-21 14:53:{10 * i:02d}, {gpu}, {60 + i}, {600 + gpu}.5 W, 0x0000000000000080\n"
                    for i in range(3) for gpu in range(2))  # fmt: skip
    put(tmp_path, name, write(text))
    table = metrics(read_job(tmp_path / name))
    assert table.devices == ("gpu0", "gpu1")
    assert table.times_s.tolist() == [T0 + 2380.0 + 10 * i for i in range(3) for _ in range(2)]
    power = table.values[:, table.names.index("gpu_power_watts")]
    np.testing.assert_allclose(power, [600.5, 601.5] * 3)
    assert table.values[:, table.names.index("gpu_throttle_hardware_state")].tolist() == [1.0] * 6


@pytest.mark.parametrize("unit", [1.0, 1e3, 1e6, 1e9])
def test_epochs_in_any_unit_are_told_by_their_magnitude_and_said(tmp_path: Path, unit: float) -> None:
    put(tmp_path, "x.csv", f"ts,gpu,temperature.gpu\n{T0 * unit:.0f},0,60\n{(T0 + 5) * unit:.0f},0,61\n")
    job = read_job(tmp_path / "x.csv")
    np.testing.assert_allclose(metrics(job).times_s, [T0, T0 + 5])
    assert bool(job.notes) == (unit != 1.0)


def test_what_lies_beside_is_read_or_named(tmp_path: Path) -> None:
    put(tmp_path, "metrics.csv", rows("device"))
    put(tmp_path, "metrics_a2.csv", rows("device").replace(",a1,", ",a2,"))
    put(tmp_path, "a3/metrics.csv", rows("device").replace(",a1,", ",a3,"))
    put(tmp_path, "core.bin", b"\x00\x01\x02")
    put(tmp_path, "empty.csv", "")
    job = read_job(tmp_path)
    assert {one.path for one in job.files} == {"metrics.csv", "metrics_a2.csv", "a3/metrics.csv"}
    assert {(one.path, one.why) for one in job.unread} == {
        ("core.bin", "no format is known of it"), ("empty.csv", "it is empty"),
    }  # fmt: skip
    assert set(metrics(job).nodes) == {"a1", "a2", "a3"}


def test_files_of_several_nodes_that_do_not_name_them_are_nodes_by_their_paths(tmp_path: Path) -> None:
    for node in ("a1", "a2"):
        text = rows("gpu").replace(",a1,", ",").replace("time_s,node,", "time_s,")
        put(tmp_path, f"smi_{node}.csv", text)
    job = read_job(tmp_path)
    assert set(metrics(job).nodes) == {"a1", "a2"}
    assert any("nodes named after their files" in note for note in job.notes)


def test_dumps_under_pytorch_s_own_names_also_pickled_and_one_broken(tmp_path: Path) -> None:
    dump = {"version": "2.5", "pg_config": {}, "pg_status": {}, "entries": []}
    put(tmp_path, "flight_recorder/nccl_trace_rank_0", json.dumps(dump))
    put(tmp_path, "dumps/comm_lib_trace_rank_1", pickle.dumps(dump, protocol=2))
    put(tmp_path, "dumps/nccl_trace_rank_2", json.dumps(dump)[:-20])
    job = read_job(tmp_path)
    assert set(job.flight) == {0, 1}
    assert set(job.broken) == {2}
    assert [one.path for one in job.unread] == ["dumps/nccl_trace_rank_2"]


def test_a_pickle_that_would_run_something_is_refused(tmp_path: Path) -> None:
    put(tmp_path, "nccl_trace_rank_0", pickle.dumps({"pg_config": print, "entries": []}, protocol=2))
    (unread,) = read_job(tmp_path / "nccl_trace_rank_0").unread
    assert "would do more than build plain data" in unread.why


def test_a_folder_of_nothing_known_names_what_is_there(tmp_path: Path) -> None:
    put(tmp_path, "notes/a.bin", b"\x00\x01")
    assert jobs_at(tmp_path) == ([tmp_path], False)
    assert [(one.path, one.why) for one in read_job(tmp_path).unread] == [("notes/a.bin", "no format is known of it")]
    with pytest.raises(DataError, match="there is no file or folder"):
        jobs_at(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a pipe or a device; pass it by standard input: trainwarden detect - <"):
        jobs_at(tmp_path / "pipe")


def test_a_bomb_of_zeros_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwarden.formats.source.MAX_BYTES", 1_000_000)
    monkeypatch.setattr("trainwarden.recorded.files.MAX_UNPACKED", 1_000_000)
    text = rows("gpu").encode() + b"0,0,0,0,0\n" * 1_000_000
    put(tmp_path, "gpu.csv.gz", gzip.compress(text))
    (unread,) = read_job(tmp_path / "gpu.csv.gz").unread
    assert "larger than 1,000,000 bytes unpacked" in unread.why
    put(tmp_path, "metrics.csv.gz", gzip.compress(b"time_s,x\n" + b"0,0\n" * 1_000_000))
    (unread,) = read_job(tmp_path / "metrics.csv.gz").unread
    assert "unpacked" in unread.why


def test_an_event_file_is_read_up_to_what_is_damaged_in_it(tmp_path: Path) -> None:
    (sample,) = (ROOT / "tests/data/formats/tensorboard_events").iterdir()
    whole = sample.read_bytes()
    losses = read_job(put(tmp_path, "whole/events.out.tfevents.1.a1", whole)).logs[0].lines
    assert (len(losses), losses[0], losses[-1]) == (30, "step 0 | loss: 2.5", "step 29 | loss: nan")
    damaged = bytearray(whole)
    damaged[len(whole) // 4] ^= 0x10
    for name, data in (("flipped", bytes(damaged)), ("short", whole[: len(whole) // 4])):
        job = read_job(put(tmp_path, f"{name}/events.out.tfevents.1.a1", data))
        assert job.logs[0].lines == losses[: len(job.logs[0].lines)]
        assert 0 < len(job.logs[0].lines) < 30
        assert any("checksum" in note or "cut short" in note for note in job.notes)


def test_snapshots_of_several_ports_and_moments_are_of_one_node(tmp_path: Path) -> None:
    for moment in range(3):
        for port in range(2):
            text = f"# Port extended counters: Lid 12 port 1 (CapMask: 0x5300)\nSymbolErrorCounter:....{moment}\n"
            put(tmp_path, f"perfquery_mlx5_{port}_{T0 + 60 * moment}.txt", text)
    job = read_job(tmp_path)
    assert sorted(metrics(job).devices) == ["mlx5_0:1", "mlx5_1:1"]
    assert (set(metrics(job).nodes), job.notes) == ({None}, ())


def test_xml_that_defines_entities_is_refused(tmp_path: Path) -> None:
    sample = (ROOT / "tests/data/formats/gpu_records/smi.xml").read_text()
    bomb = sample.replace("<nvidia_smi_log>", '<!DOCTYPE x [<!ENTITY a "b">]><nvidia_smi_log>', 1)
    (unread,) = read_job(put(tmp_path, "smi.xml", bomb)).unread
    assert "defines entities" in unread.why


def test_a_scrape_that_begins_with_many_comments_is_an_exporters(tmp_path: Path) -> None:
    comments = "".join(f"# HELP go_{number} x\n# TYPE go_{number} gauge\n" for number in range(40))
    put(tmp_path, "scrape.txt", comments + 'node_load1{instance="a1:9100"} 3.5\nnode_load5{instance="a1:9100"} 3\n')
    assert metrics(read_job(tmp_path / "scrape.txt")).times_s.size


def test_passes_over_the_data_are_no_times(tmp_path: Path) -> None:
    history = [{"epoch": number, "step": 100 * number, "loss": 2.0 / number} for number in range(1, 40)]
    put(tmp_path, "trainer_state.json", json.dumps({"log_history": history}))
    job = read_job(tmp_path / "trainer_state.json")
    assert job.iterations is None
    assert len(job.logs[0].lines) == 39
    assert np.isnan(job.logs[0].times_s).all()


def test_a_table_of_nvidia_smi_without_a_header_is_named_with_the_remedy(tmp_path: Path) -> None:
    put(
        tmp_path,
        "smi.csv",
        "2026/06/01 11:27:05.177, NVIDIA A100, 44, 98 %\n2026/06/01 11:27:10.177, NVIDIA A100, 44, 97 %\n",
    )
    with pytest.raises(DataError, match=r"smi\.csv line 1: there is no header .*noheader"):
        read_job(tmp_path / "smi.csv")


@pytest.mark.parametrize("first", [
    "#       size         count      type   redop    root     time   algbw   busbw #wrong",
    "Linux 5.15.0-91 (gpu-7) \t09/21/2026 \t_x86_64_\t(96 CPU)",
    "procs -----------memory---------- ---swap-- -----io----",
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity",
    "Settings for eth0:",
])  # fmt: skip
def test_a_report_that_says_nothing_of_training_is_named_and_is_no_log(tmp_path: Path, first: str) -> None:
    put(tmp_path, "report.txt", first + "\n" + "2026-09-21 14:53:20 INFO 1 2 3\n" * 20)
    job = read_job(tmp_path / "report.txt")
    assert (job.files, job.logs, job.metrics) == ((), (), None)
    assert job.unread[0].path == "report.txt"
    assert "; give " in job.unread[0].why


def test_series_of_trackers_are_named_as_each_of_them_names_them(tmp_path: Path) -> None:
    comet = [
        {"metricName": "step_time", "metricValue": "1.5", "timestamp": T0 + step, "step": step} for step in range(9)
    ]
    put(tmp_path, "comet.json", json.dumps(comet))
    put(
        tmp_path,
        "aim.csv",
        "metric.name,step,time,value\n" + "".join(f"step_time,{step},{T0 + step},1.5\n" for step in range(9)),
    )
    put(tmp_path, "lightning.csv", "epoch,step,train_loss_step\n" + "".join(f"0,{step},nan\n" for step in range(9)))
    for name in ("comet.json", "aim.csv"):
        iterations = read_job(tmp_path / name).iterations
        assert iterations is not None
        assert iterations.duration_s.tolist() == [1.5] * 9
    assert len(read_job(tmp_path / "lightning.csv").logs[0].lines) == 9


def test_parts_of_a_step_are_read_in_their_units(tmp_path: Path) -> None:
    lines = [f"{step},{rank},250.0,{200 + rank}.0,{50 - rank}.0" for step in range(4) for rank in range(2)]
    put(tmp_path, "steps.csv", "\n".join(["step,rank,step_time_ms,compute_ms,comm_time_ms", *lines]))
    table = read_job(tmp_path).iterations
    assert table is not None
    np.testing.assert_allclose(table.duration_s, 0.25)
    np.testing.assert_allclose(table.compute_s[table.rank == 1], 0.201)
    np.testing.assert_allclose(table.wait_s[table.rank == 1], 0.049)


def test_a_runs_own_clock_in_hours_minutes_and_seconds_gives_step_times(tmp_path: Path) -> None:
    clock = ["0:00:20", "0:00:40", "0:01:00", "1 day, 0:00:20", "1 day, 0:00:40"]
    lines = [
        json.dumps({"current_steps": 10 * row, "loss": 2.5, "elapsed_time": text, "remaining_time": "0:10:00"})
        for row, text in enumerate(clock, 1)
    ]
    put(tmp_path, "trainer_log.jsonl", "\n".join(lines))
    table = read_job(tmp_path).iterations
    assert table is not None
    np.testing.assert_allclose(table.duration_s, 2.0)  # a day between two rows is a pause


def test_ports_of_a_node_exporter_that_is_scraped_by_hand_are_entities_of_their_own(tmp_path: Path) -> None:
    state = 'node_infiniband_state_id{{device="mlx5_{port}",port="1"}} {state} {ms}\n'
    (tmp_path / "node.prom").write_text(
        "".join(
            state.format(
                port=port, state=1 if port == 4 and number >= 30 else 4, ms=1_790_000_000_000 + 15_000 * number
            )
            for number in range(60)
            for port in range(8)
        )
    )
    job = read_job(tmp_path)
    assert job.metrics is not None
    assert sorted(str(one) for one in job.metrics.devices) == [f"mlx5_{port}:1" for port in range(8)]
    (event,) = exporter_events(job)
    assert (event.kind, event.device) == ("link_down", "mlx5_4:1")


def test_a_loss_that_is_no_number_is_kept_in_a_long_table_too(tmp_path: Path) -> None:
    rows = [
        {
            "key": "train_loss",
            "value": 3.0 if step < 30 else math.nan,
            "step": step,
            "timestamp": 1_790_000_000_000 + step,
        }
        for step in range(40)
    ]
    (tmp_path / "metrics.json").write_text(json.dumps(rows))
    job = read_job(tmp_path)
    assert [line for log in job.logs for line in log.lines][-1] == "step 39 | loss: nan"


def test_a_workbook_is_read_as_its_sheet_saved_as_csv(tmp_path: Path) -> None:
    cells = [line.split(",") for line in rows("gpu").splitlines()]
    book = Workbook()
    book.active.title = "gpus"
    for row in cells:
        book.active.append(
            [one if number == 0 or not row[0].isdecimal() else _cell(one) for number, one in enumerate(row)]
        )
    beside = book.create_sheet("notes")
    for row in (["who"], ["nobody"]):
        beside.append(row)
    book.save(tmp_path / "gpus.xlsx")
    put(tmp_path, "gpus.csv", rows("gpu"))
    left, right = (read_job(tmp_path / name) for name in ("gpus.xlsx", "gpus.csv"))
    assert metrics(left).names == metrics(right).names
    np.testing.assert_array_equal(metrics(left).values, metrics(right).values)
    assert "sheet 'gpus' is read, and not 'notes'" in str(left.notes)


def test_a_workbook_without_its_package_is_named_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    sample = (ROOT / "tests/data/formats/excel_table/gpus.xlsx").read_bytes()
    (unread,) = read_job(put(tmp_path, "gpus.xlsx", sample)).unread
    assert "pip install 'trainwarden[excel]'" in unread.why


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def test_dcgmi_s_short_names_of_links_are_read(tmp_path: Path) -> None:
    short = {
        "NLSYME": "gpu_nvlink_symbol_errors_count", "NLLIE": "", "NLLLIE": "gpu_nvlink_integrity_errors_count",
        "NLLRF": "gpu_nvlink_recovery_errors_count", "NLEFBF": "gpu_nvlink_effective_bit_error_ratio",
        "NRELT": "gpu_nvlink_replay_errors_count", "PCILW": "gpu_pcie_link_width_count",
        "RRF": "gpu_row_remap_failure_state",
    }  # fmt: skip
    head = f"#Entity   {'  '.join(short)}\nID\n"
    put(tmp_path, "dmon.txt", head + "".join(f"GPU {gpu}  {'  '.join('1' * len(short))}\n" for gpu in range(8)))
    assert set(metrics(read_job(tmp_path)).names) == {name for name in short.values() if name}


def test_tables_of_other_makers_tools_are_of_their_devices(tmp_path: Path) -> None:
    xpu = "Timestamp, DeviceId, GPU Utilization (%), GPU Frequency (MHz), GPU Core Temperature (Celsius Degree)\n"
    xpu += "".join(
        f"{clock}.{device}00, {device}, 99.1, 1550, 71.5\n" for clock in ("23:59:59", "00:00:00") for device in (0, 1)
    )
    table = metrics(read_job(put(tmp_path, "xpu.csv", xpu)))
    assert (table.devices, set(table.names)) == (
        ("gpu0", "gpu1"), {"gpu_utilization_ratio", "gpu_sm_clock_hertz", "gpu_temperature_celsius"},
    )  # fmt: skip
    assert np.ptp(table.times_s) == pytest.approx(1.1)
    hl = "timestamp, name, index, temperature.aip [C], utilization.aip [%], power.draw [W]\n"
    hl += "".join(f"Wed Nov  4 08:0{minute}:00 UTC 2026, HL-325L, 3, 44 C, 93 %, 610 W\n" for minute in range(3))
    table = metrics(read_job(put(tmp_path, "hl.csv", hl)))
    assert (table.devices, table.times_s[-1]) == (("gpu3",), 1793779320.0)
    assert set(table.names) == {"gpu_utilization_ratio", "gpu_temperature_celsius", "gpu_power_watts"}
