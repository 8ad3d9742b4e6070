"""What people and engines ask of a job, and what is answered: its state, and each operation once by its id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec

from trainwarden.actions.launchers.torchrun.members import Member
from trainwarden.actions.launchers.torchrun.messages import KEPT_OPERATIONS, AskState, Kept, Poll, Reply, Split, Submit
from trainwarden.actions.launchers.torchrun.table import JobTable
from trainwarden.launching import (
    NODE_VERBS,
    Capabilities,
    JobPhase,
    LauncherState,
    NodeState,
    Operation,
    Report,
    Verb,
    refusal,
    refused,
)

STOPPED_CODE: Final = 143  # as a shell says of what SIGTERM has ended
KEPT_SPLITS: Final = 8  # ranks adopt the newest that all have read, which may be an earlier one
CAPABILITIES: Final = Capabilities(
    can=frozenset(get_args(Verb)) - {"replace"},
    restarts_itself=True,
    cannot={
        "replace": "this launcher brings no new machine; who is evicted is replaced by a spare that waits",
    },
)
"""What the rendezvous service does, and why not the rest."""
_NO_OTHER_NODE: Final = {
    "move": "this launcher cannot move ranks: it has one node, so they have no other place to go to",
    **{verb: f"this launcher cannot {verb} a node; a person must" for verb in ("cordon", "uncordon", "evict")},
}
CAPABILITIES_HERE: Final = msgspec.structs.replace(
    CAPABILITIES, can=CAPABILITIES.can - _NO_OTHER_NODE.keys(), cannot={**CAPABILITIES.cannot, **_NO_OTHER_NODE},
)  # fmt: skip
"""The same of a job whose ranks are all on the service's machine."""
STARTS: Final = frozenset({"restart", "evict", "move", "resume"})  # `Kept.until` of these is a round's number


def answer(ask: AskState | Submit | Poll, table: JobTable, now_s: float) -> Reply:
    """What is answered for the job of `table`."""
    match ask:
        case AskState():
            return Reply(state=state_of(table, now_s))
        case Poll():
            return Reply(report=_known(table, ask.operation))
        case Submit():
            report = _submit(ask.operation, table, now_s)
            if report.reason == "unfit" and _leaves_too_few(ask.operation, table, now_s) and table.expects(now_s):
                return Reply(later=f"{report.text}; nodes of the job are still starting")
            return Reply(report=report)


def end_operations(table: JobTable, now_s: float) -> None:
    """Note what has come to its end; called after each decision."""
    kept, memory = table.memory.kept, table.memory
    ends = [_end(one, table, now_s) if not one.report.ended else None for one in kept]
    if any(end is not None for end in ends):
        told = (
            one if end is None else msgspec.structs.replace(one, report=end)
            for one, end in zip(kept, ends, strict=True)
        )
        table.change(kept=tuple(told))
    if memory.over is None and any(one.kind == "stop" for one in kept):
        table.end(STOPPED_CODE, next(one.report.text for one in kept if one.kind == "stop"))


def _end(kept: Kept, table: JobTable, now_s: float) -> Report | None:
    """The last report of `kept`; None while it lasts."""
    memory, ident = table.memory, kept.report.operation
    alive = any(one.beat.alive for one in table.members.living(now_s))
    if kept.kind == "stop":
        done = memory.over is not None and not alive
    elif memory.over is not None:
        return Report(operation=ident, state="failed", text="the job is over")
    elif kept.kind == "validate":
        told = kept.report if table.checks is None else table.checks.report(ident)
        return None if told == kept.report else told
    elif kept.kind == "checkpoint":
        return _end_of_save(kept, table)
    elif kept.kind == "pause":
        done = not alive or not memory.paused
    elif kept.kind == "rebalance":
        seated = table.seated.values()
        done = memory.round == memory.target and len(seated) == len(memory.roster)
        done = done and all(one.beat.split >= kept.until for one in seated)
    else:
        done = kept.kind not in STARTS or memory.round >= kept.until
    resume = memory.resume if kept.kind in STARTS else None
    text = "" if resume is None else f"the newest checkpoint that its nodes see is of step {resume.step}"
    return Report(operation=ident, state="done", text=text) if done else None


