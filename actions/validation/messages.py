"""A validation in plain lines, for a person and for the log of a launcher."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from trainwarden.actions.validation.judgement import link_kind
from trainwarden.actions.validation.results import RankInfo, Validation

MOST_SAID: Final = 4  # rates of one finding


def lines(result: Validation) -> Iterator[str]:
    """What was measured, what a person should know, and who is accused by whom; the last line is the outcome.

    Examples
    --------
    >>> print(*lines(Validation(ranks=8, accused=(), unjudged=("links between nodes: ...",))), sep="\\n")
    not judged: links between nodes: ...
    validated 8 ranks: nobody is accused
    """
    yield from _measured(result)
    for sentence in result.noted:
        yield f"noted: {sentence}"
    for sentence in result.unjudged:
        yield f"not judged: {sentence}"
    for finding in result.accused:
        seen = f" (seen: {'; '.join(finding.witnesses)})" if finding.witnesses else ""
        yield f"{finding.kind}: {finding.text}{seen}"
        if finding.kind in ("slow_compute", "slow_link"):
            told = result.rates.of(finding.link or finding.ranks, finding.nodes)
            told_of = told.devices if finding.kind == "slow_compute" else told.links
            yield from (f"    {one.summary}" for one in told_of[:MOST_SAID])
    within = f" in {result.wall_s:.1f} s" if result.wall_s else ""
    outcome = f"{len(result.accused)} accused" if result.accused else "nobody is accused"
    yield f"validated {result.ranks} ranks{within}: {outcome}"


def _measured(result: Validation) -> Iterator[str]:
    by_device: dict[str, list[float]] = {}
    for burnt_in in result.compute:
        by_device.setdefault(result.devices[burnt_in.rank], []).append(burnt_in.busy_s)
    for device, times in sorted(by_device.items()):
        yield f"burn-in on {len(times)} x {device}: {_spread(times)}"
    joined = {
        rank: RankInfo(rank=rank, node=node, local_rank=rank, device=result.devices[rank])
        for node, ranks in result.nodes.items()
        for rank in ranks
    }
    by_kind: dict[str, list[float]] = {}
    for one in result.links:
        by_kind.setdefault(link_kind(one.sender, one.receiver, joined), []).append(one.usual_s)
    for kind, times in sorted(by_kind.items()):
        yield f"links {kind}, {len(times)} directions in {result.passes} passes: {_spread(times)}"
    for node, rates in sorted(result.mb_per_s.items()):
        said = ", ".join(f"{name} {rate:.0f} MB/s" for name, rate in rates.items())
        yield f"{node}: {said}"


def _spread(times: list[float]) -> str:
    ordered = sorted(times)
    return f"{ordered[0] * 1e3:.1f} to {ordered[-1] * 1e3:.1f} ms, median {ordered[len(ordered) // 2] * 1e3:.1f} ms"
