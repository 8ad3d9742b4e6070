"""Process groups as the recorders of all their ranks show them, and what their members began differently."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from trainwarden.detectors.collectives.findings import MAX_RANKS_TOLD, CollectiveFinding
from trainwarden.detectors.collectives.flight_dump import Call, GroupKey, RankDump

_SAME_INPUT: Final = ("all_reduce", "allreduce", "broadcast", "reduce", "_all_gather_base", "_reduce_scatter_base",
                      "_broadcast_oop", "_reduce_oop")  # fmt: skip


@dataclass(slots=True)
class Group:
    """What the dumps say about one process group."""

    name: str
    members: set[int] = field(default_factory=set)
    order: tuple[int, ...] = ()  # members as the group numbers them
    reached: dict[int, int] = field(default_factory=dict)  # newest collective begun
    finished: dict[int, int] = field(default_factory=dict)  # newest collective finished
    pending: dict[int, list[Call]] = field(default_factory=dict)
    calls: dict[int, dict[int, Call]] = field(default_factory=lambda: defaultdict(dict))  # sequence number, rank
    peers: dict[int, list[Call]] = field(default_factory=dict)  # unfinished sends and receives
    mixed: bool = False  # sends and receives count in the status too, which then says nothing of collectives


def collect(read: Mapping[int, RankDump], world_size: int | None) -> list[Group]:
    groups: dict[GroupKey, Group] = {}
    everyone = set(read) | set(range(world_size or 0))
    for dump in read.values():
        for key, description in dump.describes.items():
            group = groups.setdefault(key, Group(f"{key.name} {description}".strip(), order=key.members))
            if not group.members >= set(key.members[:1]) or group.order is not key.members:
                group.members.update(key.members)
            if not key.members and (description == "default_pg" or key.name == "0"):
                group.members.update(everyone)
        for call in dump.calls:
            _add(groups[call.group], dump.rank, call)
    for dump in read.values():
        for key, last in dump.enqueued.items():
            if key in groups and not groups[key].mixed:
                group = groups[key]
                group.reached[dump.rank] = max(last, group.reached.get(dump.rank, -1))
                done = dump.completed.get(key, -1)
                group.finished[dump.rank] = max(done, group.finished.get(dump.rank, -1))
    for group in groups.values():
        group.members.update(group.reached)
    return list(groups.values())


def _add(group: Group, rank: int, call: Call) -> None:
    if call.p2p:
        group.mixed = True
        if not call.done:
            group.peers.setdefault(rank, []).append(call)
        return
    group.members.add(rank)
    group.calls[call.seq][rank] = call
    group.reached[rank] = max(call.seq, group.reached.get(rank, -1))
    if call.done:
        group.finished[rank] = max(call.seq, group.finished.get(rank, -1))
    else:
        group.pending.setdefault(rank, []).append(call)


# -- mismatches ----------------------------------------------------------------------------------------------


def mismatches_of(groups: Iterable[Group]) -> list[CollectiveFinding]:
    """The first collective of each group that its members began differently, the earliest first."""
    found = []
    for group in groups:
        for seq in sorted(group.calls):
            calls = group.calls[seq]
            if len(calls) < 2:
                continue
            for what, kinds in _compared(calls):
                if len(set(kinds.values())) > 1:
                    found.append((earliest(calls.values()) or 0, _mismatch(group, seq, what, kinds)))
                    break
            else:
                continue
            break
    return [finding for _, finding in sorted(found, key=lambda entry: entry[0])]


def _compared(calls: Mapping[int, Call]) -> Iterable[tuple[str, dict[int, str]]]:
    yield "operation", {rank: call.op for rank, call in calls.items()}
    yield "data type", {rank: call.dtypes[0] for rank, call in calls.items() if call.dtypes[0]}
    yield (
        "size",
        {rank: str(call.sizes[0]) for rank, call in calls.items() if call.op in _SAME_INPUT and call.sizes[0] >= 0},
    )


def _mismatch(group: Group, seq: int, what: str, kinds: Mapping[int, str]) -> CollectiveFinding:
    counts = Counter(kinds.values())
    most = max(counts.values())
    usual = {kind for kind, number in counts.items() if number == most}
    odd = tuple(sorted(rank for rank, kind in kinds.items() if len(usual) > 1 or kind not in usual))
    others = next((kind for kind in sorted(usual) if len(usual) == 1), "")
    evidence = tuple(
        f"rank {rank} has {what} {kinds[rank]}" + (f", the others {others}" if others else "") for rank in odd
    )
    calls = group.calls[seq]
    since_ns = earliest(calls.values())
    op = Counter(call.op for call in calls.values()).most_common(1)[0][0]
    return CollectiveFinding(
        kind="collective_mismatch", ranks=odd, scores=(1.0 if len(usual) == 1 else 0.5,) * len(odd), group=group.name,
        op=op, seq=seq, reason=f"collective {seq} of group {group.name} differs in {what}: {'; '.join(evidence[:4])}",
        waiting=tuple(sorted(set(calls) - set(odd)))[:MAX_RANKS_TOLD],
        time_s=since_ns / 1e9 if since_ns else None, evidence=evidence,
    )  # fmt: skip


def earliest(calls: Iterable[Call]) -> int | None:
    return min((call.created_ns for call in calls if call.created_ns), default=None)
