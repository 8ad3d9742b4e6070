"""Format: `ip -s link`, `ip link` and `ip -d link`: interfaces that are switched on and have no carrier.

Counters are totals since the interface came up and are not judged.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, found_of_verdicts
from trainwarden.prometheus.exporters import is_virtual

_LINK: Final = re.compile(
    r"[0-9]{1,5}: ([A-Za-z0-9_.:-]{1,40}?)(?:@[A-Za-z0-9_.-]{1,40})?: <([A-Z0-9_,-]{0,200})> mtu ([0-9]{1,6})"
    r"(?:[^\n]{0,100}? state ([A-Z]{2,16}))?"
)
_OWN: Final = re.compile(r"\s{1,16}(?:link/|RX|TX|alias|altname|[0-9]|vf |inet|permaddr|promiscuity)")
_LEAST_SHARE: Final = 0.8
_LEAST_PEERS: Final = 3  # ports of the same driver and size of frames that are up
_NUMBERS: Final = re.compile(r"[0-9]+")
_UNJUDGED: Final = (
    "an answer of `ip link`, in which no port is down among others of its kind that are up; its counters are totals; "
    "give `ethtool -S`, `ibstat` or `perfquery`, again and again"
)


class _Port(NamedTuple):
    name: str
    is_on: bool
    is_up: bool
    kind: tuple[str, str]  # the name without its numbers, and the size of frames


class Interfaces:
    """One answer; a port is judged where three others of its kind are up, since not all want a cable."""

    name = "interface list"

    def sniff(self, name: str, head: str) -> float:
        """By lines of interfaces, which make up the text with the lines below each."""
        del name
        lines = [line for line in head[:20_000].split("\n")[:-1] if line.strip()]
        if not any(_LINK.match(line) for line in lines):
            return NEVER
        own = sum(_LINK.match(line) is not None or _OWN.match(line) is not None for line in lines)
        return SURE if own >= _LEAST_SHARE * len(lines) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        ports = {port.name: port for port in _ports(source.text())}
        verdicts = list(_verdicts(list(ports.values())))
        if not verdicts:
            raise DataError(f"{source.name}: {_UNJUDGED}")
        return found_of_verdicts(source, "interfaces", verdicts)


def _ports(text: str) -> Iterator[_Port]:
    """Interfaces that have a cable of their own."""
    for line in text.split("\n"):
        match = _LINK.match(line)
        if match is None or is_virtual(match[1]):
            continue
        flags = match[2].split(",")
        kind = (_NUMBERS.sub("#", match[1]), match[3])
        is_up = "NO-CARRIER" not in flags and match[4] in ("UP", "UNKNOWN")
        yield _Port(match[1], "UP" in flags, is_up, kind)


def _verdicts(ports: list[_Port]) -> Iterator[Verdict]:
    for port in ports:
        peers = [one for one in ports if one.kind == port.kind and one is not port and one.is_on]
        up = sum(one.is_up for one in peers)
        if not port.is_on or up < _LEAST_PEERS:
            continue
        if port.is_up:
            yield Verdict(port.name, "", None)
        elif up * 4 >= len(peers) * 3:
            yield Verdict(port.name, "port", f"no carrier, while {up} others of its kind are up")
