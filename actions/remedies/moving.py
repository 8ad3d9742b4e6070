"""Slow links and ranks to where they cost less: the nodes of a job numbered anew (Falcon, section 5.3, its S3)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from trainwarden.actions.planners.slow import Slowness
from trainwarden.actions.remedies.table import MoveTopology
from trainwarden.actions.remedies.view import Intent, PlanningContext
from trainwarden.errors import DataError
from trainwarden.launching import LauncherState

if TYPE_CHECKING:
    from trainwarden.actions.planners.move import Move

Places = tuple[tuple[str, tuple[int, ...]], ...]
SLOWER: Final = 1.1  # times the healthy step time, for so many steps: Falcon's verified change (section 4.2)
STEPS: Final = 10


def move(view: PlanningContext, rung: MoveTopology) -> Intent | None:
    """All ranks again, the nodes in the order that loses least, once so much of it was lost as the restart costs."""
    able = view.capabilities()
    intent = Intent(id=view.next_id("move"), kind="move_topology", why=view.case.incident.reason)
    if able is not None and (why_not := able.refusal("move")) is not None:
        return msgspec.structs.replace(intent, refused=why_not)
    if (answer := view.answered(intent)) is not None:
        return answer
    state = view.state()
    if able is None or state is None or state.phase != "running":
        return None
    if not _witnessed_twice(view):
        why = "told by one witness: no validation has confirmed it, and the steps do not take 1.1 times as long"
        return msgspec.structs.replace(intent, refused=why, held="unknown")
    try:
        found = _best(view, state)
    except ImportError:
        return msgspec.structs.replace(intent, refused="the plan needs numpy: pip install 'trainwarden[detect]'")
    if isinstance(found, str):
        said = f"where ranks should go is not known: {found}"
        return msgspec.structs.replace(intent, refused=said, held="unknown")
    return _worth(view, rung, intent, found)


def _worth(view: PlanningContext, rung: MoveTopology, intent: Intent, found: Move) -> Intent | None:
    """`intent` with the plan `found`, if that saves more than it costs."""
    lost_s = view.case.ladder.impact_s
    if found.node_order == found.today:
        why = f"no other order of the {len(found.today)} nodes is predicted to be faster"
        return msgspec.structs.replace(intent, refused=why, held="gain")
    if lost_s * found.removed < rung.overhead_s:
        saved = f"of {lost_s:.0f} s lost another order of the nodes would have saved {lost_s * found.removed:.0f} s"
        return msgspec.structs.replace(intent, refused=f"{saved}, and costs {rung.overhead_s:.0f} s", held="gain")
    plan = {
        "node_order": list(found.node_order),
        "before": list(found.today),
        "iteration_s": round(found.iteration_s, 6),
        "predicted_iteration_s": round(found.predicted_s, 6),
        "no_order_is_better": found.exact,
        "impact_s": round(lost_s, 3),
    }
    gain = f"an iteration should take {found.predicted_s:.3g} s and not {found.iteration_s:.3g} s"
    why = f"{view.case.incident.reason}; {lost_s:.0f} s lost, and with the nodes in another order {gain}"
    return view.cooled(msgspec.structs.replace(intent, why=why, plan=plan))


def _witnessed_twice(view: PlanningContext) -> bool:
    """Whether a validation has confirmed it, or the steps of the ranks tell of it beside what accuses somebody."""
    seen = view.case.slowness
    if any(action.plan.get("verdict") == "confirmed" for action in view.attempts("validate")):
        return True
    if seen.iteration_s is None or seen.healthy_iteration_s is None or seen.slow_iterations < STEPS:
        return False
    return seen.iteration_s >= SLOWER * seen.healthy_iteration_s


def _best(view: PlanningContext, state: LauncherState) -> Move | str:
    """The best order, or what is missing for it."""
    tried = view.attempts("validate")
    links = [pair for action in tried if action.outcome == "done" for pair in action.plan.get("links", ())]
    accused = frozenset(frozenset(map(str, pair)) for pair in links)
    places = tuple((one.node, one.ranks) for one in state.nodes if one.ranks)
    return _searched(msgspec.json.encode(view.case.slowness), places, accused)


@lru_cache(maxsize=16)  # a plan is looked at with each tick while a person or a brake is waited for
def _searched(slowness: bytes, places: Places, accused: frozenset[frozenset[str]]) -> Move | str:
    from trainwarden.actions.planners.move import best_move  # the engine runs without numpy, too

    try:
        return best_move(msgspec.json.decode(slowness, type=Slowness), places, accused)
    except DataError as error:
        return str(error)
