"""What the records of actions say of what was done: which were carried out, when they ended, restarts in vain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trainwarden.records import ActionKind, ActionRecord, IncidentRecord

RESTARTS: Final[frozenset[ActionKind]] = frozenset({"restart_process", "restart_job"})
MOVES: Final[frozenset[ActionKind]] = frozenset({"move_topology"})
"""Actions that start all ranks again elsewhere."""
NODES_OUT: Final[frozenset[ActionKind]] = frozenset({"evict_node"})
"""Actions of engines that take nodes out of use."""
UNDONE: Final = "undone"
"""In the plan of a failed action: its launcher refused it, or was away for too long to tell what became of it."""
STALE: Final = "stale"
"""In the plan of a failed action: its launcher refused it, as the job had changed since; it may be planned anew."""
BY_LAUNCHER: Final = "by_launcher"
"""In the plan of a restart: its launcher had started all ranks again by itself before it heard of it."""
RETRIED: Final = "retried_s"
"""In the plan of an action that leaves what failed to be repeated in place: for how many seconds."""
BEFORE: Final = "saved_before"
"""In the plan of a checkpoint: the kind of action that it is taken for, which starts all ranks again."""
FAILURES: Final = "failures"
"""In the plan of such a restart: how many attempts a failed rank had ended by then, by the launcher's count."""

_MOST_DIGITS: Final = 9  # of a number: an id with more was not written by an engine


def begun(action: ActionRecord) -> bool:
    """Whether `action` was recorded as started, whatever came of it."""
    return action.outcome in ("started", "done", "failed")


def next_number(attempts: Iterable[ActionRecord]) -> int:
    """Number of the attempt after the newest of `attempts`, whose ids end with theirs.

    They are not counted: one that an engine began in memory alone is missing on the bus, and for the number of a later
    one the launcher would answer that it is done.

    Examples
    --------
    >>> second = ActionRecord(id="i1/restart/2", incident="i1", job="j", kind="restart_process", outcome="done",
    ...     at_s=0.0, why="crash")
    >>> next_number([]), next_number([second])
    (1, 3)
    """
    numbers = [action.id.rpartition("/")[2] for action in attempts]
    return 1 + max((int(one) for one in numbers if one.isdecimal() and len(one) <= _MOST_DIGITS), default=0)


def carried_out(action: ActionRecord) -> bool:
    """Whether the launcher was called for `action`, with whatever result; a brake or a change may have been faster.

    Examples
    --------
    >>> action = ActionRecord(id="i1/evict/1", incident="i1", job="j", kind="evict_node", outcome="failed", at_s=0.0,
    ...     why="gpu_lost", plan={"nodes": ["n7"], "withdrawn": "nodes"})
    >>> begun(action), carried_out(action)
    (True, False)
    """
    return begun(action) and not action.plan.get("withdrawn") and not action.plan.get(STALE)


def cost_something(action: ActionRecord) -> bool:
    """Whether `action` was carried out, and not by its launcher unasked."""
    return carried_out(action) and not action.plan.get(BY_LAUNCHER)


def took_effect(action: ActionRecord) -> bool:
    """Whether the launcher is known to have begun with `action`, so that what came after says whether it helped.

    Examples
    --------
    >>> action = ActionRecord(id="i1/restart/1", incident="i1", job="j", kind="restart_process", outcome="failed",
    ...     at_s=0.0, why="crash; the launcher refused: it was planned at generation 1", plan={UNDONE: "true"})
    >>> carried_out(action), took_effect(action)
    (True, False)
    """
    return carried_out(action) and not action.plan.get(UNDONE)


def by_engines(actions: Iterable[ActionRecord]) -> list[ActionRecord]:
    """Those of `actions` that engines have decided on.

    What people have asked for uses up no budget, and has no effect on training that would have to show first.
    """
    return [action for action in actions if action.command is None]


def ended_s(action: ActionRecord) -> float:
    """When `action` ended; while it has not, when it began."""
    return action.finished_at_s or action.at_s


def counts_s(now_s: float, action: ActionRecord) -> float:
    """When `action` had its effect last: now, while it is under way, as a launcher may hear of it long after."""
    return max(now_s, action.at_s) if action.outcome == "started" else ended_s(action)


def restart_loop(now_s: float, actions: Iterable[ActionRecord], least: int, within_s: float) -> list[ActionRecord]:
    """Restarts among one job's `actions` since `within_s` ago, oldest first, if they are `least` or more; else none."""
    since_s = now_s - within_s
    recent = [a for a in actions if a.kind in RESTARTS and took_effect(a) and a.at_s > since_s]
    return sorted(recent, key=lambda action: action.at_s) if len(recent) >= least else []


def failures_in_vain(now_s: float, actions: Iterable[ActionRecord], least: int, within_s: float) -> list[ActionRecord]:
    """The same where the launcher restarts by itself: all but the newest, as the job is not known to be down again."""
    recent = [a for a in actions if a.kind in RESTARTS and (took_effect(a) or FAILURES in a.plan)]
    recent = sorted((a for a in recent if a.at_s > now_s - within_s), key=lambda action: action.at_s)
    return recent[:-1] if len(recent) > least else []


def one_of_each_failure(actions: Iterable[ActionRecord]) -> list[ActionRecord]:
    """`actions`, oldest first, without those that tell of a failure of which an earlier one has told.

    Examples
    --------
    >>> plans = [{BY_LAUNCHER: "true", FAILURES: number} for number in (1, 1, 2, 3)]
    >>> told = [ActionRecord(id=f"i{place}/restart/1", incident=f"i{place}", job="j", kind="restart_process",
    ...     outcome="skipped", at_s=float(place), why="crash", plan=plan) for place, plan in enumerate(plans)]
    >>> [action.id for action in failures_in_vain(9.0, one_of_each_failure(told), 2, 600.0)]
    ['i0/restart/1', 'i2/restart/1']
    """
    first: dict[object, ActionRecord] = {}
    for action in sorted(actions, key=lambda one: one.at_s):
        first.setdefault(action.plan.get(FAILURES, action.id), action)
    return list(first.values())


def restart_loop_incident(action: ActionRecord, restarts: int) -> IncidentRecord:
    """The sev1 incident that a person must look at once restarts have not helped."""
    return IncidentRecord(
        id=f"restart-loop/{action.incident}",
        job=action.job,
        kind="restart_loop",
        severity="sev1",
        state="opened",
        revision=0,
        opened_at_s=action.at_s,
        updated_at_s=action.at_s,
        reason=f"{restarts} restarts have not helped, so the job was stopped",
    )
