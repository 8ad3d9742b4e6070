"""Actions recorded as started, on their way to an end: submitted once, then asked about until the launcher says so.

Nothing here waits. What the launcher may have heard of is first asked about and submitted again only if it never
accepted it; so a lost answer, a killed engine or a killed launcher repeats nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from trainwarden.actions.brakes.history import FAILURES, RESTARTS
from trainwarden.actions.engine.launcher_client import LauncherClient, Unreachable, verb_of
from trainwarden.actions.remedies.adoption import names
from trainwarden.actions.remedies.policy import PolicyConfig
from trainwarden.actions.validation.question import answer
from trainwarden.launching import Report
from trainwarden.records import ActionRecord, Outcome

RETRY_S = 1.0
PACE = 0.1  # share of an operation's age that passes before it is asked about again: a drain takes hours
LONGEST_PAUSE_S = 10.0


class ActionResult(msgspec.Struct, frozen=True):
    """What became of an action, and why. `found` goes with its plan.

    `unheard`: the launcher was never asked; `stale`: it refused, as the job had changed since. Nothing was done then.
    `undone`: it refused for whatever reason, or could not be reached for too long to know. `by_launcher`: it had done
    the same by itself.
    """

    outcome: Outcome
    why: str
    unheard: bool = False
    stale: bool = False
    undone: bool = False
    by_launcher: bool = False
    found: Mapping[str, Any] = {}


class _OperationState(msgspec.Struct):
    """What this engine knows of one action that is under way."""

    heard_s: float | None = None  # when the launcher last answered, or was first asked
    answered_s: float | None = None  # when the launcher last answered
    ask_at_s: float = float("-inf")
    told: bool = False  # the launcher may have heard of it
    inherited: bool = False  # started by an engine before this one
    job: str = ""
    put_s: float | None = None  # when the launcher had done its part of a rebalance


class OperationTracker:
    """Brings started actions to their ends.

    Parameters
    ----------
    config : PolicyConfig
        How long the launcher may be away, and an operation may take.
    missing : callable
        Ranks that have not adopted the split of a rebalance.
    """

    def __init__(
        self, calls: LauncherClient, config: PolicyConfig, missing: Callable[[ActionRecord], Sequence[int]]
    ) -> None:
        self._calls, self._config, self._missing = calls, config, missing
        self._trails: dict[str, _OperationState] = {}

    def inherit(self, actions: Iterable[str]) -> None:
        """Take over `actions`, which an engine before this one has started; what this one started it knows."""
        for name in actions:
            if name not in self._trails:
                self._trails[name] = _OperationState(told=True, inherited=True)

    def not_submitted(self, action: str) -> bool:
        """Whether this engine has not asked the launcher for `action` yet; one before it may have."""
        trail = self._trails.get(action)
        return trail is None or not trail.told or trail.inherited

    def answered_at(self, action: str, now_s: float) -> bool:
        """Whether the launcher said at `now_s` how `action` stands; if not, it is asked at the next tick."""
        trail = self._trails.get(action)
        if trail is None or trail.answered_s == now_s:
            return True
        trail.ask_at_s = float("-inf")
        return False

    def may_last(self, action: ActionRecord, now_s: float) -> bool:
        """Whether what another engine has started may still be going on."""
        verb = verb_of(action)
        return verb is not None and now_s - action.at_s < self._config.deadline_s(verb)

    def adopting(self, action: str) -> bool:
        """Whether the launcher has done its part of `action`, and the ranks have not yet done theirs."""
        trail = self._trails.get(action)
        return trail is not None and trail.put_s is not None

    def adopting_in(self, job: str) -> bool:
        """Whether the ranks of `job` are still to adopt a split."""
        return any(trail.put_s is not None and trail.job == job for trail in self._trails.values())

    def go_on(self, action: ActionRecord, now_s: float, *, by: str, cancel_reason: str | None) -> ActionResult | None:
        """One step further; the action's end once it has one.

        Parameters
        ----------
        by : str
            Who wants it.
        unwanted : str or None
            Why the launcher should not hear of it any more, if it has not yet.
        """
        trail = self._trails.setdefault(action.id, _OperationState())
        if trail.put_s is not None:
            return self._adopted(action, trail, trail.put_s, now_s)
        if now_s < trail.ask_at_s:
            return None
        asked = trail.told or cancel_reason is not None  # or by an engine that owns it meanwhile
        report = self._calls.poll(action) if asked else None
        if report is None or (isinstance(report, Report) and report.state == "unknown"):
            if cancel_reason is not None:
                ended = self._end(action, "failed", f"{cancel_reason} before the launcher heard of it")
                return msgspec.structs.replace(ended, unheard=True)
            trail.told, trail.inherited = True, False
            report = self._submit(action, now_s, by)
        if isinstance(report, Unreachable):
            return self._away(action, trail, now_s, report.why)
        trail.heard_s = trail.answered_s = now_s
        return self._judge(action, trail, report, now_s)

    def _submit(self, action: ActionRecord, now_s: float, by: str) -> Report | Unreachable:
        generation = action.generation
        if generation is None:  # recorded by an engine that knew of none
            state = self._calls.state(action.job, now_s)
            if state is None:
                return Unreachable("the launcher cannot be reached")
            generation = state.generation
        return self._calls.submit(action, generation, by)

    def _away(self, action: ActionRecord, trail: _OperationState, now_s: float, why: str) -> ActionResult | None:
        if trail.heard_s is None:
            trail.heard_s = now_s
        if now_s - trail.heard_s > self._config.launcher_deadline_s:
            return msgspec.structs.replace(self._end(action, "failed", why), undone=True)
        trail.ask_at_s = now_s + RETRY_S
        return None

    def _judge(self, action: ActionRecord, trail: _OperationState, report: Report, now_s: float) -> ActionResult | None:
        if report.state == "done":
            if action.kind == "rebalance":
                trail.put_s, trail.job = now_s, action.job
                return self._adopted(action, trail, now_s, now_s)
            if action.kind == "validate":
                found = answer(action.plan, report.findings)
                return msgspec.structs.replace(self._end(action, "done", found.said), found=found.plan)
            earlier = "the launcher had done it before the engine was restarted" if trail.inherited else report.text
            return self._end(action, "done", earlier)
        if report.state == "refused":
            return self._refused(action, report, now_s)
        if report.state == "failed":
            return self._end(action, "failed", f"the launcher could not: {report.text}")
        trail.inherited = False
        age_s = now_s - action.at_s
        verb = verb_of(action)
        if verb is not None and age_s > (deadline_s := self._config.deadline_s(verb)):
            said = f"; the launcher last said: {report.text}" if report.text else ""
            return self._end(action, "failed", f"it was not done within {deadline_s:.0f} s{said}")
        trail.ask_at_s = now_s + min(LONGEST_PAUSE_S, max(0.0, PACE * age_s))
        return None

    def _refused(self, action: ActionRecord, report: Report, now_s: float) -> ActionResult:
        """What a refusal means: where the job has changed since, it may be what was asked for that has changed it."""
        self._calls.forget_state(action.job)
        state = self._calls.state(action.job, now_s) if report.reason == "stale" else None
        age_s = None if state is None else state.attempt_age_s
        if state is not None and age_s is not None and action.kind in RESTARTS and now_s - age_s >= action.at_s:
            said = f"its launcher had started all ranks again already: attempt {state.attempt + 1}"
            done = self._end(action, "done", said)
            return msgspec.structs.replace(done, by_launcher=True, found={FAILURES: state.failures})
        # A launcher that says so without a change would be asked for ever.
        changed = state is None or state.generation != action.generation
        refused = self._end(action, "failed", f"the launcher refused: {report.text}")
        return msgspec.structs.replace(refused, stale=report.reason == "stale" and changed, undone=True)

    def _adopted(self, action: ActionRecord, trail: _OperationState, put_s: float, now_s: float) -> ActionResult | None:
        """A rebalance is done when every rank has said that it runs by the new split."""
        missing = self._missing(action)
        if not missing:
            earlier = "the launcher had done it before the engine was restarted" if trail.inherited else ""
            return self._end(action, "done", earlier)
        if now_s - put_s > (deadline_s := self._config.adoption_deadline_s):
            return self._end(action, "failed", f"{names(missing)} did not adopt it within {deadline_s:.0f} s")
        return None

    def _end(self, action: ActionRecord, outcome: Outcome, more: str) -> ActionResult:
        self._trails.pop(action.id, None)
        self._calls.forget_state(action.job)
        return ActionResult(outcome, f"{action.why}; {more}" if more else action.why)
