"""Which nodes go from which job to which, after something has changed; pure.

A job keeps its minimum, or what it holds of it: what is shared out is the rest. So a running job is never taken below
its minimum, and one that waits for nodes loses none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from trainwarden.actions.coordinator.throughput import Curve
from trainwarden.actions.planners.questions.cluster import ClusterQuestion, Task, choose
from trainwarden.launching import COORDINATOR_MARK, LauncherState
from trainwarden.records import TaskRecord


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A task and its nodes: those it `holds`, those it may get (`waiting`), and those to be kept out of use.

    `faulted`: nodes were lost just now, or a rank has failed.
    """

    task: TaskRecord
    curve: Curve
    holds: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()
    runs: bool = False
    faulted: bool = False

    def waf(self, nodes: int) -> float:
        """Weight times throughput on that number of nodes; 0 below the minimum."""
        usable = min(nodes, self.task.maximum)
        return self.task.weight * self.curve.throughput[usable] if usable >= self.task.minimum else 0.0


class Step(msgspec.Struct, frozen=True):
    """One change of one job: `node` is taken from it, or given to it."""

    job: str
    verb: Literal["evict", "uncordon"]
    node: str


class Plan(msgspec.Struct, frozen=True):
    """How many nodes each job is to have, and what follows from each single event that may come next."""

    assignment: dict[str, int]
    table: dict[str, dict[str, int]]


def member_of(task: TaskRecord, curve: Curve, state: LauncherState | None, *, faulted: bool = False) -> Member:
    """`task` as its launcher tells its nodes."""
    if state is None or state.phase in ("ended", "stopping"):
        return Member(task=task, curve=curve)
    mine, by_state = dict[str, str](), dict[str, list[str]]()
    for node in state.nodes:
        kind: str = node.state
        if kind == "cordoned":
            kind = "barred" if not node.why.startswith(COORDINATOR_MARK) else "leaving" if node.ranks else "waiting"
            kind = "gone" if kind == "waiting" and not node.waits else kind
        elif kind != "lost":
            kind = "holds"
        mine[node.node] = kind
    for name, kind in mine.items():
        by_state.setdefault(kind, []).append(name)
    return Member(
        task=task, curve=curve, runs=state.phase == "running", faulted=faulted,
        **{kind: tuple(names) for kind, names in by_state.items() if kind != "gone"},
    )  # fmt: skip


def available(members: Sequence[Member]) -> list[str]:
    """Nodes that can be had: some job's torchrun lives there, and nothing bars them."""
    there = {node for one in members for node in (*one.holds, *one.waiting, *one.leaving)}
    return sorted(there - {node for one in members for node in one.barred})


def plan(members: Sequence[Member], running_s: float, transition_s: float) -> Plan:
    """The best number of nodes for each of `members`, by Unicron's objective.

    Parameters
    ----------
    running_s, transition_s : float
        Seconds until the next change is expected, and for which a job stands still when it is changed.
    """
    usable = set(available(members))
    shares = [
        _Share(one, len(usable.intersection(one.holds)), len(usable.intersection((*one.holds, *one.waiting))))
        for one in members
    ]
    cost = running_s, transition_s
    now = _choose(shares, len(usable), *cost)
    table = {}
    kept = [
        msgspec.structs.replace(one, now=now[one.job], member=msgspec.structs.replace(one.member, faulted=False))
        for one in shares
    ]
    for place, one in enumerate(kept):
        others = [*kept[:place], *kept[place + 1 :]]
        table[f"finished:{one.job}"] = _choose(others, len(usable), *cost)
        if one.now:
            hit = msgspec.structs.replace(
                one, now=one.now - 1, reach=one.reach - 1, member=msgspec.structs.replace(one.member, faulted=True)
            )
            table[f"lost:{one.job}"] = _choose([*others, hit], len(usable) - 1, *cost)
    joined = [msgspec.structs.replace(one, reach=one.reach + 1) for one in kept]
    table["joined"] = _choose(joined, len(usable) + 1, *cost)
    return Plan(now, table)


class _Share(msgspec.Struct, frozen=True):
    """How many nodes a job has now, and how many it can get at all."""

    member: Member
    now: int
    reach: int

    @property
    def job(self) -> str:
        return self.member.task.job


def _choose(shares: Sequence[_Share], nodes: int, running_s: float, transition_s: float) -> dict[str, int]:
    if not shares:
        return {}
    kept = {one.job: min(one.now, one.member.task.minimum) for one in shares}
    question = ClusterQuestion(
        gpus=max(0, nodes - sum(kept.values())), running_s=running_s, transition_s=transition_s,
        tasks=[_rest(one, kept[one.job]) for one in shares],
    )  # fmt: skip
    return {job: kept[job] + more for job, more in choose(question).assignment.items()}


def _rest(share: _Share, kept: int) -> Task:
    """A job beyond the `kept` nodes that nothing takes from it; what it holds beyond its maximum adds nothing."""
    member, task = share.member, share.member.task
    most = min(task.maximum, share.reach)

    def throughput(nodes: int) -> float | None:
        if nodes >= task.minimum and (nodes <= most or nodes == share.now):
            return member.curve.throughput[min(nodes, task.maximum)]
        return 0.0 if nodes == kept else None

    values = [throughput(nodes) for nodes in range(kept, max(most, share.now) + 1)]
    return Task(name=task.job, now=share.now - kept, faulted=member.faulted, throughput=values, weight=task.weight)


def next_steps(members: Sequence[Member], assignment: Mapping[str, int]) -> list[Step]:
    """What is to be done next on the way to `assignment`: while any job is to shrink, only that.

    A job gives away first what another may get, and is given only what no job holds, and what is not on its way out.
    """
    usable = set(available(members))
    wanted = {node for one in members if len(one.holds) < assignment.get(one.task.job, 0) for node in one.waiting}
    shrinks = []
    for one in members:
        target = assignment.get(one.task.job)
        holds = [node for node in one.holds if node in usable]
        if target is None:
            continue
        least = max(target, min(len(holds), one.task.minimum))
        ordered = sorted(reversed(holds), key=lambda node: node not in wanted)  # the last of the job's order first
        shrinks += [Step(one.task.job, "evict", node) for node in ordered[: max(0, len(holds) - least)]]
    if shrinks or any(one.leaving for one in members):
        return shrinks
    free = usable.difference(node for one in members for node in one.holds)
    steps = []
    for one in sorted(members, key=lambda member: len(free.intersection(member.waiting))):  # who has least choice
        lacks = assignment.get(one.task.job, 0) - len(usable.intersection(one.holds))
        given = [node for node in one.waiting if node in free][: max(0, lacks)]
        if len(one.holds) + len(given) >= one.task.minimum:
            free.difference_update(given)
            steps += [Step(one.task.job, "uncordon", node) for node in given]
    return steps
