"""Disks far slower than before, or than their peers, in iostat, sar and node_exporter's text; work is no fault."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.unit.trainwarden.formats import judging
from tests.unit.trainwarden.formats.judging import Told, judged_text
from trainwarden.formats.reading import read_job

START = datetime(2026, 5, 3, 11, 55, tzinfo=UTC)
Waits = dict[str, list[float]]


def busy_of(wait_ms: float) -> float:
    return 96.0 if wait_ms > 40.0 else 6.0


def iostat(node: str, waits_ms: Waits, *, moved: float = 1.0, every_s: int = 10, busy: float | None = None) -> str:
    """Reports of disks; `moved` is how many times as much is moved where requests wait."""
    lines = [f"Linux 5.15.0-91-generic ({node}) \t05/03/26 \t_x86_64_\t(96 CPU)", ""]
    for number in range(-1, max(map(len, waits_ms.values()))):  # the first report is of all time since the boot
        at = START + timedelta(seconds=every_s * number)
        lines += [at.strftime("%m/%d/%y %H:%M:%S"), "avg-cpu:  %user   %nice %system %iowait  %steal   %idle"]
        lines += ["          20.00    0.00    3.00    1.00    0.00   76.00", ""]
        lines += ["Device            r/s     rkB/s   r_await     w/s     wkB/s   w_await  aqu-sz  %util"]
        for disk, own in waits_ms.items():
            wait = own[max(number, 0)]
            more = moved if wait > 40.0 else 1.0
            used = busy_of(wait) if busy is None else busy
            reads, writes = (f"{60 * more:.2f} {9600 * more:.2f}", f"{5 * more:.2f} {80 * more:.2f}")
            lines += [f"{disk:10} {reads} {wait:.2f} {writes} {wait:.2f} 1.1 {used}"]
        lines += [""]
    return "\n".join(lines)


def judged(folder: Path, text: str, name: str = "iostat.txt") -> list[Told]:
    return judged_text(folder, text, name)[1]


WELL = [0.3, 0.4, 0.3, 0.2, 0.3, 0.5] * 6
SLOW = WELL[:18] + [180.0, 210.0, 200.0, 190.0, 220.0, 205.0] * 3


def test_a_disk_far_slower_than_before_is_named_and_one_that_always_was_is_not(tmp_path: Path):
    disks = {"nvme0n1": WELL, "nvme1n1": SLOW}
    assert judged(tmp_path, iostat("gpu01", disks)) == [("storage", "gpu01", "nvme1n1")]
    assert judged(tmp_path, iostat("gpu01", {"nvme0n1": WELL, "nvme1n1": WELL})) == []
    assert judged(tmp_path, iostat("gpu01", {"sda": [200.0] * 36})) == []  # nothing says what it once was


def test_a_second_witness_is_wanted(tmp_path: Path):
    assert judged(tmp_path, iostat("gpu01", {"nvme1n1": SLOW}, busy=6.0)) == []


@pytest.mark.parametrize("moved", [2.5, 40.0])
def test_a_disk_that_does_more_work_than_before_is_not_slow(tmp_path: Path, moved: float):
    assert judged(tmp_path, iostat("gpu01", {"nvme1n1": SLOW}, moved=moved)) == []  # a checkpoint is written


def test_a_moment_is_no_fault_and_a_sample_of_less_work_ends_none(tmp_path: Path):
    assert judged(tmp_path, iostat("gpu01", {"sda": WELL[:18] + [200.0] * 4 + WELL})) == []
    gap = [*WELL[:18], 200.0, 200.0, 200.0, 0.3, 200.0, 200.0, 200.0, 200.0]
    assert judged(tmp_path, iostat("gpu01", {"sda": gap})) == [("storage", "gpu01", "sda")]
    assert judged(tmp_path, iostat("gpu01", {"sda": WELL[:18] + [200.0] * 12}, every_s=1)) == []  # 12 s


def test_a_disk_far_slower_than_its_likes_on_other_nodes_is_named_without_a_past(tmp_path: Path):
    for number in range(1, 5):
        waits = [210.0] * 20 if number == 3 else WELL[:20]
        (tmp_path / f"iostat_n{number}.txt").write_text(iostat(f"gpu0{number}", {"nvme0n1": waits}), encoding="utf-8")
    assert judging.judged(tmp_path)[1] == [("storage", "gpu03", "nvme0n1")]
    (tmp_path / "iostat_n3.txt").write_text(iostat("gpu03", {"nvme0n1": [210.0] * 20}, moved=9.0), encoding="utf-8")
    assert judging.judged(tmp_path)[1] == []  # it alone is written to
    (tmp_path / "iostat_n3.txt").write_text(iostat("gpu03", {"sda": [210.0] * 20}), encoding="utf-8")
    assert judging.judged(tmp_path)[1] == []  # a disk of another kind


def test_disks_that_are_all_slow_at_once_are_not_named(tmp_path: Path):
    assert judged(tmp_path, iostat("gpu01", {"sda": SLOW, "sdb": SLOW, "sdc": SLOW})) == []


@pytest.mark.parametrize("label", ["{node}: {line}", "{line}"])
def test_nodes_in_one_file_are_told_apart(tmp_path: Path, label: str):
    parts = {f"gpu0{number}": iostat(f"gpu0{number}", {"sda": SLOW if number == 2 else WELL}) for number in (1, 2, 3)}
    lines = [label.format(node=node, line=line) for node, text in parts.items() for line in text.split("\n")]
    assert judged(tmp_path, "\n".join(lines)) == [("storage", "gpu02", "sda")]


def test_a_report_that_is_cut_is_judged_by_what_it_holds(tmp_path: Path):
    text = iostat("gpu01", {"sda": SLOW})
    assert judged(tmp_path, text[: int(0.9 * len(text))]) == [("storage", "gpu01", "sda")]
    assert judged(tmp_path, text[: int(0.4 * len(text))]) == []


@pytest.mark.parametrize("disks_alone", [False, True])
def test_reports_without_times_are_taken_for_a_second_apart(tmp_path: Path, disks_alone: bool):
    def bare(text: str) -> str:
        lines = [line for line in text.split("\n") if not line.startswith("05/03/26")]
        if disks_alone:
            lines = [line for line in lines if not line.startswith(("avg-cpu", "          20.00"))]
        return "\n".join(lines)

    late = WELL[:18] + [200.0] * 40
    assert judged(tmp_path, bare(iostat("gpu01", {"sda": late, "sdb": (WELL + WELL)[:58]}))) == [
        ("storage", "gpu01", "sda")
    ]
    assert judged(tmp_path, bare(iostat("gpu01", {"sda": WELL}))) == []
    assert judged(tmp_path, bare(iostat("gpu01", {"sda": late}, moved=40.0))) == []


def test_the_node_that_writes_checkpoints_is_no_outlier_among_its_peers(tmp_path: Path):
    writes = WELL[:18] + [90.0, 120.0, 100.0] * 30
    for number in range(1, 5):
        waits, moved = (writes, 50.0) if number == 1 else ((WELL * 3)[:108], 1.0)
        text = iostat(f"gpu0{number}", {"sda": waits}, moved=moved)
        (tmp_path / f"iostat_n{number}.txt").write_text(text, encoding="utf-8")
    assert judging.judged(tmp_path)[1] == []
    table = read_job(tmp_path).metrics
    assert table is not None
    assert set(table.names) <= {"host_disk_latency_seconds", *(name for name in table.names if "cpu" in name)}


def scrapes(wait_s: list[float], more: float = 1.0) -> str:
    """node_exporter's counters of two disks, the second of which lets requests wait so long."""
    text, reads, waited, worked = "# TYPE node_disk_reads_completed_total counter\n", [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]
    for number, wait in enumerate(wait_s):
        at_ms = int(1000 * (START.timestamp() + 15 * number))
        for disk, own in enumerate((0.0003, wait)):
            grown = 900.0 * (more if own > 0.04 else 1.0)
            reads[disk] += grown
            waited[disk] += grown * own
            worked[disk] += 15.0 * 0.01 * busy_of(1e3 * own)
            label = f'{{device="nvme{disk}n1"}}'
            text += f"node_disk_reads_completed_total{label} {reads[disk]} {at_ms}\n"
            text += f"node_disk_writes_completed_total{label} 0 {at_ms}\n"
            text += f"node_disk_read_time_seconds_total{label} {waited[disk]} {at_ms}\n"
            text += f"node_disk_write_time_seconds_total{label} 0 {at_ms}\n"
            text += f"node_disk_io_time_seconds_total{label} {worked[disk]} {at_ms}\n"
    return text


def test_counters_of_an_exporter_tell_the_latency_of_each_disk(tmp_path: Path):
    slow = [0.0003] * 20 + [0.2] * 20
    assert judged(tmp_path, scrapes(slow), "metrics.prom") == [("storage", None, "nvme1n1")]
    assert judging.judged_text(tmp_path, scrapes([0.0003] * 40), "metrics.prom") == ("healthy", [])
    assert judged(tmp_path, scrapes(slow, more=30.0), "metrics.prom") == []
