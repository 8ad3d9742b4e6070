"""What holds actions back: a person's stop or silence, the budget of an hour, the cool-down; restarts in vain."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from trainwarden.commands.silences import silenced_text
from trainwarden.records import ActionKind, ActionRecord, CommandRecord, IncidentRecord
from trainwarden.settings import EngineSettings

HOUR_S = 3600.0
RESTARTS: Final[frozenset[ActionKind]] = frozenset({"restart_process", "restart_job"})


class Hold(msgspec.Struct, frozen=True):
    """A brake that is on: `name` for programs, `why` for people. Once it is off the action may go ahead."""

    name: str
    why: str


class Brakes:
    """The engine's brakes.

    Examples
    --------
    >>> brakes = Brakes(EngineSettings(mode="auto", actions_per_hour=0))
    >>> brakes.hold(now_s=0.0, actions=[], stopped_by=None).name
    'budget'
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._actions_per_hour = settings.actions_per_hour
        self._cool_down_s = settings.cool_down_s

    def hold(
        self,
        now_s: float,
        actions: Iterable[ActionRecord],
        stopped_by: str | None,
        silence: CommandRecord | None = None,
    ) -> Hold | None:
        """The brake that forbids any action at `now_s`, if one is on.

        Parameters
        ----------
        actions : iterable of ActionRecord
            All known of the job in question, each as it last was: a job that flaps uses up no other's budget.
        stopped_by : str or None
            Who has stopped all acting on the job.
        silence : CommandRecord or None
            A silence that lies over the incident. What was begun before goes on.
        """
        if stopped_by is not None:
            return Hold("stop", f"all acting was stopped by {stopped_by}")
        if silence is not None:
            return Hold("silence", silenced_text(silence))
        recent = sum(1 for action in actions if carried_out(action) and action.at_s > now_s - HOUR_S)
        if recent >= self._actions_per_hour:
            return Hold("budget", f"{recent} actions within an hour, the job's budget is {self._actions_per_hour}")
        return None

    def cooling(self, now_s: float, kind: ActionKind, actions: Iterable[ActionRecord]) -> bool:
        """Whether `kind` must wait for an earlier action of the same job to show its effect.

        A restart waits for an earlier restart only: a crash while a new split settles in is a matter of its own.
        """
        since_s = now_s - self._cool_down_s
        return any(
            carried_out(action) and (kind not in RESTARTS or action.kind in RESTARTS) and ended_s(action) > since_s
            for action in actions
        )

    def settled(self, now_s: float, action: ActionRecord) -> bool:
        """Whether `action` is old enough for measurements to be its effect."""
        return now_s - ended_s(action) >= self._cool_down_s


def restart_loop(now_s: float, actions: Iterable[ActionRecord], restarts: int, within_s: float) -> int:
    """Restarts among one job's `actions` since `within_s` ago if they are `restarts` or more, else 0."""
    since_s = now_s - within_s
    recent = sum(1 for a in actions if a.kind in RESTARTS and carried_out(a) and a.at_s > since_s)
    return recent if recent >= restarts else 0


def carried_out(action: ActionRecord) -> bool:
    """Whether the launcher was called for `action`, with whatever result."""
    return action.outcome in ("started", "done", "failed")


def ended_s(action: ActionRecord) -> float:
    """When `action` ended; while it has not, when it began."""
    return action.finished_at_s or action.at_s


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
