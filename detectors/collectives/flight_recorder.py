"""Who stopped a job that hangs, from the flight-recorder dumps of its ranks.

Every rank that waits in a collective waits for the members that have not reached it; a member that waits elsewhere is a
victim itself. So the culprits are the ranks that others wait for and that wait for nobody: the ends of the chains of
the wait-for graph (Chandy, Misra and Haas, 1983, section 2, read from a snapshot). A second trace is a rank whose
device has not finished what its peers, with its help, have: its own bookkeeping has died.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from trainwarden.detectors.collectives.findings import MAX_RANKS_TOLD, CollectiveFinding, listed
from trainwarden.detectors.collectives.flight_dump import Call, RankDump, read_dump
from trainwarden.detectors.collectives.flight_groups import Group, collect, earliest, mismatches_of
from trainwarden.errors import DataError

MAX_WORLD: Final = 1_000_000
MAX_FINDINGS: Final = 8
# Collectives that no member can finish before every member has begun them.
_SYMMETRIC: Final = ("all_reduce", "allreduce", "all_gather", "allgather", "reduce_scatter", "all_to_all", "alltoall",
                     "barrier")  # fmt: skip


@dataclass(slots=True)
class _Wait:
    """Ranks of one group that wait there for others."""

    group: Group
    seq: int | None
    op: str
    waiting: tuple[int, ...]
    missing: tuple[int, ...]
    since_ns: int | None
    pair: bool = False


def analyse(
    dumps: Mapping[int, Any], world_size: int | None = None, broken: Collection[int] = ()
) -> list[CollectiveFinding]:
    """What the dumps of a job that hangs say, most certain finding first; empty if nobody waits for anybody.

    A single rank without a dump beside all others with one is evidence. Where several have none, these were not
    collected: nothing is known of them, and none of them is a suspect.

    Parameters
    ----------
    dumps : mapping of int to object
        Parsed JSON (or its text) of each rank; None or an object without entries is evidence too.
    world_size : int, optional
        Number of ranks, so that ranks without a dump are missed.
    broken : collection of int
        Ranks whose dump is there and cannot be read, as a process leaves it that is killed while it dumps.

    Raises
    ------
    DataError
        If a dump is malformed; one sentence that names rank and entry.

    Examples
    --------
    >>> def dump(*done):
    ...     return {"entries": [{"collective_seq_id": seq + 1, "process_group": ["0", "default_pg"], "state": state,
    ...         "profiling_name": "nccl:all_reduce"} for seq, state in enumerate(done)]}
    >>> found = analyse({0: dump("completed", "scheduled"), 1: dump("completed"), 2: dump("completed", "scheduled")})
    >>> found[0].kind, found[0].ranks, found[0].seq
    ('hang', (1,), 2)
    """
    if world_size is not None and not 0 <= world_size <= MAX_WORLD:
        raise DataError(f"flight recorder: a world of {world_size} ranks is not possible")
    read = {rank: read_dump(rank, raw) for rank, raw in sorted(dumps.items())}
    groups = collect(read, world_size)
    mismatches = mismatches_of(groups)
    if mismatches:
        return mismatches[:MAX_FINDINGS]
    lagging = _lagging(groups)
    waits = [wait for group in groups if (wait := _wait(group, lagging)) is not None]
    waits.extend(wait for group in groups for wait in _peer_waits(group, lagging))
    if waits or lagging:
        members = {rank for group in groups for rank in group.members}
        return _blamed(waits, lagging, read, _Uncollected.of(members, read, broken))
    return _stuck_together(groups)


# -- who waits for whom --------------------------------------------------------------------------------------


def _wait(group: Group, lagging: Mapping[int, str]) -> _Wait | None:
    """The earliest collective of `group` that some members wait in and some have not reached."""
    if len(group.members) < 2 or not group.pending:
        return None
    lowest = min(group.reached.get(rank, -1) for rank in group.members)
    late = [call for rank, calls in group.pending.items() if rank not in lagging for call in calls if call.seq > lowest]
    if not late:
        return None
    seq = min(call.seq for call in late)
    waiting = tuple(
        rank
        for rank, calls in sorted(group.pending.items())
        if rank not in lagging and any(call.seq >= seq for call in calls)
    )
    missing = tuple(sorted(rank for rank in group.members if group.reached.get(rank, -1) < seq))
    first = [call for call in late if call.seq == seq]
    return _Wait(group, seq, first[0].op, waiting, missing, earliest(first))


def _peer_waits(group: Group, lagging: Mapping[int, str]) -> Iterable[_Wait]:
    """Sends without a receive on the other side, and receives without a send."""
    named = group.order or tuple(sorted(group.members))
    place = {rank: position for position, rank in enumerate(named)}
    unmatched: dict[tuple[int, int], list[Call]] = {}
    for rank, calls in group.peers.items():
        for call in calls:
            if call.peer is not None and call.peer < len(named):
                unmatched.setdefault((rank, named[call.peer]), []).append(call)
    for (rank, other), calls in sorted(unmatched.items()):
        answers = [call.receives for call in group.peers.get(other, []) if call.peer == place.get(rank)]
        lonely = [call for call in calls if (not call.receives) not in answers]
        if lonely and rank not in lagging and rank != other:
            first = min(lonely, key=lambda call: call.created_ns or 0)
            yield _Wait(group, first.seq, first.op, (rank,), (other,), earliest(lonely), pair=True)


def _lagging(groups: Iterable[Group]) -> dict[int, str]:
    """Ranks that call unfinished what their peers, who could not have gone on without them, have finished."""
    out: dict[int, str] = {}
    for group in groups:
        behind: dict[int, str] = {}
        for rank, calls in group.pending.items():
            first = min(call.seq for call in calls)
            far = [call for call in calls if call.seq > first and call.op.lower().lstrip("_").startswith(_SYMMETRIC)]
            if not far:
                continue
            ahead = max((done for other, done in group.finished.items() if other != rank), default=-1)
            passed = [call.seq for call in far if call.seq <= ahead]
            if passed:
                behind[rank] = (
                    f"rank {rank} has not finished {calls[0].op} {first} of {group.name}, "
                    f"its peers have finished {max(passed)}: its device or its bookkeeping has stopped"
                )
        if 2 * len(behind) <= len(group.members):
            out = behind | out
    return out


# -- who is to blame -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Suspicion:
    rank: int
    strength: float
    since_ns: int
    waited_by: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Uncollected:
    """Ranks of which no dump can be read, and those of them of which nothing is known."""

    absent: frozenset[int]
    broken: frozenset[int]

    @classmethod
    def of(cls, members: set[int], read: Mapping[int, RankDump], broken: Collection[int]) -> _Uncollected:
        gone = frozenset(rank for rank in members if rank not in read or not read[rank].present)
        return cls(gone - frozenset(broken), frozenset(broken) & members)

    @property
    def unknown(self) -> frozenset[int]:
        return self.broken | (self.absent if len(self.absent) > 1 or self.broken else frozenset())

    def words(self, missing: Collection[int]) -> str:
        """What is said of those of `missing` that have no dump."""
        told = []
        if absent := sorted(self.absent & set(missing)):
            told.append(f"of {listed(absent)} there is no dump")
        if cut := sorted(self.broken & set(missing)):
            told.append(f"the dump of {listed(cut)} is cut short or damaged")
        return "; ".join(told)


_Known = tuple[Mapping[int, str], Mapping[int, RankDump], _Uncollected]
"""Ranks that lag, the dumps by rank, and those that are not there."""


def _nobody(wait: _Wait, uncollected: _Uncollected) -> list[CollectiveFinding]:
    """Whoever holds up the waiting ranks is among those of which nothing is known."""
    reason = (
        f"{listed(wait.waiting)} {_verb(wait)} in {wait.op} {wait.seq} of group {wait.group.name}; "
        f"{uncollected.words(wait.missing)}: whoever holds them up is among these and cannot be told"
    )
    return [
        CollectiveFinding(
            kind="hang", ranks=(), scores=(), group=wait.group.name, op=wait.op, seq=wait.seq, reason=reason,
            waiting=wait.waiting[:MAX_RANKS_TOLD], time_s=wait.since_ns / 1e9 if wait.since_ns else None,
        )
    ]  # fmt: skip


def _blamed(
    waits: list[_Wait], lagging: Mapping[int, str], read: Mapping[int, RankDump], uncollected: _Uncollected
) -> list[CollectiveFinding]:
    """One finding that names the ends of the wait-for chains."""
    # In a pipeline a receive that is posted early waits for long: collectives tell more.
    waits.sort(key=lambda wait: (wait.pair, wait.since_ns is None, wait.since_ns or 0, -len(wait.waiting)))
    missed: dict[int, list[_Wait]] = defaultdict(list)
    for wait in waits:
        for rank in wait.missing:
            missed[rank].append(wait)
    ends = _ends(waits) | set(lagging) or _ends([wait for wait in waits if not wait.pair])
    circle = not ends
    if circle:
        ends = _deadlocked(missed)
    busy = {call_rank for call_rank, dump in read.items() if any(not call.done for call in dump.calls)}
    if any(rank not in busy or rank in lagging for rank in ends):
        # A rank with work of its own still queued may only be stuck behind one that is idle or dead.
        ends = {rank for rank in ends if rank not in busy or rank in lagging}
    ends |= _also_left_behind(waits, ends, missed)
    known = ends - uncollected.unknown
    if not known:
        return _nobody(next(wait for wait in waits if ends & set(wait.missing)), uncollected)
    ends = known
    return [_accusing(waits, ends, missed, (lagging, read, uncollected), circle=circle)]


def _accusing(
    waits: list[_Wait], ends: set[int], missed: Mapping[int, list[_Wait]], known: _Known, *, circle: bool
) -> CollectiveFinding:
    """The finding that names `ends`."""
    lagging, read, uncollected = known
    suspicions = sorted(
        (_suspicion(rank, missed.get(rank, []), lagging, read) for rank in ends),
        key=lambda one: (-one.strength, one.since_ns, -one.waited_by, one.rank),
    )
    where = next((wait for wait in waits if ends & set(wait.missing)), None)
    ranks = tuple(one.rank for one in suspicions)
    what = f"{where.op} {where.seq} of group {where.group.name}" if where else "what their peers have finished"
    there = [rank for rank in ranks if where is None or rank in where.missing]
    reason = f"{listed(there)} did not {'reach' if where else 'finish'} {what}"
    if where:
        reason += f", in which {listed(where.waiting)} {_verb(where)}"
    if len(there) < len(ranks):
        reason += f"; {listed([rank for rank in ranks if rank not in there])} stopped as well"
    if where and (words := uncollected.words(where.missing)):
        reason += f"; {words}"
    if circle:
        reason += "; they wait for each other in different collectives"
    return CollectiveFinding(
        kind="collective_mismatch" if circle else "hang",
        ranks=ranks, scores=tuple(max(0.1, one.strength / 3.0) for one in suspicions),
        group=where.group.name if where else "", op=where.op if where else "", seq=where.seq if where else None,
        reason=reason, waiting=where.waiting[:MAX_RANKS_TOLD] if where else (),
        time_s=where.since_ns / 1e9 if where and where.since_ns else None,
        evidence=tuple(one.reason for one in suspicions),
    )  # fmt: skip


def _suspicion(rank: int, missed: list[_Wait], lagging: Mapping[int, str], read: Mapping[int, RankDump]) -> _Suspicion:
    waited_by = len({waiter for wait in missed for waiter in wait.waiting})
    strength, said = 1.0 if missed else 0.0, []
    dump = read.get(rank)
    if missed:
        first = missed[0]
        at = f"{first.op} {first.seq} of {first.group.name}"
        said.append(f"{listed(first.waiting)} {_verb(first)} for rank {rank} in {at}")
        strength += 1.0
    if rank in lagging:
        strength += 1.5
        said.append(lagging[rank])
    if dump is None or not dump.present:
        said.append(f"rank {rank} has left no dump")
    elif not any(not call.done for call in dump.calls):
        strength += 0.5
        said.append(f"rank {rank} waits in no collective itself")
    since_ns = min((wait.since_ns for wait in missed if wait.since_ns), default=1 << 62)
    return _Suspicion(rank, min(strength, 3.0), since_ns, waited_by, "; ".join(said))


def _verb(wait: _Wait) -> str:
    return "waits" if len(wait.waiting) == 1 else "wait"


def _ends(waits: Iterable[_Wait]) -> set[int]:
    """Ranks that are waited for and wait for nobody."""
    missing = {rank for wait in waits for rank in wait.missing}
    return missing - {rank for wait in waits for rank in wait.waiting}


def _deadlocked(missed: Mapping[int, list[_Wait]]) -> set[int]:
    """Of ranks that wait for each other, those that most others wait for."""
    waited_by = {rank: len({w for wait in found for w in wait.waiting if w != rank}) for rank, found in missed.items()}
    most = max(waited_by.values())
    return {rank for rank, number in waited_by.items() if number == most}


def _also_left_behind(waits: list[_Wait], ends: set[int], missed: Mapping[int, list[_Wait]]) -> set[int]:
    """Members that stopped a little later than the culprit: most of the waiting went on to begin more than they did.

    Collectives are begun without waiting for their end, so whoever begins less than the others has stopped as well,
    unless something outside of this group holds it.
    """
    out: set[int] = set()
    for wait in waits:
        if wait.seq is None or not ends & set(wait.missing) or len(wait.waiting) < 3:
            continue
        reached = {rank: wait.group.reached.get(rank, -1) for rank in wait.waiting}
        usual, number = Counter(reached.values()).most_common(1)[0]
        if 2 * number <= len(reached):
            continue
        elsewhere = {rank for other in waits if other.group is not wait.group for rank in other.waiting}
        out.update(rank for rank, last in reached.items() if last < usual and rank not in elsewhere)
    return out


def _stuck_together(groups: list[Group]) -> list[CollectiveFinding]:
    """Everybody has reached everything and it does not end: the earliest such collective, whose members are suspect."""
    first: dict[int, tuple[int, Group, Call]] = {}
    for group in groups:
        for rank, calls in group.pending.items():
            call = min(calls, key=lambda one: one.seq)
            known = first.get(rank)
            if known is None or (call.created_ns or 0) < known[0]:
                first[rank] = (call.created_ns or 0, group, call)
    alike: dict[tuple[int, int], list[int]] = defaultdict(list)
    for rank, (_, group, call) in first.items():
        alike[(id(group), call.seq)].append(rank)
    heads = [
        (created, group, call)
        for rank, (created, group, call) in sorted(first.items())
        if len(alike[(id(group), call.seq)]) == len(group.members) > 1
    ]
    if not heads:
        return []
    created, group, call = min(heads, key=lambda head: head[0])
    members = sorted(group.members)
    idle = [rank for rank in members if not group.calls[call.seq][rank].started]
    ranks = tuple(idle if 0 < 2 * len(idle) < len(members) else members)
    why = "their devices have not started it" if len(ranks) < len(members) else "all members have begun it"
    return [
        CollectiveFinding(
            kind="hang", ranks=ranks, scores=(0.5 if len(ranks) < len(members) else 1.0 / len(members),) * len(ranks),
            group=group.name, op=call.op, seq=call.seq, waiting=tuple(members[:MAX_RANKS_TOLD]),
            reason=f"{call.op} {call.seq} of group {group.name} does not end although {why}: {listed(ranks)}",
            time_s=created / 1e9 if created else None, evidence=(why,) * len(ranks),
        )
    ]  # fmt: skip
