"""What may be done about which kind of incident, and in which order: a table, ``remedies.toml`` beside this file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec

from trainwarden.actions.planners.ladder import Ladder, Strategy
from trainwarden.errors import ConfigError
from trainwarden.records import ActionKind, IncidentKind, IncidentRecord, Severity
from trainwarden.settings import Config, parse

Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=30 * 86_400.0)]
Few = Annotated[int, msgspec.Meta(ge=1, le=100)]
SHIPPED = "remedies.toml"

SEVERITY_OF: Final[Mapping[ActionKind, Severity]] = {
    "ignore": "sev3",  # reattempt: what is lost is sent again, what is slow goes on
    "rebalance": "sev3",
    "move_topology": "sev2",  # all ranks start again
    "checkpoint_job": "sev2",  # nothing by itself, but the first half of a restart
    "validate": "sev3",
    "restart_process": "sev2",
    "restart_job": "sev2",
    "evict_node": "sev1",
    "reconfigure": "sev1",
    "stop_job": "sev1",
}
"""How grave the trouble is that an action is for (Unicron, section 4.2): reattempt, restart, isolate, reconfigure."""


class Rung(Config, frozen=True, kw_only=True, tag_field="action"):
    """One remedy; due once the incident has cost `overhead_s` seconds and every rung before it was tried."""

    overhead_s: Seconds = 0.0

    @property
    def action(self) -> ActionKind:
        """The kind of its actions."""
        tag: ActionKind = self.__struct_config__.tag  # type: ignore[assignment]
        return tag

    @property
    def patience_s(self) -> float:
        """Seconds after it was carried out from which a lasting incident counts as not cured."""
        return 0.0


class Rebalance(Rung, frozen=True, kw_only=True, tag="rebalance"):
    """A new split of micro-batches; the ladder's impact says whether it helped."""

    at_most: Few = 3
    least_gain_ratio: Annotated[float, msgspec.Meta(ge=0.0, le=1.0)] = 0.05
    settle_iterations: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 10
    relief_ratio: Annotated[float, msgspec.Meta(ge=1.0, le=10.0)] = 1.1


class RestartJob(Rung, frozen=True, kw_only=True, tag="restart_job"):
    """All ranks again although the job still trains; once for each incident."""


class CheckpointJob(Rung, frozen=True, kw_only=True, tag="checkpoint_job"):
    """A checkpoint of a job that still trains, so that the restart after it loses no step (Falcon's S4)."""


class StopJob(Rung, frozen=True, kw_only=True, tag="stop_job"):
    """The end of a job that is down; with `after_restarts` once so many restarts in `within_s` have not helped."""

    after_restarts: Few | None = None
    within_s: Seconds = 600.0


class Cure(Rung, frozen=True, kw_only=True):
    """A remedy that ends the incident if it helps at all."""

    persist_s: Seconds = 120.0

    @property
    def patience_s(self) -> float:
        """Its own `persist_s`."""
        return self.persist_s


class RestartProcess(Cure, frozen=True, kw_only=True, tag="restart_process"):
    """All ranks of a job that is down or hangs again, in place; again if the incident outlasts `persist_s`."""


class EvictNode(Cure, frozen=True, kw_only=True, tag="evict_node"):
    """The first suspect's node is taken out of the job.

    With `after_restarts` once so many restarts within `within_s`, for incidents that blame this node, have not helped.
    """

    after_restarts: Few | None = None
    within_s: Seconds = 600.0


class MoveTopology(Cure, frozen=True, kw_only=True, tag="move_topology"):
    """The nodes are numbered anew, so that slow links and ranks cost less; all ranks start again."""


class Validate(Rung, frozen=True, kw_only=True, tag="validate"):
    """The suspects are measured against their peers; no eviction after it in the row without their being confirmed.

    A job is validated again only `rest_s` after the last time, as it stands still meanwhile.
    """

    rest_s: Seconds = 1800.0


class Ignore(Rung, frozen=True, kw_only=True, tag="ignore"):
    """Escalate to the operator: nothing that we could do helps.

    With `persist_s` what failed is left for so long to whoever repeats it in place, as a network's transport does.
    """

    persist_s: Seconds = 0.0

    @property
    def patience_s(self) -> float:
        """Its own `persist_s`."""
        return self.persist_s


