"""What the leader of a job on several nodes answers to people and engines: what is true, and each operation once."""

from __future__ import annotations

from typing import Final

import msgspec

from actions.launchers.cluster.leader import LeaderTable
from actions.launchers.cluster.words import KEPT_OPERATIONS
from actions.launchers.local.control import AskState, Poll, Reply, Request, Submit
from trainwarden.launching import Capabilities, JobPhase, LauncherState, NodeState, Operation, Report, refusal, refused

_NODES: Final = "this launcher takes no node out by name; a node that is lost is replaced by a spare"
CAPABILITIES: Final = Capabilities(
    can=frozenset({"restart", "stop", "pause", "resume"}),
    cannot={
        "rebalance": "this launcher hands no split of micro-batches to several nodes",
        "validate": "this launcher cannot validate several nodes; run `trainwarden validate` on them",
        "move": "this launcher cannot move ranks; a person must",
        "checkpoint": "this launcher cannot ask for a checkpoint; the training script writes its own",
        "cordon": _NODES, "uncordon": _NODES, "evict": _NODES, "replace": _NODES,
    },
)  # fmt: skip
"""What the leader does for a person, and why not the rest."""


class Question(msgspec.Struct, frozen=True):
    """What is sent to the leader."""

    ask: Request


def answered(request: Request, job: str, table: LeaderTable, now_s: float) -> Reply:
    """What is answered by the leader of `job`, whose memory is `table`."""
    named = request.operation.job if isinstance(request, Submit) else request.job
    if named != job:
        other = f"this launcher runs job '{job}', not '{named}'"
        unknown = refused(request.operation, "unknown_job", other) if isinstance(request, Submit) else None
        return Reply(report=unknown) if unknown else Reply(error=other)
    match request:
        case AskState():
            return Reply(state=state_of(job, table, now_s))
        case Poll():
            return Reply(report=table.asked.report(request.operation))
        case Submit():
            return Reply(report=_submit(request.operation, table))


def _submit(operation: Operation, table: LeaderTable) -> Report:
    known = table.asked.report(operation.id)
    if known.state != "unknown":
        return known
    if (no := refusal(operation, CAPABILITIES, table.asked.generation) or _misfit(operation, table)) is not None:
        return no
    table.asked.accept(operation, 0 if table.attempt is None else table.attempt.number)
    return table.asked.report(operation.id)


def _misfit(operation: Operation, table: LeaderTable) -> Report | None:
    """Why `operation`, which was planned from what is true, cannot be done all the same."""
    if table.over is not None:
        return refused(operation, "over", "the job is over")
    ranks = range(0 if table.attempt is None else len(table.attempt.roster) * table.shape.ranks)
    targets = set(ranks if operation.targets.ranks is None else operation.targets.ranks)
    if strangers := sorted(targets - set(ranks)):
        return refused(operation, "unknown_target", f"rank {strangers[0]} is not one of the job's {len(ranks)}")
    if operation.targets.nodes or targets != set(ranks):
        return refused(operation, "unfit", f"all ranks {operation.kind} together on several nodes, or none")
    if operation.kind == "restart" and table.asked.holds:
        return refused(operation, "unfit", "the job is paused, or is about to be: whoever did so resumes it")
    if len(table.asked.under_way) >= KEPT_OPERATIONS:
        return refused(operation, "unfit", f"{KEPT_OPERATIONS} operations wait for their turn already")
    return None


def state_of(job: str, table: LeaderTable, now_s: float) -> LauncherState:
    """What is true of `job` by `table`."""
    attempt, living = table.attempt, {one.life: one for one in table.living(now_s)}
    roster = () if attempt is None else attempt.roster
    nodes, running = dict[str, NodeState](), list[int]()
    for place, life in enumerate(roster):
        ranks = tuple(range(place * table.shape.ranks, (place + 1) * table.shape.ranks))
        said = living.pop(life, None)
        if said is None:
            name = life.rpartition("/")[0] or life
            nodes[name] = NodeState(node=name, state="lost", ranks=ranks, why="nothing is heard of it")
        else:
            nodes[said.node] = NodeState(node=said.node, ranks=ranks)
            running.extend(ranks if said.alive and attempt is not None and said.ran == attempt.id else ())
    for one in living.values():  # they wait; one may be of a node whose launcher before it took part
        if one.node not in nodes or nodes[one.node].state == "lost":
            nodes[one.node] = NodeState(node=one.node, state="spare")
    return LauncherState(
        job=job, phase=_phase(table, now_s), generation=table.asked.generation,
        attempt=0 if attempt is None else attempt.number - 1, nodes=tuple(nodes.values()), ranks_running=tuple(running),
        under_way=table.asked.under_way,
    )  # fmt: skip


def _phase(table: LeaderTable, now_s: float) -> JobPhase:
    if table.over is not None:
        return "stopping" if any(one.alive for one in table.living(now_s)) else "ended"
    if table.asked.holds:
        return "paused"
    if table.runs:
        return "running"
    return "pending" if table.attempt is None else "restarting"
