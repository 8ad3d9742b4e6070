"""What a person was shown and what a person approved: what runs is what was approved, or it is asked again."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from trainwarden.actions.engine.launcher_client import digest_of
from trainwarden.actions.remedies.engine_state import Approval
from trainwarden.records import ActionRecord

HELD: Final = frozenset({"held", "held_until_s"})  # what a plan says while a brake is on


def planned_at(action: ActionRecord, generation: int) -> ActionRecord:
    """`action` as planned from the job's `generation`, with the digest by which it is approved."""
    action = msgspec.structs.replace(action, generation=generation)
    return msgspec.structs.replace(action, plan_digest=digest_of(action))


def answer_of(
    shown: ActionRecord | None, action: ActionRecord, word: Approval | None, replan_s: float
) -> ActionRecord | Literal["wait"] | None:
    """What is to become of `action`, the plan of now: carried out as returned, waited for, or (None) shown anew.

    Parameters
    ----------
    shown : ActionRecord or None
        The plan of this action that a person was shown last.
    word : Approval or None
        What a person said of it.
    replan_s : float
        Seconds that a plan stands, so that there is time to approve it; a job that was acted on ends it at once.
    """
    if shown is None or shown.plan_digest is None or shown.generation != action.generation:
        return None
    if not _is_whole(shown):
        return None  # a record that lost its plan on the way, or was never ours
    if word is not None and word.plan_digest == shown.plan_digest:
        plan = {name: value for name, value in shown.plan.items() if name not in HELD}
        return msgspec.structs.replace(shown, at_s=action.at_s, plan=plan, by=word.by)
    if shown.outcome != "proposed":
        return None
    stands = shown.plan_digest == action.plan_digest or action.at_s - shown.at_s < replan_s
    return "wait" if stands else None


def unapproved(action: ActionRecord, word: Approval | None) -> str | None:
    """Why `action`, found on the bus as begun, is not as `word` approved it; None if it is.

    Where words have to be signed, writing down that an action has begun is no approval either.
    """
    if word is not None and word.plan_digest == action.plan_digest and _is_whole(action):
        return None
    return "nobody whose word counts has approved this plan"


def _is_whole(shown: ActionRecord) -> bool:
    """Whether its plan is the one that its digest stands for."""
    try:
        return digest_of(shown) == shown.plan_digest
    except (TypeError, ValueError):
        return False
