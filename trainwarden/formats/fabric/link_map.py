"""Format: `iblinkinfo`, the links of an InfiniBand fabric: those that are narrower or slower than both ends can.

A switch's port that is down may have no cable, so that it accuses nobody; a card that all nodes but one have does.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from trainwarden.errors import DataError
from trainwarden.formats.fabric.cards import card_of
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, found_of_verdicts

_OWNER: Final = re.compile(r'(?:CA|Switch|Router): (?:0x[0-9a-f]{1,16} )?"?([^"\n]{1,120}?)"?:\s{0,4}$')
_LINK: Final = re.compile(
    r'\s{0,12}(?:0x[0-9a-f]{1,16}\s{1,12})?(?:"([^"\n]{1,120})"\s{1,12})?(?:[0-9]{1,6}\s{1,12})?'
    r"([0-9]{1,4})\[[^\]\n]{0,4}\] ==\("
    r"\s{0,20}(?:([0-9]{1,2}X)\s{1,20}([0-9.]{1,10}) Gbps\s{1,8})?([A-Za-z]{2,16})/\s{0,8}([A-Za-z]{2,24})\s{0,4}\)==>"
    r'\s{0,30}(?:0x[0-9a-f]{1,16})?[0-9\s]{0,30}\[[^\]\n]{0,4}\] "([^"\n]{0,120})" \(([^()\n]{0,100})\)'
)
_COULD: Final = re.compile(r"Could be ([0-9]{1,2}X|[0-9.]{1,10} Gbps)")
_MOST_SHARE: Final = 0.25  # of the links: more of them are run below what they could by somebody's decision
_LEAST_PEERS: Final = 3
_LEAST_SHARE: Final = 0.75  # of the cards of a name that run alike
_LEAST_CARDS: Final = 4  # of a node, of which one is missing


class _Link(NamedTuple):
    """One line: the link as one of its ends tells it."""

    owner: str
    port: str
    width: str
    speed: str
    state: str
    physical: str
    far: str
    could: tuple[str, ...]


class LinkMap:
    """Links of cards are reported by their card; those between switches by the switch and its port."""

    name = "fabric links"

    def sniff(self, name: str, head: str) -> float:
        """By the arrow between the ends of a link."""
        del name
        if "==>" not in head:
            return NEVER
        lines = [line for line in head[:20_000].split("\n")[:-1] if line.strip()]
        own = sum(_LINK.match(line) is not None or _OWNER.match(line) is not None for line in lines)
        return SURE if lines and own >= 0.8 * len(lines) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        links = list(_links(source.text()))
        up = [link for link in links if link.width]
        if not up:
            raise DataError(f"{source.name}: no link in it is up: give the whole answer of `iblinkinfo`")
        below = [link for link in up if link.could]
        many = len(below) > max(2.0, _MOST_SHARE * len(up))
        verdicts = [*_of_links(up, many=many), *_missing(up), *_down(links)]
        failed = {(one.node, one.device) for one in verdicts if one.failed is not None}
        found = found_of_verdicts(
            source, "fabric links",
            (one for one in verdicts if one.failed is not None or (one.node, one.device) not in failed),
        )  # fmt: skip
        if many:
            found.notes.append(f"{len(below)} of {len(up)} links run below what both ends can: not judged")
        return found


def _links(text: str) -> Iterator[_Link]:
    owner = ""
    for line in text.split("\n"):
        if (begins := _OWNER.match(line)) is not None:
            owner = _plain(begins[1])
        elif (link := _LINK.match(line)) is not None:
            own = _plain(link[1]) if link[1] else owner
            could = tuple(_COULD.findall(link[8]))
            yield _Link(own, link[2], link[3] or "", link[4] or "", link[5], link[6], _plain(link[7]), could)


def _plain(name: str) -> str:
    return " ".join(name.split())


def _of_links(up: list[_Link], *, many: bool) -> Iterator[Verdict]:
    usual = _usual(up)
    for link in up:
        card = card_of(link.owner) or card_of(link.far)
        best = usual.get(card.device) if card is not None else None
        words = f"runs at {link.width} {link.speed} Gbps, could be {' and '.join(link.could)}"
        if link.could and many:
            continue
        if card is not None:
            other = link.far if card_of(link.owner) else f"{link.owner} port {link.port}"
            failed = f"{words}; linked to {other}" if link.could else None
            if failed is None and best is not None and _rate(link) < _rate(best):
                like = f"{best.width} {best.speed} Gbps on most other nodes"
                failed = f"runs at {link.width} {link.speed} Gbps, {like}; linked to {other}"
            yield Verdict(card.device, "port_errors", failed, card.node)
        elif not link.could:
            yield Verdict(link.owner, "", None)
        elif (link.far, link.owner) not in {(one.owner, one.far) for one in up if one.could and one.owner < one.far}:
            yield Verdict(f"{link.owner}:{link.port}", "port_errors", f"{words}; linked to {link.far}")


def _rate(link: _Link) -> float:
    return float(link.width.rstrip("X")) * float(link.speed)


def _usual(up: list[_Link]) -> dict[str, _Link]:
    """The link of most cards of each name, where these are enough."""
    cards: dict[str, dict[str, _Link]] = {}
    for link in up:
        if (card := card_of(link.owner) or card_of(link.far)) is not None:
            cards.setdefault(card.device, {})[card.node] = link
    found: dict[str, _Link] = {}
    for device, links in cards.items():
        rate, count = Counter(map(_rate, links.values())).most_common(1)[0]
        if count >= max(_LEAST_PEERS, _LEAST_SHARE * len(links)):
            found[device] = next(link for link in links.values() if _rate(link) == rate)
    return found


def _missing(up: list[_Link]) -> Iterator[Verdict]:
    """Cards that one node has not in the fabric, while the others have all."""
    cards: dict[str, set[str]] = {}
    for link in up:
        for end in (link.owner, link.far):
            if (card := card_of(end)) is not None:
                cards.setdefault(card.node, set()).add(card.device)
    sets = Counter(frozenset(own) for own in cards.values())
    whole, count = max(sets.items(), key=lambda one: one[1], default=(frozenset[str](), 0))
    for node, own in cards.items():
        lost = sorted(whole - own)
        if len(lost) == 1 and own < whole and len(whole) >= _LEAST_CARDS and count >= _LEAST_PEERS:
            yield Verdict(lost[0], "port", f"not in the fabric, where {count} other nodes have it", node)


def _down(links: list[_Link]) -> Iterator[Verdict]:
    """Cards that are down while those of the same name on other nodes are up."""
    states: dict[str, dict[str, _Link]] = {}
    for link in links:
        if (card := card_of(link.owner)) is not None:
            states.setdefault(f"{card.device} {link.port}", {})[card.node] = link
    for name, own in states.items():
        down = [node for node, link in own.items() if not link.width]
        if len(own) - len(down) >= _LEAST_PEERS and len(down) * 4 <= len(own):
            for node in down:
                words = f"{own[node].state}, {own[node].physical}, while {len(own) - len(down)} other nodes' are up"
                yield Verdict(name.partition(" ")[0], "port", words, node)
