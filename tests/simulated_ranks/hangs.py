"""Simulated ranks that come to a stand: how far each host has enqueued, each device started and finished its calls."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from tests.simulated_ranks.layout import Layout
from trainwarden.detectors.calls.counts import Counts

SYNC = -1  # the host waits for its device


@dataclass
class Stand:
    """A program that all ranks run until nobody can go on.

    `host` and `device` are (rank, place in its program) at which that one stops for good, `link` a communicator whose
    next call after `link_after` never ends. `eager` hosts wait for their device only at the end of a step, else after
    each message between stages too. `stamped`: whether devices' counts are told.
    """

    layout: Layout
    host: tuple[int, int] | None = None
    device: tuple[int, int] | None = None
    link: int | None = None
    link_after: int = 3
    eager: bool = True
    steps: int = 3
    stamped: bool = True
    members: dict[int, list[int]] = field(default_factory=dict)
    programs: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        layout = self.layout
        for kind, groups in layout.groups.items():
            if kind != "pp":
                for number, group in enumerate(groups.tolist()):
                    self.members[layout.first[kind] + number] = group
        self.pairs = int(layout.sizes.size)
        apart = layout.tp * layout.dp
        for rank in range(layout.ranks - apart):
            self.members[self.pairs + rank] = [rank, rank + apart]
        self.programs = [self._step(rank) * self.steps for rank in range(layout.ranks)]

    def _step(self, rank: int) -> list[int]:
        """The calls of one step in their order."""
        layout, apart = self.layout, self.layout.tp * self.layout.dp
        of = {kind: layout.first[kind] + int(np.flatnonzero((groups == rank).any(axis=1))[0])
              for kind, groups in layout.groups.items()}  # fmt: skip
        block = [] if self.eager else [SYNC]
        before = [self.pairs + rank - apart, *block] if rank >= apart else []
        after = [self.pairs + rank, *block] if rank + apart < layout.ranks else []
        tensor = [of["tp"]] * 2 if "tp" in of else []
        data = [of["dp"]] * 2 if "dp" in of else []
        forward, backward = [*before, *tensor, *after], [*after, *tensor, *before]
        return [*forward, *backward, *data, of["world"], SYNC]

    def counts(self) -> Counts:
        """The table once nobody can go on."""
        ranks = range(self.layout.ranks)
        host, started, finished = [0] * len(ranks), [0] * len(ranks), [0] * len(ranks)  # places in the programs
        begun: dict[tuple[int, int], int] = defaultdict(int)  # by rank and communicator
        moved = True
        while moved:
            moved = False
            for rank in ranks:
                moved |= self._go_on(rank, host, started, finished, begun)
        return self._table(host, started, finished)

    def _go_on(self, rank, host, started, finished, begun) -> bool:
        program, moved = self.programs[rank], False
        while host[rank] < len(program) and self.host != (rank, host[rank]):
            if program[host[rank]] == SYNC and finished[rank] < host[rank]:
                break
            host[rank] += 1
            moved = True
        while True:
            place = finished[rank]
            if started[rank] == place and place < host[rank] and self.device != (rank, place):
                started[rank] += 1
                if program[place] != SYNC:
                    begun[rank, program[place]] += 1
                moved = True
            if started[rank] == place or not self._ends(program[place], begun[rank, program[place]], begun):
                return moved
            finished[rank] += 1
            moved = True

    def _ends(self, comm: int, number: int, begun) -> bool:
        if comm == SYNC:
            return True
        if comm == self.link and number > self.link_after:
            return False
        return all(begun[member, comm] >= number for member in self.members[comm])

    def _table(self, host, started, finished) -> Counts:
        rows = [(comm, rank, place) for comm, group in self.members.items() for place, rank in enumerate(group)]
        comm, column, place = np.array(rows).T

        def told(upto: list[int]) -> np.ndarray:
            return np.array([self.programs[rank][: upto[rank]].count(one) for one, rank, _ in rows])

        unknown = np.full(comm.size, -1)
        total = self.pairs + self.layout.ranks
        sizes = np.array([len(self.members.get(one, (0, 0))) for one in range(total)])
        names = [f"comm{one}" for one in range(total)]
        return replace(
            self.layout.counts, comm=comm, column=column, place=place, enqueued=told(host),
            started=told(started) if self.stamped else unknown, finished=told(finished) if self.stamped else unknown,
            still_s=np.full(comm.size, 60.0), names=names, groups=names, sizes=sizes,
            nodes=np.full(total, 2), trusted=np.ones(total, dtype=bool), paired=np.arange(total) >= self.pairs,
        )  # fmt: skip