AnyRung = (
    Rebalance | RestartProcess | CheckpointJob | RestartJob | StopJob | EvictNode | MoveTopology | Validate | Ignore
)
R = TypeVar("R", bound=Rung)


class _Rungs(Config, frozen=True, kw_only=True):
    rungs: tuple[AnyRung, ...]


class Remedies:
    """The table in force.

    Examples
    --------
    >>> table = load(None)
    >>> [rung.action for rung in table.rungs("slow_compute")], table.rungs("pipeline")
    (['rebalance', 'validate', 'evict_node', 'move_topology', 'checkpoint_job', 'restart_job'], ())
    >>> table.ladder("slow_compute").strategies[0]
    Strategy(kind='rebalance', overhead_s=0.5)
    """

    def __init__(self, table: Mapping[IncidentKind, tuple[AnyRung, ...]]) -> None:
        self._table = dict(table)

    def rungs(self, kind: IncidentKind) -> tuple[AnyRung, ...]:
        """The remedies against `kind`, in order; none if there is nothing to be done or told."""
        return self._table.get(kind, ())

    def find(self, kind: IncidentKind, rung: type[R]) -> R | None:
        """The rung of that type against `kind`, if there is one."""
        return next((found for found in self.rungs(kind) if isinstance(found, rung)), None)

    def restart_of(self, incident: IncidentRecord) -> RestartProcess | None:
        """The rung by which `incident` has its job started again: that of a leak once it has ended its rank."""
        waits = incident.kind == "memory_leak" and incident.evidence.get("ended_at_s") is None
        return None if waits else self.find(incident.kind, RestartProcess)

    def ladder(self, kind: IncidentKind) -> Ladder:
        """A new incident's ladder: what it has cost so far against what its remedies cost."""
        return Ladder(Strategy(rung.action, rung.overhead_s) for rung in self.rungs(kind))

    def replaced(self, raw: Mapping[str, Any], where: str) -> Remedies:
        """This table with the kinds that `raw` names replaced.

        Raises
        ------
        ConfigError
            One sentence that starts with `where`: which kind, what is wrong, what is allowed.
        """
        table = dict(self._table)
        for kind, rungs in raw.items():
            if kind not in get_args(IncidentKind):
                known = ", ".join(get_args(IncidentKind))
                raise ConfigError(f"{where}: there is no kind of incident '{kind}'; there are: {known}")
            read = parse(_Rungs, {"rungs": rungs}, f"{where}: {kind}").rungs
            for mistake in _mistakes(kind, read):
                raise ConfigError(f"{where}: {kind}: {mistake}")
            table[kind] = read  # type: ignore[index]  # it is one of the literal's, as was just seen
        return Remedies(table)


def load(path: str | None) -> Remedies:
    """The shipped table, with the kinds that the file at `path` names replaced.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no TOML, or holds a mistake; one sentence that names file and kind.
    """
    shipped = files("trainwarden.actions.remedies").joinpath(SHIPPED).read_text(encoding="utf-8")
    table = Remedies({}).replaced(tomllib.loads(shipped), SHIPPED)
    if path is None:
        return table
    where = f"engine.remedies: {path}"
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read ({error.strerror})") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: is not valid TOML ({error})") from error
    return table.replaced(raw, where)


def _mistakes(kind: str, rungs: tuple[AnyRung, ...]) -> Iterator[str]:
    """What is wrong with well-formed rungs, or with their order."""
    actions = [rung.action for rung in rungs]
    before_eviction = actions[: actions.index("evict_node")] if "evict_node" in actions else ["validate"]
    if kind == "metric_anomaly" and "validate" not in before_eviction:
        yield "metrics alone take no node out: they say that it is unlike others, not that it is at fault"
    yield from (f"{action} may be a rung only once" for action in actions if actions.count(action) > 1)
    if "checkpoint_job" in actions and "restart_job" not in actions[actions.index("checkpoint_job") :]:
        yield "checkpoint_job cures nothing: restart_job has to come after it"
    if "stop_job" in actions[:-1]:
        yield "nothing can come after stop_job"
    for before, after in pairwise(rungs):
        if after.overhead_s < before.overhead_s:
            yield f"{after.action} costs less than {before.action}, which comes before it"
