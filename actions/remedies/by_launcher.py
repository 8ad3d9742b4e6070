"""Who decides where the launcher starts ranks again by itself: what it has dealt with is recorded, and not asked for.

The launcher sees ends of ranks and nodes that are silent first hand, and sooner than any incident tells of them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from trainwarden.actions.brakes.history import BY_LAUNCHER, FAILURES, begun, carried_out
from trainwarden.actions.remedies.view import Intent, PlanningContext
from trainwarden.launching import LauncherState

SETTLED_S: Final = 5.0  # a failure is heard of at once, and which rank was the first within two seconds


def between_attempts(view: PlanningContext) -> bool:
    """Whether the launcher has just begun an attempt by itself, as far as anybody knows: its ranks do not tell yet."""
    able, state = view.capabilities(), view.state()
    if able is None or state is None or not able.restarts_itself:
        return False
    return state.phase == "running" and state.attempt_age_s is None


def restarted_already(view: PlanningContext, intent: Intent) -> Intent | None:
    """`intent`, a restart, refused where the launcher has seen to it by itself; None where it has not."""
    able, state = view.capabilities(), view.state()
    if able is None or state is None or not able.restarts_itself:
        return None
    if any(carried_out(action) for action in view.attempts("restart")):
        return None  # that is the restart which was seen
    if state.phase == "restarting" and view.case.incident.kind != "hang":
        return _told(view, intent, state, "its launcher starts all ranks again by itself")
    if state.phase != "running" or state.attempt_age_s is None:
        return None
    if not _is_counted(view, state) and view.restarted_s() is None:
        return None
    since = f"all ranks were started again {state.attempt_age_s:.0f} s ago: attempt {state.attempt + 1}"
    return _told(view, intent, state, f"its launcher has seen to it already, {since}")


def _is_counted(view: PlanningContext, state: LauncherState) -> bool:
    """Whether the incident is the first that is heard of the newest failure which the launcher has counted.

    So no clock has to tell whether ranks have ended before or after they were started again.
    """
    if not state.failures or view.case.incident.kind == "hang":
        return False
    of_job = view.memory.of_job(view.case.incident.job)
    told = (action for action in of_job if action.cause != view.case.incident.id)
    return all(action.plan.get(FAILURES) != state.failures for action in told)


def _told(view: PlanningContext, intent: Intent, state: LauncherState, said: str) -> Intent:
    """`intent`, refused as `said`: once for each failure of which the launcher knows."""
    attempts = view.attempts("restart")
    told = {action.plan[FAILURES]: action.id for action in attempts if FAILURES in action.plan}
    name = told.get(state.failures) or view.next_id("restart", lambda one: begun(one) or FAILURES in one.plan)
    plan = {**intent.plan, BY_LAUNCHER: "true", **({FAILURES: state.failures} if state.failures else {})}
    return msgspec.structs.replace(intent, id=name, refused=said, plan=plan)


def seen_to(view: PlanningContext) -> bool:
    """Whether the launcher has started all ranks again by itself for this incident, and whom it blames is settled.

    What is opened blames for the failure that it tells of; one that was open before may come to blame another.
    """
    told = [action.at_s for action in view.attempts("restart") if FAILURES in action.plan]
    return len(told) == 1 or (bool(told) and view.now_s - max(told) >= SETTLED_S)


def out_already(view: PlanningContext, node: str) -> str | None:
    """Why `node` need not be taken out, as the launcher goes on without it or has to decide alone; None if it need."""
    able, state = view.capabilities(), view.state()
    if able is None or state is None:
        return None
    found = next((one for one in state.nodes if one.node == node), None)
    tells_places = able.restarts_itself or any(one.ranks for one in state.nodes)
    if tells_places and found is not None and found.state == "cordoned" and not found.ranks:
        return f"{node} is set aside already"
    if not able.restarts_itself:
        return None
    if view.case.incident.kind != "node_lost":
        return None
    if found is None or found.state != "healthy":
        return f"its launcher has seen to it already: it goes on without {node}, or is about to"
    return f"its launcher hears of {node}, and decides alone about nodes that are silent"
