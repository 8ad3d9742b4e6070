"""The host collector on this machine and over a miniature /proc."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from collectors.host.collector import HostCollector
from collectors.host.proc_files import nfs_mounts, numbered_lines, pressure_seconds, rank_usage
from tests.doubles import ManualClock
from tests.hook_doubles import write_header
from trainwarden.catalogue import CATALOGUE
from trainwarden.protocols import Scope
from trainwarden.records import MetricsRecord


def look(collector: HostCollector, clock: ManualClock) -> dict[str, dict[str, float]]:
    """Values by device and metric of one more tick."""
    clock.sleep(1.0)
    values: dict[str, dict[str, float]] = {}
    for record in collector.collect(clock.now_s()):
        assert isinstance(record, MetricsRecord)
        for name, row in zip(record.names, record.values, strict=True):
            for device, value in zip(record.devices, row, strict=True):
                if value is not None:
                    values.setdefault(device, {})[name] = value
    return values


def test_this_machine_is_within_the_catalogues_bounds(tmp_path: Path) -> None:
    clock = ManualClock()
    collector = HostCollector(HostCollector.Config(), Scope(job="j", node="n", run_dir=str(tmp_path)), clock)
    values = look(collector, clock)
    later = look(collector, clock)
    assert values["host"]["host_memory_total_bytes"] > values["host"]["host_memory_available_bytes"] > 0
    assert values["host"]["host_cores_count"] >= 1
    assert any(device.startswith("mount:") for device in values)
    assert not any(device.startswith("mount:") for device in later), "file systems are looked at more rarely"
    for device in (*values.values(), *later.values()):
        for name, value in device.items():
            metric = CATALOGUE[name]
            assert metric.per in ("host", "rank")
            assert (metric.low or 0.0) <= value <= (metric.high if metric.high is not None else value)


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def write_process(root: Path, pid: int, *, ticks: int, ran_ns: int, waited_ns: int, state: str = "R") -> None:
    hundred = os.sysconf("SC_CLK_TCK")
    fields = [state, *["0"] * 8, "5", "0", str(ticks * hundred // 100), "0", *["0"] * 4, "12", "0", "77", "0", "1000"]
    write(root, f"{pid}/stat", f"{pid} (python) {' '.join(fields)} 0 0\n")
    write(root, f"{pid}/schedstat", f"{ran_ns} {waited_ns} 40\n")
    write(root, f"{pid}/status", "Name:\tpython\nnonvoluntary_ctxt_switches:\t31\n")


@pytest.fixture
def ranks(tmp_path: Path) -> tuple[HostCollector, ManualClock, Path]:
    (tmp_path / "hook").mkdir()
    write_header(tmp_path / "hook" / "rank-4-100.hook", 100)
    clock = ManualClock()
    config = HostCollector.Config(proc=str(tmp_path / "proc"))
    return HostCollector(config, Scope(job="j", node="n", run_dir=str(tmp_path)), clock), clock, tmp_path / "proc"


def test_cpu_satisfaction_of_a_rank(ranks: tuple[HostCollector, ManualClock, Path]) -> None:
    collector, clock, proc = ranks
    write_process(proc, 100, ticks=100, ran_ns=10**9, waited_ns=0)
    first = look(collector, clock)["rank-4"]
    assert first == {
        "rank_threads_count": 12.0,
        "rank_resident_memory_bytes": 1000.0 * os.sysconf("SC_PAGE_SIZE"),
        "rank_major_faults_count": 5.0,
        "rank_involuntary_switches_count": 31.0,
    }
    write_process(proc, 100, ticks=180, ran_ns=10**9 + 600_000_000, waited_ns=200_000_000)
    second = look(collector, clock)["rank-4"]
    assert second["rank_cpu_ratio"] == pytest.approx(0.8)
    assert second["rank_cpu_satisfaction_ratio"] == pytest.approx(0.75)
    assert second["rank_run_queue_wait_ratio"] == pytest.approx(0.2)


def test_a_rank_that_is_a_zombie_or_gone_has_no_metrics(ranks: tuple[HostCollector, ManualClock, Path]) -> None:
    collector, clock, proc = ranks
    write_process(proc, 100, ticks=1, ran_ns=1, waited_ns=0, state="Z")
    assert "rank-4" not in look(collector, clock)
    assert rank_usage(str(proc), 101) is None


def test_a_restarted_rank_is_not_compared_with_its_predecessor(
    ranks: tuple[HostCollector, ManualClock, Path], tmp_path: Path
) -> None:
    collector, clock, proc = ranks
    write_process(proc, 100, ticks=100, ran_ns=10**9, waited_ns=0)
    look(collector, clock)
    (tmp_path / "hook" / "rank-4-100.hook").unlink()
    write_header(tmp_path / "hook" / "rank-4-200.hook", 200)
    write_process(proc, 200, ticks=900, ran_ns=9 * 10**9, waited_ns=0)
    assert "rank_cpu_ratio" not in look(collector, clock)["rank-4"]


def test_a_clock_that_stands_still_yields_nothing(ranks: tuple[HostCollector, ManualClock, Path]) -> None:
    collector, clock, _ = ranks
    assert list(collector.collect(clock.now_s()))
    assert list(collector.collect(clock.now_s())) == []


def test_pressure(tmp_path: Path) -> None:
    write(tmp_path, "io", "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=500000\n")
    assert pressure_seconds(str(tmp_path / "io")) == (2.5, 0.5)
    assert pressure_seconds(str(tmp_path / "absent")) == (None, None)


def test_numbered_lines(tmp_path: Path) -> None:
    write(tmp_path, "vmstat", "oom_kill_other 4\nno_oom_kill 5\noom_kill 3\n\njunk\n")
    assert numbered_lines(str(tmp_path / "vmstat"), ("oom_kill", "pswpin")) == {"oom_kill": 3.0}
    write(tmp_path, "meminfo", "SwapTotal:        2048 kB\nSwapFree:\t1024 kB")
    found = numbered_lines(str(tmp_path / "meminfo"), ("SwapFree", "SwapTotal", "Swap"))
    assert found == {"SwapTotal": 2048.0, "SwapFree": 1024.0}
    assert numbered_lines(str(tmp_path / "absent"), ("oom_kill",)) == {}


def test_swap_is_what_psutil_says_of_it(tmp_path: Path) -> None:
    clock = ManualClock()
    before = psutil.swap_memory()
    host = look(HostCollector(HostCollector.Config(), Scope(job="j", node="n", run_dir=str(tmp_path)), clock), clock)[
        "host"
    ]
    after = psutil.swap_memory()
    for field, name in (
        ("used", "host_swap_used_bytes"),
        ("sin", "host_swap_in_bytes"),
        ("sout", "host_swap_out_bytes"),
    ):
        ends = sorted((getattr(before, field), getattr(after, field)))
        assert ends[0] <= host[name] <= ends[1]


def test_nfs_books(tmp_path: Path) -> None:
    text = (
        "device /dev/vda mounted on / with fstype ext4\n"
        "device server:/data mounted on /data with fstype nfs4 statvers=1.1\n"
        "\topts:\trw,vers=4.2\n"
        "\tper-op statistics\n"
        "\t        READ: 100 103 2 1 1 10 400 500 0\n"
        "\t       WRITE: 50 50 0 1 1 10 100 250 0\n"
    )
    write(tmp_path, "mountstats", text)
    mounts = nfs_mounts(str(tmp_path / "mountstats"))
    assert list(mounts) == ["/data"]
    assert (mounts["/data"].operations, mounts["/data"].waited_s, mounts["/data"].timeouts) == (150.0, 0.75, 5.0)
    assert nfs_mounts(str(tmp_path / "absent")) == {}
