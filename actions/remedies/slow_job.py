"""A job that trains, but slowly: what is left once cheaper remedies did not end it (Falcon, section 5.4)."""

from __future__ import annotations

from typing import Final

import msgspec

from trainwarden.actions.brakes.history import BEFORE, MOVES, NODES_OUT, begun
from trainwarden.actions.remedies.isolating import RESTART
from trainwarden.actions.remedies.view import Intent, PlanningContext
from trainwarden.records import IncidentKind

TRAINS_ON: Final[frozenset[IncidentKind]] = frozenset({"slow_compute", "slow_link", "congestion", "metric_anomaly"})
"""Kinds in which every rank can still save, and no device is known to reckon wrongly."""


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


def saved_first(view: PlanningContext, intent: Intent) -> Intent:
    """`intent`, or once the checkpoint that comes before it, where it starts all ranks of a job that trains anew.

    One checkpoint an incident; `intent` follows whatever its outcome. Only in mode auto, as an operator who approves an
    eviction would have to approve twice.
    """
    starts = intent.kind in NODES_OUT | MOVES or RESTART in intent.plan
    if not starts or intent.refused or view.case.incident.kind not in TRAINS_ON:
        return intent
    if told := [one for one in view.attempts("save") if begun(one) or not one.plan.get("held")]:
        if told[-1].outcome == "done":
            return msgspec.structs.replace(intent, plan={**intent.plan, "checkpoint": told[-1].id})
        return intent
    state, able = view.state(), view.capabilities()
    unasked = {view.rules.mode_of(kind) for kind in ("checkpoint_job", intent.kind)} == {"auto"}
    trains = state is not None and state.phase == "running" and not view.asks_for_restart()
    if not unasked or not trains or able is None or able.refusal("checkpoint") is not None:
        return intent
    why = f"all ranks are to be started again, which then loses no step: {intent.why}"
    return Intent(id=view.next_id("save"), kind="checkpoint_job", why=why, plan={BEFORE: intent.kind})
