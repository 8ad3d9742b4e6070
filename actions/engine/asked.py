"""All that brakes look at before an action is carried out."""

from __future__ import annotations

from actions.brakes.hold import Asked
from actions.engine.memory import Case, Memory
from actions.engine.remedies import EvictNode, Remedies
from trainwarden.launching import LauncherState
from trainwarden.records import ActionRecord


def asked_of(
    action: ActionRecord, case: Case, memory: Memory, remedies: Remedies, state: LauncherState | None
) -> Asked:
    """`action` of the incident of `case`, with what is known while its job is in `state`."""
    job = action.job
    return Asked(
        action=action,
        actions=memory.actions.values(),
        stopped_by=memory.stopped_by(job),
        silence=memory.silences.over(case.incident, action.at_s),
        latch=memory.latches.over(job),
        nodes=() if state is None else state.nodes,
        suspected=frozenset(_accused(memory, remedies, job)),
    )


def _accused(memory: Memory, remedies: Remedies, job: str) -> set[str]:
    """Nodes that open incidents of `job` accuse of what a node is taken out for."""
    accusing = (
        case.incident
        for case in memory.cases.values()
        if case.open and case.incident.job == job and remedies.find(case.incident.kind, EvictNode) is not None
    )
    firsts = (next((s.node for s in incident.suspects if s.node is not None), None) for incident in accusing)
    return {node for node in firsts if node is not None}
