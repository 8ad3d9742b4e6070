"""What a rank's file of calls tells, as records of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainwarden import hook
from trainwarden.collectors.nccl_profiler.read import Call, Comm
from trainwarden.collectors.nccl_profiler.source import Taken
from trainwarden.protocols import Scope
from trainwarden.records import CollectivesRecord

_MOST_CALLS = 4000  # of a record, which is far below the bus's limit then


class CallRecords:
    """Makes the records of one job on one node.

    Parameters
    ----------
    scope : Scope
    boot : str
    """

    def __init__(self, scope: Scope, boot: str) -> None:
        self._scope = scope
        self._boot = boot

    def of(self, rank: hook.Header, taken: Taken, now_s: float, monotonic_s: float) -> Iterator[CollectivesRecord]:
        """The calls of `taken`, with the counts of their communicators; the counts of all where they are to be told."""
        comms = {(comm.place, comm.generation & 0xFFFFFF): comm for comm in taken.comms}
        calls = [call for call in taken.calls if (call.place, call.generation) in comms]
        lost = taken.lost + len(taken.calls) - len(calls)
        for first in range(0, len(calls), _MOST_CALLS):
            part = calls[first : first + _MOST_CALLS]
            used = dict.fromkeys((call.place, call.generation) for call in part)
            yield self._record(rank, [comms[place] for place in used], part, lost, (now_s, monotonic_s))
            lost = 0
        if taken.counts or lost:
            alive = [comm for comm in taken.comms if not comm.closed]
            yield self._record(rank, alive, [], lost, (now_s, monotonic_s))

    def _record(
        self, rank: hook.Header, comms: Sequence[Comm], calls: Sequence[Call], lost: int, times: tuple[float, float]
    ) -> CollectivesRecord:
        at = {(comm.place, comm.generation & 0xFFFFFF): number for number, comm in enumerate(comms)}
        sizes, nodes = [comm.ranks for comm in comms], [comm.nodes for comm in comms]
        return CollectivesRecord(
            job=self._scope.job,
            node=self._scope.node,
            rank=rank.rank,
            incarnation=rank.incarnation,
            time_s=times[0],
            monotonic_s=times[1],
            boot=self._boot,
            comms=tuple(comm.id for comm in comms),
            groups=tuple(comm.name for comm in comms),
            # NCCL 2.26 tells neither.
            sizes=tuple(size for size in sizes if size) if all(sizes) else (),
            places=tuple(comm.rank for comm in comms),
            node_counts=tuple(count for count in nodes if count) if all(nodes) else (),
            enqueued=tuple(comm.enqueued for comm in comms),
            started=tuple(comm.started for comm in comms),
            finished=tuple(comm.finished for comm in comms),
            moved_s=tuple(comm.moved_ns / 1e9 if comm.moved_ns else None for comm in comms),
            of=tuple(at[call.place, call.generation] for call in calls),
            functions=tuple(call.function for call in calls),
            seqs=tuple(call.seq for call in calls),
            steps=tuple(call.step for call in calls if call.step is not None),
            call_bytes=tuple(call.size_bytes for call in calls),
            device_s=tuple(_device_s(call, comms[at[call.place, call.generation]]) for call in calls),
            enqueued_s=tuple(call.enqueued_ns / 1e9 for call in calls),
            peers=tuple(call.peer for call in calls),
            lost=lost,
        )


def _device_s(call: Call, comm: Comm) -> float | None:
    return call.device_ns / 1e9 if call.device_ns is not None and comm.trusted else None
