"""What to do next about one incident: which rung of its remedies has its turn, and the action it asks for.

Decides only; the engine acts.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trainwarden.actions.brakes.history import BEFORE, RETRIED, carried_out, ended_s
from trainwarden.actions.remedies.isolating import RESTART, asks_again, evict, restarted_to_validate, unproved, validate
from trainwarden.actions.remedies.moving import move
from trainwarden.actions.remedies.rebalancing import rebalance, relief
from trainwarden.actions.remedies.slow_job import checkpoint, restart_running, saved_first
from trainwarden.actions.remedies.stopped_job import awaited, restart, restarts_in_vain, stop
from trainwarden.actions.remedies.table import (
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
from trainwarden.actions.remedies.view import COOL_DOWN, Intent, PlanningContext
from trainwarden.records import ActionRecord

RETRIES: Final = 2
RETRIES_S: Final = 12 * 3600.0
"""The third time that a link is back within twelve hours is a fault (gpud, InfiniBand ports that flap)."""


def next_intent(view: PlanningContext) -> Intent | None:
    """The next action for `view`'s incident, with its severity; None if there is nothing to do now."""
    intent = _next(view)
    return None if intent is None else _graded(view, saved_first(view, intent))


def _next(view: PlanningContext) -> Intent | None:
    incident = view.case.incident
    if view.now_s - incident.updated_at_s > view.rules.config.stale_s and not view.held():
        return None
    if not view.case.wants_action:
        return _withdrawn(view) or _relief(view)
    rung = _in_turn(view)
    return None if rung is None else _by(view, rung)


def _by(view: PlanningContext, rung: AnyRung) -> Intent | None:
    """What `rung` would do now."""
    match rung:
        case RestartProcess():
            return restart(view, rung)
        case StopJob():
            return stop(view, rung)
        case Rebalance():
            return rebalance(view, rung)
        case CheckpointJob():
            return checkpoint(view)
        case RestartJob():
            return restart_running(view)
        case EvictNode():
            return evict(view, rung, restarts_in_vain(view, rung))
        case MoveTopology():
            return move(view, rung)
        case Validate():
            return validate(view, rung)
        case Ignore():
            return _ignored(view, rung)


def _ignored(view: PlanningContext, rung: Ignore) -> Intent:
    """Escalate to the operator; a few times for each node, first leave what failed some time to pass by itself."""
    intent = view.for_a_person("ignore", f"nothing here helps against {view.case.incident.kind}; a person must look")
    if not rung.persist_s:
        return intent
    node, since_s = view.accused(), view.now_s - RETRIES_S
    of_job = [a for a in view.memory.of_job(view.case.incident.job) if RETRIED in a.plan and a.at_s > since_s]
    before = sum(action.blames == node and action.cause != view.case.incident.id for action in of_job)
    if before >= RETRIES:
        often = f"it was left to pass by itself {before} times within {RETRIES_S / 3600:.0f} hours"
        return msgspec.structs.replace(intent, refused=often)
    left = f"what failed is repeated in place: {rung.persist_s:.0f} s to pass by itself while the job runs"
    return msgspec.structs.replace(intent, refused=left, plan={**intent.plan, RETRIED: rung.persist_s})


def _graded(view: PlanningContext, intent: Intent) -> Intent:
    """`intent` with the severity that it is for, which a milder action of the incident that is over has raised.

    Beside it stand whom it blames, and what is to be said of a node that is blamed again and again.
    """
    severity, node = SEVERITY_OF[intent.kind], intent.blames or view.accused()
    advice = view.memory.nodes.advice(node, view.now_s)
    plan = intent.plan if advice is None else {**intent.plan, "advice": advice}
    intent = msgspec.structs.replace(intent, blames=node, plan=plan)
    ended = (a for a in view.actions if a.outcome in ("done", "failed") or RETRIED in a.plan)
    tried = (a for a in ended if a.kind != "validate" and BEFORE not in a.plan)  # these cure nothing
    milder = [a for a in tried if SEVERITY_OF[a.kind] > severity]
    if intent.after is not None or not milder:
        return msgspec.structs.replace(intent, severity=severity)
    last = max(milder, key=ended_s)
    said = "failed" if last.outcome == "failed" else "did not help"
    why = f"{intent.why}; raised from {SEVERITY_OF[last.kind]} to {severity} as {last.id} {said}"
    return msgspec.structs.replace(intent, why=why, severity=severity, after=last.id)


# --- which rung ------------------------------------------------------------------------------------------------------


def _in_turn(view: PlanningContext) -> AnyRung | None:
    """The highest rung that is due; splits, restarts and stops, once tried, go on until a higher one is.

    A rung is due when what the incident has cost reaches its overhead and all before it were tried; a remedy that a
    brake held back counts as tried for those above it, and stays due itself.
    """
    of_rungs = [action for action in view.actions if BEFORE not in action.plan]
    tried = {a.kind for a in of_rungs if carried_out(a) or _passed_over(a) or view.only_shown(a)}
    held = {a.kind for a in of_rungs if a.outcome == "skipped" and a.plan.get("held")}
    rungs = view.rules.remedies.rungs(view.case.incident.kind)
    if asks_again(view):
        tried.discard("validate")
    if restarted_to_validate(view):
        tried |= {"checkpoint_job", "restart_job"}
    if doubted := unproved(view):
        tried, held = tried | doubted, held - doubted
    strategy = view.case.ladder.due(tried)
    due = None if strategy is None else strategy.kind
    for place in reversed(range(len(rungs))):
        rung = rungs[place]
        if isinstance(rung, StopJob) and rung.after_restarts is not None:
            its_turn = bool(restarts_in_vain(view, rung))
        elif isinstance(rung, EvictNode) and rung.after_restarts is not None:
            its_turn = rung.action not in tried and not awaited(view, rung) and bool(restarts_in_vain(view, rung))
        elif isinstance(rung, Rebalance | RestartProcess | StopJob) and rung.action in tried:
            its_turn = True
        else:
            its_turn = rung.action in {due, *held} and view.outlasted(rungs[:place])
        if its_turn:
            return rung
    return None


def _passed_over(action: ActionRecord) -> bool:
    """Whether `action` cannot be done, or not for as long as a brake is on; a cool-down is waited for, and
    so is the time at which a restart pays, by whoever measures with one.

    A restart before the checkpoint that a brake holds would lose the steps that it is there to save.
    """
    held = action.plan.get("held")
    return (
        action.outcome == "skipped"
        and held not in (COOL_DOWN, RESTART)
        and not (held and action.kind == "checkpoint_job")
    )


# --- an incident that has closed -------------------------------------------------------------------------------------


def _withdrawn(view: PlanningContext) -> Intent | None:
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


def _relief(view: PlanningContext) -> Intent | None:
    rung = view.rules.remedies.find(view.case.incident.kind, Rebalance)
    return None if rung is None else relief(view, rung)
