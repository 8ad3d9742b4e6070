"""What the leader of a job on several nodes answers to people and engines: what is true, and each operation once."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

from actions.launchers.cluster.leader import LeaderTable
from actions.launchers.cluster.ledger import KEPT_OPERATIONS, MOST_ASIDE
from actions.launchers.cluster.words import node_of
from actions.launchers.local.control import AskState, Poll, Reply, Request, Submit
from trainwarden.launching import (
    NODE_VERBS,
    Capabilities,
    JobPhase,
    LauncherState,
    NodeCondition,
    NodeState,
    Operation,
    Report,
    refusal,
    refused,
)
from trainwarden.metrics_http.access import Person

MOST_NAME_CHARS: Final = 80  # of a token's; as much as the log of refused commands shows
CAPABILITIES: Final = Capabilities(
    can=frozenset({"restart", "stop", "pause", "resume", "cordon", "uncordon", "evict", "move"}),
    restarts_itself=True,
    cannot={
        "rebalance": "this launcher hands no split of micro-batches to several nodes",
        "validate": "this launcher cannot validate several nodes; run `trainwarden validate` on them",
        "checkpoint": "this launcher cannot ask for a checkpoint; the training script writes its own",
        "replace": "this launcher brings no new machine; who is evicted is replaced by a spare that waits",
    },
)  # fmt: skip
"""What the leader does for a person, and why not the rest."""


class Question(msgspec.Struct, frozen=True):
    """What is sent to the leader."""

    ask: Request


def vouched(request: Request, who: Person | None) -> Request:
    """`request` in the name of whose token it came with; what the asker says of itself comes after that.

    Examples
    --------
    >>> asked = Submit(Operation(id="o", job="j", kind="stop", expected_generation=0, by="root"))
    >>> said = vouched(asked, Person("ann", "act"))
    >>> said.operation.by if isinstance(said, Submit) else None
    'ann (act), as root'
    >>> vouched(asked, None) is asked
    True
    """
    if who is None or not isinstance(request, Submit):
        return request
    claimed, name = request.operation.by, f"{who.name[:MOST_NAME_CHARS]} ({who.role})"
    by = name if claimed in ("", who.name) else f"{name}, as {claimed}"
    return Submit(msgspec.structs.replace(request.operation, by=by))


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
            report = _submit(request.operation, table, now_s)
            if report.reason == "unfit" and _leaves_too_few(request.operation, table, now_s) and table.expects(now_s):
                return Reply(later=f"{report.text}; nodes that were asked for are still starting")
            return Reply(report=report)


def _submit(operation: Operation, table: LeaderTable, now_s: float) -> Report:
    known = table.asked.report(operation.id)
    if known.state != "unknown":
        return known
    if (no := refusal(operation, CAPABILITIES, table.asked.generation) or _misfit(operation, table, now_s)) is not None:
        return no
    order = _order_of(operation, table) if operation.kind == "move" else ()
    table.asked.accept(operation, None if table.attempt is None else table.attempt.id, order or ())
    return table.asked.report(operation.id)


def _misfit(operation: Operation, table: LeaderTable, now_s: float) -> Report | None:
    """Why `operation`, which was planned from what is true, cannot be done all the same."""
    if table.over is not None:
        return refused(operation, "over", "the job is over")
    if operation.kind in NODE_VERBS:
        no = _misfit_of_node(operation, table, now_s)
    else:
        no = _misfit_of_ranks(operation, table)
    if no is None and len(table.asked.under_way) >= KEPT_OPERATIONS:
        return refused(operation, "unfit", f"{KEPT_OPERATIONS} operations wait for their turn already")
    return no


def _misfit_of_ranks(operation: Operation, table: LeaderTable) -> Report | None:
    ranks = range(0 if table.attempt is None else len(table.attempt.roster) * table.shape.ranks)
    targets = set(ranks if operation.targets.ranks is None else operation.targets.ranks)
    if strangers := sorted(targets - set(ranks)):
        return refused(operation, "unknown_target", f"rank {strangers[0]} is not one of the job's {len(ranks)}")
    if operation.targets.nodes or targets != set(ranks):
        return refused(operation, "unfit", f"all ranks {operation.kind} together on several nodes, or none")
    if operation.kind in ("restart", "move") and table.asked.holds:
        return refused(operation, "unfit", "the job is paused, or is about to be: whoever did so resumes it")
    return _misfit_of_order(operation, table) if operation.kind == "move" else None


def _misfit_of_order(operation: Operation, table: LeaderTable) -> Report | None:
    """A move is of the attempt that runs: what waits for its turn before it could begin another one."""
    order = _order_of(operation, table)
    if order is None:
        return refused(operation, "unfit", "the order has to name all nodes that train, each once, and no others")
    if order == tuple(range(len(order))):
        return refused(operation, "unfit", "the nodes have that order already")
    if table.asked.turn is not None:
        return refused(operation, "unfit", "something else that was asked for is not done yet")
    return None


def _order_of(operation: Operation, table: LeaderTable) -> tuple[int, ...] | None:
    """The wanted order of the attempt's nodes by their node ranks; None if it is not one of just these nodes."""
    roster = () if table.attempt is None else table.attempt.roster
    place = {node_of(life): number for number, life in enumerate(roster)}
    wanted = operation.plan.node_order
    if not roster or not len(wanted) == len(place) == len(roster) or place.keys() != set(wanted):
        return None
    return tuple(place[node] for node in wanted)