def _end_of_save(kept: Kept, table: JobTable) -> Report | None:
    """A checkpoint is made once all nodes that see any see a newer one than when it was asked for, which outlives them.

    It is asked for before a node is taken out: one in the memory of that node alone would be lost with it.
    """
    memory, ident, seen = table.memory, kept.report.operation, table.checkpoints()
    steps = [one.outlives for one in seen if one.outlives is not None]
    if steps and len(steps) == len(seen) and min(steps) >= kept.until:
        return Report(operation=ident, state="done", text=f"the checkpoint of step {min(steps)} is complete")
    if memory.target > memory.round:
        return Report(operation=ident, state="failed", text="the job started anew before a checkpoint was complete")
    return None


def _known(table: JobTable, operation: str) -> Report:
    kept = (one.report for one in table.memory.kept if one.report.operation == operation)
    return next(kept, Report(operation=operation, state="unknown"))


def _submit(operation: Operation, table: JobTable, now_s: float) -> Report:
    if (known := _known(table, operation.id)).state != "unknown":
        return known
    memory = table.memory
    able = CAPABILITIES_HERE if table.checks is not None and table.checks.here else CAPABILITIES
    if (no := refusal(operation, able, memory.generation) or _misfit(operation, table, now_s)) is not None:
        return no
    until = _apply(operation, table, now_s)
    report = Report(operation=operation.id, state="accepted", text=operation.why[:500])
    target = operation.targets.nodes[0] if operation.targets.nodes else ""
    entry = Kept(kind=operation.kind, report=report, until=until, by=operation.by[:160], why=report.text, target=target)
    kept = (*table.memory.kept, entry)
    if len(kept) > KEPT_OPERATIONS:
        drop = next(number for number, one in enumerate(kept) if one.report.ended)
        kept = kept[:drop] + kept[drop + 1 :]
    table.change(kept=kept, generation=memory.generation + 1)
    table.tick(now_s)
    end_operations(table, now_s)
    return _known(table, operation.id)


def _apply(operation: Operation, table: JobTable, now_s: float) -> int:
    """Decide what `operation` wants; the number of the round, or of the plan, that it is done with."""
    memory, why = table.memory, operation.why[:400]
    said = f"{operation.kind}, asked by {operation.by[:60]}: {why}"
    fields: dict[str, Any] = {}
    if operation.kind in ("cordon", "evict"):
        fields["cordoned"] = {**memory.cordoned, operation.targets.nodes[0]: why}
    elif operation.kind == "uncordon":
        gone = operation.targets.nodes[0]
        fields["cordoned"] = {node: kept for node, kept in memory.cordoned.items() if node != gone}
    elif operation.kind == "move":
        fields["order"] = operation.plan.node_order
    elif operation.kind in ("pause", "resume"):
        fields["paused"] = operation.kind == "pause"
    elif operation.kind == "validate":
        assert table.checks is not None  # else it was refused
        table.checks.begin(operation)
    elif operation.kind == "checkpoint":
        table.change(kept=tuple(map(_overtaken, memory.kept)))
        newest = table.newest()
        return 0 if newest is None else newest.step + 1
    elif operation.kind == "rebalance":
        number = 1 + max((one.number for one in memory.splits), default=0)
        split = Split(number=number, micro_batches=operation.plan.micro_batches, why=why, operation=operation.id)
        table.change(splits=(*memory.splits, split)[-KEPT_SPLITS:])
        return number
    if operation.kind in ("restart", "move", "pause") or (operation.kind == "evict" and _seated(operation, table)):
        table.come_back(now_s, said, **fields)
        return table.memory.target
    table.change(**fields)
    return table.memory.target if operation.kind == "resume" else 0


def _overtaken(kept: Kept) -> Kept:
    """`kept` as it is once another checkpoint is asked for: agents are told one operation at a time."""
    if kept.kind != "checkpoint" or kept.report.ended:
        return kept
    text = "another checkpoint was asked for before one was complete"
    return msgspec.structs.replace(kept, report=Report(operation=kept.report.operation, state="failed", text=text))


def _seated(operation: Operation, table: JobTable) -> bool:
    return any(seat.node in operation.targets.nodes for seat in table.memory.roster)


