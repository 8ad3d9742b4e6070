"""Who does not answer: hosts that complain of others by address, and what addresses hosts have."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from trainwarden.detectors.job.window import LogLine
from trainwarden.records import Suspect

MAX_HOSTS: Final = 65_536
SCORE_OF_ONE: Final = 0.6  # by one witness either end of the link may be at fault
SCORE_OF_WITNESS: Final = 0.5
WITNESSES: Final = 2
# NCCL's Bootstrap, NET/Socket and NET/IB lines as a communicator is made; bounded repeats, none inside another.
_OWN: Final = re.compile(
    r"(?:Bootstrap : Using|NET/Socket : Using|; OOB) .{0,200}?:([0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[?[0-9A-Fa-f:]{3,45}\]?)<[0-9]{1,5}>"  # noqa: E501
)
_PEER: Final = re.compile(
    r"(?:from peer|to peer|[Cc]onnect to|[Cc]onnection (?:from|to)|peer|remote(?: peer)?|by remote peer) "
    r"([A-Za-z0-9][A-Za-z0-9.:_-]{0,62})<[0-9]{1,5}>"
)  # fmt: skip


class Complaints(msgspec.Struct):
    """Addresses of hosts, and which hosts complain of which peers.

    Examples
    --------
    >>> said = Complaints()
    >>> said.read(LogLine("g2", "log", None, "g2:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.9.0.2<0>", 1.0))
    >>> for host in ("g1", "g3"):
    ...     said.complain(host, "NET/IB : Got completion from peer 10.9.0.2<401> with status=12")
    >>> [(one.node, one.score) for one in said.suspects()]
    [('g2', 1.0)]
    """

    hosts: dict[str, str] = msgspec.field(default_factory=dict)  # by address
    links: dict[str, set[str]] = msgspec.field(default_factory=dict)  # peers by the host that complains

    def read(self, line: LogLine) -> None:
        """Learn the address of a host from what NCCL says as it starts."""
        if "<0>" not in line.line or not line.node or len(self.hosts) >= MAX_HOSTS:
            return
        if match := _OWN.search(line.line):
            self.hosts[match[1].strip("[]")] = line.node

    def complain(self, host: str, line: str) -> None:
        """Note whom `host` complains of in `line`."""
        match = _PEER.search(line)
        if match is not None and host and (host in self.links or len(self.links) < MAX_HOSTS):
            self.links.setdefault(host, set()).add(match[1])

    def suspects(self) -> tuple[Suspect, ...]:
        """Who explains the complaints: hosts at an end of several of them, else both ends of each."""
        ends: dict[str, set[str]] = {}
        for host, peers in self.links.items():
            for peer in peers:
                name = self.hosts.get(peer, peer)
                ends.setdefault(name, set()).add(host)
                ends.setdefault(host, set()).add(name)
        most = max(map(len, ends.values()), default=0)
        if most >= WITNESSES:
            found = [name for name, others in ends.items() if len(others) == most]
            return tuple(Suspect(score=1.0, node=name, reason=_reason(name, ends[name])) for name in sorted(found)[:16])
        accused = [self.hosts.get(peer, peer) for peers in self.links.values() for peer in peers]
        pairs = [(name, SCORE_OF_ONE) for name in accused] + [(host, SCORE_OF_WITNESS) for host in self.links]
        return tuple(Suspect(score=score, node=name, reason=_reason(name, ends[name])) for name, score in pairs[:16])


def _reason(name: str, others: set[str]) -> str:
    listed = ", ".join(sorted(others)[:8])
    return (
        f"one end of every link that broke: the others are {listed}"
        if len(others) > 1
        else f"the link of {name} and {listed} broke"
    )