def _misfit_of_node(operation: Operation, table: LeaderTable, now_s: float) -> Report | None:
    """So that no word takes more nodes out, or puts more back, than the job was started for."""
    named, shape, aside = operation.targets.nodes, table.shape, table.asked.aside_then
    there, placed = {one.node for one in table.living(now_s)}, () if table.attempt is None else table.attempt.roster
    known = there | {node_of(life) for life in placed} | aside
    if not named or (strangers := sorted(set(named) - known)):
        said = f"'{strangers[0][:80]}' is no node of the job" if named else "no node was named"
        return refused(operation, "unknown_target", said)
    if len(set(named)) > 1:
        return refused(operation, "unfit", "one node after the other: name one")
    node, back, left = named[0], operation.kind == "uncordon", _left(operation, table, now_s)
    if back and node in aside and len(left) >= shape.nodes + shape.spares:
        return refused(operation, "unfit", f"the job has its {shape.nodes} nodes and {shape.spares} spares without it")
    if _leaves_too_few(operation, table, now_s):
        said = f"without {node} {len(left)} nodes are left, and the job needs {shape.least_nodes}"
        return refused(operation, "unfit", said)
    if not back and node not in aside and len(aside) >= MOST_ASIDE:
        return refused(operation, "unfit", f"{MOST_ASIDE} nodes are set aside already")
    return None


def _left(operation: Operation, table: LeaderTable, now_s: float) -> set[str]:
    """The nodes that could take part without those that `operation` names."""
    return {one.node for one in table.living(now_s)} - table.asked.aside_then - set(operation.targets.nodes)


def _leaves_too_few(operation: Operation, table: LeaderTable, now_s: float) -> bool:
    """Whether `operation` takes a node out without which the job has not enough."""
    takes_out = operation.kind in ("cordon", "evict") and not table.asked.aside_then.issuperset(operation.targets.nodes)
    return takes_out and len(_left(operation, table, now_s)) < table.shape.least_nodes


def state_of(job: str, table: LeaderTable, now_s: float) -> LauncherState:
    """What is true of `job` by `table`."""
    attempt, living = table.attempt, {one.life: one for one in table.living(now_s)}
    roster, aside = () if attempt is None else attempt.roster, table.asked.aside
    nodes, running = dict[str, NodeState](), list[int]()
    for place, life in enumerate(roster):
        ranks = tuple(range(place * table.shape.ranks, (place + 1) * table.shape.ranks))
        said = living.pop(life, None)
        if said is None:
            name = node_of(life)
            nodes[name] = NodeState(node=name, state="lost", ranks=ranks, why="nothing is heard of it")
        else:
            nodes[said.node] = NodeState(node=said.node, state=_place(said.node, aside, "healthy"), ranks=ranks)
            running.extend(ranks if said.alive and attempt is not None and said.ran == attempt.id else ())
    for one in living.values():  # they wait; one may be of a node whose launcher before it took part
        if one.node not in nodes or nodes[one.node].state == "lost":
            nodes[one.node] = NodeState(node=one.node, state=_place(one.node, aside, "spare"))
    for name in set(aside) - nodes.keys():
        nodes[name] = NodeState(node=name, state="cordoned", why="set aside; nothing is heard of it")
    return LauncherState(
        job=job, phase=_phase(table, now_s), generation=table.asked.generation,
        attempt=0 if attempt is None else attempt.number - 1, nodes=tuple(nodes.values()), ranks_running=tuple(running),
        under_way=table.asked.under_way, attempt_age_s=_age_s(table, now_s),
        failures=0 if attempt is None else attempt.failures,
    )  # fmt: skip


def _place(node: str, aside: Collection[str], else_: NodeCondition) -> NodeCondition:
    return "cordoned" if node in aside else else_


def _age_s(table: LeaderTable, now_s: float) -> float | None:
    """For how long the attempt that runs does, by what its nodes have said last."""
    if not table.runs or table.attempt is None:
        return None
    told = (one.age_s for one in table.living(now_s) if one.ran == table.attempt.id)
    return max((age_s for age_s in told if age_s is not None), default=None)


def _phase(table: LeaderTable, now_s: float) -> JobPhase:
    if table.over is not None:
        return "stopping" if any(one.alive for one in table.living(now_s)) else "ended"
    if table.asked.holds:
        return "paused"
    if table.runs:
        return "running"
    return "pending" if table.attempt is None else "restarting"