def _misfit(operation: Operation, table: JobTable, now_s: float) -> Report | None:
    """Why `operation`, which was planned from what is true, cannot be done all the same."""
    memory = table.memory
    if memory.over is not None:
        return refused(operation, "over", "the job is over")
    if operation.kind == "validate":
        none = refused(operation, "unfit", "nothing measures here")
        no = none if table.checks is None else table.checks.refusal(operation)
    elif operation.kind in NODE_VERBS:
        no = _misfit_of_node(operation, table, now_s)
    else:
        no = _misfit_of_ranks(operation, table)
    if no is None and sum(not one.report.ended for one in memory.kept) >= KEPT_OPERATIONS // 2:
        return refused(operation, "unfit", f"{KEPT_OPERATIONS // 2} operations are under way already")
    starts = operation.kind in ("restart", "move", "evict", "pause")
    if no is None and starts and not table.majority(now_s):
        return refused(operation, "unfit", "this service hears too few of the job's nodes to begin another round")
    return no


def _misfit_of_ranks(operation: Operation, table: JobTable) -> Report | None:
    memory, kind = table.memory, operation.kind
    ranks = set(range(memory.world))
    targets = ranks if operation.targets.ranks is None else set(operation.targets.ranks)
    if strangers := sorted(targets - ranks):
        return refused(operation, "unknown_target", f"rank {strangers[0]} is not one of the job's {len(ranks)}")
    if operation.targets.nodes or targets != ranks:
        return refused(operation, "unfit", f"torchrun can {kind} all ranks together, or none")
    if kind in ("restart", "move") and memory.paused:
        return refused(operation, "unfit", "the job is paused: whoever did so resumes it")
    if kind == "resume" and not memory.paused:
        return refused(operation, "unfit", "the job is not paused")
    if kind == "checkpoint":
        why_not = _misfit_of_save(table)
    elif kind == "rebalance":
        why_not = _misfit_of_split(operation.plan.micro_batches, table)
    else:
        why_not = _misfit_of_order(operation.plan.node_order, table) if kind == "move" else None
    return None if why_not is None else refused(operation, "unfit", why_not)


def _misfit_of_save(table: JobTable) -> str | None:
    memory, seated = table.memory, table.seated.values()
    if memory.paused or memory.target > memory.round or len(seated) < len(memory.roster):
        return "not all of the job's nodes train"
    if not any(one.beat.looks for one in seated):
        return "no checkpoint folder is configured, so none would be seen"
    deaf = next((one.node for one in seated if not one.beat.saves), None)
    if deaf is not None:
        return f"ranks on {deaf} catch no signal to save by; TRAINWARDEN_CHECKPOINT_SIGNAL names the script's"
    return None


def _misfit_of_split(counts: Sequence[int], table: JobTable) -> str | None:
    world = table.memory.world
    if len(counts) != world or not all(counts):
        return f"{len(counts)} counts do not fit {world} ranks" if len(counts) != world else "a rank needs work"
    fits = [split for split in table.memory.splits if len(split.micro_batches) == world]
    if fits and sum(counts) != sum(fits[-1].micro_batches):
        return f"{sum(counts)} micro-batches are not the global batch's {sum(fits[-1].micro_batches)}"
    return None


def _misfit_of_order(wanted: Sequence[str], table: JobTable) -> str | None:
    today = [seat.node for seat in table.memory.roster]
    if len(set(today)) != len(today) or sorted(wanted) != sorted(today):
        return "the order has to name all nodes that train, each once, and no others"
    if list(wanted) == today:
        return "the nodes have that order already"
    if table.memory.target > table.memory.round:
        return "the job is starting anew, so its nodes may change"
    return None


def _misfit_of_node(operation: Operation, table: JobTable, now_s: float) -> Report | None:
    """So that no word leaves fewer nodes than the job needs."""
    named, cordoned = operation.targets.nodes, table.memory.cordoned
    there = {one.node for one in table.members.living(now_s)}
    known = there | {seat.node for seat in table.memory.roster} | set(cordoned)
    if not named or (strangers := sorted(set(named) - known)):
        said = f"'{strangers[0][:80]}' is no node of the job" if named else "no node was named"
        return refused(operation, "unknown_target", said)
    if len(set(named)) > 1:
        return refused(operation, "unfit", "one node after the other: name one")
    if _leaves_too_few(operation, table, now_s):
        left = there - set(cordoned) - {named[0]}
        said = f"without {named[0]} {len(left)} nodes are left, and the job needs {table.least}"
        return refused(operation, "unfit", said)
    return None


