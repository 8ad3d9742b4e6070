"""Disks that let requests wait far longer than before, or than their peers do, while they do no more work.

Each becomes a line ``health check: DEVICE storage failed: words`` at the time when it is known. Two witnesses are
needed: the latency, and that the disk is busy; a disk that moves more than before is at work, as for a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.formats.building import metric_frame, metric_table
from trainwarden.formats.verdicts import Verdict, verdict_tables
from trainwarden.recorded.job import Floats, LogTable, MetricTable

LATENCY: Final = "host_disk_latency_seconds"
BUSY: Final = "host_disk_busy_ratio"
WORK: Final = (
    ("host_disk_read_bytes", "host_disk_write_bytes"), ("host_disk_reads_count", "host_disk_writes_count")
)  # fmt: skip
WAITED: Final = ("host_disk_read_wait_seconds", "host_disk_write_wait_seconds")
WORKED: Final = "host_disk_work_seconds"
LEAST_S: Final = 0.05  # a request that no disk of a healthy node needs without a queue
LEAST_TIMES: Final = 20.0  # what its own past or its peers show
LEAST_BUSY: Final = 0.5
MOST_MORE: Final = 2.0  # times the work of the past or of the peers: more of it explains a queue
SAMPLES: Final = 6  # that are slow, and so many before that are not
LASTED_S: Final = 25.0  # so long,
FEW: Final = 3  # or fewer samples
LONG_S: Final = 300.0  # over so long
LEAST_PEERS: Final = 3
FLOOR_S: Final = 1e-4  # a disk that answers faster is idle or caches

Rows = npt.NDArray[np.int64]


class _Disk(NamedTuple):
    """One disk's samples: arrays [n] by time, and of its work [2, n] in bytes and requests a second."""

    entity: int
    device: str
    times_s: Floats
    latency: Floats
    busy: Floats
    work: Floats


def with_disk_times(table: MetricTable | None) -> MetricTable | None:
    """`table` with the latency of disks, and how busy they are, where it has the counters (node_exporter) alone."""
    if table is None or LATENCY in table.names or not {*WORK[1], *WAITED, WORKED} <= set(table.names):
        return table
    added = np.full((table.times_s.size, 2), np.nan)
    for entity in np.unique(table.entity).tolist():
        rows = np.flatnonzero(table.entity == entity)
        requests, waited_s = _grown(table, rows, WORK[1]), _grown(table, rows, WAITED)
        elapsed_s = np.append(np.nan, np.diff(table.times_s[rows]))
        with np.errstate(invalid="ignore", divide="ignore"):
            added[rows, 0] = np.where(requests > 0.0, waited_s / requests, np.where(requests == 0.0, 0.0, np.nan))
            added[rows, 1] = np.minimum(_grown(table, rows, (WORKED,)) / elapsed_s, 1.0)
    return replace(table, names=(*table.names, LATENCY, BUSY), values=np.column_stack([table.values, added]))


def without_disk_work(table: MetricTable) -> MetricTable | None:
    """`table` without what is there for `slow_disks` alone; None where nothing is left.

    Nodes differ in what their disks do: the one that writes checkpoints is no outlier among its peers.
    """
    if not set(WORK[1]) & set(table.names):
        return table
    alone = {BUSY, WORKED, *WAITED, *WORK[0], *WORK[1]}
    kept = [place for place, name in enumerate(table.names) if name not in alone]
    names = tuple(table.names[place] for place in kept)
    left = replace(table, names=names, values=table.values[:, kept])
    return metric_table(metric_frame(left)) if kept else None


