"""What is checked in which order, and how the answers become one result; knows neither torch nor processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

import msgspec

from trainwarden.actions.validation.baseline import Baseline
from trainwarden.actions.validation.compute import ComputeStage
from trainwarden.actions.validation.connections import LinkStage
from trainwarden.actions.validation.judgement import link_name
from trainwarden.actions.validation.participants import Participants, RankChannel, ValidationTargets
from trainwarden.actions.validation.results import ComputeTime, Finding, LinkTime, NodeReport, Validation
from trainwarden.launching import CHECKS, Check, Rates, device_rates, link_rates
from trainwarden.records import IncidentKind


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which checks, and how much of a device's and a link's time each repeat of them may take.

    `link_limit_s` is after how long one transfer between two ranks counts as none. `named` are those whom it is about.
    """

    checks: tuple[Check, ...] = CHECKS
    burn_in_s: float = 0.1
    link_s: float = 0.1
    link_limit_s: float = 3.0
    named: ValidationTargets = ValidationTargets()


def validate(
    talk: RankChannel,
    world_size: int,
    wanted: Wanted,
    baseline: Baseline,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> Validation:
    """Ask the ranks behind `talk` for all checks and judge them.

    Parameters
    ----------
    talk : Talk
        The way to ranks and nodes.
    world_size : int
        How many ranks should come.
    wanted : Wanted
    baseline : Baseline
        What each rank and link took when all was well; learns what it does not know yet if nobody is accused.

    Returns
    -------
    Validation
        In any case, whoever hangs or dies: each order to ranks has a limit.
    """
    at_s = {"start": monotonic_s()}
    cast = Participants(talk, world_size, wanted.named)
    at_s["join"] = monotonic_s()
    compute = ComputeStage(cast, wanted.burn_in_s, baseline.busy_s)
    if "gemm" in wanted.checks:
        compute.run()
    at_s["gemm"] = monotonic_s()
    links = LinkStage(cast, wanted.link_s, wanted.link_limit_s, baseline.link_s)
    if "links" in wanted.checks:
        links.run(left_out=compute.held_back | cast.crowded)
    at_s["links"] = monotonic_s()
    gone, late = cast.missing_ranks()
    cast.finish()
    meant = {member.node for member in cast.chosen.values()} if wanted.named else None
    nodes = [report for report in cast.node_reports() if meant is None or report.node in meant]
    wrong, left_out = _of_nodes(nodes, cast)
    at_s["nodes"] = monotonic_s()
    names = [*at_s]
    result = Validation(
        ranks=len(cast.chosen) + len(cast.absent),
        accused=tuple(_whole_nodes([*gone, *compute.accused, *links.accused, *wrong], cast)),
        noted=(*late, *compute.noted, *links.noted, *left_out),
        unjudged=(*compute.unjudged, *links.unjudged, *cast.without_room()),
        judged=() if cast.crowded else _judged(wanted.checks, compute, links, nodes),
        nodes=_ranks_of(cast),
        devices={rank: member.device for rank, member in sorted(cast.chosen.items())},
        compute=_compute_times(compute.busy_s, compute.accused),
        links=_link_times(links.times, links.accused),
        mb_per_s={report.node: report.mb_per_s for report in nodes if report.mb_per_s},
        passes=links.passes,
        rates=_rates(compute, links, cast),
        took_s={after: round(at_s[after] - at_s[before], 3) for before, after in pairwise(names)},
        wall_s=round(at_s["nodes"] - at_s[names[0]], 3),
    )
    if not result.accused:
        baseline.learn(
            {cast.joined[rank].name: busy_s for rank, busy_s in compute.busy_s.items()},
            {link_name(*pair, cast.joined): one.usual_s for pair, one in links.times.items()},
        )
    return result


def _rates(compute: ComputeStage, links: LinkStage, cast: Participants) -> Rates:
    """In the best repeat of each, by which it is judged: what else a machine does only adds to the others."""
    nodes = {rank: one.node for rank, one in cast.joined.items()}
    kinds = {rank: one.device for rank, one in cast.joined.items()}
    slow = {rank for finding in compute.accused for rank in finding.ranks}
    suspects = {(one.sender, one.receiver) for one in _link_times(links.times, links.accused) if one.suspect}
    gbit_s = {
        pair: one.gbps * one.usual_s / one.best_s
        for pair, one in links.times.items()
        if one.gbps is not None and one.best_s > 0.0
    }
    return Rates(
        devices=tuple(device_rates(compute.gflop_s, nodes, kinds, slow)),
        links=tuple(link_rates(gbit_s, nodes, suspects)),
    )


def _judged(
    checks: Iterable[Check], compute: ComputeStage, links: LinkStage, nodes: Iterable[NodeReport]
) -> tuple[Check, ...]:
    """Those of `checks` in which all that came could be compared with something."""
    left_out = {check for report in nodes for check in report.left_out}
    done: dict[Check, bool] = {
        "gemm": bool(compute.busy_s) and not compute.unjudged,
        "links": bool(links.times) and not links.unjudged,
    }
    return tuple(check for check in checks if done.get(check, check not in left_out))


def _compute_times(busy_s: Mapping[int, float], accused: Iterable[Finding]) -> tuple[ComputeTime, ...]:
    named = {rank for finding in accused for rank in finding.ranks}
    return tuple(ComputeTime(rank=rank, busy_s=busy_s[rank], suspect=rank in named) for rank in sorted(busy_s))


def _link_times(times: Mapping[tuple[int, int], LinkTime], accused: Iterable[Finding]) -> tuple[LinkTime, ...]:
    found = tuple(accused)
    links = {frozenset(finding.link) for finding in found if finding.link is not None}
    ends = {rank for finding in found if finding.link is None for rank in finding.ranks}
    return tuple(
        msgspec.structs.replace(times[pair], suspect=frozenset(pair) in links or not ends.isdisjoint(pair))
        for pair in sorted(times)
    )


def _ranks_of(cast: Participants) -> dict[str, tuple[int, ...]]:
    nodes: dict[str, tuple[int, ...]] = {}
    for rank, member in sorted(cast.chosen.items()):
        nodes[member.node] = (*nodes.get(member.node, ()), rank)
    return nodes


_KIND_OF: dict[Check, IncidentKind] = {"disk": "storage", "memory": "silent_corruption"}


def _of_nodes(reports: Iterable[NodeReport], cast: Participants) -> tuple[list[Finding], list[str]]:
    """What disks and memory are accused of; and the checks that were not made, each with the reason."""
    ranks = _ranks_of(cast)
    found, left_out = [], []
    for report in reports:
        for check, sentence in report.wrong.items():
            found.append(
                Finding(
                    kind=_KIND_OF[check],
                    text=f"{check} of {report.node}: {sentence}",
                    ranks=ranks.get(report.node, ()),
                    nodes=(report.node,),
                )
            )
        left_out += [f"{check} of {report.node} was not checked: {why}" for check, why in report.left_out.items()]
    return found, left_out


def _whole_nodes(found: list[Finding], cast: Participants) -> list[Finding]:
    """Where all ranks of a node are accused of the same, the node is, in one finding instead of many."""
    ranks = _ranks_of(cast)
    out: list[Finding] = []
    for one in found:
        alike = [other for other in found if other.kind == one.kind and other.nodes == one.nodes and other.link is None]
        of_node = {rank for other in alike for rank in other.ranks}
        whole = len(one.nodes) == 1 and len(alike) > 1 and of_node >= set(ranks.get(one.nodes[0], (None,)))
        if one.link is not None or not whole:
            out.append(one)
        elif one is alike[0]:
            text = f"all ranks of {one.nodes[0]}, {', '.join(map(str, sorted(of_node)))}: {one.text}"
            out.append(msgspec.structs.replace(one, text=text, ranks=tuple(sorted(of_node))))
    return out
