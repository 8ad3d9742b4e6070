"""Which shards exist where, and which ids are complete; nothing is read or sent here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Final, Literal

import msgspec

from trainwarden.checkpoint.shard import Header, Id

Tier = Literal["memory", "neighbour", "store"]
TIERS: Final[tuple[Tier, ...]] = ("memory", "neighbour", "store")
"""Nearest first."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=10**15)]


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """One sealed shard: in the memory of the node that saved it, in that of its neighbour, or in the store."""

    tier: Tier
    node: str
    attempt: _Count
    step: _Count
    rank: _Count
    world: _Count
    topology: Annotated[str, msgspec.Meta(max_length=10_000)]
    digest: Annotated[str, msgspec.Meta(max_length=64)]
    size: _Count
    saved_at_s: float

    @property
    def id(self) -> Id:
        return Id(self.attempt, self.step)


def copy_of(header: Header, tier: Tier, node: str) -> Copy:
    facts = header.facts
    return Copy(
        tier=tier, node=node, attempt=facts.id.attempt, step=facts.id.step, rank=facts.rank, world=facts.world,
        topology=facts.topology, digest=header.digest, size=header.size, saved_at_s=facts.saved_at_s,
    )  # fmt: skip


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """From what all nodes go on: shards of `id`, or the store's files of `step`; neither, if there is nothing.

    `attempt` is newer than that of any shard. `direct` says why scripts are given the store's folder instead.
    """

    attempt: int = 0
    id: tuple[int, int] | None = None
    step: int | None = None
    direct: str = ""
    words: str = ""


class Copies:
    """All known copies, by id."""

    def __init__(self, copies: Iterable[Copy]) -> None:
        self.by_id: dict[Id, list[Copy]] = defaultdict(list)
        for copy in copies:
            self.by_id[copy.id].append(copy)

    def newest_first(self) -> list[Id]:
        return sorted(self.by_id, reverse=True)

    def missing(self, id_: Id, *tiers: Tier) -> list[int]:
        """The ranks of which no copy is in `tiers`; in none at all, if no tier is named.

        Examples
        --------
        >>> Copies([]).missing(Id(0, 1))
        []
        """
        copies = self.by_id.get(id_, [])
        there = {copy.rank for copy in copies if copy.tier in (tiers or TIERS)}
        world = max((copy.world for copy in copies), default=0)
        return sorted(set(range(world)) - there)

    def is_complete(self, id_: Id, *tiers: Tier) -> bool:
        """Whether every rank has a copy in one of `tiers`; of an unknown id nothing is complete."""
        return bool(self.by_id.get(id_)) and not self.missing(id_, *tiers)

    def newest(self, *tiers: Tier) -> Id | None:
        """The newest id that is complete in `tiers`."""
        return next((id_ for id_ in self.newest_first() if self.is_complete(id_, *tiers)), None)

    def sources(self, id_: Id, rank: int, here: str) -> list[Copy]:
        """Where to read a rank's shard, nearest first: this node, another node's memory, a neighbour, the store."""
        found = [copy for copy in self.by_id.get(id_, []) if copy.rank == rank]
        return sorted(found, key=lambda copy: (copy.tier == "store", copy.node != here, TIERS.index(copy.tier)))

    def saved_at_s(self, id_: Id) -> float:
        """When the last rank saved it."""
        return max(copy.saved_at_s for copy in self.by_id[id_])