def slow_disks(table: MetricTable | None) -> list[LogTable]:
    """Lines about disks of `table`, slow or not; none where most are slow at once: they share what is."""
    if table is None or not {LATENCY, BUSY} <= set(table.names):
        return []
    disks = list(_disks(table))
    slow = [(*one, disk) for disk in disks if (one := _slow(disk, disks)) is not None]
    if len(slow) > max(1, len(disks) // 3):
        return []
    odd = {disk.entity for *_, disk in slow}
    well = [disk for disk in disks if disk.entity not in odd and disk.times_s.size >= 2 * SAMPLES]
    found = [*slow, *((float(disk.times_s[-1]), None, disk) for disk in well)]
    verdicts = [
        Verdict(disk.device, "storage", words, table.nodes[disk.entity], time_s, table.ranks[disk.entity])
        for time_s, words, disk in found
    ]
    return verdict_tables("disks", verdicts, np.nan)


def _disks(table: MetricTable) -> Iterator[_Disk]:
    """Disks with the samples that tell their latency, and whether they are busy."""
    latency, busy = (table.values[:, table.names.index(name)] for name in (LATENCY, BUSY))
    known = np.isfinite(latency)
    for entity in np.unique(table.entity[known]).tolist():
        rows = np.flatnonzero(known & (table.entity == entity))
        if rows.size >= FEW:
            elapsed_s = np.append(np.nan, np.diff(table.times_s[rows]))
            work = np.stack([_grown(table, rows, names) / elapsed_s for names in WORK])
            device = (table.devices[entity] or "disk").removeprefix("disk:")
            yield _Disk(entity, device, table.times_s[rows], latency[rows], busy[rows], work)


def _grown(table: MetricTable, rows: Rows, names: tuple[str, ...]) -> Floats:
    """Growth of counters together since the sample before; NaN where none of them is there, and where they fell."""
    columns = [table.values[rows, table.names.index(name)] for name in names if name in table.names]
    columns = [column for column in columns if np.isfinite(column).any()]
    if not columns:
        return np.full(rows.size, np.nan)
    grown = np.append(np.nan, np.diff(np.sum(columns, axis=0)))
    return np.where(grown >= 0.0, grown, np.nan)


def _kind(device: str) -> str:
    """What a disk is called but for its numbers and letters of order.

    Examples
    --------
    >>> _kind("nvme3n1") == _kind("nvme0n1"), _kind("sdb") == _kind("sda"), _kind("sda") == _kind("dm-0")
    (True, True, False)
    """
    if device.startswith(("sd", "vd", "hd", "xvd")):
        return device.rstrip("0123456789")[:-1]
    return "".join(one for one in device if not one.isdigit())


def _slow(disk: _Disk, disks: Sequence[_Disk]) -> tuple[float, str] | None:
    """When it is known that the disk is slow, and the words; None where it is not."""
    peers = [one for one in disks if one is not disk and _kind(one.device) == _kind(disk.device)]
    far = np.flatnonzero((disk.latency >= LEAST_S) & (disk.busy >= LEAST_BUSY))
    for run in np.split(far, np.flatnonzero(np.diff(far) > 2) + 1):  # one sample of less work ends no run
        lasted_s = disk.times_s[run] - disk.times_s[run[:1]]
        count = np.arange(1, run.size + 1)
        enough = ((count >= SAMPLES) & (lasted_s >= LASTED_S)) | ((count >= FEW) & (lasted_s >= LONG_S))
        for end in np.flatnonzero(enough).tolist():
            window = run[: end + 1]
            if words := _than_past(disk, window) or _than_peers(disk, window, peers):
                return float(disk.times_s[run[end]]), words
    return None


def _than_past(disk: _Disk, window: Rows) -> str:
    """How the disk differs from its own past; empty where it does not, or does more work."""
    past = np.arange(window[0])
    past = past[disk.latency[past] < LEAST_S]
    if past.size < SAMPLES:
        return ""
    usual_s = max(float(np.median(disk.latency[past])), FLOOR_S)
    slow_s = float(np.median(disk.latency[window]))
    if slow_s < LEAST_TIMES * usual_s or _works_more(disk.work[:, window], disk.work[:, past]):
        return ""
    return f"a request takes {1e3 * slow_s:.0f} ms, {1e3 * usual_s:.1f} ms before, and it does no more work than then"


def _than_peers(disk: _Disk, window: Rows, peers: Sequence[_Disk]) -> str:
    """How the disk differs from its peers at the same time; all but one of them must be far from it."""
    since_s, until_s = disk.times_s[window[0]], disk.times_s[window[-1]]
    usual_s, work = list[float](), list[Floats]()
    for one in peers:
        now = (one.times_s >= since_s) & (one.times_s <= until_s) & (one.latency > 0.0)
        if now.any():
            usual_s.append(float(np.median(one.latency[now])))
            work.append(one.work[:, now])
    if len(usual_s) < LEAST_PEERS:
        return ""
    slow_s = float(np.median(disk.latency[window]))
    if slow_s < LEAST_TIMES * max(sorted(usual_s)[-2], FLOOR_S):
        return ""
    if _works_more(disk.work[:, window], np.concatenate(work, axis=1)):
        return ""
    middle = 1e3 * float(np.median(usual_s))
    return f"a request takes {1e3 * slow_s:.0f} ms, {middle:.1f} ms on {len(usual_s)} others that do no less work"


def _works_more(now: Floats, usual: Floats) -> bool:
    """Whether a disk moves more, or has more requests, than is usual; also where nothing says how much."""
    known = np.isfinite(now).any(axis=1) & np.isfinite(usual).any(axis=1)
    if not known.any():
        return True
    return bool((np.nanmedian(now[known], axis=1) > MOST_MORE * np.nanmedian(usual[known], axis=1)).any())
