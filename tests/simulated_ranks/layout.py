"""Who talks to whom: tensor, expert, data and pipeline parallel groups of a job, in Megatron's order of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from trainwarden.detectors.calls.counts import Counts

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Layout:
    """Sizes of the groups; tensor parallel ranks lie beside each other, pipeline stages furthest apart.

    The `ep` ranks that share a layer's experts are some of a data parallel group.
    """

    tp: int = 1
    dp: int = 1
    pp: int = 1
    per_node: int = 8
    ep: int = 1

    @property
    def ranks(self) -> int:
        return self.tp * self.dp * self.pp

    @cached_property
    def grid(self) -> Ints:
        """Ranks [pp, dp, tp]."""
        return np.arange(self.ranks).reshape(self.pp, self.dp, self.tp)

    @cached_property
    def groups(self) -> dict[str, Ints]:
        """Ranks of the groups of each kind [groups, members]; kinds of one member are left out."""
        kinds = {
            "tp": self.grid.reshape(-1, self.tp),
            "dp": self.grid.transpose(0, 2, 1).reshape(-1, self.dp),
            "ep": self.grid.transpose(0, 2, 1).reshape(-1, self.ep),
            "pp": self.grid.transpose(1, 2, 0).reshape(-1, self.pp),
            "world": np.arange(self.ranks).reshape(1, -1),
        }
        return {kind: groups for kind, groups in kinds.items() if groups.shape[1] > 1}

    @cached_property
    def first(self) -> dict[str, int]:
        """Number of the first communicator of each kind."""
        out, total = {}, 0
        for kind, groups in self.groups.items():
            out[kind], total = total, total + len(groups)
        return out

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where each rank runs."""
        return tuple(f"node{rank // self.per_node}" for rank in range(self.ranks))

    @cached_property
    def sizes(self) -> Ints:
        return np.concatenate([np.full(len(groups), groups.shape[1]) for groups in self.groups.values()])

    @cached_property
    def spans(self) -> Ints:
        """On how many nodes each communicator is."""
        return np.concatenate([
            [len(set(group.tolist())) for group in groups // self.per_node] for groups in self.groups.values()
        ]).astype(np.int64)  # fmt: skip

    @cached_property
    def counts(self) -> Counts:
        """The table of counts at the start: nobody has called anything."""
        column = np.concatenate([groups.ravel() for groups in self.groups.values()])
        comm = np.concatenate(
            [self.first[kind] + np.repeat(np.arange(len(groups)), groups.shape[1])
             for kind, groups in self.groups.items()]
        )  # fmt: skip
        place = np.concatenate([np.tile(np.arange(groups.shape[1]), len(groups)) for groups in self.groups.values()])
        names = [f"{kind}{number}" for kind, groups in self.groups.items() for number in range(len(groups))]
        none = np.zeros(column.size, dtype=np.int64)
        return Counts(
            comm=comm, column=column, place=place, enqueued=none, started=none, finished=none,
            still_s=np.zeros(column.size), names=names, groups=names, sizes=self.sizes, nodes=self.spans,
            trusted=np.ones(self.sizes.size, dtype=np.bool_),
            paired=np.array([name.startswith(("pp", "ep")) for name in names]), silent_s=np.zeros(self.ranks),
        )  # fmt: skip
