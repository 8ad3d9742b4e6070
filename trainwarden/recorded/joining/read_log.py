"""A log as it was read, and what only the other files of the job can say about it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainwarden.recorded.job import LogTable
from trainwarden.recorded.joining.other_jobs import without_other_jobs
from trainwarden.recorded.joining.pids import Processes, from_boot_s, processes_of, with_ranks

_ROW = re.compile(r" {0,4}rank {1,8}: ([0-9]{1,6}) \(local_rank: ([0-9]{1,6})\)$")
_KERNELS = re.compile(r"(?i)\bdmesg|[_-]dmesg|\bkern(el)?[._-]|\bjournalctl")  # names of files that are the kernel's
# DeepSpeed's launcher, as it starts a process: its other lines name the last of all.
_STARTED = re.compile(r"process [0-9]{1,10} spawned with command: .{1,2000}?--local_rank=([0-9]{1,6})\b")
_ENDED = re.compile(r"sigkill_handler\] Killing subprocess ([0-9]{1,10})$")
_MOST_LOCAL = 16  # ranks of one node


@dataclass(frozen=True, slots=True)
class ReadLog:
    """A log and what only the whole job can settle.

    Attributes
    ----------
    from_boot : tuple of int
        Lines whose time counts from the start of the machine.
    local : dict of int to int
        Local rank by line; it is the rank only where the job has a single node.
    year_guessed : bool
        Its stamps have no year, and nothing said which one is meant.
    day_guessed : bool
        Nor have they a day.
    """

    table: LogTable
    from_boot: tuple[int, ...] = ()
    local: dict[int, int] | None = None
    year_guessed: bool = False
    day_guessed: bool = False

    def settled(self, *, epoch: bool, of_local: Mapping[int, int], processes: Processes) -> LogTable:
        """The table once the job is known: clocks since boot are joined with wall times, local ranks named."""
        table = self.table
        times_s, ranks = table.times_s, table.ranks
        if epoch and self.from_boot:
            boot_s = from_boot_s(table, self.from_boot, processes)
            times_s = times_s.copy()
            times_s[list(self.from_boot)] += np.nan if boot_s is None else boot_s
        if of_local and self.local:
            found = {place: of_local[rank] for place, rank in self.local.items() if rank in of_local}
            ranks = tuple(found.get(place, rank) for place, rank in enumerate(ranks))
        return with_ranks(replace(table, times_s=times_s, ranks=ranks), processes)

    @property
    def of_first_node(self) -> bool:
        """Whether a launcher names processes by their local ranks, and no table of torchrun says of another node."""
        rows = [match for line in self.table.lines if "local_rank: " in line and (match := _ROW.match(line))]
        if any(row[1] != row[2] for row in rows):
            return False
        return bool(self._started) or any("local_rank" in self.table.lines[place] for place in self.local or ())

    @property
    def _started(self) -> set[int]:
        """Local ranks that DeepSpeed's launcher has started, and so many as it ends: it ends each of them."""
        started, ended = set[int](), set[str]()
        for line in self.table.lines:
            if "spawned with" in line and (match := _STARTED.search(line)):
                started.add(int(match[1]))
            elif "sigkill_handler" in line and (match := _ENDED.search(line)):
                ended.add(match[1])
        return started | set(range(len(ended)))

    def of_local(self, *, single_node: bool) -> dict[int, int]:
        """Global rank by local rank: the same on a job's only node, else counted from the first rank of the file."""
        local = {*(self.local or {}).values(), *self._started}
        if not local:
            return {}
        said = sorted({rank for rank in self.table.ranks if rank is not None})
        first = 0 if single_node or not said else said[0]
        if not single_node and (len(said) < 2 or said[-1] - first >= _MOST_LOCAL):
            return {}
        return {one: first + one for one in local}


def of_one_node(read: Sequence[ReadLog], nodes: Collection[str]) -> bool:
    """Whether a job has run on one node: the only one of `nodes`, or that of the only log beside the kernel's."""
    programs = [log for log in read if not log.from_boot and not _KERNELS.search(log.table.file)]
    return len(nodes) == 1 or (not nodes and len(programs) == 1 and programs[0].of_first_node)


def settled(read: Sequence[ReadLog], *, epoch: bool, single_node: bool) -> tuple[LogTable, ...]:
    """The tables of a job's logs, once all of them are read."""
    local = [log.of_local(single_node=single_node) for log in read]
    processes = processes_of([log.table for log in read], local)
    return without_other_jobs(
        [
            log.settled(epoch=epoch, of_local=of_local, processes=processes)
            for log, of_local in zip(read, local, strict=True)
        ]
    )
