"""What planning sees of one incident at one moment, and what it answers: the next action, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from trainwarden.actions.brakes.history import RETRIED, begun, carried_out, ended_s, next_number
from trainwarden.actions.remedies.engine_state import EngineState, IncidentState
from trainwarden.actions.remedies.policy import Rules
from trainwarden.actions.remedies.table import Rung
from trainwarden.launching import Capabilities, LauncherState
from trainwarden.records import ActionKind, ActionRecord, IncidentRecord, Severity

OVER = frozenset({"ended", "stopping"})
COOL_DOWN: Final = "cool_down"
SHORT_S: Final = 30.0  # a cool-down that is over so soon is not worth a word


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """The next action, or why there is none.

    The id follows from incident, rung and attempt, so every engine that knows the same plans the same. `refused`:
    it cannot be done, for this reason; with `held`, for now only, until `until_s` where that is known. `after` is the
    action whose failure raised the `severity`.
    """

    id: str
    kind: ActionKind
    why: str
    plan: dict[str, Any] = msgspec.field(default_factory=dict)
    refused: str | None = None
    held: str | None = None
    until_s: float | None = None
    severity: Severity | None = None
    after: str | None = None
    blames: str | None = None

    def of(self, incident: IncidentRecord, now_s: float) -> ActionRecord:
        """The action as it would be proposed now."""
        return ActionRecord(
            id=self.id,
            incident=incident.id,
            job=incident.job,
            kind=self.kind,
            outcome="proposed",
            at_s=now_s,
            why=self.why,
            plan=self.plan,
            severity=self.severity,
            after=self.after,
            blames=self.blames,
        )


class PlanningContext(msgspec.Struct, frozen=True, kw_only=True):
    """One incident at one moment, under `rules`.

    `state` and `capabilities` ask the launcher (None: it does not tell), `away` for how long it has not told, and why,
    `down_s` for how long it has told that the job is down.
    """

    now_s: float
    case: IncidentState
    memory: EngineState
    rules: Rules
    state: Callable[[], LauncherState | None]
    capabilities: Callable[[], Capabilities | None]
    away: Callable[[], tuple[float, str]]
    down_s: Callable[[], float]

    @property
    def actions(self) -> list[ActionRecord]:
        """Actions of this incident, oldest first."""
        return self.memory.of_cause(self.case.incident.id)

    def attempts(self, rung: str) -> list[ActionRecord]:
        """Actions of this incident's `rung`, oldest first."""
        prefix = f"{self.case.incident.id}/{rung}/"
        return [action for action in self.actions if action.id.startswith(prefix)]

    def held(self) -> bool:
        """Whether something waits for a brake to go off, however long that takes."""
        return any(action.outcome == "skipped" and action.plan.get("held") for action in self.actions)

    def next_id(self, rung: str, counts: Callable[[ActionRecord], bool] = begun) -> str:
        """Id of the attempt of `rung` after the newest that `counts`: that was begun."""
        attempts = [action for action in self.attempts(rung) if counts(action)]
        return f"{self.case.incident.id}/{rung}/{next_number(attempts)}"

    def cooled(self, intent: Intent) -> Intent | None:
        """`intent`, or that it waits for an earlier action of the job to show its effect; None: for a moment only."""
        of_job = self.memory.of_job(self.case.incident.job)
        until_s = self.rules.brakes.cooling_until_s(intent.kind, of_job)
        if until_s <= self.now_s:
            return intent
        if until_s - self.now_s < SHORT_S:
            return None
        why = "an earlier action of the job is to show its effect first"
        return msgspec.structs.replace(intent, refused=why, held=COOL_DOWN, until_s=until_s)

    def failed(self) -> bool:
        """Whether the launcher says that the job is down and waits for help."""
        state = self.state()
        return state is not None and state.phase == "failed"

    def asks_for_restart(self) -> bool:
        """Whether some incident of the job asks for a restart: its ranks are gone, or stand still for ever."""
        job, remedies = self.case.incident.job, self.rules.remedies
        of_job = (one.incident for one in self.memory.cases.values() if one.wants_action and one.incident.job == job)
        return any(remedies.restart_of(incident) is not None for incident in of_job)

    def restarted_s(self) -> float | None:
        """When the ranks that run were started, by our clock, if that was after what the incident tells of.

        Which attempt an incident tells of is known by number; where it is not, clocks are asked.
        """
        state, incident = self.state(), self.case.incident
        if state is None or state.attempt_age_s is None:
            return None
        began_s = self.now_s - state.attempt_age_s
        if incident.attempt is not None:
            return began_s if state.attempt > incident.attempt else None
        seen_s = incident.opened_at_s if incident.onset_s is None else incident.onset_s
        return began_s if began_s >= seen_s else None

    def accused(self) -> str | None:
        """The node of the first suspect that has one."""
        return self.memory.accused_in(self.case.incident.id)

    def answered(self, intent: Intent) -> Intent | None:
        """The refusal of `intent` if the launcher is away for too long or the job is over; never in observe mode."""
        if self.rules.mode_of(intent.kind) == "observe":
            return None
        state = self.state()
        if state is None:
            away_s, why = self.away()
            if away_s < self.rules.config.launcher_deadline_s:
                return None
            return msgspec.structs.replace(intent, refused=why, held="launcher")
        if state.phase in OVER:
            return msgspec.structs.replace(intent, refused="the job is over", held="over")
        return None

    def only_shown(self, action: ActionRecord) -> bool:
        """Whether `action` is of a kind that is never carried out, while others are: those after it have their turn."""
        observed = self.rules.mode_of(action.kind) == "observe" != self.rules.mode
        return observed and action.outcome == "proposed"

    def outlasted(self, rungs: Sequence[Rung]) -> bool:
        """Whether the incident has outlasted what was carried out of `rungs`, or would have been.

        What is repeated in place is repeated by the job: that has failed once its ranks are down, or run anew.
        """
        patience_s = {rung.action: rung.patience_s for rung in rungs}
        return all(
            self.now_s - ended_s(action) >= patience_s.get(action.kind, 0.0)
            for action in self.actions
            if carried_out(action) or self.only_shown(action) or (RETRIED in action.plan and self._goes_on())
        )

    def _goes_on(self) -> bool:
        """Whether the ranks that the incident is of still run; so taken where the launcher does not answer."""
        state = self.state()
        return state is None or (state.phase == "running" and self.restarted_s() is None)

    def for_a_person(self, kind: ActionKind, why: str) -> Intent:
        """`kind` would help or nothing does; a person is told `why` we do not do it, once of each kind."""
        told = self.attempts("person")
        first = f"{self.case.incident.id}/person/{1 + len(told)}"
        name = next((action.id for action in told if action.kind == kind), first)
        return Intent(id=name, kind=kind, why=self.case.incident.reason, refused=why)
