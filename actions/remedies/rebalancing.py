"""A slow rank: the split of micro-batches that loses least, its tuning, and the way back (Falcon, section 5.3)."""

from __future__ import annotations

import msgspec

from trainwarden.actions.brakes.history import carried_out
from trainwarden.actions.planners import slow
from trainwarden.actions.remedies.table import Rebalance
from trainwarden.actions.remedies.view import Intent, PlanningContext
from trainwarden.errors import DataError
from trainwarden.records import ActionRecord


def rebalance(view: PlanningContext, rung: Rebalance) -> Intent | None:
    """The best split for what is measured; once one is in force, a better one only if measurements under it say so."""
    incident = view.case.incident
    before = [action for action in view.attempts("rebalance") if carried_out(action)]
    if len(before) >= rung.at_most or (before and not _measured_since(view, rung, before[-1])):
        return None
    intent = Intent(id=view.next_id("rebalance"), kind="rebalance", why=incident.reason)
    if (answer := view.answered(intent)) is not None:
        return answer
    slowness = view.case.slowness
    try:
        split = slow.best_split(slowness, () if slowness.micro_batches else _in_force(view))
    except DataError as error:
        return None if before else msgspec.structs.replace(intent, refused=str(error), held="unknown")
    gain = split.gain_ratio
    if gain < rung.least_gain_ratio:
        why = f"no split of {sum(split.before)} micro-batches gains {rung.least_gain_ratio:.0%}"
        return None if before else msgspec.structs.replace(intent, refused=why, held="gain")
    plan = {
        "micro_batches": list(split.micro_batches),
        "before": list(split.before),
        "micro_batch_s": [round(seconds, 6) for seconds in split.micro_batch_s],
        "compute_s": round(split.compute_s, 6),
        "predicted_compute_s": round(split.predicted_compute_s, 6),
        "impact_s": round(view.case.ladder.impact_s, 3),
        "slow_iterations": slowness.slow_iterations,
        "replicas": split.replicas,
    }
    why = f"{incident.reason}; the new split should take {gain:.0%} off the slowest rank's compute time"
    return view.cooled(msgspec.structs.replace(intent, why=why, plan=plan))


def relief(view: PlanningContext, rung: Rebalance) -> Intent | None:
    """The even split again, once the slow rank is as fast as the others; not merely because the split works."""
    done = [action for action in view.attempts("rebalance") if action.outcome == "done"]
    tried = view.attempts("relief")
    settled = any(a.outcome == "done" or (a.outcome == "skipped" and not a.plan.get("held")) for a in tried)
    settled = settled or sum(carried_out(action) for action in tried) >= rung.at_most
    if not done or settled or _others_open(view) or not _relieved(view, rung, done[-1]):
        return None
    before = [int(count) for count in done[-1].plan["micro_batches"]]
    why = "the slow rank has recovered: back to the even split"
    intent = Intent(id=view.next_id("relief"), kind="rebalance", why=why)
    try:
        split = slow.even_split(view.case.slowness, before)
    except DataError as error:
        return msgspec.structs.replace(intent, refused=str(error), held="unknown")
    plan = {"micro_batches": list(split), "before": before, "after_close": True}
    return view.cooled(msgspec.structs.replace(intent, plan=plan))


def _measured_since(view: PlanningContext, rung: Rebalance, action: ActionRecord) -> bool:
    """Whether the evidence at hand was told well after `action`, with its split in force.

    Detection's clock may be another than ours: which came later is told by the bus.
    """
    told_s, done_s = view.case.said_s, view.memory.said_s.get(action.id)
    if told_s is None or done_s is None or told_s <= done_s:
        return False
    seen = view.case.slowness.slow_iterations - int(action.plan.get("slow_iterations", 0))
    return view.rules.brakes.has_cooled_down(view.now_s, action) and seen >= rung.settle_iterations


def _in_force(view: PlanningContext) -> tuple[int, ...]:
    state = view.state()
    return () if state is None else state.micro_batches


def _relieved(view: PlanningContext, rung: Rebalance, action: ActionRecord) -> bool:
    """Whether every rank is as fast as the others again.

    Detection closes a slow rank's incident when its time per micro-batch is that of the others, so the closing is
    believed, unless it brings measurements that say otherwise.
    """
    slowness = view.case.slowness
    if not slowness.compute_s or not view.case.fresh:
        return True
    counts = () if slowness.micro_batches else tuple(int(count) for count in action.plan["micro_batches"])
    return slow.relieved(slowness, counts, rung.relief_ratio)


def _others_open(view: PlanningContext) -> bool:
    job, kind = view.case.incident.job, view.case.incident.kind
    return any(c.wants_action and c.incident.job == job and c.incident.kind == kind for c in view.memory.cases.values())
