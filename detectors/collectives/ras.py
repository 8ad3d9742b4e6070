"""Who is missing or behind in a communicator, from what NCCL's RAS socket answers (port 28028, `NCCL_RAS_ADDR`).

Each communicator lists its ranks with the number of operations begun, and those that do not answer. Ranks there are
places in the communicator; processes are known by host and pid, so the largest communicator, whose places are taken for
the job's global ranks, translates the smaller ones (a job without a communicator of all ranks has no such key).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from trainwarden.detectors.collectives.findings import MAX_RANKS_TOLD, CollectiveFinding, listed
from trainwarden.detectors.collectives.ras_report import RasCommunicator, RasRank, parse

_HEALTHY: Final = frozenset({0, 7})  # ncclSuccess, ncclInProgress


def analyse(
    answer: str | bytes | Mapping[str, Any], before: str | bytes | Mapping[str, Any] | None = None
) -> list[CollectiveFinding]:
    """What a RAS answer says about a hang, the communicator with dead or silent ranks first.

    Counts that differ are normal while a job runs, so ranks that are behind are reported only against an earlier answer
    (`before`, some seconds old) in which they stood just there; silent and dead ranks need none.

    Parameters
    ----------
    answer, before
        As for `parse`.

    Raises
    ------
    DataError
        If an answer cannot be understood.

    Examples
    --------
    >>> def ras(*counts):
    ...     return {"communicators": [{"hash": "0xa", "size": len(counts), "missing_ranks": [], "ranks": [
    ...         {"rank": rank, "collective_counts": {"AllReduce": count}} for rank, count in enumerate(counts)]}]}
    >>> found = analyse(ras(7, 7, 6, 7), before=ras(7, 7, 6, 7))
    >>> found[0].kind, found[0].ranks, found[0].op
    ('hang', (2,), 'AllReduce')
    >>> analyse(ras(9, 9, 8, 9), before=ras(7, 7, 6, 7))
    []
    """
    comms = parse(answer)
    earlier = {comm.name: comm for comm in parse(before)} if before is not None else {}
    largest = max(comms, key=lambda comm: (comm.size, len(comm.ranks)), default=None)
    place = (
        {_process(one): one.rank for one in largest.ranks if one.host and one.rank is not None}
        if largest is not None
        else {}
    )
    silent, behind = [], []
    for comm in comms:
        if (found := _silent(comm, place)) is not None:
            silent.append(found)
        elif comm.name in earlier and (found := _behind(comm, earlier[comm.name], place)) is not None:
            behind.append(found)
    # A rank that is behind in one communicator keeps the members of its other ones behind: the fewest, the surest.
    behind.sort(key=lambda finding: (len(finding.ranks), -len(finding.waiting)))
    silent.sort(key=lambda finding: (-max(finding.scores, default=0.5), -len(finding.waiting)))
    return [*silent, *behind]


def _silent(comm: RasCommunicator, place: Mapping[Any, int]) -> CollectiveFinding | None:
    """Ranks that do not answer, are dead, or have met an error."""
    wrong = [one for one in comm.ranks if one.missing or one.dead or one.aborted or one.error not in _HEALTHY]
    if not wrong:
        return None
    wrong.sort(key=lambda one: (not one.dead, not one.missing, one.rank if one.rank is not None else -1))
    everything = "; ".join(f"{_who(one, place)} {_what(one)}" for one in wrong[:4])
    waiting = _globals([one for one in comm.ranks if one not in wrong], place)
    wrong = [one for one in wrong if _global(one, place) is not None]
    said = tuple(f"{_who(one, place)} {_what(one)}" for one in wrong)
    ranks = tuple(_globals(wrong, place))
    return CollectiveFinding(
        kind="hang", ranks=ranks, scores=tuple(1.0 if one.dead else 0.8 if one.missing else 0.6 for one in wrong),
        group=f"communicator {comm.name}", op="", seq=None, reason=f"communicator {comm.name}: {everything}",
        waiting=tuple(waiting[:MAX_RANKS_TOLD]), evidence=said,
    )  # fmt: skip


def _behind(comm: RasCommunicator, before: RasCommunicator, place: Mapping[Any, int]) -> CollectiveFinding | None:
    """Ranks that have begun fewer operations than most, and none since the earlier answer."""
    if not comm.ranks or not _still(comm, before):
        return None
    ops = sorted({op for one in comm.ranks for op in one.counts})
    differing = [op for op in ops if len({one.counts.get(op, 0) for one in comm.ranks}) > 1]
    if not differing:
        return None
    stands = {place_: tuple(one.counts.get(op, 0) for op in differing) for place_, one in enumerate(comm.ranks)}
    usual, number = Counter(stands.values()).most_common(1)[0]
    if 2 * number <= len(comm.ranks):
        usual = max(stands.values())  # no majority: who has begun most has waited longest
    odd = sorted(place_ for place_, counts in stands.items() if counts != usual)
    odd.sort(key=lambda place_: stands[place_])
    accused = [(place_, comm.ranks[place_]) for place_ in odd if _global(comm.ranks[place_], place) is not None]
    if not accused:
        return None
    mixed = any(_crossed(stands[place_], usual) for place_, _ in accused)
    ranks = tuple(_globals([one for _, one in accused], place))
    op, most = differing[0], usual[0]
    said = tuple(f"{_who(one, place)} has begun {one.counts.get(op, 0)} {op}, the others {most}" for _, one in accused)
    waiting = _globals([one for place_, one in enumerate(comm.ranks) if stands[place_] == usual], place)
    return CollectiveFinding(
        kind="collective_mismatch" if mixed else "hang", ranks=ranks, scores=(0.9,) * len(ranks),
        group=f"communicator {comm.name}", op=op, seq=most,
        reason=f"{listed(ranks)} of communicator {comm.name}: {said[0]}, and nothing moves",
        waiting=tuple(waiting[:MAX_RANKS_TOLD]), evidence=said,
    )  # fmt: skip


def _still(comm: RasCommunicator, before: RasCommunicator) -> bool:
    """True if no rank has begun an operation since the earlier answer."""
    return Counter(map(_stand, comm.ranks)) == Counter(map(_stand, before.ranks))


def _stand(one: RasRank) -> tuple[int | None, tuple[tuple[str, int], ...]]:
    return one.rank, tuple(sorted(one.counts.items()))


def _crossed(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    """True if each side has begun more of something: other collectives were called, not fewer."""
    pairs = list(zip(left, right, strict=True))
    return any(a > b for a, b in pairs) and any(a < b for a, b in pairs)


def _process(one: RasRank) -> tuple[str, int | None, int | None]:
    return (one.host, one.pid, one.device)


def _global(one: RasRank, place: Mapping[Any, int]) -> int | None:
    return place.get(_process(one), one.rank) if one.host else one.rank


def _globals(ranks: list[RasRank], place: Mapping[Any, int]) -> list[int]:
    return [rank for one in ranks if (rank := _global(one, place)) is not None]


def _who(one: RasRank, place: Mapping[Any, int]) -> str:
    rank = _global(one, place)
    process = f"process {one.pid} on {one.host}" if one.host and one.pid is not None else ""
    if rank is None:
        return process or "a rank"
    return f"rank {rank}" + (f" ({process})" if process else "")


def _what(one: RasRank) -> str:
    if one.dead:
        return "is considered dead"
    if one.missing:
        return "does not answer"
    return "has aborted the communicator" if one.aborted else f"reports error {one.error}"
