"""A job that is down or stands still: restarted in place, and what follows from restarts that have not helped."""

from __future__ import annotations

from trainwarden.actions.brakes.history import (
    BY_LAUNCHER,
    MOVES,
    NODES_OUT,
    RESTARTS,
    carried_out,
    ended_s,
    failures_in_vain,
    one_of_each_failure,
    restart_loop,
    took_effect,
)
from trainwarden.actions.remedies.by_launcher import SETTLED_S, between_attempts, restarted_already, seen_to
from trainwarden.actions.remedies.table import EvictNode, RestartProcess, StopJob, Validate
from trainwarden.actions.remedies.view import OVER, Intent, PlanningContext
from trainwarden.records import ActionRecord


def restart(view: PlanningContext, rung: RestartProcess) -> Intent | None:
    """Restart in place, and again if that did not last."""
    incident = view.case.incident
    if view.rules.remedies.restart_of(incident) is None:
        return None
    if incident.evidence.get("renewed") and not view.failed():
        return None  # the other ranks go on, and the launcher starts this one again
    intent = Intent(
        id=view.next_id("restart"),
        kind="restart_process",
        why=f"{incident.kind}: {incident.reason}",
        plan={"ranks": "all", "suspects": [s.rank for s in incident.suspects if s.rank is not None]},
    )
    if view.rules.mode_of(intent.kind) == "observe":
        return intent
    if (answer := view.answered(intent)) is not None:
        # A job that ended after its restart needs no second word about it.
        restarted = any(carried_out(action) for action in view.attempts("restart"))
        return None if restarted and answer.held == "over" else answer
    if between_attempts(view):
        return None
    down = _down(view, rung.persist_s)
    if not down and (done := restarted_already(view, intent)) is not None:
        return done
    if down and _blame_is_awaited(view):
        return None
    # A job that is down waits for nothing else; one that stands still, for whatever else was tried since.
    due = view.failed() or view.outlasted(view.rules.remedies.rungs(incident.kind))
    return view.cooled(intent) if due and down else None


def _down(view: PlanningContext, persist_s: float) -> bool:
    """Whether the job needs a restart now.

    The launcher knows of dead ranks better than any incident: several incidents of one crash see one failure, and
    a restart ends it for all. Of a hang it knows nothing, so there a restart or an eviction later than the incident
    counts.
    """
    state = view.state()
    if state is None or view.case.incident.kind != "hang" or state.phase != "running":
        return view.failed()
    later_s = [] if (began_s := view.restarted_s()) is None else [began_s]
    if view.case.incident.attempt is None or state.attempt_age_s is None:  # else attempts tell of all that was done
        of_job = view.memory.of_job(view.case.incident.job)
        restarts = [a for a in of_job if a.kind in RESTARTS | NODES_OUT | MOVES and took_effect(a)]
        later_s += [ended_s(action) for action in restarts if _after_opening(view, action)]
    return view.now_s - max(later_s, default=float("-inf")) > persist_s


def _after_opening(view: PlanningContext, action: ActionRecord) -> bool:
    """Whether `action` was carried out after what the incident tells of had begun.

    Detection's clock may be another than ours, so that is told by whose remedy it was, and clocks are asked last: the
    bus's, too, as one of the two may have told late.
    """
    incident, whose = view.case.incident, view.memory.cases.get(action.cause)
    if action.incident == incident.id:
        return True
    closed_s = None if whose is None or whose.wants_action else whose.incident.closed_at_s
    if closed_s is not None and closed_s < incident.opened_at_s:
        return False
    said_s, first_said_s = view.memory.said_s.get(action.id), view.case.first_said_s
    later = said_s is None or (first_said_s is not None and said_s >= first_said_s)
    return later or ended_s(action) >= (incident.opened_at_s if incident.onset_s is None else incident.onset_s)


def restarts_in_vain(view: PlanningContext, rung: StopJob | EvictNode) -> list[ActionRecord]:
    """Restarts that have not helped a job that is down again; none if they are too few to say so.

    For an eviction only those count that were for incidents which blame the same node, and this failure must be one.
    """
    evicts = isinstance(rung, EvictNode)
    return [] if evicts and not seen_to(view) and not _told_of_this_failure(view) else _in_vain(view, rung)


