"""`trainwarden explain`: one incident in plain words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec
import typer

from trainwarden.actions.remedies.policy import Rules
from trainwarden.cli.ask.jobs_on_bus import bus_of_incident, views_of
from trainwarden.cli.ask.judging.no_incident import say_none
from trainwarden.cli.shared.answers import INCIDENT
from trainwarden.cli.shared.follow import short_id
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.dashboards.explain.explanation import NEAR_S, Explanation, opening
from trainwarden.dashboards.explain.explanation import explain as explained
from trainwarden.dashboards.explain.ladder import ladder
from trainwarden.errors import ConfigError, NotJudged
from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, IncidentKind, IncidentRecord, VerdictRecord
from trainwarden.settings import EngineSettings, load
from trainwarden.topics import ACTIONS, INCIDENTS, VERDICTS

MOST_EVIDENCE: Final = 4
MOST_EXCLUDED: Final = 1
MOST_NEXT: Final = 3


def explain(
    incident: Annotated[
        str | None,
        typer.Argument(metavar="[INCIDENT]", help="Its id or the beginning of it; default the newest incident."),
    ] = None,
    *,
    everything: Annotated[
        bool, typer.Option("--all", help="All evidence, detectors that abstain, the runbook.")
    ] = False,
    bus: BusAddress = None,
    job: JobName = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """One incident in plain words: what, where, the evidence, why not others, and what to do next.

    The exit code is 0 where there was one to explain, or where there is none and all is well; 3 if nothing was judged.

    Without --bus, kept runs and kept results of detect are searched as well.

    Example: trainwarden explain

    Example: trainwarden explain 1f2e3d4c --json
    """
    voice = Voice(json)
    settings = load(config)
    try:
        with bus_of_incident(incident, bus, config, job) as (connected, name):
            told, found = _explained(connected, name, settings.node)
    except NotJudged:
        alone = bus is None and config is None
        return say_none(views_of(bus, config, job), time.time(), voice, alone=alone, incident=None)
    remedies = _remedies(told.kind, settings.engine)
    for text in shown(found, remedies, everything=everything):
        voice.say(text)
    voice.answer({"answer": INCIDENT, **msgspec.to_builtins(found), "remedies": remedies})
    return 0


def _remedies(kind: IncidentKind, engine: EngineSettings) -> Sequence[str]:
    """Of the settings given; a table that only the engine's host has explains no less."""
    try:
        return ladder(kind, Rules.of(engine))
    except ConfigError as error:
        return [f"not known here: {error}"]


def shown(found: Explanation, remedies: Sequence[str], *, everything: bool) -> Iterator[str]:
    """At most 12 lines, or all that is known."""
    excluded = [one for one in found.why_not_others if everything or " abstains: " not in one]
    yield found.what
    yield f"  where: {found.where or 'no single rank or node'}"
    sections = (
        ("evidence", found.evidence, MOST_EVIDENCE),
        ("why not others", excluded, MOST_EXCLUDED),
        ("remedies", ["; then ".join(remedies)] if remedies else [], 1),
        ("next", found.next, MOST_NEXT),
    )
    for title, lines, most in sections:
        for number, line in enumerate(lines[: None if everything else most]):
            yield f"  {title + ':' if number == 0 else '':<16}{line}"
    if everything:
        yield f"\n{found.runbook}"
    else:
        yield f"  {'more:':<16}trainwarden explain {short_id(found.incident)} --all    # all of it, and the runbook"


def _explained(bus: Bus, name: str, here: str) -> tuple[IncidentRecord, Explanation]:
    """Incident `name` and its explanation, of what the bus still keeps."""
    revisions = [
        one.record for one in bus.read(INCIDENTS) if isinstance(one.record, IncidentRecord) and one.record.id == name
    ]
    incident = max(revisions, key=lambda one: one.revision)
    actions = {
        one.record.id: one.record
        for one in bus.read(ACTIONS)
        if isinstance(one.record, ActionRecord) and one.record.incident == name
    }
    return incident, explained(incident, list(actions.values()), opening(incident, _verdicts(bus, incident)), here=here)


def _verdicts(bus: Bus, incident: IncidentRecord) -> Iterator[VerdictRecord]:
    """Verdicts of the incident's job about when it was opened; those of one job come in order."""
    for message in bus.read(VERDICTS, from_time_s=incident.opened_at_s - NEAR_S):
        record = message.record
        if isinstance(record, VerdictRecord) and record.job == incident.job:
            if record.time_s > incident.opened_at_s + NEAR_S:
                return
            yield record
