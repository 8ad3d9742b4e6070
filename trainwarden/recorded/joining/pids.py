"""Processes that several files of a job name: launchers know their ranks, the kernel what became of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from trainwarden.log_shapes import by_shape, unmasked
from trainwarden.log_text import Writer, writer_of
from trainwarden.recorded.job import LogTable

MAX_PROCESSES: Final = 1_000_000
_MOST_PREFIX: Final = 200  # characters in which Ray's prefix names a process
# Bounded repeats, none inside another: linear time.
_GLOBAL: Final = (
    re.compile(r"[Gg]lobal rank (?P<rank>[0-9]{1,6}) \(PID (?P<pid>[0-9]{1,10})\)"),  # Composer's launcher
    re.compile(r"process rank (?P<rank>[0-9]{1,6}) with PID (?P<pid>[0-9]{1,10})"),  # Open MPI, PRRTE
    re.compile(r"RANK (?P<rank>[0-9]{1,6}) PID (?P<pid>[0-9]{1,10}) RUNNING AT"),  # Intel MPI
    re.compile(r":(?P<pid>[0-9]{1,10}):[0-9]{1,10} \[[0-9]{1,3}\] NCCL INFO .{0,80}\brank (?P<rank>[0-9]{1,6}) nranks"),
    re.compile(
        r"(?:\bip=(?P<ip>[0-9A-Fa-f:.]{2,45}), )?\bpid=(?P<pid>[0-9]{1,10})\)? world_rank=(?P<rank>[0-9]{1,6})"
    ),  # Ray Train
)
_RAY: Final = re.compile(r"Setting up process group for: .{0,60}\[rank=([0-9]{1,6}),")
_ROW: Final = re.compile(r" {0,4}rank {1,8}: ([0-9]{1,6}) \(local_rank: [0-9]{1,6}\)$")  # torchrun's table
_OF_ROW: Final = re.compile(r" {0,4}exitcode {1,4}: -?[0-9]{1,3} {1,2}\(pid: ([0-9]{1,10})\)")
_LOCAL: Final = re.compile(r"local_rank: ([0-9]{1,6}) \(pid: ([0-9]{1,10})\)")  # torchrun's agent
# DeepSpeed's launcher: it starts its processes, and ends them in the order of their local ranks (launcher/launch.py).
_STARTED: Final = re.compile(r"process ([0-9]{1,10}) spawned with command: .{1,2000}?--local_rank=([0-9]{1,6})\b")
_ENDS: Final = re.compile(r"sigkill_handler\] Killing subprocess ([0-9]{1,10})$")
_KERNEL: Final = re.compile(
    r"Killed process ([0-9]{1,10}) \(|\bpid=([0-9]{1,10})\b|[A-Za-z0-9_.-]{1,32}\[([0-9]{1,10})\](?:: segfault at| trap )"  # noqa: E501
    r"|\bpid ([0-9]{1,10}) thread|,task=[^,]{1,32},pid=([0-9]{1,10})\b"
)
_KERNEL_WORDS: Final = ("NVRM: Xid", "Killed process", "segfault at", "oom-kill:", "traps: ", "amdgpu")


@dataclass(frozen=True, slots=True)
class Processes:
    """What the files say of processes.

    Attributes
    ----------
    rank_of : mapping of int to int
        Rank by process id, where the files agree.
    ended_s : mapping of int to float
        When a launcher said that a process has ended, by its id.
    of_workers : mapping of int to mapping
        Rank by process id and node of Ray's workers, whose ids may be the same on several nodes; None where
        lines differ.
    """

    rank_of: Mapping[int, int]
    ended_s: Mapping[int, float]
    of_workers: Mapping[int, Mapping[str | None, int | None]] = field(default_factory=dict)

    def of_writer(self, writer: Writer) -> int | None:
        """Rank of the worker whose process and node Ray's prefix names: on its driver's node it names none."""
        if writer.pid is None or not (of_node := self.of_workers.get(writer.pid)):
            return None
        if writer.node is None and len(set(of_node.values())) == 1:
            return next(iter(of_node.values()))
        return of_node.get(writer.node)


def processes_of(tables: Iterable[LogTable], local: Sequence[Mapping[int, int]]) -> Processes:
    """Read what launchers and libraries say of processes.

    Parameters
    ----------
    local : sequence of mapping
        Global rank by local rank, for each table; empty where it is not known.
    """
    found: dict[int, int | None] = {}
    ended_s: dict[int, float] = {}
    of_workers: dict[int, dict[str | None, int | None]] = {}
    ended: dict[tuple[int, str | None], list[int]] = {}
    for number, (table, of_local) in enumerate(zip(tables, local, strict=True)):
        row: int | None = None
        for place, line in enumerate(table.lines):
            if not _may_tell(line):
                continue
            if match := _ENDS.search(line):
                found.update(_next_ended(int(match[1]), ended.setdefault((number, table.nodes[place]), []), of_local))
                continue
            pid, rank, worker = _named(line, row, of_local)
            row = int(match[1]) if (match := _ROW.match(line)) else row if pid is None else None
            if pid is None or len(found) >= MAX_PROCESSES:
                continue
            if rank is not None:
                found[pid] = rank if found.get(pid, rank) == rank else None
                if worker is not None:
                    of_node = of_workers.setdefault(pid, {})
                    of_node[worker.node] = rank if of_node.get(worker.node, rank) == rank else None
            if "exit" in line and np.isfinite(table.times_s[place]):
                ended_s.setdefault(pid, float(table.times_s[place]))
    return Processes({pid: rank for pid, rank in found.items() if rank is not None}, ended_s, of_workers)


def _next_ended(pid: int, before: list[int], of_local: Mapping[int, int]) -> dict[int, int | None]:
    """The rank of the process that DeepSpeed's launcher ends next, after those `before` it; empty if unknown."""
    if pid in before:
        return {}
    before.append(pid)
    rank = of_local.get(len(before) - 1)
    return {} if rank is None else {pid: rank}


