"""The host: CPUs, memory, disks, file systems, and how its ranks fare on them.

How much memory the control groups of a process leave it, in either version of the kernel's interface.

A limit holds for all below it, so the least room on the way up counts. Files that were not read of late can be
dropped, and make room (`inactive_file` in the kernel's memory controller).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

import msgspec
import psutil

from trainwarden.clock import Clock
from trainwarden.collectors.host.proc_files import (
    DiskBooks,
    NfsMount,
    core_times,
    disk_books,
    nfs_mounts,
    numbered_lines,
    pressure_seconds,
    rank_usage,
    read_whole,
)
from trainwarden.collectors.ranks import Ranks
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import MetricsRecord, Record
from trainwarden.settings import Config

NO_LIMIT: Final = 1 << 60  # version 1 states the largest number of pages for none
MAX_DEPTH: Final = 32
# Limit, use, and the line of memory.stat that counts files not read of late.
_VERSION_1: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2: Final = ("memory.max", "memory.current", "inactive_file")


class MemoryRoom:
    """Room in control groups, each of which is read once by one such object: its ranks share one number.

    Parameters
    ----------
    proc, groups : str
        Where the kernel shows processes, and control groups.
    """

    def __init__(self, proc: str, groups: str) -> None:
        self._proc, self._groups = proc, Path(groups)
        self._known: dict[Path, float | None] = {}

    def of(self, pid: int) -> float | None:
        """Bytes that process `pid` may still use; None where no group limits it."""
        rooms = []
        for line in read_whole(f"{self._proc}/{pid}/cgroup").decode(errors="replace").splitlines():
            _, _, rest = line.partition(":")
            controllers, _, path = rest.partition(":")
            if not controllers:
                rooms += self._up(("", "unified"), path, _VERSION_2)
            elif "memory" in controllers.split(","):
                rooms += self._up(("memory",), path, _VERSION_1)
        return min(rooms, default=None)

    def _up(self, roots: tuple[str, ...], path: str, files: tuple[str, str, str]) -> list[float]:
        """The room in a group and in all that it lies in. A container sees its own group at the root."""
        parts = [part for part in PurePosixPath(path).parts if part not in ("/", "..")][:MAX_DEPTH]
        folders = [self._groups.joinpath(root, *parts[:depth]) for root in roots for depth in range(len(parts) + 1)]
        for folder in folders:
            if folder not in self._known:
                self._known[folder] = _room(folder, files)
        return [room for folder in folders if (room := self._known[folder]) is not None]


def _room(folder: Path, files: tuple[str, str, str]) -> float | None:
    limit_file, use_file, droppable = files
    try:
        limit, used = int(read_whole(f"{folder}/{limit_file}")), int(read_whole(f"{folder}/{use_file}"))
    except ValueError:  # no such group to be seen, or "max"
        return None
    files_bytes = numbered_lines(read_whole(f"{folder}/memory.stat"), (droppable,)).get(droppable, 0.0)
    return max(0.0, limit - used + files_bytes) if limit < NO_LIMIT else None


_SATURATED = 0.95
# File systems that answer from this machine alone: asking a network file system that is away would block the agent.
_LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "vfat", "overlay", "bcachefs")

Values = dict[str, float]

_PAGE_BYTES = float(os.sysconf("SC_PAGE_SIZE"))
_MEMINFO = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")  # in KiB, which the kernel calls kB
_VMSTAT = {
    "oom_kill": ("host_oom_kills_count", 1.0),
    "pswpin": ("host_swap_in_bytes", _PAGE_BYTES),
    "pswpout": ("host_swap_out_bytes", _PAGE_BYTES),
}


class HostCollector:
    """Metrics of the whole host (device ``host``), of disks, mounts, NFS mounts and ranks.

    Parameters
    ----------
    config : HostCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`slow_every`: file systems and NFS are looked at every so many ticks; `ranks`: CPU use of each rank;
        `cgroups`: where control groups are mounted."""

        interval_s: Annotated[float, msgspec.Meta(ge=0.1, le=3600.0)] = 1.0
        slow_every: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 15
        proc: str = "/proc"
        cgroups: str = "/sys/fs/cgroup"
        ranks: bool = True

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._rank_pids = Ranks(Path(scope.run_dir), config.proc)
        self._clock = clock
        self._proc = config.proc
        self._tick = 0
        self._last_s: float | None = None
        self._cores: list[tuple[int, ...]] = []
        self._disks: dict[str, DiskBooks] = {}
        self._nfs: dict[str, NfsMount] = {}
        self._ranks: dict[int, Values] = {}

    @property
    def interval_s(self) -> float:
        return self._config.interval_s

    def supported(self) -> str | None:
        return None if Path(self._proc, "stat").exists() else f"host metrics need Linux with {self._proc}"

    def collect(self, now_s: float) -> Iterable[Record]:
        monotonic_s = self._clock.monotonic_s()
        elapsed_s = monotonic_s - self._last_s if self._last_s is not None else None
        if elapsed_s is not None and elapsed_s <= 0.0:
            return
        self._last_s = monotonic_s
        slow = self._tick % self._config.slow_every == 0
        self._tick += 1
        stat = read_whole(f"{self._proc}/stat")
        yield from self._record({"host": self._cpu(stat) | self._kernel(stat) | self._memory()}, now_s)
        yield from self._record(self._disk_rows(elapsed_s), now_s)
        if slow:
            yield from self._record(self._mount_rows() | self._nfs_rows(), now_s)
        if self._config.ranks:
            rows = self._rank_rows(elapsed_s)
            ranks = tuple(int(name.rpartition("-")[2]) for name in rows)
            yield from self._record(rows, now_s, ranks)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        return {}

    def restore(self, position: JsonObject) -> None:
        """There is nothing to go on from: everything is read as it is now."""

    def close(self) -> None:
        """There is nothing to let go of."""

    def _cpu(self, stat: bytes) -> Values:
        """Shares of core time since the last tick."""
        before, self._cores = self._cores, core_times(stat)
        if not self._cores:
            return {}
        values: Values = {"host_cores_count": float(len(self._cores))}
        if len(before) != len(self._cores):
            return values
        spent = [
            [max(0, new - old) for new, old in zip(now, last, strict=True)]
            for now, last in zip(self._cores, before, strict=True)
        ]
        totals = [sum(core) for core in spent]
        busy = [1.0 - (core[3] + core[4]) / total for core, total in zip(spent, totals, strict=True) if total > 0]
        all_ticks = sum(totals)
        if not busy or all_ticks <= 0:
            return values
        for name, fields in (("system", (2, 5, 6)), ("iowait", (4,)), ("steal", (7,))):
            values[f"host_cpu_{name}_ratio"] = sum(core[field] for core in spent for field in fields) / all_ticks
        idle = sum(core[3] + core[4] for core in spent)
        values["host_cpu_utilization_ratio"] = 1.0 - idle / all_ticks
        values["host_cpu_busiest_core_ratio"] = max(busy)
        values["host_cpu_saturated_cores_ratio"] = sum(share >= _SATURATED for share in busy) / len(busy)
        return values

    def _kernel(self, stat: bytes) -> Values:
        """Queues, switches, pressure."""
        names = {
            "procs_running": "host_run_queue_count",
            "procs_blocked": "host_blocked_processes_count",
            "ctxt": "host_context_switches_count",
        }
        values = {names[key]: value for key, value in numbered_lines(stat, tuple(names)).items()}
        values["host_load1_count"] = psutil.getloadavg()[0]
        for resource in ("cpu", "memory", "io"):
            some_s, full_s = pressure_seconds(f"{self._proc}/pressure/{resource}")
            if some_s is not None:
                values[f"host_{resource}_pressure_seconds"] = some_s
            if full_s is not None and resource != "cpu":
                values[f"host_{resource}_stall_seconds"] = full_s
        return values

    def _memory(self) -> Values:
        values: Values = {}
        memory = numbered_lines(read_whole(f"{self._proc}/meminfo"), _MEMINFO)
        total, available = memory.get("MemTotal"), memory.get("MemAvailable")
        if total and available is not None:
            values = {
                "host_memory_total_bytes": total * 1024.0,
                "host_memory_available_bytes": available * 1024.0,
                "host_memory_used_ratio": max(0.0, 1.0 - available / total),
            }
        if "SwapTotal" in memory and "SwapFree" in memory:
            values["host_swap_used_bytes"] = (memory["SwapTotal"] - memory["SwapFree"]) * 1024.0
        books = numbered_lines(read_whole(f"{self._proc}/vmstat"), tuple(_VMSTAT))
        return values | {_VMSTAT[name][0]: value * _VMSTAT[name][1] for name, value in books.items()}

    def _disk_rows(self, elapsed_s: float | None) -> dict[str, Values]:
        """Whole disks only; latency is the mean over the operations since the last tick."""
        rows: dict[str, Values] = {}
        whole = set(os.listdir("/sys/block")) if os.access("/sys/block", os.R_OK) else set()
        for name, disk in disk_books(read_whole(f"{self._proc}/diskstats")).items():
            if name.startswith(("loop", "ram", "zram")) or name not in whole:
                continue
            values = {"host_disk_read_bytes": disk.read_bytes, "host_disk_write_bytes": disk.write_bytes}
            before = self._disks.get(name)
            self._disks[name] = disk
            if before is not None and elapsed_s is not None:
                operations, waited_s = disk.operations - before.operations, disk.waited_s - before.waited_s
                if operations > 0 and waited_s >= 0.0:
                    values["host_disk_latency_seconds"] = waited_s / operations
                values["host_disk_busy_ratio"] = min(1.0, max(0.0, (disk.busy_s - before.busy_s) / elapsed_s))
            rows[f"disk:{name}"] = values
        return rows

    def _mount_rows(self) -> dict[str, Values]:
        """Room on local file systems, each once however often it is mounted."""
        rows: dict[str, Values] = {}
        seen: set[str] = set()
        for mount in psutil.disk_partitions(all=True):
            if mount.fstype not in _LOCAL or mount.device in seen or not Path(mount.mountpoint).is_dir():
                continue
            seen.add(mount.device)
            room = os.statvfs(mount.mountpoint)
            values = {
                "host_filesystem_free_bytes": float(room.f_bavail * room.f_frsize),
                "host_filesystem_readonly_state": float("ro" in mount.opts.split(",")),
            }
            # As df does: what only root may use counts neither as used nor as free.
            used = room.f_blocks - room.f_bfree
            if used + room.f_bavail:
                values["host_filesystem_used_ratio"] = used / (used + room.f_bavail)
            if room.f_files:  # btrfs and the like make inodes as they go and give 0
                values["host_filesystem_inodes_used_ratio"] = 1.0 - room.f_ffree / room.f_files
            rows[f"mount:{mount.mountpoint}"] = values
        return rows

    def _nfs_rows(self) -> dict[str, Values]:
        """Answer times of NFS mounts by the kernel's own books, which never block."""
        before, self._nfs = self._nfs, nfs_mounts(f"{self._proc}/self/mountstats")
        rows: dict[str, Values] = {}
        for path, mount in self._nfs.items():
            values = {"host_nfs_timeouts_count": mount.timeouts}
            last = before.get(path)
            if last is not None and mount.operations > last.operations and mount.waited_s >= last.waited_s:
                values["host_nfs_latency_seconds"] = (mount.waited_s - last.waited_s) / (
                    mount.operations - last.operations
                )
            rows[f"nfs:{path}"] = values
        return rows

    def _rank_rows(self, elapsed_s: float | None) -> dict[str, Values]:
        """CPU and memory of each rank's process, by pid so that a restarted rank is not mixed with its predecessor."""
        before, self._ranks = self._ranks, {}
        rows: dict[str, Values] = {}
        room = MemoryRoom(self._proc, self._config.cgroups)
        for pid, rank in self._rank_pids.by_pid().items():
            usage = rank_usage(self._proc, pid)
            if usage is None:
                continue
            self._ranks[pid] = usage.times_s
            values = dict(usage.values)
            if (left := room.of(pid)) is not None:
                values["rank_cgroup_memory_available_bytes"] = left
            last = before.get(pid)
            if last is not None and elapsed_s is not None:
                values |= _rates(last, usage.times_s, elapsed_s)
            rows[f"rank-{rank}"] = values
        return rows

    def _record(
        self, rows: Mapping[str, Values], now_s: float, ranks: tuple[int | None, ...] = ()
    ) -> Iterator[MetricsRecord]:
        names = tuple(dict.fromkeys(name for row in rows.values() for name in row))
        if not names:
            return
        yield MetricsRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            devices=tuple(rows),
            names=names,
            values=tuple(tuple(row.get(name) for row in rows.values()) for name in names),
            ranks=ranks,
        )


def _rates(before: Values, now: Values, elapsed_s: float) -> Values:
    """CPU shares of one rank between two looks.

    Satisfaction is time on a CPU over time on or waiting for one (Linux schedstat), of the main thread.
    """
    spent = {name: max(0.0, now[name] - before.get(name, now[name])) for name in now}
    values = {"rank_cpu_ratio": spent["cpu"] / elapsed_s}
    if "ran" in spent:
        wanted_s = spent["ran"] + spent["waited"]
        values["rank_run_queue_wait_ratio"] = min(1.0, spent["waited"] / elapsed_s)
        if wanted_s > 0.0:
            values["rank_cpu_satisfaction_ratio"] = spent["ran"] / wanted_s
    return values
