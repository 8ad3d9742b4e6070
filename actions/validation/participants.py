"""Who takes part in a validation, who has fallen silent, and what is asked of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from trainwarden.actions.validation.judgement import LEAST_PEERS
from trainwarden.actions.validation.results import Finding, NodeReport, RankCommand, RankInfo, RankReport
from trainwarden.actions.validation.schedules import Pair
from trainwarden.records import IncidentKind

ASKED_AGAIN_S = 2.0  # a process that lives answers this within milliseconds
LIMITS_OF_A_LINK = 3  # to connect, to send, to receive


class RankChannel(Protocol):
    """The leader's way to ranks and nodes."""

    def join(self) -> Mapping[int, RankInfo]:
        """The ranks that have come in time."""
        ...

    def places(self) -> Mapping[int, str]:
        """The nodes of ranks that were started, by those that started them."""
        ...

    def ask(self, order: RankCommand) -> Mapping[int, RankReport]:
        """What the ranks of `order` answer within its limit; ranks whose process ended are not waited for."""
        ...

    def ended(self) -> Mapping[int, str]:
        """How the processes of ranks ended, of those that have."""
        ...

    def nodes(self) -> Sequence[NodeReport]:
        """What the checks of disk and memory answered, of every node that did."""
        ...


class ValidationTargets(NamedTuple):
    """Whom a validation is about: all ranks, if neither ranks nor nodes are named."""

    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranks or self.nodes)


def chosen(joined: Mapping[int, RankInfo], named: ValidationTargets) -> dict[int, RankInfo]:
    """The ranks that are named, with more others beside them than they are, on four nodes if there are so many.

    The others come from as many nodes as possible, so the median is theirs whoever of the named is slow.

    Examples
    --------
    >>> joined = {r: RankInfo(rank=r, node=f"n{r // 2}", local_rank=r % 2, device="cpu") for r in range(12)}
    >>> sorted(chosen(joined, ValidationTargets(ranks=(5,)))), sorted(chosen(joined, ValidationTargets(nodes=("n0",))))
    ([0, 2, 4, 5, 6], [0, 1, 2, 4, 6])
    """
    if not named:
        return dict(joined)
    picked = {r: one for r, one in joined.items() if r in named.ranks or one.node in named.nodes}
    if not picked:
        return {}
    least = max(len(picked), LEAST_PEERS - 1) + len(picked)
    for rank, one in sorted(joined.items(), key=lambda item: (item[1].local_rank, item[0])):
        nodes = {other.node for other in picked.values()}
        if len(picked) < least or (len(nodes) < LEAST_PEERS and one.node not in nodes):
            picked.setdefault(rank, one)
    return picked


