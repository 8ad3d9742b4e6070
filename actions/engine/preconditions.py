"""All that brakes look at before an action is carried out."""

from __future__ import annotations

from trainwarden.actions.brakes.active_brake import BrakeInput
from trainwarden.actions.brakes.history import NODES_OUT
from trainwarden.actions.engine.approval import unapproved
from trainwarden.actions.nodes.past import cleared_text
from trainwarden.actions.remedies.engine_state import EngineState, IncidentState
from trainwarden.actions.remedies.policy import Rules
from trainwarden.actions.remedies.table import EvictNode, Remedies, Validate
from trainwarden.commands.gate import CommandGate
from trainwarden.launching import LauncherState
from trainwarden.records import ActionRecord


def asked_of(
    action: ActionRecord, case: IncidentState, memory: EngineState, remedies: Remedies, state: LauncherState | None
) -> BrakeInput:
    """`action` of the incident of `case`, with what is known while its job is in `state`."""
    job = action.job
    latch = memory.latches.over(job)
    looks = action.kind in NODES_OUT and latch is None
    return BrakeInput(
        action=action,
        actions=memory.beside(job),
        said_s=memory.said_s,
        stopped_by=memory.stopped_by(job),
        silence=memory.silences.over(case.incident, action.at_s),
        latch=latch,
        nodes=() if state is None else state.nodes,
        suspected=frozenset(_accused(memory, remedies, job) if looks else ()),
    )


def _accused(memory: EngineState, remedies: Remedies, job: str) -> set[str]:
    """Nodes that open incidents of `job` accuse of what a node is taken out for, on more than a suspicion."""
    return {
        node
        for case, node in memory.accused(job)
        if remedies.find(case.incident.kind, EvictNode) is not None
        and remedies.find(case.incident.kind, Validate) is None
    }


def cancel_reason(
    action: ActionRecord, case: IncidentState, memory: EngineState, rules: Rules, gate: CommandGate
) -> str | None:
    """Why the launcher should not hear of `action`, which was begun, any more; None if it should."""
    if (stopped_by := memory.stopped_by(action.job)) is not None:
        return f"all acting was stopped by {stopped_by}"
    if not case.wants_action and not action.plan.get("after_close"):
        return "the incident closed"
    word = memory.nodes.cleared(memory.accused_in(case.incident.id), case.first_said_s)
    if action.kind in NODES_OUT and word is not None:
        return cleared_text(word)
    if (mode := rules.mode_of(action.kind)) == "observe":
        return "the engine was told to observe only"
    return unapproved(action, memory.approved.get(action.id)) if mode == "confirm" and gate.asks else None
