"""What to do next about one incident, given all that is known. Decides only; the engine acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from actions.engine.memory import Case, Memory
from actions.engine.policy import RESTARTS, Policy, carried_out
from actions.planners import slow
from actions.planners.microbatches import even
from trainwarden.errors import DataError
from trainwarden.protocols import LauncherState
from trainwarden.records import ActionKind, ActionRecord

OVER = frozenset({"ended", "stopping"})


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """The next action, or why there is none.

    The id follows from incident, rung and attempt, so every engine that knows the same plans the same. `refused`:
    it cannot be done, for this reason; with `held`, for now only.
    """

    id: str
    kind: ActionKind
    why: str
    plan: dict[str, Any] = msgspec.field(default_factory=dict)
    refused: str | None = None
    held: str | None = None


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One incident at one moment. `state` asks the launcher (None: away), `away_s` for how long it has been away."""

    now_s: float
    case: Case
    memory: Memory
    state: Callable[[], LauncherState | None]
    away_s: Callable[[], float]

    def attempts(self, rung: str) -> list[ActionRecord]:
        """Actions of this incident's `rung`, oldest first."""
        prefix = f"{self.case.incident.id}/{rung}/"
        return [a for a in self.memory.of_incident(self.case.incident.id) if a.id.startswith(prefix)]

    def next_id(self, rung: str) -> str:
        """Id of the first attempt of `rung` that was not carried out yet."""
        attempt = 1 + sum(carried_out(action) for action in self.attempts(rung))
        return f"{self.case.incident.id}/{rung}/{attempt}"


