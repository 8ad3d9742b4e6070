"""Who is slow among peers: 1.1 x the median, contention told apart, an own baseline where peers are too few.

Noise of a shared machine only ever adds time. So a suspect's best repeat is compared with its peers' usual ones: what
is called slow never once was as fast as its peers are.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from trainwarden.actions.validation.results import LinkTime, RankInfo, RankReport

SLOW_RATIO: Final = 1.1  # Falcon, section 4.3: suspicious from 1.1 x the median on
ROUNDS: Final = 2  # of suspects: on a busy machine some rank is slow for one round now and then
LEAST_PEERS: Final = 4  # of three, one that is slow and one that is busy leave no median
THROTTLED_RATIO: Final = 0.1  # of a rank's time: control groups with room stand still for some milliseconds too


class Reference(NamedTuple):
    """What the others took: the median of each kind that has enough of them, else everybody's own baseline."""

    median_s: Mapping[str, float]
    """By kind."""
    baseline_s: Mapping[str, float]
    """By name, as far as known."""

    def ratio(self, best_s: float, kind: str, name: str) -> float | None:
        """`best_s` over what it should be; None if there is nothing to compare it with.

        Examples
        --------
        >>> reference = Reference({"cpu": 2.0}, {"n/0": 1.0})
        >>> reference.ratio(3.0, "cpu", "n/7"), reference.ratio(3.0, "cuda", "n/0"), reference.ratio(3.0, "cuda", "n/7")
        (1.5, 3.0, None)
        """
        should_s = self.median_s.get(kind, self.baseline_s.get(name))
        return best_s / should_s if should_s else None


def is_slow(ratio: float | None) -> bool:
    """Whether that is more than noise of a healthy machine makes of it."""
    return ratio is not None and ratio > SLOW_RATIO


def best_s(report: RankReport) -> float:
    """A device's best repeat."""
    return min(report.busy_s)


def compute_reference(
    reports: Mapping[int, RankReport], joined: Mapping[int, RankInfo], baseline_s: Mapping[str, float]
) -> Reference:
    """The usual time of each kind of device, for the same work.

    A processor is judged by the time that the thread had it, so whoever shares one is not slow.
    """
    usual_s: dict[str, list[float]] = {}
    for rank, report in reports.items():
        if report.busy_s:
            usual_s.setdefault(joined[rank].device, []).append(statistics.median(report.busy_s))
    return Reference(
        {kind: statistics.median(all_s) for kind, all_s in usual_s.items() if len(all_s) >= LEAST_PEERS}, baseline_s
    )


def satisfaction(report: RankReport) -> float | None:
    """The share of its time in which a rank had the processor that it wanted; None if it was not measured.

    Examples
    --------
    >>> satisfaction(RankReport(rank=0, wall_s=(1.0, 3.0), busy_s=(1.0, 1.0)))
    0.5
    """
    wall_s = sum(report.wall_s)
    return sum(report.busy_s) / wall_s if wall_s > 0 else None


def throttled(reports: Mapping[int, RankReport]) -> dict[int, float]:
    """Ranks that their own control group holds back, and how many times as long they take as the median rank for it.

    The kernel says that the group stood still, and the rank had less of a processor than its peers: two witnesses.
    Where all ranks are held back alike nobody is named: that is how the job was set up.
    """
    shares = {rank: share for rank, report in reports.items() if (share := satisfaction(report)) is not None}
    if len(shares) < 2:
        return {}
    usual = statistics.median(shares.values())
    found = {}
    for rank, share in shares.items():
        stood_s, wall_s = reports[rank].throttled_s, sum(reports[rank].wall_s)
        if stood_s is not None and stood_s > THROTTLED_RATIO * wall_s and usual > SLOW_RATIO * share:
            found[rank] = usual / share
    return found


def link_times(reports: Iterable[RankReport]) -> dict[tuple[int, int], LinkTime]:
    """Each direction (sender, receiver) that was measured.

    Waits for a processor are taken off the best time only: what is left of a link on a busy machine is its own.
    """
    times = {}
    for report in reports:
        if report.peer is None or not report.wall_s:
            continue
        waits_s = report.waited_s or (0.0,) * len(report.wall_s)
        own_s = [max(wall_s - wait_s, 0.0) for wall_s, wait_s in zip(report.wall_s, waits_s, strict=True)]
        usual_s, sent = statistics.median(report.wall_s), report.message_bytes
        gbps = None if sent is None else sent * 8 / usual_s / 1e9
        times[report.rank, report.peer] = LinkTime(
            sender=report.rank, receiver=report.peer, gbps=gbps, usual_s=usual_s, best_s=min(own_s)
        )
    return times


def link_kind(one: int, other: int, joined: Mapping[int, RankInfo]) -> str:
    """Links within nodes are compared with each other, and links between nodes."""
    return "within a node" if joined[one].node == joined[other].node else "between nodes"


def link_name(sender: int, receiver: int, joined: Mapping[int, RankInfo]) -> str:
    """How the baseline of a direction is called."""
    return f"{joined[sender].name}>{joined[receiver].name}"


def link_reference(
    times: Iterable[LinkTime], joined: Mapping[int, RankInfo], baseline_s: Mapping[str, float]
) -> Reference:
    """The usual time of each kind of link, for one message.

    Of fewer than four nodes one slow port is in half of the links between them, so these have no median; nor have
    fewer than four links within nodes. Of eight ranks on four nodes one node may still be in seven of ten links: the
    median is taken without each end that is in many, and the least of these holds.
    """
    of_kind: dict[str, list[LinkTime]] = {}
    for one in times:
        of_kind.setdefault(link_kind(one.sender, one.receiver, joined), []).append(one)
    medians_s = {}
    for kind, found in of_kind.items():
        within = kind == "within a node"
        ends = [frozenset(rank if within else joined[rank].node for rank in (t.sender, t.receiver)) for t in found]
        links = {frozenset((one.sender, one.receiver)) for one in found}
        if len(links) >= LEAST_PEERS and (within or len(frozenset().union(*ends)) >= LEAST_PEERS):
            medians_s[kind] = _least_median_s([one.usual_s for one in found], ends)
    return Reference(medians_s, baseline_s)


def _least_median_s(usual_s: list[float], ends: list[frozenset[str | int]]) -> float:
    """The median of all, or of those without one end that is in so many that it might be the median alone."""
    counts = Counter(end for pair in ends for end in pair)
    medians = [statistics.median(usual_s)]
    for end, count in counts.items():
        left = [one_s for one_s, pair in zip(usual_s, ends, strict=True) if end not in pair]
        if count > len(usual_s) / 4 and left:
            medians.append(statistics.median(left))
    return min(medians)
