"""The rules that one engine acts by: mode, limits, brakes and the table of remedies, checked together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, Literal, Self

import msgspec

from trainwarden.actions.brakes.brakes import Brakes
from trainwarden.actions.brakes.nodes import NodeLimits
from trainwarden.actions.brakes.windows import MaintenanceWindow
from trainwarden.actions.remedies import table
from trainwarden.actions.remedies.table import Remedies
from trainwarden.launching import Verb
from trainwarden.records import ActionKind
from trainwarden.settings import Config, EngineSettings, PositiveSeconds, parse

Mode = Literal["observe", "confirm", "auto"]
BOLDNESS: Final[tuple[Mode, ...]] = ("observe", "confirm", "auto")
Long = Annotated[float, msgspec.Meta(gt=0.0, le=30 * 86_400.0)]

# How long an operation may take; a drain waits for what runs on the node, which can be most of a day.
_DEADLINES_S: Final[Mapping[Verb, float]] = {
    "restart": 600.0,
    "rebalance": 60.0,
    "move": 3600.0,
    "stop": 600.0,
    "pause": 60.0,
    "resume": 60.0,
    "checkpoint": 3600.0,
    "cordon": 60.0,
    "uncordon": 60.0,
    "evict": 86_400.0,
    "replace": 86_400.0,
    "validate": 900.0,
}


class PolicyConfig(Config, frozen=True, kw_only=True):
    """Limits of the engine as a whole; those of single remedies stand in the table of remedies.

    An action fails if its launcher cannot be reached for `launcher_deadline_s`, or has accepted it and has not carried
    it out within `operation_deadline_s` of its kind; a new split of micro-batches also if not all ranks have adopted it
    `adoption_deadline_s` after the launcher put it. Nothing is begun about an incident not heard of for `stale_s`. A
    plan that waits for a person's word stands for `replan_s` at least before a better one is shown in its place.
    `nodes` says how many nodes may be taken out, `maintenance` when nothing is done by itself. `modes` are those of
    single kinds of action and of all `others`, where they are more careful than the engine's.
    """

    launcher_deadline_s: PositiveSeconds = 60.0
    operation_deadline_s: dict[Verb, Long] = msgspec.field(default_factory=dict)
    stale_s: PositiveSeconds = 3600.0
    replan_s: PositiveSeconds = 60.0
    adoption_deadline_s: PositiveSeconds = 300.0
    modes: dict[ActionKind | Literal["others"], Mode] = msgspec.field(default_factory=dict)
    nodes: NodeLimits = NodeLimits()
    maintenance: Annotated[tuple[MaintenanceWindow, ...], msgspec.Meta(max_length=100)] = ()

    def deadline_s(self, verb: Verb) -> float:
        """Seconds within which an operation of that kind must be done.

        Examples
        --------
        >>> PolicyConfig(operation_deadline_s={"evict": 7200.0}).deadline_s("evict")
        7200.0
        """
        return self.operation_deadline_s.get(verb, _DEADLINES_S[verb])


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is settled before the first incident."""

    mode: Mode
    config: PolicyConfig
    brakes: Brakes
    remedies: Remedies

    def mode_of(self, kind: ActionKind) -> Mode:
        """The mode for actions of `kind`: none is bolder than the engine's own.

        Examples
        --------
        >>> modes = {"evict_node": "confirm", "others": "observe", "restart_process": "auto"}
        >>> rules = Rules.of(EngineSettings(mode="auto", policy={"modes": modes}))
        >>> rules.mode_of("restart_process"), rules.mode_of("evict_node"), rules.mode_of("stop_job")
        ('auto', 'confirm', 'observe')
        >>> Rules.of(EngineSettings(mode="observe", policy={"modes": modes})).mode_of("restart_process")
        'observe'
        """
        modes = self.config.modes
        return min(self.mode, modes.get(kind, modes.get("others", self.mode)), key=BOLDNESS.index)

    @classmethod
    def of(cls, settings: EngineSettings) -> Self:
        """The rules that `settings` ask for; the file of remedies that they name included.

        Raises
        ------
        ConfigError
            With one clear sentence about the first mistake.
        """
        config = parse(PolicyConfig, settings.policy, "engine.policy")
        return cls(
            mode=settings.mode,
            config=config,
            brakes=Brakes(settings, config.nodes, config.maintenance),
            remedies=table.load(settings.remedies),
        )