class Planner:
    """The ladder of each kind of incident, under a policy."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def next(self, view: View) -> Intent | None:
        """The next action for `view`'s incident; None if there is nothing to do now."""
        incident = view.case.incident
        if view.now_s - incident.updated_at_s > self._policy.config.stale_s:
            return None
        if not view.case.open:
            return self._withdrawn(view) or self._relief(view)
        match self._policy.remedy(incident.kind):
            case "restart":
                return self._restart(view)
            case "stop":
                return self._stop(view)
            case "ladder":
                return self._slow(view)
            case "evict":
                return self._for_a_person(view, "evict_node", "this launcher cannot evict a node; a person must")
            case "move":
                return self._for_a_person(view, "move_topology", "this launcher cannot move ranks; a person must")
            case "person":
                return self._for_a_person(
                    view, "ignore", f"nothing here helps against {incident.kind}; a person must look"
                )
            case None:
                return None

    # --- a job that has stopped --------------------------------------------------------------------------------------

    def _restart(self, view: View) -> Intent | None:
        """Restart in place, again if that did not last, and stop the job when restarts do not help."""
        incident, config = view.case.incident, self._policy.config
        intent = Intent(
            id=view.next_id("restart"),
            kind="restart_process",
            why=f"{incident.kind}: {incident.reason}",
            plan={"ranks": "all", "suspects": [s.rank for s in incident.suspects if s.rank is not None]},
        )
        if self._policy.mode == "observe":
            return intent
        if (answer := self._answered(view, intent)) is not None:
            # A job that ended after its restart needs no second word about it.
            restarted = any(carried_out(action) for action in view.attempts("restart"))
            return None if restarted and answer.held == "over" else answer
        if not self._down(view):
            return None
        of_job = list(view.memory.of_job(incident.job))
        if restarts := self._policy.restart_loop(view.now_s, of_job):
            return Intent(
                id=view.next_id("stop"),
                kind="stop_job",
                why=f"{restarts} restarts within {config.restart_window_s:.0f} s have not helped: {incident.reason}",
                plan={"restart_loop": restarts},
            )
        return None if self._policy.cooling(view.now_s, intent.kind, of_job) else intent

    def _stop(self, view: View) -> Intent | None:
        """A mistake in the user's own code: it would fail again, so a job that is down is ended at once."""
        incident = view.case.incident
        intent = Intent(
            id=view.next_id("stop"), kind="stop_job", why=f"a restart would fail the same way: {incident.reason}"
        )
        if self._policy.mode == "observe":
            return intent
        if (answer := self._answered(view, intent)) is not None:
            return answer
        return intent if self._failed(view) else None

    def _answered(self, view: View, intent: Intent) -> Intent | None:
        """The refusal of `intent` if the launcher is away for too long or the job is over."""
        state = view.state()
        if state is None:
            if view.away_s() < self._policy.config.launcher_deadline_s:
                return None
            return msgspec.structs.replace(intent, refused="the launcher cannot be reached", held="launcher")
        if state.phase in OVER:
            return msgspec.structs.replace(intent, refused="the job is over", held="over")
        return None

    def _failed(self, view: View) -> bool:
        state = view.state()
        return state is not None and state.phase == "failed"

    def _down(self, view: View) -> bool:
        """Whether the job needs a restart now.

        The launcher knows of dead ranks better than any incident: several incidents of one crash see one failure, and
        a restart ends it for all. Of a hang it knows nothing, so there a restart later than the incident counts.
        """
        state = view.state()
        if state is None or view.case.incident.kind != "hang" or state.phase != "running":
            return self._failed(view)
        restarts = [a for a in view.memory.of_job(view.case.incident.job) if a.kind in RESTARTS and carried_out(a)]
        last_s = max((a.finished_at_s or a.at_s for a in restarts), default=float("-inf"))
        persists = view.now_s - last_s > self._policy.config.persist_s
        return last_s < view.case.incident.opened_at_s or persists

    # --- a slow rank -------------------------------------------------------------------------------------------------

    def _slow(self, view: View) -> Intent | None:
        """Falcon's ladder; once a split is in force it is only tuned when measurements say that it pays."""
        of_incident = view.memory.of_incident(view.case.incident.id)
        applied = {a.kind for a in of_incident if carried_out(a) or a.outcome == "skipped"}
        due = view.case.ladder.due(applied)
        if due is not None and due.kind == "restart_job":
            return self._restart_slow(view)
        return self._rebalance(view) if due is not None or "rebalance" in applied else None

    def _restart_slow(self, view: View) -> Intent | None:
        incident, seen = view.case.incident, view.case.ladder.impact_s
        intent = Intent(
            id=view.next_id("restart"),
            kind="restart_job",
            why=f"{seen:.0f} s lost and cheaper remedies did not end it: {incident.reason}",
            plan={"ranks": "all", "impact_s": round(seen, 3)},
        )
        if self._policy.mode != "observe" and (answer := self._answered(view, intent)) is not None:
            return answer
        return None if self._policy.cooling(view.now_s, intent.kind, view.memory.of_job(incident.job)) else intent

    def _rebalance(self, view: View) -> Intent | None:
        incident, config = view.case.incident, self._policy.config
        before = [action for action in view.attempts("rebalance") if carried_out(action)]
        if len(before) >= config.rebalances_per_incident or (before and not self._measured_since(view, before[-1])):
            return None
        if self._policy.cooling(view.now_s, "rebalance", view.memory.of_job(incident.job)):
            return None
        intent = Intent(id=view.next_id("rebalance"), kind="rebalance", why=incident.reason)
        if self._policy.mode != "observe" and (answer := self._answered(view, intent)) is not None:
            return answer
        slowness = view.case.slowness
        try:
            split = slow.best_split(slowness, () if slowness.micro_batches else self._in_force(view))
        except DataError as error:
            return None if before else msgspec.structs.replace(intent, refused=str(error), held="unknown")
        gain = split.gain_ratio
        if gain < config.least_gain_ratio:
            why = f"no split of {sum(split.before)} micro-batches gains {config.least_gain_ratio:.0%}"
            return None if before else msgspec.structs.replace(intent, refused=why, held="gain")
        plan = {
            "micro_batches": list(split.micro_batches),
            "before": list(split.before),
            "micro_batch_s": [round(seconds, 6) for seconds in split.micro_batch_s],
            "compute_s": round(split.compute_s, 6),
            "predicted_compute_s": round(split.predicted_compute_s, 6),
            "impact_s": round(view.case.ladder.impact_s, 3),
            "slow_iterations": slowness.slow_iterations,
        }
        why = f"{incident.reason}; the new split should take {gain:.0%} off the slowest rank's compute time"
        return msgspec.structs.replace(intent, why=why, plan=plan)

    def _measured_since(self, view: View, action: ActionRecord) -> bool:
        """Whether the evidence at hand was measured well after `action`, with its split in force."""
        heard_s = view.case.incident.updated_at_s - (action.finished_at_s or action.at_s)
        seen = view.case.slowness.slow_iterations - int(action.plan.get("slow_iterations", 0))
        settled = self._policy.settled(view.now_s, action) and seen >= self._policy.config.settle_iterations
        return heard_s > 0.0 and settled

    def _in_force(self, view: View) -> tuple[int, ...]:
        state = view.state()
        return () if state is None else state.micro_batches

    # --- an incident that has closed ---------------------------------------------------------------------------------

    def _withdrawn(self, view: View) -> Intent | None:
        """A proposal that nobody answered before its incident closed."""
        if self._policy.mode != "confirm":
            return None
        for action in view.memory.of_incident(view.case.incident.id):
            if action.outcome == "proposed" and not action.plan.get("after_close"):
                return Intent(
                    id=action.id,
                    kind=action.kind,
                    why=action.why,
                    plan=action.plan,
                    refused="the incident closed first",
                )
        return None

    def _relief(self, view: View) -> Intent | None:
        """The even split again, once the slow rank is as fast as the others; not merely because the split works."""
        done = [action for action in view.attempts("rebalance") if action.outcome == "done"]
        settled = any(
            carried_out(a) or (a.outcome == "skipped" and not a.plan.get("held")) for a in view.attempts("relief")
        )
        if not done or settled or self._others_open(view) or not self._relieved(view, done[-1]):
            return None
        if self._policy.cooling(view.now_s, "rebalance", view.memory.of_job(view.case.incident.job)):
            return None
        before = [int(count) for count in done[-1].plan["micro_batches"]]
        split = even(len(before), sum(before))
        return Intent(
            id=f"{view.case.incident.id}/relief/1",
            kind="rebalance",
            why="the slow rank has recovered: back to the even split",
            plan={"micro_batches": list(split), "before": before, "after_close": True},
        )

    def _relieved(self, view: View, action: ActionRecord) -> bool:
        """Whether every rank is as fast as the others again.

        Detection closes a slow rank's incident when its time per micro-batch is that of the others, so the closing is
        believed, unless it brings measurements that say otherwise.
        """
        slowness = view.case.slowness
        if not slowness.compute_s or not view.case.fresh:
            return True
        counts = () if slowness.micro_batches else tuple(int(count) for count in action.plan["micro_batches"])
        return slow.relieved(slowness, counts, self._policy.config.relief_ratio)

    def _others_open(self, view: View) -> bool:
        job, kind = view.case.incident.job, view.case.incident.kind
        return any(c.open and c.incident.job == job and c.incident.kind == kind for c in view.memory.cases.values())

    def _for_a_person(self, view: View, kind: ActionKind, why: str) -> Intent:
        return Intent(id=view.next_id("person"), kind=kind, why=view.case.incident.reason, refused=why)
