"""What may be done about which kind of incident, how often, and who is asked first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec

from actions.planners.ladder import Ladder, Strategy
from trainwarden.records import ActionKind, ActionRecord, IncidentKind
from trainwarden.settings import Config, EngineSettings, PositiveSeconds

HOUR_S = 3600.0
RESTARTS: Final[frozenset[ActionKind]] = frozenset({"restart_process", "restart_job"})

Remedy = Literal["restart", "ladder", "stop", "evict", "move", "person"]

# Unicron's table 1 by our kinds: SEV2 restarts, SEV1 needs a node taken away, SEV3 is tried again by the job itself.
_REMEDIES: Final[Mapping[IncidentKind, Remedy]] = {
    "crash": "restart",
    "exception": "restart",
    "hang": "restart",
    "collective_mismatch": "restart",
    "out_of_memory": "restart",
    "cuda_out_of_memory": "restart",
    "slow_compute": "ladder",
    "user_error": "stop",
    "node_lost": "evict",
    "gpu_lost": "evict",
    "gpu_memory_error": "evict",
    "nvlink_error": "evict",
    "pcie_error": "evict",
    "nic_down": "evict",
    "slow_link": "move",
    "congestion": "move",
}
_NO_ACTION: Final[frozenset[IncidentKind]] = frozenset({"restart_loop", "pipeline", "data_quality"})


class PolicyConfig(Config, frozen=True, kw_only=True):
    """Costs and limits.

    `rebalance_overhead_s` is what a new split costs (it is taken up between two iterations); `restart_overhead_s`
    what stopping a job that still trains costs: start-up, lost steps and the surprise. After `restarts_in_window`
    restarts of one job within `restart_window_s` the next failure stops the job. `persist_s` after a restart
    an incident that is still open counts as not cured. Nothing is done about an incident not heard of for `stale_s`.
    """

    rebalance_overhead_s: PositiveSeconds = 0.5
    restart_overhead_s: PositiveSeconds = 600.0
    least_gain_ratio: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.05
    rebalances_per_incident: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    settle_iterations: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    relief_ratio: Annotated[float, msgspec.Meta(ge=1.0, le=10.0)] = 1.1
    restarts_in_window: Annotated[int, msgspec.Meta(ge=1, le=100)] = 3
    restart_window_s: PositiveSeconds = 600.0
    persist_s: PositiveSeconds = 120.0
    launcher_deadline_s: PositiveSeconds = 60.0
    stale_s: PositiveSeconds = 3600.0


class Hold(msgspec.Struct, frozen=True):
    """A brake that is on: `name` for programs, `why` for people. Once it is off the action may go ahead."""

    name: str
    why: str


class Policy:
    """The engine's rules.

    Examples
    --------
    >>> policy = Policy(EngineSettings(mode="auto", actions_per_hour=0))
    >>> policy.remedy("hang"), policy.remedy("log_storm"), policy.remedy("pipeline")
    ('restart', 'person', None)
    >>> policy.hold(now_s=0.0, actions=[], stopped_by=None).name
    'budget'
    """

    def __init__(self, settings: EngineSettings, config: PolicyConfig | None = None) -> None:
        self.mode = settings.mode
        self.config = config or PolicyConfig()
        self._actions_per_hour = settings.actions_per_hour
        self._cool_down_s = settings.cool_down_s

    def remedy(self, kind: IncidentKind) -> Remedy | None:
        """What kind of remedy `kind` calls for; None if it is our own or only a consequence."""
        return None if kind in _NO_ACTION else _REMEDIES.get(kind, "person")

    def ladder(self) -> Ladder:
        """Remedies against a slow rank. Ignoring it is where every ladder starts, so it needs no rung."""
        config = self.config
        return Ladder(
            [Strategy("rebalance", config.rebalance_overhead_s), Strategy("restart_job", config.restart_overhead_s)]
        )

    def hold(self, now_s: float, actions: Iterable[ActionRecord], stopped_by: str | None) -> Hold | None:
        """The brake that forbids any action at `now_s`, if one is on.

        Parameters
        ----------
        actions : iterable of ActionRecord
            All actions known, of all jobs, each as it last was.
        stopped_by : str or None
            Who has stopped all acting.
        """
        if stopped_by is not None:
            return Hold("stop", f"all acting was stopped by {stopped_by}")
        recent = sum(1 for action in actions if carried_out(action) and action.at_s > now_s - HOUR_S)
        if recent >= self._actions_per_hour:
            return Hold("budget", f"{recent} actions within an hour, the budget is {self._actions_per_hour}")
        return None

    def cooling(self, now_s: float, kind: ActionKind, actions: Iterable[ActionRecord]) -> bool:
        """Whether `kind` must wait for an earlier action of the same job to show its effect.

        A restart waits for an earlier restart only: a crash while a new split settles in is a matter of its own.
        """
        since_s = now_s - self._cool_down_s
        return any(
            carried_out(action)
            and (kind not in RESTARTS or action.kind in RESTARTS)
            and (action.finished_at_s or action.at_s) > since_s
            for action in actions
        )

    def settled(self, now_s: float, action: ActionRecord) -> bool:
        """Whether `action` is old enough for measurements to be its effect."""
        return now_s - (action.finished_at_s or action.at_s) >= self._cool_down_s

    def restart_loop(self, now_s: float, actions: Iterable[ActionRecord]) -> int:
        """Restarts of one job's `actions` within the window if they are too many for another, else 0."""
        since_s = now_s - self.config.restart_window_s
        recent = sum(1 for a in actions if a.kind in RESTARTS and carried_out(a) and a.at_s > since_s)
        return recent if recent >= self.config.restarts_in_window else 0


def carried_out(action: ActionRecord) -> bool:
    """Whether the launcher was called for `action`, with whatever result."""
    return action.outcome in ("started", "done", "failed")
