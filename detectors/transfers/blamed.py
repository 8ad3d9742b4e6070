"""Whom slow links have in common: a rank, a pair of ranks, nodes; or nobody, and then it is the network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from trainwarden.detectors.calls.counts import Counts
from trainwarden.detectors.job.window import Window
from trainwarden.records import Suspect

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