def _tells(line: str) -> bool:
    """Whether `line` names a process or a rank of torchrun's table; no digit means anything for that."""
    if "sigkill_handler" in line:
        return _ENDS.search(line) is not None
    if "pid" not in line and "PID" not in line and "nranks" not in line and "rank" not in line:
        return False
    matched = any(pattern.match(line) for pattern in (_ROW, _OF_ROW))
    return matched or any(pattern.search(line) for pattern in (_LOCAL, _STARTED, _RAY, *_GLOBAL))


_may_tell = by_shape(lambda shape: _tells(unmasked(shape)))


def _named(line: str, row: int | None, of_local: Mapping[int, int]) -> tuple[int | None, int | None, Writer | None]:
    """Process and rank that a line names together, and of one of Ray's workers what names it."""
    if match := _LOCAL.search(line):
        return int(match[2]), of_local.get(int(match[1])), None
    if match := _STARTED.search(line):
        return int(match[1]), of_local.get(int(match[2])), None
    if match := _OF_ROW.match(line):
        return int(match[1]), row, None
    if (match := _RAY.search(line)) and (writer := writer_of(line)).pid is not None:
        return writer.pid, int(match[1]), writer
    for pattern in _GLOBAL:
        if match := pattern.search(line):
            pid = int(match["pid"])
            worker = Writer(line, node=match["ip"], pid=pid) if "ip" in pattern.groupindex else None
            return pid, int(match["rank"]), worker
    return None, None, None


def kernel_pid(line: str) -> int | None:
    """The process that a line of the kernel is about.

    Examples
    --------
    >>> kernel_pid("Out of memory: Killed process 7001 (python) total-vm:1kB"), kernel_pid("step 1 pid=7")
    (7001, None)
    >>> kernel_pid("NVRM: Xid (PCI:0000:3b:00): 79, pid=7001, name=python, GPU has fallen off the bus.")
    7001
    """
    if not any(word in line for word in _KERNEL_WORDS):
        return None
    match = _KERNEL.search(line)
    return int(next(group for group in match.groups() if group)) if match else None


def with_ranks(table: LogTable, processes: Processes) -> LogTable:
    """The table with the ranks of the processes that the kernel names, and of those that Ray's prefix names."""
    if not processes.rank_of and not processes.of_workers:
        return table
    ranks = list(table.ranks)
    for place, line in enumerate(table.lines):
        if ranks[place] is not None:
            continue
        if processes.of_workers and " pid=" in line[:_MOST_PREFIX] and (writer := writer_of(line)).pid is not None:
            ranks[place] = processes.of_writer(writer)
        elif (pid := kernel_pid(line)) is not None:
            ranks[place] = processes.rank_of.get(pid)
    return replace(table, ranks=tuple(ranks))


def from_boot_s(table: LogTable, places: Sequence[int], processes: Processes) -> float | None:
    """Wall time of the boot, where a launcher has said when a process ended of which the kernel speaks too."""
    for place in places:
        pid = kernel_pid(table.lines[place])
        if pid is not None and pid in processes.ended_s:
            return processes.ended_s[pid] - float(table.times_s[place])
    return None
