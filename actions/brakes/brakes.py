"""The engine's brakes: a person's stop or silence, maintenance, nodes taken out, the hour's budget, the cool-down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trainwarden.actions.brakes.active_brake import ActiveBrake, BrakeInput
from trainwarden.actions.brakes.history import RESTARTS, by_engines, carried_out, cost_something, counts_s, ended_s
from trainwarden.actions.brakes.nodes import NodeLimits
from trainwarden.actions.brakes.windows import MaintenanceWindow, over
from trainwarden.commands.silences import silenced_text
from trainwarden.records import ActionKind, ActionRecord
from trainwarden.settings import EngineSettings

HOUR_S = 3600.0


class Brakes:
    """The engine's brakes.

    Parameters
    ----------
    nodes : NodeLimits
        How many nodes may be taken out.
    maintenance : sequence of Window
        When nothing is done by itself.

    Examples
    --------
    >>> brakes = Brakes(EngineSettings(mode="auto", actions_per_hour=0))
    >>> action = ActionRecord(id="a", incident="i", job="j", kind="restart_job", outcome="started", at_s=0.0, why="w")
    >>> brakes.hold(0.0, BrakeInput(action=action)).name
    'budget'
    """

    def __init__(
        self, settings: EngineSettings, nodes: NodeLimits | None = None, maintenance: Sequence[MaintenanceWindow] = ()
    ) -> None:
        self._actions_per_hour = settings.actions_per_hour
        self._cool_down_s = settings.cool_down_s
        self._maintenance = tuple(maintenance)
        self.nodes = nodes or NodeLimits()

    def hold(self, now_s: float, asked: BrakeInput) -> ActiveBrake | None:
        """The brake that forbids `asked` at `now_s`, if one is on. What was begun before goes on."""
        if asked.stopped_by is not None:
            said = f"all acting was stopped by {asked.stopped_by}; it may go ahead once a person resumes"
            return ActiveBrake("stop", said)
        if asked.silence is not None:
            return ActiveBrake("silence", silenced_text(asked.silence), asked.silence.until_s)
        return self._window(now_s, asked.action) or self.nodes.hold(now_s, asked) or self._budget(now_s, asked)

    def after_start(self, now_s: float, asked: BrakeInput) -> ActiveBrake | None:
        """The brake that forbids what is recorded as started, as long as its launcher has not heard of it.

        Other engines may have begun at the same moment, and an engine that was killed in between may be away for days.
        """
        return self._window(now_s, asked.action) or self.nodes.hold(now_s, asked)

    def _window(self, now_s: float, action: ActionRecord) -> ActiveBrake | None:
        """A maintenance window; what a person has approved is not done by itself."""
        found = over(self._maintenance, now_s) if action.by is None else None
        if found is None:
            return None
        window, until_s = found
        return ActiveBrake("maintenance", f"maintenance{f' ({window.why})' if window.why else ''}", until_s)

    def _budget(self, now_s: float, asked: BrakeInput) -> ActiveBrake | None:
        """The job's budget: a job that flaps uses up no other's."""
        of_job = (a for a in by_engines(asked.actions) if a.job == asked.action.job and cost_something(a))
        recent = sorted(s for s in (counts_s(now_s, action) for action in of_job) if s > now_s - HOUR_S)
        if len(recent) < self._actions_per_hour:
            return None
        said = f"{len(recent)} actions within an hour, the job's budget is {self._actions_per_hour}"
        freed = len(recent) - self._actions_per_hour  # the one whose hour has to be over
        return ActiveBrake("budget", said, recent[freed] + HOUR_S if freed < len(recent) else None)

    def cooling_until_s(self, kind: ActionKind, actions: Iterable[ActionRecord]) -> float:
        """When `kind` need no longer wait for an earlier action of the same job to show its effect.

        A restart waits for an earlier restart only: a crash while a new split settles in is a matter of its own.
        Nothing waits for a checkpoint, which has no effect.
        """
        restarts = kind in RESTARTS
        done = (action for action in by_engines(actions) if carried_out(action) and action.kind != "checkpoint_job")
        waited_for = (action for action in done if not restarts or action.kind in RESTARTS)
        return max((ended_s(action) + self._cool_down_s for action in waited_for), default=float("-inf"))

    def has_cooled_down(self, now_s: float, action: ActionRecord) -> bool:
        """Whether `action` is old enough for measurements to be its effect."""
        return now_s - ended_s(action) >= self._cool_down_s
