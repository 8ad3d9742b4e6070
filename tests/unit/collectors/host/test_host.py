"""The host collector on this machine and over a miniature /proc."""

from __future__ import annotations

import builtins
import os
from pathlib import Path

import psutil
import pytest

from tests.doubles import ManualClock
from tests.hook_doubles import write_header
from trainwarden.catalogue import CATALOGUE
from trainwarden.collectors.host.collector import HostCollector, MemoryRoom
from trainwarden.collectors.host.proc_files import (
    core_times,
    disk_books,
    nfs_mounts,
    numbered_lines,
    pressure_seconds,
    rank_usage,
    read_whole,
)
from trainwarden.protocols import Scope
from trainwarden.records import MetricsRecord

_IOWAIT = 4  # the one counter that may fall (proc_stat(5))


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


def limited(root: Path, folder: str, names: tuple[str, str], limit: str, used: int) -> None:
    for name, text in zip(
        (*names, "memory.stat"), (limit, str(used), "anon 7\ninactive_file 5\ntotal_inactive_file 5"), strict=True
    ):
        write(root, f"{folder}/{name}", text + "\n")


V1, V2 = ("memory.limit_in_bytes", "memory.usage_in_bytes"), ("memory.max", "memory.current")


@pytest.mark.parametrize(
    ("line", "groups", "left"),
    [
        ("0::/pod/train", {"pod/train": ("max", 60), "pod": ("100", 70)}, 35.0),  # the limit is that of a group above
        ("0::/pod/train", {"pod/train": ("90", 60), "pod": ("900", 70)}, 35.0),
        ("0::/pod/train", {"pod/train": ("max", 60)}, None),
        ("0::/../../of/the/host", {".": ("90", 60)}, 35.0),  # of a container, whose own group lies at the root
        ("4:cpu,memory:/slurm/step", {"memory/slurm/step": ("90", 60)}, 35.0),
        ("4:memory:/slurm/step", {"memory/slurm/step": ("9223372036854771712", 60)}, None),
        ("4:memory:/docker/of-the-host", {"memory": ("90", 80)}, 15.0),
        ("4:cpu:/slurm", {"slurm": ("90", 60)}, None),
        ("junk", {"junk": ("90", 60)}, None),
    ],
)  # fmt: skip
def test_room_in_control_groups(
    tmp_path: Path, line: str, groups: dict[str, tuple[str, int]], left: float | None
) -> None:
    write(tmp_path, "proc/7/cgroup", f"1:name=systemd:/\n{line}\n")
    for folder, (limit, used) in groups.items():
        limited(tmp_path / "cgroup", folder, V1 if folder.startswith("memory") else V2, limit, used)
    assert MemoryRoom(str(tmp_path / "proc"), str(tmp_path / "cgroup")).of(7) == left
    assert MemoryRoom(str(tmp_path / "proc"), str(tmp_path / "cgroup")).of(8) is None


