"""Reading files of /proc: processors, memory, disks, pressure, scheduler statistics of ranks, NFS books.

Each second, on a machine whose caches training has filled: so a file is read once, whole, and only what is wanted of it
is looked at. psutil reads some twice, takes all their lines apart and costs three times as much.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_READ_BYTES = 65_536
_SECTOR_BYTES = 512.0  # of /proc/diskstats, whatever the disk's own are (kernel documentation, admin-guide/iostats)
_LINE_BYTES = 200  # of such a line, its name and number in any case
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


class RankUsage(msgspec.Struct, frozen=True):
    """What one process uses: values as they are, and times (seconds, growing) to make shares of."""

    values: dict[str, float]
    times_s: dict[str, float]


class NfsMount(msgspec.Struct, frozen=True):
    """Books of one NFS mount since it was mounted: operations, their total time, requests sent again or given up."""

    operations: float
    waited_s: float
    timeouts: float


class DiskBooks(msgspec.Struct, frozen=True):
    """Books of one disk since it appeared: bytes, operations, time that they took in sum, time with any under way."""

    read_bytes: float
    write_bytes: float
    operations: float
    waited_s: float
    busy_s: float


def read_whole(path: str) -> bytes:
    """All of a file of the kernel's; empty if there is none, or it may not be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)  # a file object takes three times as long
    except OSError:
        return b""
    try:
        text = part = os.read(descriptor, _READ_BYTES)
        while part:
            part = os.read(descriptor, _READ_BYTES)
            text += part
        return text
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def numbered_lines(text: bytes, wanted: Sequence[str]) -> dict[str, float]:
    """Values of the lines ``NAME[:] NUMBER`` of `text` whose name is wanted.

    Examples
    --------
    >>> numbered_lines(b"MemTotal:  2048 kB\\nMemFree: 1024 kB\\n", ("MemFree",))
    {'MemFree': 1024.0}
    """
    found: dict[str, float] = {}
    text = b"\n" + text
    try:
        for name in wanted:  # of hundreds of lines, a few
            for end in (b" ", b":", b"\t"):
                place = text.find(b"\n" + name.encode() + end)
                if place >= 0:
                    words = text[place : place + _LINE_BYTES].split(None, 2)
                    found[name] = float(words[1])
                    break
    except (ValueError, IndexError):
        return {}
    return found


def core_times(stat: bytes) -> list[tuple[int, ...]]:
    """Ticks of each core that is on in ``/proc/stat``: user, nice, system, idle, iowait, irq, softirq, steal.

    Guest time is in user already (proc_stat(5)).
    """
    # They come after the line of all cores, and before all else.
    head = stat.partition(b"\nintr ")[0]
    lines = [line.split()[1:9] for line in head.split(b"\n")[1:] if line.startswith(b"cpu")]
    return [tuple(map(int, line)) for line in lines if len(line) == 8]


def disk_books(text: bytes) -> dict[str, DiskBooks]:
    """What ``/proc/diskstats`` says, by disk and partition; times are in milliseconds there."""
    books = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 13:
            continue
        reads, _, read, read_ms, writes, _, written, write_ms, _, busy_ms = map(int, words[3:13])
        books[words[2].decode(errors="replace")] = DiskBooks(
            read_bytes=read * _SECTOR_BYTES,
            write_bytes=written * _SECTOR_BYTES,
            operations=float(reads + writes),
            waited_s=(read_ms + write_ms) / 1e3,
            busy_s=busy_ms / 1e3,
        )
    return books


def pressure_seconds(path: str) -> tuple[float | None, float | None]:
    """Time in which some, and in which all tasks waited, in seconds since boot (kernel PSI, field total in us)."""
    totals: dict[bytes, float] = {}
    try:
        for line in read_whole(path).splitlines():
            kind, _, rest = line.partition(b" ")
            totals[kind] = float(rest.rpartition(b"total=")[2]) / 1e6
    except ValueError:
        return None, None
    return totals.get(b"some"), totals.get(b"full")


def rank_usage(proc: str, pid: int) -> RankUsage | None:
    """CPU, memory and scheduling of process `pid`; None if it is gone."""
    text = read_whole(f"{proc}/{pid}/stat")
    fields = text[text.rfind(b")") + 2 :].split()  # from field 3, the state, on
    if len(fields) < 22 or fields[0] in (b"Z", b"X"):
        return None
    values = {
        "rank_threads_count": float(fields[17]),
        "rank_resident_memory_bytes": float(fields[21]) * _PAGE_BYTES,
        "rank_major_faults_count": float(fields[9]),
    }
    times_s = {"cpu": (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS}
    try:
        ran_ns, waited_ns = read_whole(f"{proc}/{pid}/schedstat").split()[:2]
        times_s |= {"ran": int(ran_ns) / 1e9, "waited": int(waited_ns) / 1e9}
    except ValueError:
        times_s = {"cpu": times_s["cpu"]}  # a kernel without scheduler statistics: the shares stay unknown
    status = numbered_lines(read_whole(f"{proc}/{pid}/status"), ("RssAnon", "nonvoluntary_ctxt_switches"))
    if "RssAnon" in status:
        values["rank_anonymous_memory_bytes"] = status["RssAnon"] * 1024.0
    if "nonvoluntary_ctxt_switches" in status:
        values["rank_involuntary_switches_count"] = status["nonvoluntary_ctxt_switches"]
    return RankUsage(values, times_s)


def nfs_mounts(path: str) -> dict[str, NfsMount]:
    """Books of every NFS mount, by mount point.

    Per operation the kernel gives: operations, transmissions, timeouts, bytes sent, bytes received, and queue, round
    trip and total time in milliseconds (nfs-utils, mountstats).
    """
    mounts: dict[str, NfsMount] = {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return mounts
    if " fstype nfs" not in text:
        return mounts
    for part in text.split("device ")[1:]:
        lines = part.splitlines()
        head, _, kind = lines[0].partition(" with fstype ")
        if not kind.startswith("nfs"):
            continue
        operations = waited_ms = timeouts = 0.0
        _, _, table = part.partition("per-op statistics")
        for line in table.splitlines():
            numbers = line.rpartition(":")[2].split()
            if len(numbers) >= 8 and all(number.isdigit() for number in numbers[:8]):
                operations += float(numbers[0])
                timeouts += max(0.0, float(numbers[1]) - float(numbers[0])) + float(numbers[2])
                waited_ms += float(numbers[7])
        mounts[head.rpartition(" mounted on ")[2]] = NfsMount(operations, waited_ms / 1e3, timeouts)
    return mounts
