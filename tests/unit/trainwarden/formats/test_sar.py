"""What sar and mpstat print: host and day of the title, clocks past midnight, blocks, and rows that are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwarden.errors import DataError
from trainwarden.formats.source import Source
from trainwarden.formats.survey import made, sniffed
from trainwarden.recorded.job import MetricTable

DAY_S = 1_789_948_800.0  # 21 September 2026
TITLE = "Linux 5.15.0 (c9) \t{}\t_x86_64_\t(64 CPU)\n\n"
CPU = "{}  CPU  %usr  %nice  %sys  %iowait  %steal  %idle\n"
ROW = "{}  {}  50,0  0,0  4,0  0,2  {}  40,0\n"


def read(folder: Path, text: str) -> MetricTable:
    path = folder / "sar.txt"
    path.write_text(text, encoding="utf-8")
    source = Source(path, path.name)
    assert sniffed(source)[0] == "sar report"
    (table,) = made("sar report").read(source, {}).metrics
    return table


def column(table: MetricTable, name: str) -> list[float]:
    return table.values[:, table.names.index(name)].round(6).tolist()


@pytest.mark.parametrize("day", ["09/21/2026", "09/21/26", "2026-09-21"])
def test_the_title_tells_the_host_and_the_day(tmp_path: Path, day: str):
    rows = ROW.format("03:00:01", "all", "12,5") + ROW.format("03:00:01", "0", "90,0")
    table = read(tmp_path, TITLE.format(day) + CPU.format("03:00:00") + rows)
    assert (table.nodes, table.times_s.tolist()) == (("c9",), [DAY_S + 10_801.0])
    assert column(table, "host_cpu_steal_ratio") == [0.125]


def test_clocks_go_on_past_midnight_and_over_pages_and_averages_are_left_out(tmp_path: Path):
    text = TITLE.format("09/21/2026") + CPU.format("11:50:00 PM")
    text += ROW.format("11:59:00 PM", "all", "1,0") + ROW.format("12:09:00 AM", "all", "2,0")
    text += CPU.format("12:19:00 AM") + ROW.format("12:29:00 AM", "all", "3,0")
    text += "Average:  all  50,0  0,0  4,0  0,2  99,0  40,0\n"
    table = read(tmp_path, text)
    assert (table.times_s - DAY_S).tolist() == [86_340.0, 86_940.0, 88_140.0]
    assert column(table, "host_cpu_steal_ratio") == [0.01, 0.02, 0.03]


def test_blocks_of_memory_complete_those_of_processors(tmp_path: Path):
    text = TITLE.format("09/21/2026") + CPU.format("03:00:00") + ROW.format("03:10:00", "all", "1,0")
    text += "\n03:00:00  kbmemfree  kbavail  kbmemused  %memused\n03:10:00  100  200  800  80.00\n"
    table = read(tmp_path, text)
    assert table.times_s.size == 1
    assert column(table, "host_memory_used_ratio") == [0.8]
    assert column(table, "host_memory_available_bytes") == [204_800.0]


def test_what_is_of_disks_alone_or_has_no_row_is_refused(tmp_path: Path):
    path = tmp_path / "iostat.txt"
    path.write_text(TITLE.format("09/21/2026") + "03:00:00  DEV  tps  %util\n03:10:00  sda  1.0  99.0\n", "utf-8")
    assert sniffed(Source(path, path.name))[0] != "sar report"
    with pytest.raises(DataError, match="no row is of all processors"):
        read(tmp_path, TITLE.format("09/21/2026") + CPU.format("03:00:00"))