def test_the_room_of_a_rank_is_measured(tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    write_header(tmp_path / "hook" / "rank-4-100.hook", 100)
    write_process(tmp_path / "proc", 100, ticks=1, ran_ns=1, waited_ns=0)
    write(tmp_path, "proc/100/cgroup", "0::/train\n")
    limited(tmp_path / "cgroup", "train", V2, "90", 60)
    config = HostCollector.Config(proc=str(tmp_path / "proc"), cgroups=str(tmp_path / "cgroup"))
    clock = ManualClock()
    collector = HostCollector(config, Scope(job="j", node="n", run_dir=str(tmp_path)), clock)
    assert look(collector, clock)["rank-4"]["rank_cgroup_memory_available_bytes"] == 35.0


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
    vmstat = b"oom_kill_other 4\nno_oom_kill 5\noom_kill 3\n\njunk\n"
    assert numbered_lines(vmstat, ("oom_kill", "pswpin")) == {"oom_kill": 3.0}
    found = numbered_lines(b"SwapTotal:        2048 kB\nSwapFree:\t1024 kB", ("SwapFree", "SwapTotal", "Swap"))
    assert found == {"SwapTotal": 2048.0, "SwapFree": 1024.0}
    assert numbered_lines(read_whole(str(tmp_path / "absent")), ("oom_kill",)) == {}


def test_a_long_file_is_read_whole(tmp_path: Path) -> None:
    write(tmp_path, "stat", "x" * 200_000)
    assert len(read_whole(str(tmp_path / "stat"))) == 200_000
    assert read_whole(str(tmp_path)) == b"", "a folder"


def test_each_file_of_the_host_is_read_once_a_tick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = ManualClock()
    collector = HostCollector(HostCollector.Config(), Scope(job="j", node="n", run_dir=str(tmp_path)), clock)
    look(collector, clock)
    opened: list[str] = []
    for module, name in ((os, "open"), (builtins, "open")):
        really = getattr(module, name)
        monkeypatch.setattr(
            module,
            name,
            lambda path, *rest, _really=really, **more: opened.append(str(path)) or _really(path, *rest, **more),
        )
    look(collector, clock)
    read = [path for path in opened if path.startswith("/proc/")]
    assert "/proc/stat" in read
    assert sorted(read) == sorted(set(read))


def test_processors_and_disks_are_what_psutil_says_of_them(tmp_path: Path) -> None:
    """Its slow and plain twin, asked before and after."""
    before = psutil.cpu_times(percpu=True), psutil.disk_io_counters(perdisk=True, nowrap=False)
    cores, disks = core_times(read_whole("/proc/stat")), disk_books(read_whole("/proc/diskstats"))
    after = psutil.cpu_times(percpu=True), psutil.disk_io_counters(perdisk=True, nowrap=False)
    hundred = os.sysconf("SC_CLK_TCK")
    assert len(cores) == len(before[0])
    for core, low, high in zip(cores, before[0], after[0], strict=True):
        assert all(low[field] <= core[field] / hundred <= high[field] for field in range(8) if field != _IOWAIT)
    for name, high in after[1].items():
        low, disk = before[1][name], disks[name]
        assert low.read_bytes <= disk.read_bytes <= high.read_bytes
        assert low.write_bytes <= disk.write_bytes <= high.write_bytes
        assert low.read_count + low.write_count <= disk.operations <= high.read_count + high.write_count
        assert low.read_time + low.write_time <= round(disk.waited_s * 1e3) <= high.read_time + high.write_time
        assert low.busy_time <= round(disk.busy_s * 1e3) <= high.busy_time


def test_shares_of_two_cores_and_a_disk(
    ranks: tuple[HostCollector, ManualClock, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    collector, clock, proc = ranks
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: ["sda"] if path == "/sys/block" else listdir(path))
    monkeypatch.setattr(os, "access", lambda *_: True)
    write(proc, "stat", "cpu  1 1 1 1 1 1 1 1 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\ncpu1 9 0 0 0 0 0 0 0 0 0\nintr 5 cpu\n")
    write(
        proc,
        "diskstats",
        "   8 0 sda 10 0 4 20 10 0 8 20 0 100 40 0\n   8 1 sda1 1 1 1 1 1 1 1 1 1 1 1\n   8 16 short 1\n",
    )
    write(proc, "meminfo", "MemTotal: 4 kB\nMemAvailable: 1 kB\n")
    first = look(collector, clock)
    assert first["disk:sda"] == {"host_disk_read_bytes": 2048.0, "host_disk_write_bytes": 4096.0}
    assert (first["host"]["host_memory_used_ratio"], first["host"]["host_memory_total_bytes"]) == (0.75, 4096.0)
    # Of core 0: 50 user, 10 each of system, iowait, irq, steal, 10 idle; core 1 is idle.
    write(proc, "stat", "cpu  0 0\ncpu0 50 0 10 10 10 10 0 10 0 0\ncpu1 9 0 0 100 0 0 0 0 0 0\nintr 5\n")
    write(proc, "diskstats", "   8 0 sda 15 0 4 30 15 0 8 60 0 600 40 0\n")
    second = look(collector, clock)
    host = {name: value for name, value in second["host"].items() if "cpu" in name or "cores" in name}
    assert host == pytest.approx({
        "host_cores_count": 2.0, "host_cpu_system_ratio": 0.1, "host_cpu_iowait_ratio": 0.05,
        "host_cpu_steal_ratio": 0.05, "host_cpu_utilization_ratio": 0.4, "host_cpu_busiest_core_ratio": 0.8,
        "host_cpu_saturated_cores_ratio": 0.0,
    })  # fmt: skip
    assert second["disk:sda"]["host_disk_latency_seconds"] == pytest.approx(0.005)
    assert second["disk:sda"]["host_disk_busy_ratio"] == pytest.approx(0.5)


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