def _leaves_too_few(operation: Operation, table: JobTable, now_s: float) -> bool:
    """Whether the job would have too few nodes without the one that `operation` takes out."""
    out, cordoned = set(operation.targets.nodes), set(table.memory.cordoned)
    if operation.kind not in ("evict", "cordon") or not out or out <= cordoned:
        return False
    return len({one.node for one in table.members.living(now_s)} - cordoned - out) < table.least


# --- state -----------------------------------------------------------------------------------------------------------


def state_of(table: JobTable, now_s: float) -> LauncherState:
    """What is true of the job."""
    memory = table.memory
    running = [rank for one in table.members.living(now_s) if one.beat.at == memory.round for rank in one.beat.alive]
    fits = [split.micro_batches for split in memory.splits if len(split.micro_batches) == memory.world]
    return LauncherState(
        job=table.job, phase=_phase(table, now_s), generation=memory.generation, attempt=max(0, memory.round - 1),
        nodes=_nodes(table, now_s), ranks_running=tuple(sorted(running)),
        under_way=tuple(one.report.operation for one in memory.kept if not one.report.ended),
        micro_batches=fits[-1] if fits else (), failures=memory.failed_rounds,
        attempt_age_s=now_s - table.since_s if table.runs(now_s) else None,
        pausable=table.checks is not None and table.checks.possible,
    )  # fmt: skip


def _phase(table: JobTable, now_s: float) -> JobPhase:
    memory = table.memory
    if memory.over is not None:
        return "stopping" if any(one.beat.alive for one in table.members.living(now_s)) else "ended"
    if memory.paused:
        return "paused"
    if table.runs(now_s):
        return "paused" if table.checks is not None and table.checks.measures else "running"
    if table.checks is not None and table.checks.failed:
        return "failed"
    return "restarting" if memory.round else "pending"


def _nodes(table: JobTable, now_s: float) -> tuple[NodeState, ...]:
    memory, found = table.memory, dict[str, NodeState]()
    for seat in memory.roster:
        member = table.members.get(seat.life)
        state = _node_state(seat.node, member, table, now_s)
        before = found.get(seat.node)
        ranks = state.ranks if before is None else (*before.ranks, *state.ranks)
        found[seat.node] = msgspec.structs.replace(state, ranks=ranks)
    for one in table.members.living(now_s):
        if one.node not in found:
            cordoned = one.node in memory.cordoned
            why = memory.cordoned.get(one.node, "")
            found[one.node] = NodeState(node=one.node, state="cordoned" if cordoned else "spare", why=why, waits=True)
    for node, why in memory.cordoned.items():
        found.setdefault(node, NodeState(node=node, state="cordoned", why=why))
    return tuple(found.values())


def _is_gone(member: Member, table: JobTable, now_s: float) -> bool:
    """Whether its process has ended for certain, and its ranks with it."""
    closed = table.members.absence(member.life, now_s) == "closed"
    return closed or table.members.is_succeeded(member.life, member.node, now_s)


def _node_state(node: str, member: Member | None, table: JobTable, now_s: float) -> NodeState:
    memory = table.memory
    ranks = member.beat.ranks if member is not None and member.beat.at == memory.round else ()
    there = member is not None and table.members.absence(member.life, now_s) is None
    if node in memory.cordoned:
        if member is not None and _is_gone(member, table, now_s):
            ranks = ()
        waits = not ranks and any(one.node == node for one in table.members.living(now_s))  # perhaps another process
        return NodeState(node=node, state="cordoned", ranks=ranks, why=memory.cordoned[node], waits=waits)
    return (
        NodeState(node=node, ranks=ranks)
        if there
        else NodeState(node=node, state="lost", ranks=ranks, why="nothing is heard of it")
    )
