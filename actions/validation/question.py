"""Suspects put to the test: whom a validation is asked about, and whether its answer confirms or clears them.

Only what was measured confirms: a process of the validation that ended or hung says nothing about a device for sure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import msgspec

from trainwarden.launching import Accused, Check, Findings, Rates
from trainwarden.records import IncidentKind, Suspect

Verdict = Literal["confirmed", "cleared", "undecided"]

MOST_SAID: Final = 2  # rates of devices, and of links, in one sentence; the record has more
_DEVICE: Final[frozenset[IncidentKind]] = frozenset({"slow_compute", "silent_corruption", "gpu_lost"})
_LINK: Final[frozenset[IncidentKind]] = frozenset({"slow_link"})
_LOST: Final[frozenset[IncidentKind]] = frozenset({"crash", "hang", "node_lost"})  # of the validation's own processes
_ABOUT: Final[Mapping[IncidentKind, tuple[Check, ...]]] = {
    "slow_compute": ("gemm",),
    "slow_link": ("links",),
    "congestion": ("links",),
    "silent_corruption": ("gemm",),
}
_OF_ALL: Final[frozenset[IncidentKind]] = frozenset({"congestion", "silent_corruption"})  # where nobody is suspected


class Question(NamedTuple):
    """Nodes under suspicion, most suspected first, their suspected ranks as far as known, and the checks to be made.

    Where many links are slow, or a loss went wrong, and nobody is suspected, it is about all (`of_all`).
    """

    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    checks: tuple[Check, ...]
    of_all: bool = False

    @property
    def plan(self) -> dict[str, Any]:
        """As the record of an action has it."""
        return {"nodes": list(self.nodes), "ranks": list(self.ranks), "checks": list(self.checks)}


class Answer(NamedTuple):
    """What became of the suspicion, the nodes that are at fault by themselves, and one sentence.

    `links` are pairs of nodes that are well, and the link between them is not; `rates` what was measured of whom.
    """

    verdict: Verdict
    nodes: tuple[str, ...]
    said: str
    links: tuple[tuple[str, ...], ...] = ()
    rates: Rates = Rates()

    @property
    def plan(self) -> dict[str, Any]:
        """As the record of an action has it."""
        links = {"links": [list(pair) for pair in self.links]} if self.links else {}
        rates = {"rates": msgspec.to_builtins(self.rates)} if self.rates != Rates() else {}
        return {"verdict": self.verdict, "confirmed": list(self.nodes), **links, **rates}


def question(kind: IncidentKind, suspects: Iterable[Suspect]) -> Question:
    """What to ask about the suspects of an incident of `kind`; where none has a node, only what is of all is asked.

    Examples
    --------
    >>> question("slow_compute", [Suspect(score=0.9, reason="slow", rank=3, node="n1")])
    Question(nodes=('n1',), ranks=(3,), checks=('gemm',), of_all=False)
    """
    named = [one for one in suspects if one.node is not None]
    return Question(
        nodes=tuple(dict.fromkeys(one.node for one in named if one.node is not None)),
        ranks=tuple(dict.fromkeys(one.rank for one in named if one.rank is not None)),
        checks=_ABOUT.get(kind, ("gemm", "links")),
        of_all=kind in _OF_ALL and not named,
    )


def answer(plan: Mapping[str, Any], findings: Findings | None) -> Answer:
    """What `findings` say of the suspects of `plan`, the `Question.plan` that was asked, and what was measured.

    A suspect is cleared only if its node took part, all checks that were asked for could be judged and nobody of the
    validation itself was lost.

    Examples
    --------
    >>> asked = Question(("n1",), (3,), ("gemm",)).plan
    >>> slow = Accused(kind="slow_compute", text="rank 3 on n1 is slow", ranks=(3,), nodes=("n1",))
    >>> answer(asked, Findings(accused=(slow,), judged=("gemm",), nodes=("n0", "n1")))[:3]
    ('confirmed', ('n1',), 'confirmed: rank 3 on n1 is slow')
    >>> answer(asked, Findings(judged=("gemm",), nodes=("n0", "n1"))).verdict
    'cleared'
    >>> answer(asked, Findings(nodes=("n0", "n1"))).said
    'undecided: gemm could not be judged'
    >>> from trainwarden.launching import DeviceRate
    >>> rates = Rates(devices=(DeviceRate(rank=3, node="n1", gflop_s=41.2, peers_gflop_s=82.5),))
    >>> answer(asked, Findings(accused=(slow,), judged=("gemm",), nodes=("n0", "n1"), rates=rates)).said
    'confirmed: rank 3 on n1 is slow (rank 3 on n1: 41.2 GFLOP/s, its peers 82.5)'
    """
    found = _answer(plan, findings)
    if findings is None:
        return found
    nodes, checks = _words(plan, "nodes"), _words(plan, "checks")
    asked = Rates(
        devices=findings.rates.devices if "gemm" in checks else (),
        links=findings.rates.links if "links" in checks else (),
    )
    of_suspects = asked.of([rank for rank in _list(plan, "ranks") if isinstance(rank, int)], nodes)
    numbers = "; ".join(_phrases(of_suspects))
    return found._replace(rates=asked, said=f"{found.said} ({numbers})" if numbers else found.said)


def _phrases(rates: Rates) -> list[str]:
    """The numbers that a sentence has room for."""
    return [*(one.summary for one in rates.devices[:MOST_SAID]), *(one.summary for one in rates.links[:MOST_SAID])]


def _answer(plan: Mapping[str, Any], findings: Findings | None) -> Answer:
    nodes, checks = _words(plan, "nodes"), _words(plan, "checks")
    ranks = {rank for rank in _list(plan, "ranks") if isinstance(rank, int)}
    if findings is None:
        return Answer("undecided", (), "undecided: the launcher did not say what was found")
    telling = (_DEVICE if "gemm" in checks else frozenset()) | (_LINK if "links" in checks else frozenset())
    against = [one for one in findings.accused if one.kind in telling and _hits(one, nodes, ranks)]
    if against:
        guilty = {node for one in against if one.link is None for node in one.nodes}
        named = tuple(node for node in nodes if node in guilty)
        links = tuple(one.nodes for one in against if one.link is not None and len(one.nodes) == 2)
        return Answer("confirmed", named, f"confirmed: {_texts(against)}", links)
    if (why := _doubt(findings, nodes, ranks, checks)) is not None:
        return Answer("undecided", (), f"undecided: {why}")
    others = f"; accused are others: {_texts(findings.accused)}" if findings.accused else ""
    well = f"{', '.join(nodes)} measured as well as its peers" if nodes else "all measured alike"
    return Answer("cleared", (), f"cleared: {well}{others}")


def at_fault(findings: Findings) -> tuple[str, ...]:
    """Nodes whose devices or links were measured to be at fault by themselves, whoever was suspected.

    Examples
    --------
    >>> slow = Accused(kind="slow_compute", text="rank 3 on n1 is slow", ranks=(3,), nodes=("n1",))
    >>> at_fault(Findings(accused=(slow, Accused(kind="crash", text="rank 0 ended", nodes=("n0",)))))
    ('n1',)
    """
    measured = (one for one in findings.accused if one.kind in _DEVICE | _LINK and one.link is None)
    return tuple(dict.fromkeys(node for one in measured for node in one.nodes))


def _hits(one: Accused, nodes: Collection[str], ranks: set[int]) -> bool:
    """Whether `one` is among the suspects: by rank where both sides name ranks, else by node; all are, if none is."""
    if not nodes:
        return True
    if ranks and one.ranks:
        return not ranks.isdisjoint(one.ranks)
    return not {*nodes}.isdisjoint(one.nodes)


def _doubt(findings: Findings, nodes: Collection[str], ranks: set[int], checks: Iterable[str]) -> str | None:
    """Why nobody is cleared by `findings`, though nothing that tells was found against the suspects."""
    if dark := [one for one in findings.accused if one.kind in _LOST or _hits(one, nodes, ranks)]:
        return _texts(dark)
    if absent := [node for node in nodes if node not in findings.nodes]:
        return f"{', '.join(absent)} did not take part"
    if missing := [check for check in checks if check not in findings.judged]:
        return f"{' and '.join(missing)} could not be judged"
    return None


def _texts(accused: Iterable[Accused]) -> str:
    return "; ".join(one.text for one in accused)


def _words(plan: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(map(str, _list(plan, name)))


def _list(plan: Mapping[str, Any], name: str) -> list[Any]:
    """A list of the plan, which came over the bus; empty if it is none."""
    found = plan.get(name)
    return found if isinstance(found, list) else []
