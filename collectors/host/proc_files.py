"""Reading files of /proc that psutil does not: pressure, scheduler statistics of ranks, NFS books."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
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


def numbered_lines(path: str, wanted: Sequence[str]) -> dict[str, float]:
    """Values of the lines ``NAME[:] NUMBER`` of `path` whose name is wanted; empty if there is no such file."""
    found: dict[str, float] = {}
    try:
        with open(path, "rb") as file:
            text = b"\n" + file.read()
        for name in wanted:  # files of hundreds of lines, of which a few are wanted
            for end in (b" ", b":", b"\t"):
                place = text.find(b"\n" + name.encode() + end)
                if place >= 0:
                    words = text[place : place + _LINE_BYTES].split(None, 2)
                    found[name] = float(words[1])
                    break
    except (OSError, ValueError, IndexError):
        return {}
    return found


def pressure_seconds(path: str) -> tuple[float | None, float | None]:
    """Time in which some, and in which all tasks waited, in seconds since boot (kernel PSI, field total in us)."""
    totals: dict[str, float] = {}
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            for line in file:
                kind, _, rest = line.partition(" ")
                totals[kind] = float(rest.rpartition("total=")[2]) / 1e6
    except (OSError, ValueError):
        return None, None
    return totals.get("some"), totals.get("full")


def rank_usage(proc: str, pid: int) -> RankUsage | None:
    """CPU, memory and scheduling of process `pid`; None if it is gone."""
    try:
        with open(f"{proc}/{pid}/stat", "rb") as file:
            text = file.read()
    except OSError:
        return None
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
        with open(f"{proc}/{pid}/schedstat", "rb") as file:
            ran_ns, waited_ns = file.read().split()[:2]
        times_s |= {"ran": int(ran_ns) / 1e9, "waited": int(waited_ns) / 1e9}
    except (OSError, ValueError):
        times_s = {"cpu": times_s["cpu"]}  # a kernel without scheduler statistics: the shares stay unknown
    switches = numbered_lines(f"{proc}/{pid}/status", ("nonvoluntary_ctxt_switches",))
    if switches:
        values["rank_involuntary_switches_count"] = switches["nonvoluntary_ctxt_switches"]
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
