"""The collective calls of a recorded folder as the records that the agents would have sent."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from trainwarden.recorded.job import CollectiveTable, IterationTable, RecordedJob
from trainwarden.records import CollectivesRecord

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_LIFE = "0"


class CallRecords:
    """One record for each rank and step, in the order of the steps.

    Parameters
    ----------
    start_s : float
        When the recording begins; steps are a second apart where nothing tells their times.

    Attributes
    ----------
    times_s : float array [records]
    step_s : float array [steps]
        When each step was told by all.
    """

    def __init__(self, table: CollectiveTable, job: RecordedJob, start_s: float) -> None:
        self._table, self._job = table, job
        key = (np.diff(table.step) != 0) | (np.diff(table.rank) != 0)
        self._begins = np.flatnonzero(np.append(True, key))
        self._ends = np.append(self._begins[1:], table.step.size)
        steps, place = np.unique(table.step[self._begins], return_inverse=True)
        self.step_s = _step_times_s(table, job, steps, start_s)
        self.times_s = self.step_s[place.reshape(-1)]
        self._hosts = _hosts(table, job)
        self._members = _members(table)
        self._lives = _lives_by_rank(job.iterations)
        of_rank = np.unique(np.stack((table.rank, table.comm)), axis=1)
        self._comms = {
            int(rank): of_rank[1, of_rank[0] == rank] for rank in np.unique(of_rank[0]).tolist()
        }  # fmt: skip

    def between(self, first: int, end: int) -> Iterator[CollectivesRecord]:
        """The records of a range."""
        for number in range(first, end):
            yield self._record(number)

    def _record(self, number: int) -> CollectivesRecord:
        table, rows = self._table, slice(int(self._begins[number]), int(self._ends[number]))
        rank = int(table.rank[rows.start])
        comms = self._comms[rank].tolist()
        place = {comm: index for index, comm in enumerate(comms)}
        of = table.comm[rows].tolist()
        members = [self._members[comm] for comm in comms]
        counts = table.nodes
        return CollectivesRecord(
            job=self._job.name, node=self._hosts.get(rank, ""), rank=rank,
            incarnation=self._life(rank, int(table.step[rows.start])),
            time_s=float(self.times_s[number]), comms=tuple(table.comms[comm] for comm in comms),
            groups=tuple(table.groups[comm] for comm in comms),
            sizes=tuple(max(2, own.size, table.sizes[comm]) for comm, own in zip(comms, members, strict=True)),
            places=tuple(int(np.searchsorted(own, rank)) for own in members),
            node_counts=tuple(counts[comm] or self._nodes(own) for comm, own in zip(comms, members, strict=True)),
            of=tuple(place[comm] for comm in of),
            functions=tuple(table.functions[code] for code in table.function[rows].tolist()),
            seqs=tuple(table.seq[rows].tolist()), steps=tuple(table.step[rows].tolist()),
            call_bytes=tuple(table.call_bytes[rows].tolist()), device_s=_known(table.device_s[rows]),
            enqueued_s=_known(table.enqueued_s[rows]) if np.isfinite(table.enqueued_s[rows]).all() else (),
            peers=tuple(self._peer(comm, peer, rank) for comm, peer in zip(of, table.peer[rows].tolist(), strict=True)),
        )  # fmt: skip

    def _life(self, rank: int, step: int) -> str:
        """The process that ran this step, as the iterations say."""
        steps, names = self._lives.get(rank, (np.zeros(0), [_LIFE]))
        return names[min(int(np.searchsorted(steps, step)), len(names) - 1)]

    def _peer(self, comm: int, peer: int, rank: int) -> int | None:
        """The place of the other rank of a send or receive; of a pair it need not be said."""
        members = self._members[comm]
        if peer < 0 and members.size == 2:
            return int(members[0] == rank)
        at = int(np.searchsorted(members, peer))
        return at if peer >= 0 and at < members.size and members[at] == peer else None

    def _nodes(self, members: Ints) -> int:
        """On how many nodes these ranks are; 0 if one is not known."""
        hosts = {self._hosts.get(rank, "") for rank in members.tolist()}
        return 0 if "" in hosts else len(hosts)


def _known(values: Floats) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(value) else value for value in values.tolist())


def lives_of(table: IterationTable) -> tuple[str, ...]:
    """Which process ran each row: as the table says; else a rank whose step numbers fall has been restarted."""
    if table.incarnation:
        return table.incarnation
    lives = np.zeros(table.step.size, dtype=np.int64)
    for place in range(len(table.ranks)):
        rows = np.flatnonzero(table.rank == place)
        lives[rows] = np.concatenate([[0], np.cumsum(np.diff(table.step[rows]) < 0)]) if rows.size else 0
    return tuple(str(life) for life in lives.tolist())


def _lives_by_rank(table: IterationTable | None) -> dict[int, tuple[Ints, list[str]]]:
    """For each rank its steps, and who ran them; of a step that was run twice the first."""
    if table is None or not table.step.size:
        return {}
    lives, found = lives_of(table), {}
    for place, rank in enumerate(table.ranks):
        rows = np.flatnonzero(table.rank == place)
        steps, first = np.unique(table.step[rows], return_index=True)
        found[rank or 0] = (steps, [lives[row] for row in rows[first].tolist()])
    return found


def _members(table: CollectiveTable) -> list[Ints]:
    """The ranks of each communicator that have told a call in it, or were told of as a peer."""
    both = np.concatenate((table.comm, table.comm[table.peer >= 0]))
    ranks = np.concatenate((table.rank, table.peer[table.peer >= 0]))
    pairs = np.unique(np.stack((both, ranks)), axis=1)
    bounds = np.searchsorted(pairs[0], np.arange(len(table.comms) + 1))
    return [pairs[1, bounds[comm] : bounds[comm + 1]] for comm in range(len(table.comms))]


def _hosts(table: CollectiveTable, job: RecordedJob) -> dict[int, str]:
    """Where each rank runs, by any table that tells."""
    found: dict[int, str] = {}
    for other in (job.metrics, job.iterations):
        if other is not None:
            owners = zip(other.ranks, other.nodes, strict=True)
            found |= {rank: node for rank, node in owners if rank is not None and node}
    return found | dict(table.hosts)


def _step_times_s(table: CollectiveTable, job: RecordedJob, steps: Ints, start_s: float) -> Floats:
    """When each of `steps` ended: by the iterations, else by the clock of one rank, else a second apart."""
    if job.iterations is not None and job.iterations.step.size:
        number, place = np.unique(job.iterations.step, return_inverse=True)
        end_s = np.full(number.size, -np.inf)
        np.maximum.at(end_s, place.reshape(-1), job.iterations.end_s)
        return np.asarray(np.maximum.accumulate(np.interp(steps, number, np.maximum.accumulate(end_s))))
    own = (table.rank == table.rank.min()) & np.isfinite(table.enqueued_s)
    if own.any():
        number, place = np.unique(table.step[own], return_inverse=True)
        last_s = np.full(number.size, -np.inf)
        np.maximum.at(last_s, place.reshape(-1), table.enqueued_s[own])
        last_s += start_s - last_s[0] if last_s[0] < start_s else 0.0
        return np.asarray(np.maximum.accumulate(np.interp(steps, number, np.maximum.accumulate(last_s))))
    return np.asarray(start_s + (steps - steps[0]), dtype=np.float64)
