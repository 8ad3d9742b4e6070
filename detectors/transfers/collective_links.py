"""Vote: the shortest duration of a group's calls has grown, against its likes and against its own past.

The shortest duration over the ranks of a call is its transfer, however late some of them come. A link is slow when its
bandwidth is 1.1 times worse than the median of like groups' (Wu et al., Falcon, 2024, section 4.3), and than
its own was.

Whom slow links have in common: a rank, a pair of ranks, nodes; or nobody, and then it is the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import msgspec
import numpy as np

from trainwarden.detectors.calls.counts import Counts
from trainwarden.detectors.calls.functions import NAMES, SEND, bus_factor
from trainwarden.detectors.calls.joined import JoinedStep
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.protocol import Role, abstain
from trainwarden.detectors.transfers.contract_stream import slow_link_records
from trainwarden.detectors.transfers.link_memory import LEARN, LEAST_STEPS, SPANS, LinkMemory
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

MAX_SUSPECTS: Final = 16
_HALF: Final = 0.5


@dataclass(frozen=True, slots=True)
class SlowLink:
    """One communicator, or pair of ranks, that transfers more slowly; `columns` are its ranks."""

    comm: int
    columns: tuple[int, ...]
    ratio: float
    what: str


def nodes_of(link: SlowLink, window: Window) -> frozenset[str]:
    """Where the ranks of a link run."""
    return frozenset(window.nodes[column] for column in link.columns if column < len(window.nodes))


def shared_nodes(links: Sequence[SlowLink], window: Window) -> frozenset[str]:
    """Nodes that all of `links` have a rank on."""
    found = [nodes_of(link, window) for link in links]
    return frozenset.intersection(*found) if found else frozenset()


def suspects(links: Sequence[SlowLink], window: Window) -> tuple[Suspect, ...]:
    """Who has slow links, most likely first.

    The one rank that all slow links share; else the two of a pair; else the nodes, those that most slow links share
    first. Of a single group all nodes are as likely.
    """
    worst = max(links, key=lambda link: link.ratio)
    reason = _reason(worst, links)
    groups = {link.columns for link in links}
    shared = frozenset.intersection(*(frozenset(columns) for columns in groups))
    if len(groups) > 1 and len(shared) == 1:
        return tuple(_rank(column, 1.0, reason, window) for column in shared)
    pair = shared if len(shared) == 2 else frozenset(worst.columns) if len(worst.columns) == 2 else frozenset[int]()
    if pair:
        return tuple(_rank(column, 1.0, reason, window) for column in sorted(pair))
    often = Counter(node for link in links for node in nodes_of(link, window) if node)
    if not often:  # nobody has said where the ranks run
        return tuple(_rank(column, _HALF, reason, window) for column in worst.columns[:MAX_SUSPECTS])
    most = max(often.values(), default=1)
    ordered = sorted(often.items(), key=lambda entry: (-entry[1], entry[0]))[:MAX_SUSPECTS]
    return tuple(Suspect(score=_HALF * number / most, reason=reason, node=node) for node, number in ordered)


def _rank(column: int, score: float, reason: str, window: Window) -> Suspect:
    return Suspect(score=score, reason=reason, rank=int(window.ranks[column]), node=window.nodes[column])


def _reason(worst: SlowLink, links: Sequence[SlowLink]) -> str:
    more = len({link.columns for link in links}) - 1
    also = f", and {more} more {'is' if more == 1 else 'are'} slow" if more else ""
    return f"{worst.what} takes {worst.ratio:.2f} times as long as it did and as its likes do{also}"


def named(counts: Counts | None, comm: int, columns: Sequence[int], window: Window) -> str:
    """A link in words, safe to be shown.

    Examples
    --------
    >>> named(None, 0, (), None)
    'a transfer'
    """
    if counts is None or comm >= len(counts.names):
        return "a transfer"
    if len(columns) == 2:
        first, second = (int(window.ranks[column]) for column in columns)
        return f"the transfer between ranks {first} and {second}"
    group = "".join(sign if sign.isprintable() else "?" for sign in (counts.groups[comm] or counts.names[comm])[:64])
    shown = ", ".join(str(int(window.ranks[column])) for column in columns[:4])
    return f"the transfer in group {group} of ranks {shown}" + (", ..." if len(columns) > 4 else "")


MANY: Final = 4  # groups between nodes that are slow together before it is the network
MOST: Final = 0.5  # of them
RELIEF: Final = 0.5  # of the log ratio that accuses
_METRIC: Final = "collective_bus_bandwidth_bytes_per_second"


class CollectiveLinks(WholeMemory):
    """Groups and pairs of ranks that transfer more slowly than their likes and than they did.

    Parameters
    ----------
    config : CollectiveLinks.Config

    Notes
    -----
    A group that has no likes is compared with its own past alone; such a vote is evidence, not verified.
    """

    class Config(Config, frozen=True, kw_only=True):
        """What makes a link slow.

        Attributes
        ----------
        ratio
            Times as long as the median of its likes, and as its own past.
        sure
            Standard errors that the mean must be above either.
        """

        ratio: Annotated[float, msgspec.Meta(gt=1.0, le=100.0)] = 1.1
        sure: Annotated[float, msgspec.Meta(ge=3.0, le=100.0)] = 5.5

    role = Role(reads="calls", opens=("verified",))
    more = False
    contract_stream = staticmethod(slow_link_records)

    def __init__(self, config: Config) -> None:
        self._config = config
        self._memory = LinkMemory()
        self._generation = -1
        self._since: dict[int, tuple[int, float]] = {}  # by key of a link: step and time since when it is slow
        self._alike: set[int] = set()  # of these: keys that have no likes, or whose likes are slow too
        self._step = 0

    def update(self, window: Window) -> None:
        """Observe the sampled steps that were joined since the last window."""
        counts = window.counts
        if counts is None:
            return
        if counts.generation != self._generation:
            self._memory.forget()
            self._since, self._alike, self._generation = {}, set(), counts.generation
        for step in window.calls:
            if not window.starting and step.links.comm.size:
                self._observe(step, window, counts)

    def score(self, window: Window) -> Vote:
        """The slow links, worst first; the network where they share nobody."""
        memory = self._memory
        if not memory.keys.size:
            return abstain("no rank tells how long its collective calls take")
        if memory.count < LEARN + SPANS[0]:
            return abstain("warm-up")
        counts = window.counts
        if not self._since or counts is None:
            return Vote(opinion="normal", reason=f"{memory.keys.size} groups, pairs and sizes of call compared")
        links = self._links(window, counts)
        between = {link.comm for link in links if counts.nodes[link.comm] != 1}
        together = len(between) >= max(MANY, MOST * self._groups_between(counts))
        sure = any(key not in self._alike for key in self._since) or together
        if together and not shared_nodes(links, window):
            return self._vote(links, (), "congestion", verified=True)
        return self._vote(links, suspects(links, window), "slow_link", verified=sure)

    # -- internals -------------------------------------------------------------------------------------------

    def _observe(self, step: JoinedStep, window: Window, counts: Counts) -> None:
        memory, config = self._memory, self._config
        places: dict[str, int] = {}
        nodes = np.array([places.setdefault(node, len(places)) for node in window.nodes], dtype=np.int64)
        memory.push(step.links, counts, nodes)
        self._step = step.step
        least = float(np.log(config.ratio))
        past, _ = memory.slower("past", least, config.sure)
        likes, _ = memory.slower("likes", least, config.sure)
        compared = np.isfinite(memory.beside[-SPANS[0] :]).any(axis=0)
        crowd = self._crowded(past > 0, memory.kinds(counts, nodes))
        slow = (past > 0) & ((likes > 0) | ~compared | crowd)
        risen = memory.risen()
        with np.errstate(invalid="ignore"):
            memory.held = slow | (risen >= RELIEF * least)
        for key in [key for key in self._since if key not in memory.keys[slow | ~(risen < RELIEF * least)]]:
            del self._since[key]
        for place in np.flatnonzero(slow).tolist():
            key = int(memory.keys[place])
            if key not in self._since:
                self._since[key] = step.step, step.time_s
        alone = set(memory.keys[slow & ~(likes > 0)].tolist())
        self._alike = (self._alike | alone) - set(memory.keys[likes > 0].tolist()) & self._since.keys()
        self._alike &= self._since.keys()

    def _crowded(self, slow: Any, kinds: Any) -> Any:
        """Links of whose kind so many are slower than they were that the median of their likes says nothing."""
        if not kinds.size:
            return slow
        _, code = np.unique(kinds, return_inverse=True)
        code = code.reshape(-1)
        number = np.bincount(code, weights=slow)
        return (number >= np.maximum(MANY, MOST * np.bincount(code)))[code]

    def _links(self, window: Window, counts: Counts) -> list[SlowLink]:
        """What is slow now, one for each communicator or pair, worst first."""
        memory = self._memory
        found: dict[tuple[int, ...], SlowLink] = {}
        risen = memory.risen(LEAST_STEPS)
        source, target = memory.pairs
        for place in np.flatnonzero(np.isin(memory.keys, list(self._since))).tolist():
            comm = int(memory.comm[place])
            paired = source[place] >= 0
            columns = (int(source[place]), int(target[place])) if paired else tuple(counts.members(comm).tolist())
            ratio = float(np.exp(risen[place])) if np.isfinite(risen[place]) else 1.0
            known = found.get(columns)
            if known is None or known.ratio < ratio:
                found[columns] = SlowLink(comm, columns, ratio, self._what(place, columns, window, counts))
        return sorted(found.values(), key=lambda link: -link.ratio)

    def _what(self, place: int, columns: tuple[int, ...], window: Window, counts: Counts) -> str:
        memory = self._memory
        function, comm = int(memory.function[place]), int(memory.comm[place])
        size = 2 if function == SEND else len(columns)
        recent = memory.values[-SPANS[0] :, place].astype(np.float64)
        known = recent[np.isfinite(recent)]
        speed = bus_factor(function, size) * float(np.exp(-np.median(known))) / 1e9 if known.size else 0.0
        told = f" ({NAMES[function]}, {speed:.3g} GB/s)" if speed else ""
        return named(counts, comm, columns, window) + told

    def _groups_between(self, counts: Counts) -> int:
        """How many communicators span nodes, of those whose speed is known."""
        comms = np.unique(self._memory.comm)
        return int((counts.nodes[comms[comms < counts.nodes.size]] != 1).sum())

    def _vote(self, links: list[SlowLink], who: tuple[Suspect, ...], kind: Any, *, verified: bool) -> Vote:
        excess = float(np.log(max(links[0].ratio, 1.0)) / np.log(self._config.ratio))
        if who:
            reason = who[0].reason
        else:
            reason = f"{len(links)} groups on different nodes transfer more slowly at once: {links[0].what}"
        step, at_s = min(self._since.values())
        return Vote(
            opinion="anomalous", score=max(0.5, excess / (1.0 + excess)), kind=kind, severity="sev3", reason=reason,
            suspects=who, onset_s=at_s, onset_step=step, at_step=self._step, verified=verified, metrics=(_METRIC,),
        )  # fmt: skip
