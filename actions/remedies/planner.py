"""What to do next about one incident: which rung of its remedies has its turn, and the action it asks for.

Decides only; the engine acts.
"""

from __future__ import annotations

import msgspec

from actions.brakes.history import NODES_OUT, RESTARTS, carried_out, ended_s, restart_loop, took_effect
from actions.remedies.by_launcher import between_attempts, restarted_already
from actions.remedies.isolating import asks_again, evict, move, unproved, validate
from actions.remedies.rebalancing import rebalance, relief
from actions.remedies.slow_job import checkpoint, restart_running
from actions.remedies.table import (
    SEVERITY_OF,
    AnyRung,
    CheckpointJob,
    EvictNode,
    Ignore,
    MoveTopology,
    Rebalance,
    RestartJob,
    RestartProcess,
    StopJob,
    Validate,
)
from actions.remedies.view import COOL_DOWN, OVER, Intent, View
from trainwarden.records import ActionKind, ActionRecord


def next_intent(view: View) -> Intent | None:
    """The next action for `view`'s incident, with its severity; None if there is nothing to do now."""
    intent = _next(view)
    return None if intent is None else _graded(view, intent)


def _next(view: View) -> Intent | None:
    incident = view.case.incident
    if view.now_s - incident.updated_at_s > view.rules.config.stale_s and not view.held():
        return None
    if not view.case.open:
        return _withdrawn(view) or _relief(view)
    rung = _in_turn(view)
    return None if rung is None else _by(view, rung)


def _by(view: View, rung: AnyRung) -> Intent | None:
    """What `rung` would do now."""
    match rung:
        case RestartProcess():
            return _restart(view, rung)
        case StopJob():
            return _stop(view, rung)
        case Rebalance():
            return rebalance(view, rung)
        case CheckpointJob():
            return checkpoint(view)
        case RestartJob():
            return restart_running(view)
        case EvictNode():
            return evict(view, rung, _restarts_in_vain(view, rung))
        case MoveTopology():
            return move(view)
        case Validate():
            return validate(view, rung)
        case Ignore():
            nothing = f"nothing here helps against {view.case.incident.kind}; a person must look"
            return view.for_a_person("ignore", nothing)


def _graded(view: View, intent: Intent) -> Intent:
    """`intent` with the severity that it is for, which a milder action of the incident that is over has raised.

    Beside it stand whom it blames, and what is to be said of a node that is blamed again and again.
    """
    severity, node = SEVERITY_OF[intent.kind], intent.blames or view.accused()
    advice = view.memory.nodes.advice(node, view.now_s)
    plan = intent.plan if advice is None else {**intent.plan, "advice": advice}
    intent = msgspec.structs.replace(intent, blames=node, plan=plan)
    tried = (a for a in view.actions if a.outcome in ("done", "failed") and a.kind != "validate")  # that cures nothing
    milder = [a for a in tried if SEVERITY_OF[a.kind] > severity]
    if intent.after is not None or not milder:
        return msgspec.structs.replace(intent, severity=severity)
    last = max(milder, key=ended_s)
    said = "failed" if last.outcome == "failed" else "did not help"
    why = f"{intent.why}; raised from {SEVERITY_OF[last.kind]} to {severity} as {last.id} {said}"
    return msgspec.structs.replace(intent, why=why, severity=severity, after=last.id)


# --- which rung ------------------------------------------------------------------------------------------------------


def _in_turn(view: View) -> AnyRung | None:
    """The highest rung that is due; splits, restarts and stops, once tried, go on until a higher one is.

    A rung is due when what the incident has cost reaches its overhead and all before it were tried; a remedy that a
    brake held back counts as tried for those above it, and stays due itself.
    """
    tried = {a.kind for a in view.actions if carried_out(a) or _passed_over(a) or _only_shown(view, a)}
    held = {a.kind for a in view.actions if a.outcome == "skipped" and a.plan.get("held")}
    rungs = view.rules.remedies.rungs(view.case.incident.kind)
    if asks_again(view):
        tried.discard("validate")
    if doubted := unproved(view):
        tried, held = tried | doubted, held - doubted
    strategy = view.case.ladder.due(tried)
    due = None if strategy is None else strategy.kind
    for place in reversed(range(len(rungs))):
        rung = rungs[place]
        if isinstance(rung, StopJob) and rung.after_restarts is not None:
            its_turn = bool(_restarts_in_vain(view, rung))
        elif isinstance(rung, EvictNode) and rung.after_restarts is not None:
            its_turn = rung.action not in tried and not _awaited(view, rung) and bool(_restarts_in_vain(view, rung))
        elif isinstance(rung, Rebalance | RestartProcess | StopJob) and rung.action in tried:
            its_turn = True
        else:
            its_turn = rung.action in {due, *held} and _outlasted(view, rungs[:place])
        if its_turn:
            return rung
    return None


def _passed_over(action: ActionRecord) -> bool:
    """Whether `action` cannot be done, or not for as long as a brake is on; a cool-down is waited for.

    A restart before the checkpoint that a brake holds would lose the steps that it is there to save.
    """
    held = action.plan.get("held")
    return action.outcome == "skipped" and held != COOL_DOWN and not (held and action.kind == "checkpoint_job")


