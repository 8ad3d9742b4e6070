"""Who and what series of exporters, panels and agents are about, where their names and labels do not say it plainly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainwarden.errors import DataError
from trainwarden.formats.exporters.annotated import AnnotatedCsv
from trainwarden.formats.exporters.exposition import Exposition
from trainwarden.formats.exporters.sample_lines import SampleLines
from trainwarden.formats.protocol import Format
from trainwarden.formats.reading import read_job
from trainwarden.formats.source import Source
from trainwarden.formats.survey import made
from trainwarden.recorded.job import MetricTable


def metrics(folder: Path, text: str, form: Format, name: str = "some.txt") -> MetricTable:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    (table,) = form.read(Source(path, name), {}).metrics
    return table


def value(table: MetricTable, metric: str, node: str) -> list[float]:
    rows = [row for row, one in enumerate(table.entity.tolist()) if table.nodes[one] == node]
    return table.values[rows, table.names.index(metric)].round(6).tolist()


UNAME = 'node_uname_info{{{}machine="x86_64",nodename="{}"}} 1\n'
LOAD = "# TYPE node_load1 gauge\nnode_load1 4.5\n"


def test_a_scrape_of_node_exporter_is_of_the_host_that_it_names(tmp_path: Path):
    assert metrics(tmp_path, LOAD + UNAME.format("", "a7"), Exposition()).nodes == ("a7",)
    assert metrics(tmp_path, LOAD, Exposition()).nodes == (None,)


def test_hosts_that_were_scraped_together_name_nothing_that_is_not_theirs(tmp_path: Path):
    both = UNAME.format("", "a7") + UNAME.format("", "a8")
    assert metrics(tmp_path, LOAD + both, Exposition()).nodes == (None,)
    federated = 'node_load1{instance="10.0.0.4:9100"} 4.5\n' + UNAME.format('instance="10.0.0.5:9100",', "a7")
    assert metrics(tmp_path, federated, Exposition()).nodes == ("10.0.0.4",)


def panel(cells: str) -> str:
    rows = "".join(f'"2026-09-21 14:00:{n:02d}",{cells}\n' for n in range(10))
    return '"Time","gpu-b1 GPU 0","gpu-b2 GPU 0"\n' + rows


@pytest.mark.parametrize(
    ("name", "cells", "metric", "expected"),
    [
        ("SM clocks-data-2026-09-21 14_00_00.csv", '"1.98 GHz","1.01 GHz"', "gpu_sm_clock_hertz", 1.98e9),
        ("GPU temps-data-2026-09-21 14_00_00.csv", '"61 °C","62 °C"', "gpu_temperature_celsius", 61.0),
        ("sm-data-2026-09-21 14_00_00.csv", '"97 %","98 %"', "gpu_utilization_ratio", 0.97),
        ("sm-data-2026-09-21 14_00_00.csv", "97,98", "gpu_utilization_ratio", 0.97),
    ],
)
def test_a_panels_name_means_what_its_cells_are_measured_in(
    tmp_path: Path, name: str, cells: str, metric: str, expected: float
):
    table = metrics(tmp_path, panel(cells), made("table"), name)
    assert table.names == (metric,)
    assert (set(table.nodes), set(table.devices)) == ({"gpu-b1", "gpu-b2"}, {"gpu0"})
    assert value(table, metric, "gpu-b1")[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "metric"),
    [
        ("GPU temperature-data-as-joinbyfield.csv", "gpu_temperature_celsius"),
        ("temperature-of-water.csv", "temperature-of-water"),
        ("Queue depth-data-2026-09-21 14_00_00.csv", "Queue depth-data-2026-09-21 14_00_00"),
    ],
)
def test_a_column_of_values_is_what_its_panel_is_called(tmp_path: Path, name: str, metric: str):
    rows = "".join(f"2026-09-21T14:00:{n:02d}Z,b{n % 2}:9400,{n % 4},61\n" for n in range(16))
    table = metrics(tmp_path, "Time,instance,gpu,Value\n" + rows, made("table"), name)
    assert table.names == (metric,)


def cloudwatch(label: str, share: float = 81.5) -> str:
    series = {"Id": "m1", "Label": label, "Timestamps": ["2026-09-21T14:00:00+00:00"], "Values": [share]}
    return json.dumps({"MetricDataResults": [series]})


@pytest.mark.parametrize(
    "label", ["disk_used_percent i-0a1", "i-0a1 disk_used_percent", "CWAgent i-0a1 disk_used_percent"]
)
def test_a_label_of_cloudwatch_names_its_metric_at_any_place(tmp_path: Path, label: str):
    table = metrics(tmp_path, cloudwatch(label), SampleLines())
    assert value(table, "host_filesystem_used_ratio", "i-0a1") == [0.815]


def test_a_label_without_a_metric_of_ours_is_named(tmp_path: Path):
    with pytest.raises(DataError, match="no series is of a metric of ours"):
        metrics(tmp_path, cloudwatch("i-0a1 credits_left"), SampleLines())


INFLUX = """cpu,cpu=cpu-total,host=a1 usage_steal=31.5,usage_user=40 1790000000000000000
cpu,cpu=cpu0,host=a1 usage_steal=99,usage_user=0 1790000000000000000
disk,device=md0,fstype=xfs,host=a1,path=/raid used_percent=99.5 1790000000000000000
disk,device=sda1,fstype=ext4,host=a1,path=/ used_percent=20 1790000000000000000
disk,device=loop1,fstype=squashfs,host=a1,path=/snap used_percent=100 1790000000000000000
mem,host=a1 used_percent=44 1790000000000000000
swap,host=a1 used_percent=77 1790000000000000000
"""


def test_fields_of_telegraf_are_their_inputs_and_the_fullest_file_system_counts(tmp_path: Path):
    table = metrics(tmp_path, INFLUX, SampleLines())
    assert value(table, "host_cpu_steal_ratio", "a1") == [0.315]
    assert value(table, "host_filesystem_used_ratio", "a1") == [0.995]
    assert value(table, "host_memory_used_ratio", "a1") == [0.44]


def test_annotated_csv_reads_a_field_by_its_measurement(tmp_path: Path):
    rows = "".join(
        f",,{n},2026-09-21T14:00:00Z,{share},{field},{of},{cpu},a1\n"
        for n, (of, field, cpu, share) in enumerate((
            ("cpu", "usage_steal", "cpu-total", 31.5), ("cpu", "usage_steal", "cpu4", 90), ("net", "usage_steal", "", 7)
        ))
    )  # fmt: skip
    table = metrics(tmp_path, ",result,table,_time,_value,_field,_measurement,cpu,host\n" + rows, AnnotatedCsv())
    assert table.names == ("host_cpu_steal_ratio",)
    assert value(table, "host_cpu_steal_ratio", "a1") == [0.315]


def test_files_called_after_their_nodes_are_of_these_where_there_are_several(tmp_path: Path) -> None:
    for name in ("node0.log", "node1.log", "train-ip-10-0-0-7.out"):
        (tmp_path / name).write_text("2026-11-04 08:05:06 step 1 loss 2.1\n")
    assert {log.file: log.nodes[0] for log in read_job(tmp_path).logs} == {
        "node0.log": "node0", "node1.log": "node1", "train-ip-10-0-0-7.out": "ip-10-0-0-7",
    }  # fmt: skip


def test_lines_that_a_program_writes_past_its_json_logger_are_read_with_its_records(tmp_path: Path) -> None:
    records = [
        f'{{"ts":"2026-11-04T08:{n // 10:02d}:{6 * n % 60:02d}Z","event":"train_step","step":{n + 7},"loss":2.5,'
        f'"step_time_s":6.0}}'
        for n in range(40)
    ]
    past = ["trn-a:984:1357 [4] NCCL INFO transport/net.cc:1302 -> 6"] * 12
    file = tmp_path / "train.jsonl.log"
    file.write_text("\n".join([*records, *past, ""]))
    job = read_job(file)
    assert sum("NCCL INFO" in line for log in job.logs for line in log.lines) == 12
    assert job.iterations is not None
