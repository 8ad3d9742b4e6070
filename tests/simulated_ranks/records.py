"""What the agents of simulated ranks send: the calls of sampled steps, and the steps themselves."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.simulated_ranks.steps import Ranks
from trainwarden.detectors.calls.functions import NAMES
from trainwarden.detectors.calls.joined import Calls
from trainwarden.records import CollectivesRecord, EventRecord, IterationRecord, Record

START_S = 1_728_000_000.0  # 2024-10-04
EVERY = 64  # steps from one sampled step to the next


def sent(ranks: Ranks, sampled: int) -> Iterator[Record]:
    """Records of `sampled` sampled steps."""
    layout, end_s = ranks.layout, START_S
    yield EventRecord(
        id="start", job="job", node="", time_s=START_S, kind="job_start", fields={"world_size": layout.ranks}
    )
    for number in range(sampled):
        calls, took_s = ranks.step()
        end_s += took_s
        yield from records_of_step(ranks, calls, EVERY * number, end_s, took_s)


def records_of_step(ranks: Ranks, calls: Calls, step: int, end_s: float, took_s: float) -> Iterator[Record]:
    """What all ranks tell of one step: first that it ended, then its calls."""
    layout = ranks.layout
    for rank in range(layout.ranks):
        yield IterationRecord(
            job="job", node=layout.nodes[rank], rank=rank, incarnation="1", steps=(step,), end_s=(end_s,),
            duration_s=(took_s,), basis="device_step", accelerator="cuda",
        )  # fmt: skip
    for rank in range(layout.ranks):
        yield _record(ranks, calls.part(calls.column == rank), rank, step, end_s)


def _record(ranks: Ranks, calls: Calls, rank: int, step: int, end_s: float) -> CollectivesRecord:
    counts = ranks.layout.counts
    rows = np.flatnonzero(counts.column == rank)
    comms, places = counts.comm[rows].tolist(), counts.place[rows].tolist()
    peers = []
    for comm, peer in zip(calls.comm.tolist(), calls.peer.tolist(), strict=True):
        place = counts.place[(counts.comm == comm) & (counts.column == peer)]
        peers.append(int(place[0]) if peer >= 0 else None)
    return CollectivesRecord(
        job="job", node=ranks.layout.nodes[rank], rank=rank, incarnation="1", time_s=end_s, monotonic_s=end_s - START_S,
        comms=tuple(counts.names[comm] for comm in comms), groups=tuple(counts.groups[comm] for comm in comms),
        sizes=tuple(counts.sizes[comms].tolist()), places=tuple(places),
        node_counts=tuple(counts.nodes[comms].tolist()),
        of=tuple(comms.index(comm) for comm in calls.comm.tolist()),
        functions=tuple(NAMES[code] for code in calls.function.tolist()), seqs=tuple(calls.seq.tolist()),
        steps=(step,) * calls.seq.size, call_bytes=tuple(calls.call_bytes.tolist()),
        device_s=tuple(None if np.isnan(one) else one for one in calls.device_s.tolist()),
        enqueued_s=(end_s - START_S,) * calls.seq.size, peers=tuple(peers),
    )  # fmt: skip