def _in_vain(view: PlanningContext, rung: StopJob | EvictNode) -> list[ActionRecord]:
    state = view.state() if view.rules.mode_of("restart_process") != "observe" else None
    if state is None or state.phase in OVER or rung.after_restarts is None:
        return []
    by_launcher = isinstance(rung, EvictNode) and seen_to(view)
    if not by_launcher and not _down(view, _persist_s(view)):
        return []
    of_job = one_of_each_failure(view.memory.of_job(view.case.incident.job))
    if isinstance(rung, EvictNode):
        node = view.accused()
        if node is None or _another(view, node):
            return []
        of_job = [action for action in of_job if _counts_against(view, action, node)]
    return (failures_in_vain if by_launcher else restart_loop)(view.now_s, of_job, rung.after_restarts, rung.within_s)


def _told_of_this_failure(view: PlanningContext) -> bool:
    """Whether the incident was heard of after the newest restart of its job, so that it blames for what came after it.

    One that is open still may blame for a failure before; which node has ended the job now is not known by it.
    """
    said_s, of_job = view.case.said_s, view.memory.of_job(view.case.incident.job)
    restarts = [view.memory.said_s.get(a.id) for a in of_job if a.kind in RESTARTS and a.outcome == "done"]
    return not view.failed() or said_s is None or all(at_s is None or at_s <= said_s for at_s in restarts)


def _blame_is_awaited(view: PlanningContext) -> bool:
    """Whether a node may have to go if it is to blame for this failure too, and that is about to be told."""
    rung, able = view.rules.remedies.find(view.case.incident.kind, EvictNode), view.capabilities()
    if rung is None or able is None or "evict" not in able.can or any(a.kind == rung.action for a in view.actions):
        return False
    return view.down_s() < SETTLED_S and not _told_of_this_failure(view) and bool(_in_vain(view, rung))


def _counts_against(view: PlanningContext, action: ActionRecord, node: str) -> bool:
    """Whether `action` was for an incident that blames `node`, and no person has said since that it is well."""
    said_s = case.first_said_s if (case := view.memory.cases.get(action.cause)) else None  # its end may be told late
    if action.plan.get(BY_LAUNCHER) and action.blames != node:
        return False  # one incident may be of several failures, and blame another with each
    if _repaired_since(view, action, node):
        return False
    return view.memory.accused_in(action.cause) == node and view.memory.nodes.cleared(node, said_s) is None


def _repaired_since(view: PlanningContext, action: ActionRecord, node: str) -> bool:
    """Whether a person has called another accused node well since `action`, which may have been in vain by that one."""
    memory, done_s = view.memory, view.memory.said_s.get(action.id)
    for name, case in memory.cases.items():
        other = memory.accused_in(name) if case.incident.job == action.job else None
        if other != node and memory.nodes.cleared(other, case.first_said_s) and memory.nodes.cleared(other, done_s):
            return True
    return False


def _another(view: PlanningContext, node: str) -> bool:
    """Whether the job may be down by another node: it has failed itself, or a later incident has the job down by it."""
    own, remedies = view.case, view.rules.remedies
    for case, other in view.memory.accused(own.incident.job):
        if other == node:
            continue
        kind = case.incident.kind
        out = remedies.find(kind, EvictNode)
        if out is not None and out.after_restarts is None and remedies.find(kind, Validate) is None:
            return True
        later = (case.first_said_s or 0.0) > (own.first_said_s or 0.0)
        if later and remedies.restart_of(case.incident) is not None:
            return True
    return False


def awaited(view: PlanningContext, rung: EvictNode) -> bool:
    """Whether a person has yet to approve it; until then a job that is down is better restarted again."""
    shown = (a for a in view.actions if a.kind == rung.action and a.outcome == "proposed")
    return any(action.id not in view.memory.approved for action in shown)


def _persist_s(view: PlanningContext) -> float:
    restart = view.rules.remedies.find(view.case.incident.kind, RestartProcess) or RestartProcess()
    return restart.persist_s


def stop(view: PlanningContext, rung: StopJob) -> Intent | None:
    """The end of a job that restarts do not help, or whose own code is wrong."""
    incident = view.case.incident
    if restarts := restarts_in_vain(view, rung):
        return Intent(
            id=view.next_id("stop"),
            kind="stop_job",
            why=f"{len(restarts)} restarts within {rung.within_s:.0f} s have not helped: {incident.reason}",
            plan={"restart_loop": len(restarts)},
            after=restarts[-1].id,
        )
    intent = Intent(
        id=view.next_id("stop"), kind="stop_job", why=f"a restart would fail the same way: {incident.reason}"
    )
    if view.rules.mode_of(intent.kind) == "observe":
        return intent
    if (answer := view.answered(intent)) is not None:
        return answer
    return intent if view.failed() else None
