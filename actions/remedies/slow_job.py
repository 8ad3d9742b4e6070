"""A job that trains, but slowly: what is left once cheaper remedies did not end it (Falcon, section 5.4)."""

from __future__ import annotations

import msgspec

from trainwarden.actions.brakes.history import begun
from trainwarden.actions.remedies.view import Intent, PlanningContext


def checkpoint(view: PlanningContext) -> Intent | None:
    """A checkpoint before the restart that has its turn next, if the launcher can; else its own words."""
    able, seen = view.capabilities(), view.case.ladder.impact_s
    why = f"{seen:.0f} s lost, so a restart is due, which then loses no step: {view.case.incident.reason}"
    intent = Intent(id=view.next_id("checkpoint"), kind="checkpoint_job", why=why)
    if (answer := view.answered(intent)) is not None:
        return answer
    if able is None:
        return None
    why_not = able.refusal("checkpoint")
    return view.cooled(intent) if why_not is None else msgspec.structs.replace(intent, refused=why_not)


def restart_running(view: PlanningContext) -> Intent | None:
    """A restart of a job that trains, but has lost more than that costs."""
    seen, told = view.case.ladder.impact_s, view.attempts("checkpoint")
    why = f"{seen:.0f} s lost and cheaper remedies did not end it: {view.case.incident.reason}"
    plan = {"ranks": "all", "impact_s": round(seen, 3)}
    if told and told[-1].outcome == "done":
        plan["checkpoint"] = told[-1].id
    elif told and begun(told[-1]):
        why += "; the checkpoint before it failed, so steps since the newest one are lost"
    intent = Intent(id=view.next_id("restart"), kind="restart_job", why=why, plan=plan)
    return view.answered(intent) or view.cooled(intent)
