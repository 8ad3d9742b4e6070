"""What a validation has measured, in plain units: how fast devices compute and links carry, beside their peers."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec

from trainwarden.records import Rank

MOST_RATES: Final = 32  # of devices, and of links, that are told: those that are furthest behind their peers
TERA: Final = 1000.0  # giga
Rate = Annotated[float, msgspec.Meta(ge=0.0, le=1e12)]


class DeviceRate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast the device of `rank` multiplies matrices at its best, and the median of others of its kind."""

    rank: Rank
    node: str
    gflop_s: Rate
    peers_gflop_s: Rate | None = None

    @property
    def share(self) -> float:
        """Of what its peers do; 1 where it has none."""
        return self.gflop_s / self.peers_gflop_s if self.peers_gflop_s else 1.0

    @property
    def summary(self) -> str:
        """In one phrase.

        Examples
        --------
        >>> DeviceRate(rank=3, node="n1", gflop_s=41.2, peers_gflop_s=82.53).summary
        'rank 3 on n1: 41.2 GFLOP/s, its peers 82.5'
        >>> DeviceRate(rank=3, node="n1", gflop_s=612_000.0, peers_gflop_s=609_000.0).summary
        'rank 3 on n1: 612 TFLOP/s, its peers 609'
        """
        unit, by = ("TFLOP/s", TERA) if self.gflop_s >= TERA else ("GFLOP/s", 1.0)
        peers = "" if self.peers_gflop_s is None else f", its peers {self.peers_gflop_s / by:.3g}"
        return f"rank {self.rank} on {self.node}: {self.gflop_s / by:.3g} {unit}{peers}"


class LinkRate(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How fast the best message from the first of two ranks to the second was, and the median of others of its kind."""

    ranks: tuple[Rank, Rank]
    nodes: tuple[str, str]
    gbit_s: Rate
    peers_gbit_s: Rate | None = None

    @property
    def share(self) -> float:
        """Of what its peers do; 1 where it has none."""
        return self.gbit_s / self.peers_gbit_s if self.peers_gbit_s else 1.0

    @property
    def summary(self) -> str:
        """In one phrase.

        Examples
        --------
        >>> LinkRate(ranks=(2, 5), nodes=("n1", "n2"), gbit_s=0.0974, peers_gbit_s=9.41).summary
        'rank 2 on n1 to rank 5 on n2: 0.0974 Gbit/s, its peers 9.41'
        """
        ends = " to ".join(f"rank {rank} on {node}" for rank, node in zip(self.ranks, self.nodes, strict=True))
        peers = "" if self.peers_gbit_s is None else f", its peers {self.peers_gbit_s:.3g}"
        return f"{ends}: {self.gbit_s:.3g} Gbit/s{peers}"


class Rates(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was measured, `MOST_RATES` of each: who is accused first, then who is furthest behind its peers."""

    devices: Annotated[tuple[DeviceRate, ...], msgspec.Meta(max_length=MOST_RATES)] = ()
    links: Annotated[tuple[LinkRate, ...], msgspec.Meta(max_length=MOST_RATES)] = ()

    def of(self, ranks: Collection[int], nodes: Collection[str]) -> Rates:
        """Those of `ranks`, or, where none is named, of `nodes`; all, if neither is."""
        if not ranks and not nodes:
            return self

        def meant(on: Iterable[int], at: Iterable[str]) -> bool:
            return not set(ranks).isdisjoint(on) if ranks else not set(nodes).isdisjoint(at)

        return Rates(
            devices=tuple(one for one in self.devices if meant((one.rank,), (one.node,))),
            links=tuple(one for one in self.links if meant(one.ranks, one.nodes)),
        )

    @property
    def summary(self) -> tuple[str, ...]:
        """A phrase for each."""
        return (*(one.summary for one in self.devices), *(one.summary for one in self.links))


def device_rates(
    gflop_s: Mapping[int, float], node: Mapping[int, str], kind: Mapping[int, str], accused: Collection[int] = ()
) -> list[DeviceRate]:
    """By rank its rate, node and kind of device; those `accused` first, then the slowest beside its peers.

    Examples
    --------
    >>> found = device_rates({0: 80.0, 1: 40.0, 2: 84.0}, dict.fromkeys(range(3), "n"), dict.fromkeys(range(3), "cpu"))
    >>> [(one.rank, one.peers_gflop_s) for one in found]
    [(1, 82.0), (0, 62.0), (2, 60.0)]
    """
    of_kind: dict[str, list[float]] = {}
    for rank, rate in gflop_s.items():
        of_kind.setdefault(kind[rank], []).append(rate)
    ordered = {name: sorted(rates) for name, rates in of_kind.items()}
    found = []
    for rank, rate in gflop_s.items():
        peers = _median_without(ordered[kind[rank]], (rate,))
        found.append(DeviceRate(rank=rank, node=node[rank], gflop_s=_cut(rate), peers_gflop_s=peers))
    return sorted(found, key=lambda one: (one.rank not in accused, one.share, one.rank))[:MOST_RATES]


def link_rates(
    gbit_s: Mapping[tuple[int, int], float], node: Mapping[int, str], accused: Collection[tuple[int, int]] = ()
) -> list[LinkRate]:
    """By sender and receiver the rate, and the node of each; those `accused` first, then the slowest beside its peers.

    Peers of a link between nodes are links between nodes, of one within a node those within nodes; none of them is a
    direction of the same link.
    """
    within, between = list[float](), list[float]()
    for (one, other), rate in gbit_s.items():
        (within if node[one] == node[other] else between).append(rate)
    within.sort()
    between.sort()
    found = []
    for (one, other), rate in gbit_s.items():
        back = gbit_s.get((other, one))
        peers = _median_without(
            within if node[one] == node[other] else between, (rate,) if back is None else (rate, back)
        )
        nodes = node[one], node[other]
        found.append(LinkRate(ranks=(one, other), nodes=nodes, gbit_s=_cut(rate), peers_gbit_s=peers))
    return sorted(found, key=lambda link: (link.ranks not in accused, link.share, link.ranks))[:MOST_RATES]


def rates_in(plan: Mapping[str, Any]) -> Rates:
    """What the plan of a validation's record has of it, which came over the bus; nothing, if that is malformed."""
    try:
        return msgspec.convert(plan.get("rates", {}), Rates)
    except msgspec.ValidationError:
        return Rates()


def _median_without(ordered: Sequence[float], gone: Collection[float]) -> float | None:
    """Median of `ordered` rates but those that are `gone`, which are among them; None if none is left.

    Examples
    --------
    >>> _median_without([1.0, 2.0, 2.0, 9.0], (2.0,)), _median_without([1.0, 2.0], (2.0, 1.0))
    (2.0, None)
    """
    places = list[int]()
    for rate in sorted(gone):
        place = bisect_left(ordered, rate)
        places.append(place + 1 if places and place == places[-1] else place)
    left = len(ordered) - len(places)
    if left <= 0:
        return None

    def at(place: int) -> float:
        for hole in places:
            place += hole <= place
        return ordered[place]

    return _cut((at((left - 1) // 2) + at(left // 2)) / 2.0)


def _cut(rate: float) -> float:
    """No more digits than a measurement has."""
    return float(f"{rate:.4g}")