class Participants:
    """The ranks of one validation, by way of `talk`.

    A rank that does not answer an order in time is asked no other; at the end it is asked once more. Those whose
    devices have no memory left for a check are `crowded`.
    """

    def __init__(self, talk: RankChannel, world_size: int, named: ValidationTargets) -> None:
        self._talk = talk
        self._number = 0
        self._silent: dict[int, list[str]] = {}
        self.crowded: set[int] = set()
        self.joined = talk.join()
        self._places = {**talk.places(), **{rank: member.node for rank, member in self.joined.items()}}
        self._named = named
        self.chosen = chosen(self.joined, named)
        self.absent = tuple(rank for rank in range(world_size) if rank not in self.joined and self._is_meant(rank))

    @property
    def present(self) -> tuple[int, ...]:
        """The ranks that have answered everything so far."""
        return tuple(rank for rank in sorted(self.chosen) if rank not in self._silent)

    def _is_meant(self, rank: int) -> bool:
        """Whether a rank that has not come was asked about; of one without a known node nobody can say."""
        node = self._places.get(rank)
        return not self._named or rank in self._named.ranks or (node in self._named.nodes if node else True)

    def burn_in(self, ranks: Iterable[int], budget_s: float, limit_s: float) -> Mapping[int, RankReport]:
        """A burn-in of `ranks`, all at the same time."""
        asked = tuple(rank for rank in ranks if rank not in self._silent)
        return self._ask(
            RankCommand(number=0, what="gemm", ranks=asked, budget_s=budget_s, limit_s=limit_s), "its burn-in"
        )

    def links(self, pairs: Iterable[Pair], budget_s: float, limit_s: float) -> Mapping[int, RankReport]:
        """One pass over `pairs`, all at the same time; pairs with a rank that is silent are left out.

        What has not come through after `limit_s` has not; a rank has thrice that time to say so.
        """
        asked = tuple(pair for pair in pairs if not set(pair) & self._silent.keys())
        ranks = tuple(rank for pair in asked for rank in pair)
        reports = self._ask(
            RankCommand(
                number=0, what="links", ranks=ranks, pairs=asked, budget_s=budget_s, limit_s=LIMITS_OF_A_LINK * limit_s
            ),
            "a link test",
        )
        for rank, report in reports.items():
            if report.error is not None and report.peer in self._silent:
                self._silent[report.peer].append(f"rank {rank} had no answer from it either")
        return reports

    def _ask(self, order: RankCommand, what: str) -> Mapping[int, RankReport]:
        if not order.ranks:
            return {}
        self._number += 1
        order = RankCommand(
            number=self._number, what=order.what, ranks=order.ranks, pairs=order.pairs,
            budget_s=order.budget_s, limit_s=order.limit_s,
        )  # fmt: skip
        reports = self._talk.ask(order)
        self.crowded |= {rank for rank, report in reports.items() if report.crowded}
        for rank in order.ranks:
            if rank not in reports:
                self._silent.setdefault(rank, []).append(f"no report of {what} within {order.limit_s:.0f} s")
        return reports

    def missing_ranks(self) -> tuple[list[Finding], list[str]]:
        """Ranks that never came, have ended, or still do not answer; and in words those that were only late."""
        ended = self._talk.ended()
        still = tuple(rank for rank in self._silent if rank not in ended)
        back = self._ask(RankCommand(number=0, what="answer", ranks=still, limit_s=ASKED_AGAIN_S), "a plain question")
        ended = self._talk.ended()
        accused = [self._gone("node_lost", rank, "never came", ()) for rank in self.absent if rank not in ended]
        accused += [self._unknown(node) for node in self._named.nodes if node not in self._places.values()]
        for rank, how in sorted(ended.items()):
            if rank in self.joined and rank not in self.chosen:
                continue
            accused.append(self._gone("crash", rank, how, tuple(self._silent.get(rank, ()))))
        noted = []
        for rank in sorted(self._silent):
            if rank in back:
                noted.append(f"rank {rank} on {self.node(rank)} answers again: {self._silent[rank][0]}")
            elif rank not in ended:
                why = "does not answer, though its process has not ended"
                accused.append(self._gone("hang", rank, why, tuple(self._silent[rank])))
        return accused, noted

    def without_room(self) -> list[str]:
        """Sentences about the ranks that are `crowded`."""
        return [
            f"rank {rank} on {self.node(rank)}: its device has no memory left for it" for rank in sorted(self.crowded)
        ]

    def node(self, rank: int) -> str:
        """The node of `rank`, as far as it is known."""
        return self._places.get(rank, "an unknown node")

    def _gone(self, kind: IncidentKind, rank: int, how: str, witnesses: tuple[str, ...]) -> Finding:
        nodes = (self._places[rank],) if rank in self._places else ()
        return Finding(
            kind=kind,
            text=f"rank {rank} on {self.node(rank)} {how}",
            ranks=(rank,),
            nodes=nodes,
            witnesses=witnesses,
        )

    def _unknown(self, node: str) -> Finding:
        there = ", ".join(dict.fromkeys(self._places.values()))
        return Finding(kind="node_lost", text=f"no rank of {node} has come; there are {there}", nodes=(node,))

    def finish(self) -> None:
        """Let all ranks go."""
        self._number += 1
        self._talk.ask(RankCommand(number=self._number, what="end"))

    def node_reports(self) -> Sequence[NodeReport]:
        """See `RankChannel.nodes`."""
        return self._talk.nodes()
