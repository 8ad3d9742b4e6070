"""Format: `ss -ti`, TCP connections of a node: the peer to which packets are lost while those to the others are not.

Every network loses some packets, so that two witnesses are wanted: lost packets, late answers, data that waits to be
sent, packets in a row without an answer.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, found_of_verdicts

_HEADER: Final = re.compile(r"(?m)^(?:Netid\s{1,8})?(?:State\s{1,12})?Recv-Q\s{1,12}Send-Q\s{1,40}Local Address:Port\s")
_END: Final = r"\[?([0-9A-Fa-f.:]{2,45}?)(?:%[a-z0-9]{1,15})?\]?:([0-9a-z-]{1,16})"
_SOCKET: Final = re.compile(
    rf"(?:tcp\s{{1,8}})?(?:[A-Z][A-Z0-9-]{{3,12}}\s{{1,12}})?[0-9]{{1,12}}\s{{1,20}}([0-9]{{1,12}})\s{{1,40}}{_END}\s{{1,60}}{_END}(?=\s|$)"
)
_INFO: Final = re.compile(r"\s(rtt|retrans|data_segs_out|segs_out|backoff):([0-9.]{1,20})(?:/([0-9.]{1,20}))?")
_OTHERS: Final = ("22", "53", "80", "443", "ssh", "https", "http", "domain")  # of people and services, not of the job
_LEAST_SENT: Final = 1_000  # packets: of fewer no share is known
_LEAST_LOST: Final = 100
_LEAST_SHARE: Final = 0.01
_LEAST_RTT_MS: Final = 2.0
_LEAST_WAITING: Final = 65_536  # bytes
_LEAST_BACKOFF: Final = 3
_TIMES: Final = 10.0  # what the peers show at most
_LEAST_PEERS: Final = 3
_WITNESSES: Final = 2
_UNJUDGED: Final = (
    "connections to fewer than 4 nodes that have sent enough to be compared: "
    "give `ss -ti` of a running job, with its header"
)


class _Socket(NamedTuple):
    """A connection: bytes that wait, packets sent, lost and now unanswered in a row, milliseconds to an answer."""

    own: str
    peer: str
    waiting: float
    sent: float
    lost: float
    rtt_ms: float
    backoff: float


class Sockets:
    """Peers of one node are compared with each other; of a connection that is listed again the last state counts."""

    name = "socket list"

    def sniff(self, name: str, head: str) -> float:
        """By the header, or a connection, and its details in the next line."""
        del name
        if " rtt:" not in head[:8_000]:
            return NEVER
        lines = head[:8_000].split("\n")
        told = any(_SOCKET.match(line) and " rtt:" in below for line, below in itertools.pairwise(lines))
        begins = _HEADER.match(head.lstrip()) is not None or _SOCKET.match(lines[0]) is not None
        return SURE if told and begins else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        sockets = list(_sockets(source.text()))
        verdicts = list(_verdicts(sockets))
        if not verdicts:
            raise DataError(f"{source.name}: {_UNJUDGED}")
        found = found_of_verdicts(source, "sockets", verdicts)
        found.addresses = list(dict.fromkeys(one.own for one in sockets))
        return found


def _sockets(text: str) -> Iterator[_Socket]:
    """Connections to nodes of the same network, each once."""
    last: dict[tuple[str, ...], _Socket] = {}
    ends: re.Match[str] | None = None
    for line in text.split("\n"):
        if (match := _SOCKET.match(line)) is not None:
            ends = match
        elif ends is not None and " rtt:" in line:
            told = {name: (first, second) for name, first, second in _INFO.findall(line)}
            sent = told.get("data_segs_out") or told.get("segs_out") or ("0", "")
            lost = told.get("retrans", ("0", "0"))[1] or "0"
            own, port, peer, far = (one.removeprefix("::ffff:") for one in ends.group(2, 3, 4, 5))
            if not {port, far} & set(_OTHERS) and _network(own) == _network(peer) and own != peer:
                last[own, port, peer, far] = _Socket(
                    own,
                    peer,
                    float(ends[1]),
                    float(sent[0]),
                    float(lost),
                    float(told["rtt"][0]),
                    float(told.get("backoff", ("0", ""))[0]),
                )
            ends = None
    yield from last.values()


def _network(address: str) -> str:
    """What addresses of one cluster's network begin with.

    Examples
    --------
    >>> _network("10.0.3.7") == _network("10.0.9.1"), _network("10.0.3.7") == _network("192.168.1.4")
    (True, False)
    """
    return ".".join(address.split(".")[:2]) if "." in address else ":".join(address.lower().split(":")[:3])


def _verdicts(sockets: Sequence[_Socket]) -> Iterator[Verdict]:
    peers = {
        peer: _state(one for one in sockets if one.peer == peer) for peer in dict.fromkeys(one.peer for one in sockets)
    }
    known = {peer: state for peer, state in peers.items() if state.sent >= _LEAST_SENT}
    if len(known) <= _LEAST_PEERS:
        return
    for peer, state in known.items():
        others = [other for name, other in known.items() if name != peer]
        words = _words(state, others)
        if len(words) >= _WITNESSES:
            yield Verdict("tcp", "port_errors", f"to {peer}: {', '.join(words)}", peer)
        elif not words:
            yield Verdict("tcp", "", None, peer)


def _state(sockets: Iterable[_Socket]) -> _Socket:
    """The connections to one peer together."""
    own = list(sockets)
    waiting, sent, lost = (sum(getattr(one, name) for one in own) for name in ("waiting", "sent", "lost"))
    rtt_ms = float(np.median([one.rtt_ms for one in own]))
    return _Socket(own[0].own, own[0].peer, waiting, sent, lost, rtt_ms, max(one.backoff for one in own))


def _words(state: _Socket, others: Sequence[_Socket]) -> list[str]:
    """By what a peer differs from all others, each a witness."""
    words = []
    share = state.lost / state.sent
    most = max(one.lost / one.sent for one in others)
    if state.lost >= _LEAST_LOST and share >= max(_LEAST_SHARE, _TIMES * most):
        words.append(
            f"{state.lost:.0f} of {state.sent:.0f} packets were sent again ({share:.1%}), {most:.2%} at most elsewhere"
        )
    slowest = max(one.rtt_ms for one in others)
    if state.rtt_ms >= max(_LEAST_RTT_MS, _TIMES * slowest):
        words.append(f"answers take {state.rtt_ms:g} ms, {slowest:g} ms at most elsewhere")
    if state.waiting >= max(_LEAST_WAITING, _TIMES * max(one.waiting for one in others)):
        words.append(f"{state.waiting:.0f} bytes wait to be sent")
    if state.backoff >= _LEAST_BACKOFF and not any(one.backoff for one in others):
        words.append(f"{state.backoff:.0f} packets in a row were not answered")
    return words
