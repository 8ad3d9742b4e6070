"""Disks and processors as iostat and vmstat print them: a slow disk and long waits are found, the rest is silent."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from trainwarden.cli.ask.detect_jobs import Asked, jobs_to_judge, judge_folder
from trainwarden.formats.reading import read_job

START = datetime(2026, 5, 3, 11, 55, tzinfo=UTC)
MODERN = "Device            r/s     rkB/s r_await     w/s     wkB/s w_await  aqu-sz  %util"
OLD = "Device:         rrqm/s   wrqm/s     r/s     w/s    rkB/s    wkB/s avgrq-sz avgqu-sz   await  svctm  %util"


def iostat(waits_ms: list[float], stamp: str, old: bool = False) -> str:
    """A report every ten seconds of one disk that lets requests wait so long, beside one that is idle."""
    lines = ["Linux 5.15.0 (gpu01) \t05/03/26 \t_x86_64_\t(96 CPU)", ""]
    for number, wait in enumerate([9_999.0, *waits_ms]):  # the first report is of all time since the boot
        at = START + timedelta(seconds=10 * number)
        lines += [at.strftime(stamp), "avg-cpu:  %user   %nice %system %iowait  %steal   %idle"]
        lines += ["          20.00    0.00    3.00    1.00    0.00   76.00", "", OLD if old else MODERN]
        lines += [
            f"sda 0.00 0.00 1.00 3.00 4.00 12.00 8.00 0.10 {wait:.2f} 0.1 9.00" if old
            else f"sda 1.00 40.00 {wait:.2f} 3.00 120.00 {wait:.2f} 0.10 9.00",
            "sdb 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00" if old
            else "sdb 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00",
            "loop0 0.00 0.00 0.00 0.00 0.00 0.00 0.00 0.00" + " 0.00 0.00 0.00" * old,
            "",
        ]  # fmt: skip
    return "\n".join(lines)


def vmstat(waits: list[int]) -> str:
    lines = ["procs -----------memory---------- ---swap-- -----io---- -system-- ------cpu----- -----timestamp-----"]
    lines += [" r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st                 UTC"]
    for number, wait in enumerate([99, *waits]):
        at = START + timedelta(seconds=5 * number)
        lines.append(f" 4  0      0 12638360 183556 9770728 0 0 51 24 71 161 {90 - wait}  3  7 {wait} 0 {at:%F %T}")
    return "\n".join(lines)


def kinds(text: str, tmp_path: Path) -> list[tuple[str, str | None, str | None]]:
    file = tmp_path / "report.txt"
    file.write_text(text)
    (work,), _ = jobs_to_judge(file, Asked(None, None, None, None, want_scores=False), None)
    return [(one.kind, one.suspects[0].node, one.suspects[0].device) for one in judge_folder(work).records]


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("stamp", ["%m/%d/%y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%Y-%m-%dT%H:%M:%S+0000"])
def test_a_slow_disk_is_named_and_its_times_are_read(stamp: str, old: bool, tmp_path: Path) -> None:
    waits = [2.0] * 30 + [900.0] * 30
    assert kinds(iostat(waits, stamp, old), tmp_path) == [("storage", "gpu01", "sda")]
    table = read_job(tmp_path / "report.txt").metrics
    assert table is not None
    first_s = (START + timedelta(seconds=10)).timestamp()
    assert (table.times_s.min(), table.times_s.max()) == (first_s, first_s + 590.0)
    waits = table.values[:, table.names.index("host_disk_latency_seconds")]
    assert float(np.nanmax(waits)) < 1.0  # neither the report since the boot nor milliseconds
    assert set(table.devices) == {"host", "sda", "sdb"}
    assert kinds(iostat([2.0] * 60, stamp, old), tmp_path) == []


def test_a_host_that_waits_for_disks_for_minutes_is_named(tmp_path: Path) -> None:
    assert [kind for kind, _, _ in kinds(vmstat([1] * 60 + [70] * 90), tmp_path)] == ["storage"]
    table = read_job(tmp_path / "report.txt").metrics
    assert table is not None
    assert table.times_s.min() == (START + timedelta(seconds=5)).timestamp()  # the first line is of all time
    assert kinds(vmstat([1] * 60 + [70] * 40 + [1] * 60), tmp_path) == []  # a checkpoint
    assert kinds(vmstat([1] * 150), tmp_path) == []


def test_without_stamps_nothing_is_judged(tmp_path: Path) -> None:
    bare = "\n".join(line[:-20] for line in vmstat([1] * 9).split("\n"))
    file = tmp_path / "report.txt"
    file.write_text(bare)
    assert "run it with -t" in read_job(file).unread[0].why
