"""Link tests: every link of ring and tree, then each suspect again, alone, and its ends with other partners.

Slow links that have an end in common: a node or a rank of which every link is slow, whoever is at the other end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from trainwarden.actions.validation.judgement import (
    LEAST_PEERS,
    ROUNDS,
    Reference,
    is_slow,
    link_kind,
    link_name,
    link_reference,
    link_times,
)
from trainwarden.actions.validation.participants import Participants
from trainwarden.actions.validation.results import Finding, LinkTime, RankInfo
from trainwarden.actions.validation.schedules import Pair, disjoint, ring_and_tree

LEAST_PARTNERS: Final = 2  # of one slow link nobody knows which end it is


class CommonEnd(NamedTuple):
    """The ranks of a node, or one rank, and their slow links to `partners` other nodes or ranks."""

    ranks: tuple[int, ...]
    links: frozenset[Pair]
    partners: int


def common_ends(
    measured: Iterable[Pair], suspects: Collection[Pair], confirmed: Collection[Pair], joined: Mapping[int, RankInfo]
) -> list[CommonEnd]:
    """Nodes and ranks that explain slow links: all of their links are suspects, and of two partners it is confirmed.

    Whoever explains most comes first, and what it explains accuses nobody else.

    Parameters
    ----------
    measured, suspects, confirmed
        Links, each with its smaller rank first; every one of a set is in the sets before it.

    Examples
    --------
    >>> joined = {rank: RankInfo(rank=rank, node=f"n{rank}", local_rank=0, device="cpu") for rank in range(4)}
    >>> common_ends([(0, 1), (1, 2), (2, 3), (0, 3)], {(0, 1), (1, 2)}, {(0, 1), (1, 2)}, joined)[0].ranks
    (1,)
    """
    groups: dict[tuple[int, ...], dict[Pair, object]] = {}
    for pair in measured:
        between = link_kind(*pair, joined) == "between nodes"
        for end, other in (pair, pair[::-1]):
            groups.setdefault((end,), {})[pair] = other
            if between:
                groups.setdefault(_of_node(end, joined), {})[pair] = joined[other].node
    # A rank's links within its node say nothing of its port: judged by kind, a rank has two groups.
    by_kind = {
        (ranks, kind): {pair: other for pair, other in links.items() if link_kind(*pair, joined) == kind}
        for ranks, links in groups.items()
        for kind in {link_kind(*pair, joined) for pair in links}
    }
    whole = [(ranks, links) for (ranks, _), links in by_kind.items() if all(pair in suspects for pair in links)]
    found: list[CommonEnd] = []
    explained: set[Pair] = set()
    for ranks, links in sorted(whole, key=lambda one: (-len(one[1]), one[0])):
        known = {pair: other for pair, other in links.items() if pair in confirmed and pair not in explained}
        partners = len(set(known.values()))
        if partners >= LEAST_PARTNERS:
            found.append(CommonEnd(ranks, frozenset(links), partners))
            explained |= links.keys()
    return found


def _of_node(rank: int, joined: Mapping[int, RankInfo]) -> tuple[int, ...]:
    return tuple(sorted(other for other, member in joined.items() if member.node == joined[rank].node))


MOST_SUSPECTS = 16  # links measured again; of more at once the slowest say whose they are
SILENT = float("inf")  # the ratio of a link that carried nothing


class LinkStage:
    """The link tests of `cast`; attributes as in `trainwarden.actions.validation.compute.ComputeStage`."""

    def __init__(self, cast: Participants, budget_s: float, limit_s: float, baseline_s: Mapping[str, float]) -> None:
        self._cast, self._budget_s, self._limit_s, self._baseline_s = cast, budget_s, limit_s, baseline_s
        self.accused: list[Finding] = []
        self.noted: list[str] = []
        self.unjudged: list[str] = []
        self.times: dict[Pair, LinkTime] = {}
        self.passes = 0

    def run(self, left_out: Collection[int] = ()) -> None:
        """All passes, then some for the suspects; `left_out` are ranks whose processor is known to be slow."""
        ranks = [rank for rank in self._cast.present if rank not in left_out]
        self.times, dead = self._measure(ring_and_tree(ranks))
        reference = link_reference(self.times.values(), self._cast.joined, self._baseline_s)
        suspects = self._ratios(self.times, dead, reference)
        self._say_unjudged(reference)
        if suspects:
            self._confirm(suspects, reference)

    def _measure(self, passes: Iterable[tuple[Pair, ...]]) -> tuple[dict[Pair, LinkTime], set[Pair]]:
        """Times by direction; and the pairs of which both ends answered that nothing came through."""
        times: dict[Pair, LinkTime] = {}
        dead: set[Pair] = set()
        for one in passes:
            reports = self._cast.links(one, self._budget_s, self._limit_s)
            self.passes += 1
            times |= link_times(reports.values())
            able = [pair for pair in one if not self._cast.crowded & set(pair)]
            dead |= {pair for pair in able if all(rank in reports and reports[rank].error is not None for rank in pair)}
        return times, dead

    def _ratios(self, times: Mapping[Pair, LinkTime], dead: Iterable[Pair], reference: Reference) -> dict[Pair, float]:
        """Slow links, each under its ends in order, with the ratio of its slower direction."""
        joined = self._cast.joined
        ratios: dict[Pair, float] = {_in_order(pair): SILENT for pair in dead}
        for (sender, receiver), one in times.items():
            ratio = reference.ratio(
                one.best_s, link_kind(sender, receiver, joined), link_name(sender, receiver, joined)
            )
            if ratio is not None and is_slow(ratio):
                pair = _in_order((sender, receiver))
                ratios[pair] = max(ratio, ratios.get(pair, 0.0))
        return ratios

    def _confirm(self, suspects: Mapping[Pair, float], reference: Reference) -> None:
        """Each suspect again, clean links beside it as witnesses of how busy all is; then the ends of what is left."""
        worst = sorted(suspects, key=lambda pair: -suspects[pair])[:MOST_SUSPECTS]
        again, ways, now = self._alone(worst, suspects, reference)
        measured = {_in_order(pair) for pair in self.times} | suspects.keys()
        ends = common_ends(measured, suspects.keys(), again.keys(), self._cast.joined)
        for end in ends:
            self._accuse_end(end.ranks, max(again[pair] for pair in end.links if pair in again), end.partners)
        left = [pair for pair in worst if not any(pair in end.links for end in ends)]
        blamed = {rank for end in ends for rank in end.ranks}
        touched = blamed | {rank for pair in left for rank in pair}
        with_others = self._with_others([pair for pair in left if pair in again], touched, now)
        for pair in left:
            if pair not in again:
                self.noted.append(f"{self._said(pair)} was slow once ({_times(suspects[pair])}), but not when alone")
                continue
            tried = {end: slow for (end, other), slow in with_others.items() if {end, other} == set(pair)}
            for rank in (rank for rank, slow in tried.items() if slow and rank not in blamed):
                blamed.add(rank)
                self._accuse_end((rank,), again[pair], 2)
            if not any(tried.values()):
                self._accuse_link(pair, again[pair], ways, tried=bool(tried))

    def _alone(
        self, worst: list[Pair], suspects: Mapping[Pair, float], reference: Reference
    ) -> tuple[dict[Pair, float], set[Pair], Reference]:
        """Those that are slow in every round, each with its least ratio; the slow directions; and the reference now."""
        touched = {rank for pair in suspects for rank in pair}
        clean = [pair for pair in self.times if not touched & set(pair)]
        passes = [self._with_witnesses(one, clean) for one in disjoint(worst)]
        again, now = {pair: suspects[pair] for pair in worst}, reference
        ways: set[Pair] = set()
        for _ in range(ROUNDS):
            times, dead = self._measure(passes)
            now = self._not_before(now, [one for pair, one in times.items() if _in_order(pair) not in suspects])
            found = self._ratios(times, dead, now)
            again = {pair: min(ratio, found[pair]) for pair, ratio in again.items() if pair in found}
            ways |= {way for way, one in times.items() if self._ratios({way: one}, (), now)}
        return again, ways, now

    def _with_others(self, pairs: list[Pair], touched: Collection[int], now: Reference) -> dict[tuple[int, int], bool]:
        """By (end, other) of each pair, whether the end is slow with another partner; absent where there is none."""
        partners = {
            (end, other): _in_order((end, partner))
            for pair in pairs
            for end, other in (pair, pair[::-1])
            if (partner := self._partner(end, other, touched)) is not None
        }
        times, dead = self._measure(disjoint(dict.fromkeys(partners.values())))
        slow = self._ratios(times, dead, now)
        return {ends: link in slow for ends, link in partners.items()}

    def _with_witnesses(self, one: tuple[Pair, ...], clean: list[Pair]) -> tuple[Pair, ...]:
        """`one` and, of each kind in it, a link that is not suspected and has no rank of it."""
        taken = {rank for pair in one for rank in pair}
        beside = list(one)
        for kind in sorted({link_kind(*pair, self._cast.joined) for pair in one}):
            for pair in clean:
                if link_kind(*pair, self._cast.joined) == kind and not taken & set(pair):
                    beside.append(pair)
                    taken |= set(pair)
                    break
        return tuple(beside)

    def _not_before(self, first: Reference, witnesses: list[LinkTime]) -> Reference:
        """What the witnesses took now, or all took before where that was more."""
        medians = dict(first.median_s)
        for one in witnesses:
            kind = link_kind(one.sender, one.receiver, self._cast.joined)
            if kind in medians:
                medians[kind] = max(medians[kind], one.usual_s)
        return Reference(medians, first.baseline_s)

    def _partner(self, end: int, other: int, touched: Collection[int]) -> int | None:
        """Another partner for `end`, over a link of the same kind, that nobody suspects of anything."""
        joined = self._cast.joined
        kind = link_kind(end, other, joined)
        able = [
            rank
            for rank in self._cast.present
            if rank not in (end, other) and rank not in touched and link_kind(end, rank, joined) == kind
        ]
        elsewhere = [rank for rank in able if joined[rank].node != joined[other].node]
        return next(iter(elsewhere or able), None)

    def _accuse_link(self, pair: Pair, ratio: float, ways: Collection[Pair], *, tried: bool) -> None:
        slow = [way for way in (pair, pair[::-1]) if way in ways]
        way = f" (only from {slow[0][0]} to {slow[0][1]})" if len(slow) == 1 else ""
        ends = (
            "each end that was tried is well with another partner"
            if tried
            else "no other partner was there for its ends"
        )
        nodes = tuple(dict.fromkeys(self._cast.node(rank) for rank in pair))
        self.accused.append(
            Finding(
                kind="slow_link",
                text=f"{self._said(pair)} {_takes(ratio)}{way}; {ends}",
                ranks=pair,
                nodes=nodes,
                link=pair,
                ratio=None if ratio == SILENT else ratio,
                witnesses=("in its pass", *("alone",) * ROUNDS),
            )
        )

    def _accuse_end(self, ranks: tuple[int, ...], ratio: float, partners: int) -> None:
        node = self._cast.node(ranks[0])
        whose = f"rank {ranks[0]} on {node}" if len(ranks) == 1 else f"{node} (ranks {', '.join(map(str, ranks))})"
        self.accused.append(
            Finding(
                kind="slow_link",
                text=f"every link that was tried of {whose} {_takes(ratio)}, with {partners} partners",
                ranks=ranks,
                nodes=(node,),
                ratio=None if ratio == SILENT else ratio,
                witnesses=("in its pass", *("alone",) * ROUNDS, "with another partner"),
            )
        )

    def _say_unjudged(self, reference: Reference) -> None:
        joined = self._cast.joined
        kinds = {
            link_kind(*pair, joined)
            for pair in self.times
            if reference.ratio(1.0, link_kind(*pair, joined), link_name(*pair, joined)) is None
        }
        for kind in sorted(kinds):
            peers = "links" if kind == "within a node" else "nodes"
            self.unjudged.append(f"links {kind}: fewer than {LEAST_PEERS} {peers}, and no baseline")

    def _said(self, pair: Pair) -> str:
        one, other = (f"rank {rank} on {self._cast.node(rank)}" for rank in pair)
        return f"the link between {one} and {other}"


def _in_order(pair: Pair) -> Pair:
    return (min(pair), max(pair))


def _times(ratio: float) -> str:
    return "it carried nothing" if ratio == SILENT else f"{ratio:.1f} x its peers"


def _takes(ratio: float) -> str:
    return "carries nothing" if ratio == SILENT else f"takes {ratio:.1f} times as long as its peers"