def _only_shown(view: View, action: ActionRecord) -> bool:
    """Whether `action` is of a kind that is never carried out, while others are; so those after it have their turn."""
    observed = view.rules.mode_of(action.kind) == "observe" != view.rules.mode
    return observed and action.outcome == "proposed"


def _outlasted(view: View, rungs: tuple[AnyRung, ...]) -> bool:
    """Whether the incident has outlasted what was carried out of `rungs`, or would have been."""
    patience_s: dict[ActionKind, float] = {rung.action: rung.patience_s for rung in rungs}
    return all(
        view.now_s - ended_s(action) >= patience_s.get(action.kind, 0.0)
        for action in view.actions
        if carried_out(action) or _only_shown(view, action)
    )


# --- a job that has stopped ------------------------------------------------------------------------------------------


def _restart(view: View, rung: RestartProcess) -> Intent | None:
    """Restart in place, and again if that did not last."""
    incident = view.case.incident
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
    # A job that is down waits for nothing; one that stands still, for whatever else was tried since.
    due = view.failed() or _outlasted(view, view.rules.remedies.rungs(incident.kind))
    return view.cooled(intent) if due and down else None


def _down(view: View, persist_s: float) -> bool:
    """Whether the job needs a restart now.

    The launcher knows of dead ranks better than any incident: several incidents of one crash see one failure, and
    a restart ends it for all. Of a hang it knows nothing, so there a restart or an eviction later than the incident
    counts.
    """
    state = view.state()
    if state is None or view.case.incident.kind != "hang" or state.phase != "running":
        return view.failed()
    of_job = view.memory.of_job(view.case.incident.job)
    restarts = [a for a in of_job if a.kind in RESTARTS | NODES_OUT and took_effect(a)]  # ranks start again elsewhere
    later_s = [ended_s(action) for action in restarts if _after_opening(view, action)]
    if (by_launcher_s := view.restarted_s()) is not None:
        later_s.append(by_launcher_s)
    return view.now_s - max(later_s, default=float("-inf")) > persist_s


def _after_opening(view: View, action: ActionRecord) -> bool:
    """Whether `action` was carried out after the incident had opened.

    Detection's clock may be another than ours, so that is told by whose remedy it was, and clocks are asked last.
    """
    incident, whose = view.case.incident, view.memory.cases.get(action.cause)
    if action.incident == incident.id:
        return True
    if whose is not None and (closed_s := whose.incident.closed_at_s) is not None and closed_s < incident.opened_at_s:
        return False
    return ended_s(action) >= incident.opened_at_s


def _restarts_in_vain(view: View, rung: StopJob | EvictNode) -> list[ActionRecord]:
    """Restarts that have not helped a job that is down again; none if they are too few to say so.

    For an eviction only those count that were for incidents which blame the same node.
    """
    state = view.state() if view.rules.mode_of("restart_process") != "observe" else None
    if state is None or state.phase in OVER or not _down(view, _persist_s(view)) or rung.after_restarts is None:
        return []
    of_job = view.memory.of_job(view.case.incident.job)
    if isinstance(rung, EvictNode):
        node = view.accused()
        if node is None or _another(view, node):
            return []
        of_job = [action for action in of_job if _counts_against(view, action, node)]
    return restart_loop(view.now_s, of_job, rung.after_restarts, rung.within_s)


def _counts_against(view: View, action: ActionRecord, node: str) -> bool:
    """Whether `action` was for an incident that blames `node`, and no person has said since that it is well."""
    said_s = case.first_said_s if (case := view.memory.cases.get(action.cause)) else None  # its end may be told late
    return view.memory.accused_in(action.cause) == node and view.memory.nodes.cleared(node, said_s) is None


def _another(view: View, node: str) -> bool:
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
        if later and remedies.find(kind, RestartProcess) is not None:
            return True
    return False


def _awaited(view: View, rung: EvictNode) -> bool:
    """Whether a person has yet to approve it; until then a job that is down is better restarted again."""
    shown = (a for a in view.actions if a.kind == rung.action and a.outcome == "proposed")
    return any(action.id not in view.memory.approved for action in shown)


def _persist_s(view: View) -> float:
    restart = view.rules.remedies.find(view.case.incident.kind, RestartProcess) or RestartProcess()
    return restart.persist_s


def _stop(view: View, rung: StopJob) -> Intent | None:
    """The end of a job that restarts do not help, or whose own code is wrong."""
    incident = view.case.incident
    if restarts := _restarts_in_vain(view, rung):
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


# --- an incident that has closed -------------------------------------------------------------------------------------


def _withdrawn(view: View) -> Intent | None:
    """A proposal that nobody answered before its incident closed."""
    for action in view.actions:
        waits = action.outcome == "proposed" and view.rules.mode_of(action.kind) == "confirm"
        if waits and not action.plan.get("after_close"):
            return Intent(
                id=action.id,
                kind=action.kind,
                why=action.why,
                plan=action.plan,
                refused="the incident closed first",
            )
    return None


def _relief(view: View) -> Intent | None:
    rung = view.rules.remedies.find(view.case.incident.kind, Rebalance)
    return None if rung is None else relief(view, rung)
