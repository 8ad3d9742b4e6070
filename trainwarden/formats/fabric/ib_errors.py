"""Format: `ibqueryerrors`, counters of the fabric's ports that are beyond its thresholds.

Counters are totals since they were cleared. Those that grow with congestion or with every reboot of a host (waits,
discards, relay errors, downs) are not judged; those are of which a sound link has none or few.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from trainwarden.formats.fabric.cards import card_of
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, found_of_verdicts

_OF: Final = re.compile(r'Errors for (?:0x[0-9a-f]{1,16} )?"([^"\n]{1,120})"')
_PORT: Final = re.compile(
    r"\s{1,8}GUID 0x[0-9a-f]{1,16} port ([0-9]{1,4}|ALL):((?: \[[A-Za-z0-9]{1,60} == [0-9]{1,20}[^\]\n]{0,40}\]){1,60})"
)
_COUNT: Final = re.compile(r"\[([A-Za-z0-9]{1,60}) == ([0-9]{1,20})")
_LINK: Final = re.compile(r'\s{1,16}Link info:[^\n]{0,200}?==>[^"\n]{0,120}"([^"\n]{1,120})"')
_SUMMARY: Final = re.compile(r"## Summary: ([0-9]{1,8}) nodes checked")
# The most of each that a sound link shows in all. Any of the first two is fatal to NVSentinel
# (docs/nic-health-monitor); above 3 recoveries Azure's Healthagent warns.
_MOST: Final = {
    "LocalLinkIntegrityErrors": 0, "ExcessiveBufferOverrunErrors": 0, "LinkErrorRecoveryCounter": 3,
}  # fmt: skip
_MOST_SHARE: Final = 0.25  # of the nodes checked: counters of more were not cleared since the fabric was built

# Symbol errors of one port beyond those of the others, which another counter of the same port must bear out.
_SYMBOLS: Final = "SymbolErrorCounter"
_MOST_SYMBOLS: Final = 10_000  # the limit of NVSentinel, 120 an hour, is kept for three days then
_TIMES: Final = 100
_LEAST_PEERS: Final = 3
_WITNESSES: Final = ("PortRcvErrors", "LinkErrorRecoveryCounter", "LinkDownedCounter")


class Port(NamedTuple):
    """A port by its card or switch and its number, its counters, and the other end of its link; "" = not known."""

    owner: str
    number: str
    counts: dict[str, int]
    far: str


class FabricErrors:
    """Ports of cards and switches; a link is reported once, by its card where it has one."""

    name = "fabric errors"

    def sniff(self, name: str, head: str) -> float:
        """By the line that begins each node's ports."""
        del name
        return SURE if _OF.search(head) is not None and _PORT.search(head) is not None else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text()
        ports = [one for one in _ports(text) if one.number != "ALL"]
        checked = sum(int(count) for count in _SUMMARY.findall(text))
        return found_of_ports(source, ports, checked)


def found_of_ports(source: Source, ports: Sequence[Port], checked: int) -> Found:
    """Verdicts on `ports` of `checked` cards and switches.

    Raises
    ------
    DataError
        If there is none.
    """
    odd = _symbol_errors(ports)
    bad = {place: why for place, one in enumerate(ports) if (why := _why(one.counts, is_odd=place in odd))}
    owners = {ports[place].owner for place in bad}
    many = checked and len(owners) > max(2.0, _MOST_SHARE * checked)
    found = found_of_verdicts(source, "fabric errors", _verdicts(ports, {} if many else bad))
    if many:
        found.notes.append(
            f"{len(owners)} of {checked} nodes have errors: not judged; clear the counters and ask again"
        )
    return found


def _symbol_errors(ports: Sequence[Port]) -> set[int]:
    """Places of ports with symbol errors far beyond the others', which bear them out by another counter.

    A sound link has some, so that time alone makes many of them.
    """
    counts = [one.counts.get(_SYMBOLS, 0) for one in ports]
    few = sum(count * _TIMES <= max(counts, default=0) for count in counts)
    if few < max(_LEAST_PEERS, 0.75 * len(ports)):
        return set()
    return {
        place
        for place, one in enumerate(ports)
        if counts[place] >= _MOST_SYMBOLS and any(one.counts.get(name, 0) for name in _WITNESSES)
    }


def _ports(text: str) -> Iterator[Port]:
    owner, port = "", None
    for line in text.split("\n"):
        if (begins := _OF.search(line)) is not None:
            owner = " ".join(begins[1].split())
        elif (match := _PORT.match(line)) is not None:
            if port is not None:
                yield port
            port = Port(owner, match[1], {name: int(count) for name, count in _COUNT.findall(match[2])}, "")
        elif port is not None and (link := _LINK.match(line)) is not None:
            yield port._replace(far=" ".join(link[1].split()))
            port = None
    if port is not None:
        yield port


def _why(counts: Mapping[str, int], *, is_odd: bool) -> str:
    """The counters of a port; empty where none of them is beyond what a sound link has."""
    if not is_odd and not any(counts.get(name, 0) > most for name, most in _MOST.items()):
        return ""
    told = {name: count for name, count in counts.items() if count and not name.endswith(("Wait", "Discards"))}
    return ", ".join(f"{name} {count}" for name, count in told.items())


def _verdicts(ports: Sequence[Port], bad: Mapping[int, str]) -> Iterator[Verdict]:
    cards = {ports[place].owner for place in bad if card_of(ports[place].owner)}
    for place, one in enumerate(ports):
        own, far = card_of(one.owner), card_of(one.far)
        if place not in bad:
            yield Verdict(one.owner, "", None)
        elif own is not None:
            yield Verdict(
                own.device, "port_errors", f"{bad[place]}; linked to {one.far or 'an unknown port'}", own.node
            )
        elif one.far in cards:
            continue  # the same link, reported by its card
        elif far is not None:
            yield Verdict(
                far.device, "port_errors", f"{bad[place]}, counted by {one.owner} port {one.number}", far.node
            )
        else:
            yield Verdict(f"{one.owner}:{one.number}", "port_errors", f"{bad[place]}; linked to {one.far or 'nothing'}")
