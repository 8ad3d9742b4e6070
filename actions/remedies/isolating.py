"""Suspects out of the job: measured first where the row asks for it, evicted, or a person's.

What a launcher cannot do is recorded in its own words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from trainwarden.actions.brakes.history import NODES_OUT, carried_out, ended_s, took_effect
from trainwarden.actions.brakes.nodes import targets
from trainwarden.actions.nodes.past import cleared_text
from trainwarden.actions.remedies.by_launcher import out_already
from trainwarden.actions.remedies.table import EvictNode, RestartJob, Validate
from trainwarden.actions.remedies.view import Intent, PlanningContext
from trainwarden.actions.validation.question import question
from trainwarden.launching import LauncherState
from trainwarden.records import ActionKind, ActionRecord

PAUSE: Final = "pause"
REST: Final = "rest"
RESTART: Final = "restart"
"""In the plan of a validation: it restarts the job; and why one is held until that pays."""
MOST_ATTEMPTS: Final = 3  # of one incident's question, where the launcher came to no answer


def evict(view: PlanningContext, rung: EvictNode, in_vain: Sequence[ActionRecord]) -> Intent | None:
    """The node at fault out of the job, if the launcher can; else its own words for a person.

    Parameters
    ----------
    in_vain : sequence of ActionRecord
        Restarts for that node which have not helped, where the rung asks for some.
    """
    incident, able = view.case.incident, view.capabilities()
    if able is not None and (why_not := able.refusal("evict")) is not None:
        return view.for_a_person("evict_node", why_not)
    proof, node = _confirmed(view) or (None, view.accused())
    if node is None:
        return view.for_a_person("evict_node", "no node is under suspicion; a person must look")
    if (word := view.memory.nodes.cleared(node, view.case.first_said_s)) is not None:
        return view.for_a_person("evict_node", cleared_text(word))
    if (other := _taken_out(view, node)) is not None:
        said = f"{node} is not taken out again: {other.id} has done so since that was seen"
        return None if other.outcome == "started" else view.for_a_person("evict_node", said)
    if (seen_to := out_already(view, node)) is not None:
        return view.for_a_person("evict_node", seen_to)
    why, after = f"{incident.kind}: {incident.reason}", None
    if proof is not None:
        why, after = f"{why}; {proof.id} has confirmed {node}", proof.id
    elif rung.after_restarts is not None and in_vain:
        why = f"{len(in_vain)} restarts for {node} within {rung.within_s:.0f} s have not helped: {incident.reason}"
        after = in_vain[-1].id
    intent = Intent(
        id=view.next_id("evict"), kind="evict_node", why=why, plan={"nodes": [node]}, after=after, blames=node
    )
    if (answer := view.answered(intent)) is not None:
        return answer
    return None if able is None else view.cooled(intent)


def _taken_out(view: PlanningContext, node: str) -> ActionRecord | None:
    """What another incident of the job has had `node` taken out by, or is about to; None where that is older news."""
    case, memory = view.case, view.memory
    for action in memory.of_job(case.incident.job):
        if action.kind in NODES_OUT and action.cause != case.incident.id and node in targets(action):
            said_s = memory.said_s.get(action.id)
            newer = said_s is None or case.first_said_s is None or said_s >= case.first_said_s
            if action.outcome == "started" or (action.outcome == "done" and newer):
                return action
    return None


def validate(view: PlanningContext, rung: Validate) -> Intent | None:
    """The suspects measured against their peers, once the job is down or can stand still; not every few minutes."""
    incident, able = view.case.incident, view.capabilities()
    asked = question(incident.kind, incident.suspects)
    why = f"{incident.kind}: {incident.reason}; to be measured before anybody is blamed"
    intent = Intent(id=view.next_id("validate"), kind="validate", why=why, plan=asked.plan)
    if able is not None and (why_not := able.refusal("validate")) is not None:
        return msgspec.structs.replace(intent, refused=f"{why_not}; a person may, with trainwarden validate")
    if not (asked.nodes or asked.of_all):
        return msgspec.structs.replace(intent, refused="no node is under suspicion; a person must look")
    if view.rules.mode_of(intent.kind) == "observe":
        return intent
    if (answer := view.answered(intent)) is not None:
        return answer
    state = view.state()
    if able is None or state is None:
        return None
    past = (a for a in view.memory.of_job(incident.job) if a.kind == "validate" and carried_out(a))
    rested_s = max((ended_s(action) + rung.rest_s for action in past), default=view.now_s)
    if rested_s > view.now_s:
        why = "the job was validated not long ago, and stands still meanwhile"
        return msgspec.structs.replace(intent, refused=why, held=REST, until_s=rested_s)
    if able.restarts_to_validate:
        return _with_restart(view, intent, state)
    if state.phase == "failed":  # what is left of the ranks is ended by it: not before detection has told why
        return view.cooled(intent) if view.asks_for_restart() or not state.ranks_running else None
    if state.phase == "running" and state.pausable:
        return None if view.asks_for_restart() else view.cooled(intent)
    why = "the job trains, and its ranks cannot be held between two steps: once it is down"
    return msgspec.structs.replace(intent, refused=why, held=PAUSE) if state.phase == "running" else None


def _with_restart(view: PlanningContext, intent: Intent, state: LauncherState) -> Intent | None:
    """The suspects measured by a launcher that restarts the job for it: once a restart pays, and instead of that."""
    rung = view.rules.remedies.find(view.case.incident.kind, RestartJob)
    if state.phase != "running" or rung is None:
        why = "the launcher restarts a job to measure it, and nothing here restarts one that trains"
        return msgspec.structs.replace(intent, refused=why, held=PAUSE) if state.phase == "running" else None
    intent = msgspec.structs.replace(intent, plan={**intent.plan, RESTART: True})
    if view.case.ladder.impact_s < rung.overhead_s:
        why = f"the launcher restarts the job to measure it, which pays once {rung.overhead_s:.0f} s are lost"
        return msgspec.structs.replace(intent, refused=why, held=RESTART)
    return None if view.asks_for_restart() else view.cooled(intent)


def restarted_to_validate(view: PlanningContext) -> bool:
    """Whether a validation of this incident has restarted the job, so that no restart is due besides."""
    return any(RESTART in action.plan and took_effect(action) for action in view.attempts("validate"))


def asks_again(view: PlanningContext) -> bool:
    """Whether the newest validation came to no answer, and it may be tried once more."""
    tried = view.attempts("validate")
    return 0 < len(tried) < MOST_ATTEMPTS and tried[-1].outcome == "failed"


def unproved(view: PlanningContext) -> set[ActionKind]:
    """Rungs that are not for suspects whom no validation has confirmed, where the row has one for that."""
    if view.rules.remedies.find(view.case.incident.kind, Validate) is None:
        return set()
    verdicts = {action.plan.get("verdict") for action in view.attempts("validate")}
    doubted: set[ActionKind] = set() if _confirmed(view) is not None else {"evict_node"}
    return doubted | {"move_topology"} if verdicts == {"cleared"} else doubted


def _confirmed(view: PlanningContext) -> tuple[ActionRecord, str] | None:
    """The validation of this incident that says of a node that it is at fault, and that node, still a suspect."""
    suspects = {suspect.node for suspect in view.case.incident.suspects}
    for action in reversed(view.attempts("validate")):
        if action.outcome == "done" and (named := [n for n in action.plan.get("confirmed", ()) if n in suspects]):
            return action, named[0]
    return None
