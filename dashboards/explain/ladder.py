"""What may be done about an incident, from the mildest to the gravest, and how long each may take."""

from __future__ import annotations

from collections.abc import Iterator

from trainwarden.actions.engine.launcher_client import VERBS
from trainwarden.actions.remedies.policy import Rules
from trainwarden.actions.remedies.table import SEVERITY_OF, AnyRung, EvictNode, StopJob
from trainwarden.records import IncidentKind


def ladder(kind: IncidentKind, rules: Rules) -> tuple[str, ...]:
    """One phrase for each remedy against `kind`, in their order: its severity, when it is due, what time it has.

    Examples
    --------
    >>> from trainwarden.settings import EngineSettings
    >>> for phrase in ladder("nic_down", Rules.of(EngineSettings())):
    ...     print(phrase)
    sev3 ignore (34 s to pass)
    sev1 evict_node (86400 s at most, then 120 s to help)
    >>> ladder("pipeline", Rules.of(EngineSettings()))
    ()
    """
    return tuple(
        f"{SEVERITY_OF[rung.action]} {rung.action}" + (f" ({said})" if (said := ", ".join(_said(rung, rules))) else "")
        for rung in rules.remedies.rungs(kind)
    )


def _said(rung: AnyRung, rules: Rules) -> Iterator[str]:
    if isinstance(rung, EvictNode | StopJob) and rung.after_restarts is not None:
        yield f"after {rung.after_restarts} restarts in {rung.within_s:.0f} s"
    if rung.overhead_s:
        yield f"once {rung.overhead_s:.3g} s are lost"
    helps_s, verb = rung.patience_s, VERBS.get(rung.action)
    if verb is not None:
        most = f"{rules.config.deadline_s(verb):.0f} s at most"
        yield f"{most}, then {helps_s:.0f} s to help" if helps_s else most
    elif helps_s:
        yield f"{helps_s:.0f} s to pass"
